"""Small files that ask for much: trees of great depth, many features, large sets, wide layers.  They are refused, or
little is made of them."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.foundation.errors import InputError, ModelFormatError
from rankmill.scorer.exchange.formats import read_from, write_as
from rankmill.scorer.forest.forest import ARRAYS, HEADER, Forest
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.inspect.paths import leaf_paths
from rankmill.scorer.inspect.shap import Explainer
from rankmill.scorer.models import model_file
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.nets.net import Layer
from rankmill.scorer.rerank.memory import MOST_AT_ONCE
from rankmill.scorer.rerank.rerank import rerank
from tests.refusals import refused
from tests.scorer.nets.test_net import drawn_net


def chain(depth, n_features=2, n_trees=1, **changes):
    """Trees in which each right child splits again, by one feature after the other."""
    inner = np.arange(0, 2 * depth, 2)
    n = 2 * depth + 1
    feature, left, right, cut = (np.full(n, -1, dtype=np.int32) for _ in range(4))
    feature[inner], left[inner], right[inner] = np.arange(depth) % n_features, inner + 1, inner + 2
    per_feature = min(1000, -(-depth // n_features))
    cut[inner] = np.arange(depth) // n_features % per_feature
    parts = {
        "node_feature": feature, "node_left": left, "node_right": right, "node_cut": cut,
        "node_missing_left": np.zeros(n, np.uint8), "node_value": np.where(feature < 0, 0.1 * np.arange(n), 0.0),
        "node_gain": np.where(feature < 0, 0.0, 1.0), "node_rows": np.full(n, 10),
    }  # fmt: skip
    return {
        "feature_names": tuple(f"f{i}" for i in range(n_features)),
        "cuts": np.tile(np.arange(per_feature, dtype=np.float32), n_features),
        "cut_starts": np.arange(n_features + 1) * per_feature,
        "tree_starts": np.arange(n_trees + 1) * n,
        "tree_weights": np.ones(n_trees), "base_score": 0.0, "objective": "lambdamart",
        **{name: np.tile(values, n_trees) for name, values in parts.items()}, **changes,
    }  # fmt: skip


def arrays_of(forest):
    """The header and arrays of a forest, as its file has them."""
    return model_file.decode(forest.to_bytes(), "m", "a forest", {1: (HEADER, ARRAYS)})[1:]


def peak_of(work):
    """Run ``work``, and return the most bytes that Python and NumPy allocated meanwhile."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_deepest_tree_that_training_can_grow_is_read_and_a_deeper_one_refused():
    most = model_file.MAX_DEPTH
    forest = Forest.from_bytes(Forest(**chain(most)).to_bytes())
    x = np.array([[-1.0, 0.0], [0.0, 1e9], [1e9, 1e9], [np.nan, np.nan]], dtype=np.float32)
    assert predict(forest, x).tolist() == pytest.approx([0.1, 0.1, 0.1 * 2 * most, 0.1 * 2 * most])
    with refused(ValueError, "tree 0", most):
        Forest(**chain(most + 1))
    header, arrays = arrays_of(forest)
    deeper = {**arrays, **{name: np.asarray(each) for name, each in chain(100_000).items() if name in arrays}}
    deeper = {name: deeper[name].astype(dtype) for name, dtype in ARRAYS}
    with refused(ModelFormatError, "m.rankmill", "tree 0", most):
        Forest.from_bytes(model_file.encode(1, header, deeper), "m.rankmill")


def test_trees_of_many_leaves_that_are_not_deep_are_read():
    """A full tree of 2^17 leaves, as LightGBM can grow."""
    n = 2**18 - 1
    inner = np.arange(n) < n // 2
    both = [np.where(inner, 2 * np.arange(n) + side, -1) for side in (1, 2)]
    changes = {"node_left": both[0], "node_right": both[1], "node_feature": np.where(inner, 0, -1)}
    changes |= {"node_cut": np.where(inner, 0, -1), "node_gain": np.zeros(n), "node_value": np.ones(n)}
    changes |= {"node_missing_left": np.zeros(n), "node_rows": np.ones(n), "tree_starts": np.array([0, n])}
    assert predict(Forest(**chain(1, 1, **changes)), np.zeros((1, 1), dtype=np.float32)).tolist() == [1.0]


@pytest.mark.parametrize("target", ["lightgbm", "xgboost"])
def test_an_import_that_is_too_deep_is_one_line(target, monkeypatch):
    data = write_as(target, Forest(**chain(300))).data
    assert read_from(target, data, "m").forest.n_trees
    monkeypatch.setattr("rankmill.scorer.models.model_file.MAX_DEPTH", 299)
    monkeypatch.setattr("rankmill.scorer.exchange.xgboost.MAX_DEPTH", 299)
    with refused(ModelFormatError, "m.txt", 299, "deeper"):
        read_from(target, data, "m.txt")


def test_paths_of_a_deep_tree_take_memory_by_its_features():
    forest = Forest(**chain(3000))
    assert peak_of(lambda: leaf_paths(forest)) < 8_000_000  # 300 MB if every node of a path were an element
    values = np.array([[5.0, 7.0], [1e9, 1e9]], dtype=np.float32)
    explainer = Explainer(forest)
    shares = explainer.contributions(explainer.paths.codes(values))
    assert shares.sum(axis=(1, 2)) + explainer.expected == pytest.approx(predict(forest, values))


def test_paths_that_need_too_much_memory_are_refused_in_one_line():
    forest = Forest(**chain(2000, n_features=2000, n_trees=130))
    with refused(InputError, "GB", MOST_AT_ONCE // 10**9, "n_rounds"):
        leaf_paths(forest)
    with refused(InputError, 600, 512, "n_rounds"):
        Explainer(Forest(**chain(600, n_features=600)))


def test_sets_that_need_too_much_memory_are_refused_in_one_line():
    """Each tree asks for one of 60,000 categories: a table of 60,000 bytes for a node of 45."""
    n_cuts, n_trees = 60_000, 80_000
    changes = {
        "feature_names": ("a",), "cuts": np.arange(n_cuts, dtype=np.float32), "cut_starts": np.array([0, n_cuts]),
        "set_starts": np.array([0, 1]), "set_members": np.array([5], dtype=np.uint16), "categories": {"a": []},
    }  # fmt: skip
    forest = Forest(**chain(1, 1, n_trees, **changes))
    with refused(InputError, "80,000 trees", "GB"):
        predictor_of(forest)
    with refused(InputError, "GB"):
        leaf_paths(forest)


def test_memory_of_a_reranking_counts_the_sets_of_categories(tmp_path):
    """10,000 trees whose sets take 600 MB, in a file of less than a megabyte; of the first 1,000 they take 60."""
    n_cuts, n_trees = 60_000, 10_000
    changes = {
        "feature_names": ("a",), "cuts": np.arange(n_cuts, dtype=np.float32), "cut_starts": np.array([0, n_cuts]),
        "set_starts": np.array([0, 1]), "set_members": np.array([5], dtype=np.uint16), "categories": {"a": []},
    }  # fmt: skip
    forest = Forest(**chain(1, 1, n_trees, **changes))
    (tmp_path / "c.csv").write_text("qid,doc_id,a\nq,d,1\nq,e,2\n")
    with refused(InputError, "memory", "512MB", "models"):
        rerank(tmp_path / "c.csv", forest, tmp_path / "out", memory="512MB")
    assert not (tmp_path / "out").exists()
    assert rerank(tmp_path / "c.csv", forest, tmp_path / "out", memory="512MB", n_rounds=1000).rows == 2


def test_contributions_of_a_query_that_need_too_much_memory_are_refused(tmp_path):
    n = 2000
    Forest(
        **chain(1, n_features=n, n_trees=n, node_feature=np.stack([np.arange(n), *[np.full(n, -1)] * 2], 1).ravel())
    ).save(tmp_path / "wide.rankmill")
    rows = "\n".join(f"q,{i}" + ",1" * n for i in range(50))
    (tmp_path / "c.csv").write_text(f"qid,doc_id,{','.join(f'f{i}' for i in range(n))}\n{rows}\n")
    arguments = ["inspect", "shap", str(tmp_path / "wide.rankmill"), "--on", str(tmp_path / "c.csv")]
    done = CliRunner().invoke(app, [*arguments, "--interactions"])
    assert done.exit_code
    assert "50 documents" in f"{done.output}{done.exception}"
    assert CliRunner().invoke(app, arguments).exit_code == 0


def test_leaves_of_a_deep_tree_are_written(tmp_path):
    Forest(**chain(20_000)).save(tmp_path / "deep.rankmill")
    (tmp_path / "c.csv").write_text("qid,doc_id,f0,f1\n1,1,3,4\n1,2,5,5\n")
    arguments = ["leaves", tmp_path / "deep.rankmill", "--on", tmp_path / "c.csv", "-o", tmp_path / "l.parquet"]
    done = CliRunner().invoke(app, ["inspect", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    assert [len(leaves) for leaves in pq.read_table(tmp_path / "l.parquet")["leaves"].to_pylist()] == [1, 1]


def test_a_net_of_very_wide_layers_takes_little_memory_and_gives_the_same_bits():
    net, rng = drawn_net("linear", widths=()), np.random.default_rng(0)
    layers, n = [], net.inputs.n_inputs
    for width in (65_536, 1, 65_536, 1, 65_536, 1):
        layers.append(Layer(1e-4 * rng.normal(size=(n, width)), rng.normal(size=width)))
        n = width
    wide = replace(net, layers=tuple(layers), top=np.ones(1), activation="tanh")
    values = rng.normal(size=(300, 5)).astype(np.float32)
    wide.predict(values[:1])
    scores = []
    assert peak_of(lambda: scores.append(wide.predict(values))) < 150_000_000  # 800 MB with whole turns
    assert np.array_equal(scores[0][:3], wide.predict(values[:3]))


def test_nested_json_of_xgboost_is_one_line():
    with refused(ModelFormatError, "m.json"):
        read_from("xgboost", b'{"learner":' + b"[" * 200_000, "m.json")
    with pytest.raises((ModelFormatError, InputError)):
        read_from("xgboost", json.dumps({"learner": {}}).encode(), "m.json")
