"""Several models in one pass write what each of them would write alone."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.models.loading import Blend, predictor_of
from rankmill.scorer.models.model_service import find_models
from rankmill.scorer.nets.net import Layer
from rankmill.scorer.rerank.rerank import rerank, rerank_several
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import as_table, random_candidates, read_ranked, tree_of, write_letor
from tests.trainer.nets.net_case import planted_data, trained


@pytest.fixture(scope="module")
def rows():
    return random_candidates(4, n_rows=400, n_queries=6, nameless=0.1)


@pytest.fixture(scope="module")
def forests():
    names = [f"f{i}" for i in range(1, 6)]
    return {
        "one": random_forest(5, n_trees=3, max_leaves=4, names=names),
        "web@2": random_forest(3, n_features=5, n_trees=4, names=names, n_outputs=2, link="softmax_gain"),
        "none": random_forest(7, n_features=5, n_trees=2, max_leaves=1, names=names),
    }


@pytest.mark.parametrize(("suffix", "top_k"), [("txt", None), ("parquet", 10)])
def test_each_list_has_the_bytes_of_a_run_of_its_own(tmp_path, rows, forests, suffix, top_k):
    source = tmp_path / f"c.{suffix}"
    if suffix == "txt":
        write_letor(source, rows)
    else:
        pq.write_table(as_table(rows), source, row_group_size=50)
    models = {label: (forest, None) for label, forest in forests.items()}
    reports = rerank_several(source, models, tmp_path / "all", top_k=top_k, n_threads=2)
    manifest = json.loads((tmp_path / "all" / "_manifest.json").read_text())
    assert [model["label"] for model in manifest["models"]] == list(forests)
    for (label, forest), report in zip(forests.items(), reports, strict=True):
        alone = rerank(source, forest, tmp_path / "alone" / label, top_k=top_k)
        assert tree_of(tmp_path / "all" / label) == tree_of(tmp_path / "alone" / label)
        assert (report.rows, report.rows_written, report.files) == (alone.rows, alone.rows_written, alone.files)
    before = tree_of(tmp_path / "all")
    with refused(InputError, "overwrite"):
        rerank_several(source, models, tmp_path / "all", top_k=top_k)
    rerank_several(source, models, tmp_path / "all", top_k=top_k, overwrite=True, n_threads=1, memory="600MB")
    assert tree_of(tmp_path / "all") == before
    with refused(InputError, "all", "several models", "all/none", "all/one"):
        evaluate(tmp_path / "all")


def test_what_cannot_be_done_is_refused_with_a_reason(tmp_path, rows, forests):
    source = write_letor(tmp_path / "c.txt", rows)
    two = {label: (forests[label], None) for label in ("one", "web@2")}
    with refused(InputError, "out.run", "folder"):
        rerank_several(source, two, tmp_path / "out.run")
    for label in ("", ".", "a/b"):
        with refused(InputError, "name of a folder"):
            rerank_several(source, {label: two["one"]}, tmp_path / "out")
    other = random_forest(5, info={"absent": "missing"})
    with refused(InputError, "one", "x", "absent", "'zero'", "'missing'"):
        rerank_several(source, {"one": two["one"], "x": (other, None)}, tmp_path / "out")
    rerank_several(source, {"one": two["one"], "x": (other, None)}, tmp_path / "out", absent="zero")
    foreign = random_forest(5, names=["a", "b", "c", "d", "e"])
    with refused(CandidatesRejected, "model", "LETOR"):
        rerank_several(source, {"one": two["one"], "x": (foreign, None)}, tmp_path / "out", overwrite=True)


def test_files_of_one_name_are_refused(tmp_path, forests):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        forests["one"].save(tmp_path / folder / "m.rankmill")
    forests["one"].save(tmp_path / "n.rankmill")
    with refused(InputError, "both", "'m'", "OUT"):
        find_models([str(tmp_path / folder / "m.rankmill") for folder in ("a", "b")], tmp_path)
    found = find_models([str(tmp_path / "a" / "m.rankmill"), str(tmp_path / "n.rankmill")], tmp_path)
    assert list(found) == ["m", "n"]
    assert isinstance(found["n"][0], Forest)


# ---- Nets and blends re-rank out of core: each score is that of the document alone, whatever is read and


@pytest.fixture(scope="module")
def models():
    data = planted_data(n_queries=40)
    net = trained(data, epochs=1, layers=(40, 8)).net
    net = replace(net, feature_names=tuple(f"f{i + 1}" for i in range(net.n_features)))
    forest = random_forest(3, n_features=net.n_features, names=list(net.feature_names))
    return {"net": net, "blend": Blend(parts=(net, forest), weights=np.array([2.0, 0.5]))}


@pytest.mark.parametrize("kind", ["net", "blend"])
def test_lists_do_not_depend_on_groups_of_rows_threads_or_memory(models, kind, tmp_path):
    model = models[kind]
    rows = random_candidates(4, n_rows=3000, n_queries=9, n_features=model.n_features)
    values = np.array([row[3] for row in rows], dtype=np.float32)
    expected = dict(zip([row[2] for row in rows], predictor_of(model).scores(values).tolist(), strict=True))
    found = []
    for place, (groups, n_threads, memory) in enumerate([(3000, 1, "2GB"), (70, 2, "512MB"), (1100, 3, "700MB")]):
        (tmp_path / str(place)).mkdir()
        source = tmp_path / str(place) / "c.parquet"
        pq.write_table(as_table(rows), source, row_group_size=groups)
        rerank(source, model, tmp_path / str(place) / "out", n_threads=n_threads, memory=memory)
        found.append(read_ranked(tmp_path / str(place) / "out"))
    assert found[0] == found[1] == found[2]
    assert {doc_id: score for _, doc_id, score, _, _ in found[0]} == expected
    text = write_letor(tmp_path / "c.txt", rows)
    for n_threads in (1, 2):
        rerank(
            text, model, tmp_path / f"text {n_threads}" / "out", n_threads=n_threads, memory="512MB", absent="missing"
        )
    assert tree_of(tmp_path / "text 1" / "out") == tree_of(tmp_path / "text 2" / "out")
    assert [row[:4] for row in read_ranked(tmp_path / "text 1" / "out")] == [row[:4] for row in found[0]]


def test_a_net_that_does_not_fit_into_the_memory_is_refused(models, tmp_path):
    net, n = models["net"], 3200
    layers = tuple(Layer(np.zeros((k, n)), np.zeros(n)) for k in (net.inputs.n_inputs, n))
    source = write_letor(tmp_path / "c.txt", random_candidates(1, n_features=net.n_features))
    with refused(InputError, "memory", "512MB", "models"):
        rerank(source, replace(net, layers=layers, top=np.zeros(n)), tmp_path / "out", memory="512MB", absent="missing")
    assert not (tmp_path / "out").exists()
