"""Nets and blends re-rank out of core: each score is that of the document alone, whatever is read and held at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import InputError
from rankmill.scorer.models import Blend, predictor_of
from rankmill.scorer.nets.net import Layer
from rankmill.scorer.rerank import rerank
from tests.refusals import refused
from tests.scorer.candidate_files import as_table, random_candidates, read_ranked, tree_of, write_letor
from tests.scorer.forests import random_forest
from tests.trainer.nets.net_case import planted_data, trained


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
