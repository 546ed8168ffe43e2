"""What is dropped before the sort could not have been kept by it, and is counted."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import DataRejected, MalformedRow
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.grades import UNKNOWN_GRADE
from rankmill.pipeline.read.parquet import ParquetSource
from rankmill.scorer.rerank import score as scoring
from rankmill.scorer.rerank import spill as sorting
from rankmill.scorer.rerank.rerank import rerank
from rankmill.scorer.rerank.top_k import BYTES_OF_A_QUERY, BestScores, counts_of_dropped
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import random_candidates, ranked, read_ranked, tree_of, write_parquet

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(-1, 2)), max_size=30)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, max_size=6), st.integers(1, 5), st.integers(0, 4))
def test_best_scores_strike_out_what_has_enough_above_it_in_the_parts_so_far(parts, top_k, most_queries):
    bars = BestScores(top_k, most_queries * (8 * top_k + BYTES_OF_A_QUERY))
    before = []
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


GRADED = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-1, 0, 2, 10**6]), st.booleans()), max_size=30)


@given(GRADED, st.integers(1, 3))
def test_grades_of_dropped_rows_are_counted_by_query_and_grade(rows, highest):
    rows = [(query, min(grade, 10**6 if highest == 3 else highest), kept) for query, grade, kept in rows]
    query, grade = np.array([row[0] for row in rows], np.int32), np.array([row[1] for row in rows], np.int32)
    grade[grade < 0] = UNKNOWN_GRADE
    counted = counts_of_dropped(pa.array("dcba"), query, grade, np.array([row[2] for row in rows], bool))
    expected = Counter(("dcba"[query], grade) for query, grade, kept in rows if not kept and grade >= 0)
    found = [] if counted is None else counted.to_pylist()
    assert {(row["qid"], row["grade"]): row["count"] for row in found} == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("order", ["grouped", "shuffled", "returning"])
@pytest.mark.parametrize("sorted_in_parts", [False, True])  # then rows below the top are left out once more
def test_lists_and_counts_are_the_same_however_queries_lie_in_the_input(tmp_path, monkeypatch, order, sorted_in_parts):
    if sorted_in_parts:
        monkeypatch.setattr(sorting, "PARTS_OF_THE_LIMIT", 1 << 20)
        monkeypatch.setattr("rankmill.pipeline.read.parquet.PART_ROWS", 100)
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


# ---- Tables whose columns are read one at a time give the scores and the complaints of tables that are re


N = 700
NAMES = ("half", "single", "double", "whole", "flag", "holes", "none", "a.b", "ä")


def columns():
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(len(NAMES), N)) * 3
    holes = pa.array(numbers[5], pa.float32(), mask=rng.random(N) < 0.3)
    return {
        "qid": pa.array([f"q{i}" for i in rng.integers(0, 6, N)]).dictionary_encode(),
        "doc_id": pa.array([None if i % 7 == 0 else "" if i % 7 == 1 else f"d{i % 50}" for i in range(N)]),
        "grade": pa.array([None if i % 5 == 0 else i % 3 for i in range(N)], pa.int8()),
        "half": pa.array(numbers[0].astype(np.float16)),
        "single": pa.array(numbers[1].astype(np.float32)),
        "double": pa.array(np.where(rng.random(N) < 0.1, 1e300, numbers[2])),
        "whole": pa.array(numbers[3].astype(np.int64)),
        "flag": pa.array(numbers[4] > 0),
        "holes": holes,
        "none": pa.nulls(N),
        "a.b": pa.array(numbers[7].astype(np.float32)),
        "unused": pa.array(["text"] * N),
        "ä": pa.array(numbers[8].astype(np.float32)),
    }


@pytest.mark.parametrize("group", [100, 13])
def test_columns_of_any_kind_and_groups_of_any_size(tmp_path, monkeypatch, group):
    categorical = 4 if group == 100 else 0
    forest = random_forest(4, n_features=len(NAMES), n_trees=9, max_leaves=9, names=NAMES, categorical=categorical)
    table = pa.table(columns())
    written = pa.concat_tables([table.slice(0, 100), table.slice(0, 0), table.slice(100)])
    with pq.ParquetWriter(tmp_path / "c.parquet", table.schema) as writer:
        writer.write_table(written.slice(0, 100), row_group_size=group)
        writer.write_table(written.slice(0, 0))
        writer.write_table(written.slice(100), row_group_size=group)
    seen = set()
    for narrow in (160, 1 << 60):
        monkeypatch.setattr(scoring, "NARROW", narrow)
        monkeypatch.setattr("rankmill.pipeline.read.parquet.PART_ROWS", 30 if narrow == 160 else 65536)
        for top_k in (None, 5):
            rerank(tmp_path / "c.parquet", forest, tmp_path / "out", top_k=top_k, overwrite=True, n_threads=2)
            seen.add((top_k, tuple(sorted(tree_of(tmp_path / "out").items()))))
    assert len(seen) == 2


def test_reading_may_begin_at_any_row(tmp_path):
    pq.write_table(pa.table(columns()), tmp_path / "c.parquet", row_group_size=64)
    source = ParquetSource(tmp_path / "c.parquet", ReadOptions(grade_required=False, ignore=("unused",)))
    batches = list(source.batches())
    ids = [qid for batch in batches for qid in batch.qid.to_pylist()]
    whole = np.concatenate([batch.values for batch in batches])
    names = source.columns
    assert names is not None
    for first in (0, 1, 64, 65, N):
        for most in (0, 64, N):
            values = np.full((N - first, len(names)), 7, np.float32)
            qid, done = [], 0
            for task in source.column_tasks(1 << 14, most, first):
                batch = task.batch()
                for part in batch.features:
                    values[done + part.first : done + part.first + len(part.values), part.number] = part.values
                qid += batch.rows.qid.to_pylist()
                done += len(batch)
            assert qid == ids[first:]
            assert np.array_equal(values, whole[first:], equal_nan=True)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_bad_row_is_reported(tmp_path, threads):
    forest = random_forest(4, n_features=len(NAMES), n_trees=3, names=NAMES)
    table = columns()
    ids = table["qid"].to_pylist()
    table["qid"] = pa.array([None if i in {333, 334, 600} else qid for i, qid in enumerate(ids)])
    pq.write_table(pa.table(table), tmp_path / "c.parquet", row_group_size=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankmill.pipeline.read.parquet.PART_ROWS", 50)
        with pytest.raises(MalformedRow, match="row 334"):
            rerank(tmp_path / "c.parquet", forest, tmp_path / "out", n_threads=threads)
    assert not (tmp_path / "out").exists()


def test_damage_in_a_column_is_reported(tmp_path):
    forest = random_forest(4, n_features=len(NAMES), n_trees=30, names=NAMES)
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table(columns()), path, row_group_size=350, compression="zstd", use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(1).column(4)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 40] = bytes(40)
    path.write_bytes(data)
    with refused(DataRejected, "c.parquet", "damaged"):
        rerank(path, forest, tmp_path / "out")
