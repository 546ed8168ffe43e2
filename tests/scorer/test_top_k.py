"""What is dropped before the sort could not have been kept by it, and is counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.scorer.rerank import rerank
from rankmill.scorer.top_k import BYTES_OF_A_QUERY, BestScores
from tests.scorer.candidate_files import random_candidates, ranked, read_ranked, write_parquet
from tests.scorer.forests import random_forest

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(-1, 2)), max_size=30)


@settings(max_examples=60, deadline=None)
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
