"""What is dropped before the sort could not have been kept by it, and is counted."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.pipeline.sources.grades import UNKNOWN_GRADE
from rankmill.scorer.rerank import rerank
from rankmill.scorer.top_k import BYTES_OF_A_QUERY, BestScores, can_be_kept, counts_of_dropped, runs_of
from tests.scorer.candidate_files import as_table, random_candidates, ranked, read_ranked, write_parquet
from tests.scorer.forests import random_forest
from tests.scorer.test_rerank import tree_of

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(-1, 2)), max_size=30)


@settings(max_examples=200, deadline=None)
@given(ROWS, st.integers(1, 5))
def test_a_row_is_dropped_only_if_enough_of_its_run_are_above_it(rows, top_k):
    qid, scores = pa.array([row[0] for row in rows], pa.string()), np.array([row[1] for row in rows], dtype=np.float64)
    grade = np.array([UNKNOWN_GRADE if row[2] < 0 else row[2] for row in rows], dtype=np.int32)
    starts = runs_of(qid)
    assert starts.tolist() == [i for i in range(len(rows)) if i == 0 or rows[i][0] != rows[i - 1][0]] + [len(rows)]
    keep = can_be_kept(starts, scores, top_k)
    keep = np.ones(len(rows), dtype=bool) if keep is None else keep
    dropped = []
    for begin, end in itertools.pairwise(starts):
        for i in range(begin, end):
            above = sum(scores[j] > scores[i] for j in range(begin, end))
            assert keep[i] == (above < top_k)
            dropped += [] if keep[i] or rows[i][2] < 0 else [(rows[i][0], rows[i][2])]
    ids = qid.dictionary_encode()
    table = counts_of_dropped(ids.dictionary, ids.indices.to_numpy(), grade, keep)
    found = Counter()
    for row in [] if table is None else table.to_pylist():
        found[row["qid"], row["grade"]] += row["count"]
    assert found == Counter(dropped)
    assert counts_of_dropped(ids.dictionary, ids.indices.to_numpy(), None, keep) is None


@settings(max_examples=200, deadline=None)
@given(st.lists(ROWS, max_size=6), st.integers(1, 5), st.integers(0, 4))
def test_best_scores_strike_out_what_has_enough_above_it_in_the_parts_so_far(parts, top_k, most_queries):
    bars = BestScores(top_k, most_queries * (8 * top_k + BYTES_OF_A_QUERY))
    before: list[tuple[str, int]] = []
    for part in parts:
        qid, scores = pa.array([row[0] for row in part], pa.string()), np.array([row[1] for row in part], np.float64)
        keep = np.array([row[2] >= 0 for row in part], dtype=bool)  # others have been struck out already
        were = [(row[0], row[1]) for row, kept in zip(part, keep, strict=True) if kept]
        bars.strike_out(qid.dictionary_encode(), scores, keep)
        before += were
        for i, row in enumerate(part):
            above = sum(other[0] == row[0] and other[1] > row[1] for other in before)
            assert not keep[i] or row[2] >= 0
            if most_queries >= 3:  # room for all
                assert keep[i] == (row[2] >= 0 and above < top_k)
            else:
                assert keep[i] == (row[2] >= 0) or above >= top_k


@pytest.mark.parametrize("order", ["grouped", "shuffled", "returning"])
def test_lists_and_counts_are_the_same_however_queries_lie_in_the_input(tmp_path, order):
    forest = random_forest(2, n_trees=3, max_leaves=4)  # few leaves: many scores are equal
    rows = random_candidates(9, n_rows=1500, n_queries=7, nameless=0.1)
    if order != "shuffled":
        rows = sorted(rows, key=lambda row: row[1])
    if order == "returning":
        rows = rows[200:900] + rows[:200] + rows[900:]
    source = write_parquet(tmp_path / "c.parquet", rows)
    expected = Counter((qid, grade) for grade, qid, _, _ in rows)
    for top_k in (1, 10, 300):
        rerank(source, forest, tmp_path / "out", top_k=top_k, overwrite=True)
        assert read_ranked(tmp_path / "out") == ranked(forest, rows, top_k)
        counts = pq.read_table(tmp_path / "out" / "_grades.pq").to_pylist()
        assert [((c["qid"], c["grade"]), c["count"]) for c in counts] == sorted(expected.items())


def test_the_same_bytes_for_any_groups_of_rows_batches_and_threads(tmp_path, monkeypatch):
    forest = random_forest(3, n_trees=5, max_leaves=8)
    rows = sorted(random_candidates(8, n_rows=900, n_queries=5, nameless=0.3), key=lambda row: row[1])
    seen = set()
    for by_column in (True, False):
        monkeypatch.setattr("rankmill.scorer.scoring.NARROW", 160 if by_column else 1 << 60)
        for n_threads, group, most in ((1, 900, 65536), (1, 7, 1), (2, 100, 7), (3, 64, 4096), (3, 1, 10)):
            monkeypatch.setattr("rankmill.pipeline.sources.columnar.ROWS", (1, most))
            monkeypatch.setattr("rankmill.pipeline.sources.parquet.PART_ROWS", most)
            pq.write_table(as_table(rows), tmp_path / "c.parquet", row_group_size=group)
            rerank(tmp_path / "c.parquet", forest, tmp_path / "out", top_k=9, n_threads=n_threads, overwrite=True)
            seen.add(tuple(sorted(tree_of(tmp_path / "out").items())))
    assert len(seen) == 1
