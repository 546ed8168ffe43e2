"""Every model that can be made, read, registered or imported scores every document with a finite number, without a
warning."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.foundation.errors import ConversionRefused, InputError, InvalidParameter, ModelFormatError
from rankmill.scorer.exchange.formats import WRITERS, read_from, write_as
from rankmill.scorer.forest.forest import ARRAYS, HEADER, Forest
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.inspect.dependence import interactions
from rankmill.scorer.inspect.optimality import Moves, local_optimality
from rankmill.scorer.inspect.paths import leaf_paths
from rankmill.scorer.inspect.shap import Explainer
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.models import model_file
from rankmill.scorer.models.loading import HEADER as BLEND_HEADER
from rankmill.scorer.models.loading import Blend, predictor_of, read_model
from rankmill.scorer.nets.net import ARRAYS as NET_ARRAYS
from rankmill.scorer.nets.net import HEADER as NET_HEADER
from rankmill.scorer.nets.net import Layer, Net
from rankmill.scorer.rerank.memory import MOST_AT_ONCE
from rankmill.scorer.rerank.rerank import rerank
from rankmill.trainer.candidates.blending import weights_of
from rankmill.trainer.candidates.combined_forests import merged
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.nets.test_net import drawn_net

HUGE = [0.0, 1.0, -1.0, 1e-300, 1e30, 1e150, 1e200, 1e299, 1.7e308]
weight = st.sampled_from([sign * size for size in HUGE for sign in (1.0, -1.0)])


def scaled(forest, factor, weights=1.0):
    """The forest with its leaves times ``factor`` and its trees times ``weights``."""
    with np.errstate(over="ignore"):
        return replace(
            forest, node_value=forest.node_value * factor, tree_weights=forest.tree_weights * weights, base_score=0.0
        )


def awful(n_columns):
    """Documents of the least and greatest values, in both widths."""
    far = [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 3.4028235e38, -3.4028235e38, 1e-45]
    values = np.repeat(np.array(far)[:, None], n_columns, axis=1)
    return [values.astype(np.float32), np.concatenate([values, np.full((1, n_columns), 1e300)])]


def all_finite(model):
    """Whether every score of the model, also after a trip through its file, is finite and within its bound."""
    again = read_model(model.to_bytes())
    for values in awful(model.n_features):
        scores = predictor_of(again).scores(values)
        assert np.all(np.isfinite(scores))
        assert np.all(np.abs(scores) <= model.score_bound * (1 + 1e-5))
    return True


def blend_file(parts, weights, base_score=0.0):
    """The bytes of a blend that nobody checked."""
    files = [part.to_bytes() for part in parts]
    arrays = {
        "weights": np.array(weights, dtype=np.float64),
        "part_starts": np.cumsum([0, *map(len, files)]).astype(np.int64),
        "part_bytes": np.frombuffer(b"".join(files), dtype=np.uint8),
    }
    return model_file.encode(model_file.BLEND, {name: {} for name in BLEND_HEADER} | {"base_score": base_score}, arrays)


@settings(max_examples=25)
@given(st.lists(weight, min_size=2, max_size=2), weight, st.lists(weight, min_size=2, max_size=2))
def test_a_blend_is_refused_or_finite_made_and_loaded(weights, base_score, leaves):
    names = tuple("abcde")
    parts = [drawn_net()]
    for seed, leaf in enumerate(leaves):
        try:
            parts.append(scaled(random_forest(seed, names=names, categorical=0), leaf))
        except (ValueError, InvalidParameter):
            return
    parts = parts[1:]
    try:
        blend = Blend(parts=parts, weights=np.array(weights), base_score=base_score)
    except InvalidParameter as error:
        assert "score" in str(error)  # noqa: PT017 - either way is right
        with pytest.raises(ModelFormatError):
            read_model(blend_file(parts, weights, base_score))
    else:
        assert all_finite(blend)
        assert read_model(blend_file(parts, weights, base_score)).to_bytes() == blend.to_bytes()


def test_the_bound_of_a_blend_counts_its_weights_its_base_and_grades_of_links():
    part = scaled(random_forest(1), 1e200)
    for weights, base in (([1e200], 0.0), ([1.0], 1.7e308), ([-1e200], 0.0)):
        with refused(InvalidParameter, "score", "1e+300"):
            Blend(parts=(part,), weights=np.array(weights), base_score=base)
        with refused(ModelFormatError, "b.rankmill", "score", "1e+300"):
            read_model(blend_file([part], weights, base), "b.rankmill")
    linked = random_forest(1, n_outputs=3, link="softmax_gain")
    with refused(InvalidParameter, "score"):
        Blend(parts=(scaled(linked, 1e-30),), weights=np.array([1e300]))
    assert all_finite(Blend(parts=(linked, scaled(random_forest(2), 1e250)), weights=np.array([1e280, 0.0])))


@pytest.mark.parametrize(("transform", "activation"), [("linear", "tanh"), ("log1p", "relu"), ("quantile", "identity")])
def test_a_net_is_refused_or_finite(transform, activation):
    net = drawn_net(transform, activation=activation)
    for centre, scale in [(1e308, 1e308), (0.0, 1e308), (-1e308, 1e-308), (0.0, 0.0), (1e308, -1e308), (1.0, 5e-324)]:
        assert all_finite(
            replace(net, inputs=replace(net.inputs, centres=np.full(3, centre), scales=np.full(3, scale)))
        )
    for factor in (1e10, 1e25, 1e30, 1e38, 1e300):
        layers = tuple(layer._replace(weights=layer.weights.astype(np.float64) * factor) for layer in net.layers)
        for changes in ({"top": net.top.astype(np.float64) * factor}, {"layers": layers}, {"start": float(2.0**90)}):
            try:
                changed = replace(net, **changes)
            except ValueError as error:
                assert "\n" not in str(error)  # noqa: PT017 - either way is right
            else:
                assert all_finite(changed)


def test_a_start_beyond_float32_in_the_file_of_a_net_is_one_line():
    _, header, arrays = model_file.decode(
        drawn_net().to_bytes(), "m", "a net", {model_file.NET: (NET_HEADER, NET_ARRAYS)}
    )
    for start in (1e300, -1e300, 3.5e38, 2.0**120):
        with refused(ModelFormatError, "n.rankmill"):
            Net.from_bytes(model_file.encode(model_file.NET, header | {"start": start}, arrays), "n.rankmill")


def test_weights_of_trees_times_leaves_and_values_of_inner_nodes_are_bounded():
    forest = random_forest(3)
    assert all_finite(scaled(forest, 1e-100, 1e300))
    for leaves, weights in ((1e200, 1e200), (1e299, 1e5), (1.0, 1e305)):
        with pytest.raises(ValueError, match=r"score|finite"):
            scaled(forest, leaves, weights)
    inner = np.where(forest.node_feature >= 0, 1e308, forest.node_value)
    with refused(InvalidParameter, "score"):
        replace(forest, node_value=inner)
    kept = replace(forest, node_value=np.where(forest.node_feature >= 0, 1e250, forest.node_value))
    for target in WRITERS:
        try:
            written = write_as(target, kept, missing="zero")
        except ConversionRefused:
            continue
        assert written.bound < 1.0  # leaves alone decide how exact a score is


def test_merging_is_refused_or_finite():
    one, two = scaled(random_forest(1), 1e200), random_forest(2)
    for weights in ([1e200, 1.0], [1e308, 1e308], [1.7e308, 1.0], [1.0, np.inf]):
        for mean in (True, False):
            try:
                forest = merged([one, two], weights, mean=mean)
            except InvalidParameter as error:
                assert "\n" not in str(error)  # noqa: PT017 - either way is right
            else:
                assert all_finite(forest)
    with refused(InvalidParameter, "score"):
        merged([one, two], [1e200, 1.0], mean=False)


def test_the_spread_of_scores_of_any_size_is_exact():
    rng = np.random.default_rng(0)
    starts = np.arange(0, 201, 10)
    scores, grades = rng.normal(size=(2, 200)), rng.integers(0, 3, 200).astype(np.int32)
    metric, policy = parse_metric("ndcg@10"), Policy(max_grade=3)
    plain = weights_of(list(scores), grades, starts, metric, policy)
    far = weights_of([np.ldexp(scores[0], 900), np.ldexp(scores[1], -900)], grades, starts, metric, policy)
    assert (far.shares, far.together) == (plain.shares, plain.together)
    assert far.spreads == (np.ldexp(plain.spreads[0], 900), np.ldexp(plain.spreads[1], -900))


def test_inspection_of_huge_scores_is_that_of_small_ones():
    forest = random_forest(5, n_features=3)
    far = replace(forest, node_value=np.ldexp(forest.node_value, 700), base_score=0.0)
    values = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
    found, same = (interactions(each, values, over="documents") for each in (far, forest))
    assert [(each.features, each.h) for each in found] == [(each.features, each.h) for each in same]
    queries = PreparedQueries(np.arange(60, dtype=np.int32) % 3, np.arange(0, 61, 6), Policy(max_grade=3))
    metric = parse_metric("ndcg@10")
    near = replace(forest, base_score=0.0)
    assert local_optimality(far, values, queries, metric, Moves(p0=0.3)) == local_optimality(
        near, values, queries, metric, Moves(p0=0.3)
    )


@pytest.mark.parametrize("written", ["1e300", "-1E300", "inf", "nan", "1e39"])
def test_a_base_score_beyond_float32_of_xgboost_is_one_line(written):
    model = json.loads(write_as("xgboost", random_forest(1)).data)
    model["learner"]["learner_model_param"]["base_score"] = written
    with refused(ModelFormatError, "m.json"):
        read_from("xgboost", json.dumps(model).encode(), "m.json")


# ---- small files that ask for much are refused, or little is made of them --------------------------------------------


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
