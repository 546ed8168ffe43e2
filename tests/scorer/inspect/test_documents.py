"""Which documents a model is looked into at: the same whatever the order of rows, files and blocks."""

from hashlib import blake2b

import numpy as np
import pytest

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.inspect import documents as reading
from rankmill.scorer.inspect.contributions import why
from rankmill.scorer.inspect.documents import read_documents
from rankmill.scorer.inspect.paths import leaf_paths
from rankmill.scorer.inspect.shap import Explainer, shap_values
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.options import Selection
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import random_candidates, write_letor, write_parquet


@pytest.fixture(scope="module")
def paths():
    return leaf_paths(random_forest(5, n_trees=10, max_leaves=12))


def same(one, other):
    assert (one.qids, one.doc_ids, one.starts.tolist()) == (other.qids, other.doc_ids, other.starts.tolist())
    assert np.array_equal(one.values, other.values, equal_nan=True)
    assert np.array_equal(one.grades, other.grades)
    assert one.n_read == other.n_read


def test_all_documents_by_query_then_id(tmp_path, paths):
    rows = random_candidates(1)
    found = read_documents([write_letor(tmp_path / "a.txt", rows)], predictor_of(paths.forest))
    expected = sorted(rows, key=lambda row: (row[1].encode(), row[2].encode()))
    assert [found.qids[q] for q in found.query] == [row[1] for row in expected]
    assert list(found.doc_ids) == [row[2] for row in expected]
    assert found.grades.tolist() == [row[0] for row in expected]
    values = np.stack([row[3] for row in expected])
    assert np.array_equal(found.values, values[:, list(paths.features)], equal_nan=True)
    assert np.array_equal(paths.codes(found.values), paths.codes(values))


@pytest.mark.parametrize("block", [600, 16 << 20])
@pytest.mark.parametrize("n", [1, 11, 99])
def test_a_draw_of_queries_is_a_matter_of_their_ids_alone(tmp_path, paths, monkeypatch, block, n):
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    rows = random_candidates(2)
    one = read_documents(
        [write_letor(tmp_path / "a.txt", rows)], predictor_of(paths.forest), Selection(n_queries=n, seed=3)
    )
    parts = [write_parquet(tmp_path / "b.parquet", rows[200:]), write_parquet(tmp_path / "c.parquet", rows[:200][::-1])]
    same(one, read_documents(parts, predictor_of(paths.forest), Selection(n_queries=n, seed=3)))
    keys = {q: blake2b(q.encode(), digest_size=8, key=(3).to_bytes(8, "little")).digest() for q in {r[1] for r in rows}}
    assert set(one.qids) == set(sorted(keys, key=keys.__getitem__)[:n])
    assert len(one.doc_ids) == sum(row[1] in one.qids for row in rows)


def test_queries_by_name(tmp_path, paths):
    rows = random_candidates(3)
    path = write_letor(tmp_path / "a.txt", rows)
    found = read_documents([path], predictor_of(paths.forest), Selection(qids=("q7", "q2"), n_queries=1))
    assert found.qids == ("q2", "q7")
    with refused(InputError, "'q77'", "'q7'"):
        read_documents([path], predictor_of(paths.forest), Selection(qids=("q7", "q77")))


def test_documents_that_cannot_be_used_are_refused(tmp_path, paths, monkeypatch):
    path = write_letor(tmp_path / "a.txt", random_candidates(3))
    with refused(InputError, "split", "not a dataset"):
        read_documents([path], predictor_of(paths.forest), Selection(split="test"))
    with refused(InputError, "n_queries", "0", "or more"):
        read_documents([path], predictor_of(paths.forest), Selection(n_queries=-1))
    monkeypatch.setattr(reading, "MAX_BYTES", 100)
    with refused(InputError, "0", "MB", "n_queries"):
        read_documents([path], predictor_of(paths.forest))
    bare = tmp_path / "bare.csv"
    bare.write_text("qid,f1,f2,f3,f4,f5\nq,1,2,3,4,5\n")
    monkeypatch.undo()
    with refused(CandidatesRejected, "grades"):
        read_documents([bare], predictor_of(paths.forest)).graded()


def test_why_one_document_stands_above_another(paths):
    forest = paths.forest
    values = np.stack([row[3] for row in random_candidates(4)[:2]])
    found = why(forest, *values)
    assert found.scores == tuple(predict(forest, values))
    assert found.outputs == pytest.approx(found.scores, abs=1e-12)
    total = sum(one.difference for one in found.differences)
    assert total == pytest.approx(found.scores[0] - found.scores[1], abs=1e-12)
    sizes = [abs(one.difference) for one in found.differences]
    assert sizes == sorted(sizes, reverse=True)
    whole = shap_values(forest, values).values[:, 0]
    for one in found.differences:
        assert one.contributions == tuple(whole[:, forest.feature_names.index(one.feature)])
    back = why(forest, *values[::-1])
    assert [one.difference for one in back.differences] == [-one.difference for one in found.differences]
    with refused(InputError, "output", "0..0", "1"):
        why(forest, *values, output=1)
    assert Explainer(forest).paths.features == paths.features
