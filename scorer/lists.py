"""Scored lists with their grades: rows brought together by query, judgments looked up, the ideal list found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scorer.errors import CandidatesRejected, InputError
from scorer.trec import read_qrels

Ideal = Literal["list", "qrels", "grade counts"]
_NOT_JUDGED = pa.scalar(0, pa.int32())  # the grade of a document that nobody graded


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredLists:
    """Scored documents of q queries, n rows in all, sorted by query; queries ascend by qid.

    ``doc_order`` ascends with the document id.  ``ideal_grades`` (with offsets) are the grades of all documents known
    for each query, where that is more than its rows; ``ideal`` says where they come from.
    """

    qids: list[str]
    starts: npt.NDArray[np.int64]  # (q + 1,)
    scores: npt.NDArray[np.float64]  # (n,)
    grades: npt.NDArray[np.int32]  # (n,)
    doc_order: npt.NDArray[np.int64] | None  # (n,)
    ideal: Ideal = "list"
    ideal_grades: npt.NDArray[np.int32] | None = None
    ideal_starts: npt.NDArray[np.int64] | None = None
    n_unjudged_documents: int = 0  # rows without a grade
    n_unjudged_queries: int = 0  # queries scored, but in no judgment: left out
    n_missing_queries: int = 0  # queries judged, but not scored


def graded_lists(table: pa.Table, where: str) -> ScoredLists:
    """Take the grades from the table itself (columns of `scorer.scored_file.read_scored`).

    Raises
    ------
    InputError
        No row has a grade.
    """
    if "grade" not in table.column_names or table.column("grade").null_count == table.num_rows:
        raise InputError(f"{where}: there are no grades in it; give the judgments with --qrels FILE")
    qids, rows, starts = _by_query(table.column("qid"))
    grade = table.column("grade")
    return ScoredLists(
        qids=qids,
        starts=starts,
        scores=table.column("score").to_numpy()[rows],
        grades=grade.fill_null(_NOT_JUDGED).to_numpy()[rows],
        doc_order=_ascending_codes(_one_chunk(table.column("doc_id")))[rows] if _has_doc_ids(table) else None,
        n_unjudged_documents=grade.null_count,
    )


def judged_lists(table: pa.Table, where: str, qrels: Path, *, complete: bool) -> ScoredLists:
    """Look the grades up in TREC judgments; ``complete`` keeps judged queries of which the table has no row.

    Raises
    ------
    InputError
        There is no such file.
    CandidatesRejected
        A row has no doc_id, a document is scored twice for a query, no query is judged, a line is malformed.
    """
    judged = read_qrels(qrels)
    if not _has_doc_ids(table):
        raise CandidatesRejected(f"{where}: expected a doc_id in every row, to look it up in {qrels}; some have none")
    known, judged_rows, judged_starts = _by_query(judged.column("qid"))
    query_of_row = _places_in(table.column("qid"), known)
    kept = query_of_row >= 0
    n_unjudged_queries = len(table.column("qid").filter(pa.array(~kept)).unique())
    if not kept.any():
        found = table.column("qid")[0].as_py()
        raise CandidatesRejected(f"{where}: expected queries judged in {qrels}, found none, not even {found!r}")
    table = table.filter(pa.array(kept))
    query_of_row = query_of_row[kept]

    # One number a (query, document): documents are coded by their place among the ascending ids of both tables.
    codes = _ascending_codes(
        pa.concat_arrays([_one_chunk(table.column("doc_id")), _one_chunk(judged.column("doc_id"))])
    )
    n_codes = int(codes.max()) + 1
    doc_order, judged_codes = codes[: table.num_rows], codes[table.num_rows :]
    keys = query_of_row * n_codes + doc_order
    _refuse_repeated(keys, table, where)
    query_of_judged = np.repeat(np.arange(len(known)), np.diff(judged_starts))
    judged_keys = query_of_judged * n_codes + judged_codes[judged_rows]
    judged_grades = judged.column("grade").to_numpy()[judged_rows]
    by_key = np.argsort(judged_keys)
    match = by_key[np.minimum(np.searchsorted(judged_keys, keys, sorter=by_key), by_key.size - 1)]
    is_judged = judged_keys[match] == keys
    grades = np.where(is_judged, judged_grades[match], np.int32(_NOT_JUDGED.as_py()))

    n_rows_of = np.bincount(query_of_row, minlength=len(known))
    chosen = np.arange(len(known)) if complete else np.flatnonzero(n_rows_of)
    rows = np.argsort(query_of_row, kind="stable")
    return ScoredLists(
        qids=[known[query] for query in chosen],
        starts=_offsets(n_rows_of[chosen]),
        scores=table.column("score").to_numpy()[rows],
        grades=grades[rows],
        doc_order=doc_order[rows],
        ideal="qrels",
        ideal_grades=judged_grades[np.isin(query_of_judged, chosen)],
        ideal_starts=_offsets(np.diff(judged_starts)[chosen]),
        n_unjudged_documents=int(np.count_nonzero(~is_judged)),
        n_unjudged_queries=n_unjudged_queries,
        n_missing_queries=int(np.count_nonzero(n_rows_of == 0)),
    )


def with_grade_counts(lists: ScoredLists, grade_counts: pa.Table | Path) -> ScoredLists:
    """Replace the ideal list by that of a table (or Parquet file) qid, grade, count of each query's whole list.

    A query without counts has no document of known grade.

    Raises
    ------
    InputError
        There is no such file.
    CandidatesRejected
        A column is lacking, or a grade occurs more often among the rows than it was counted.
    """
    where = "grade counts" if isinstance(grade_counts, pa.Table) else str(grade_counts)
    if isinstance(grade_counts, Path):
        try:
            grade_counts = pq.read_table(grade_counts, columns=["qid", "grade", "count"], partitioning=None)
        except FileNotFoundError:
            raise InputError(f"{where}: no such file") from None
        except pa.ArrowInvalid as error:
            raise CandidatesRejected(f"{where}: {str(error).splitlines()[0]}") from None
    try:
        column = {
            name: _one_chunk(grade_counts.column(name).cast(kind))
            for name, kind in (("qid", pa.string()), ("grade", pa.int32()), ("count", pa.int64()))
        }
    except (KeyError, pa.ArrowInvalid):
        raise CandidatesRejected(f"{where}: expected whole numbers in columns qid, grade, count") from None
    query = _places_in(column["qid"], lists.qids)
    ours = query >= 0
    query = query[ours]
    grade = column["grade"].to_numpy(zero_copy_only=False)[ours]
    count = column["count"].to_numpy(zero_copy_only=False)[ours]
    _refuse_foreign(lists, query, grade, count, where)
    order = np.argsort(query, kind="stable")
    sizes = np.zeros(len(lists.qids), np.int64)
    np.add.at(sizes, query, count)
    return replace(
        lists,
        ideal="grade counts",
        ideal_grades=np.repeat(grade[order], count[order]),
        ideal_starts=_offsets(sizes),
    )


def _refuse_foreign(
    lists: ScoredLists,
    query: npt.NDArray[np.int64],
    grade: npt.NDArray[np.int32],
    count: npt.NDArray[np.int64],
    where: str,
) -> None:
    """Raise CandidatesRejected where a relevant grade occurs more often among the rows than it was counted."""
    width = max(int(grade.max(initial=0)), int(lists.grades.max(initial=0))) + 1
    relevant = lists.grades > 0
    query_of_row = np.repeat(np.arange(len(lists.qids)), np.diff(lists.starts))
    keys, found = np.unique((query_of_row * width + lists.grades)[relevant], return_counts=True)
    counted = np.zeros(keys.shape[0], np.int64)
    known = np.maximum(grade, 0) + query * width  # grade 0 and below are no key
    place = np.searchsorted(keys, known)
    match = place < keys.shape[0]
    match[match] = keys[place[match]] == known[match]
    np.add.at(counted, place[match], count[match])
    short = found > counted
    if short.any():
        worst = int(np.argmax(short))
        qid, y = lists.qids[int(keys[worst]) // width], int(keys[worst]) % width
        raise CandidatesRejected(
            f"{where}: expected grade {y} at least {found[worst]} times for query {qid!r}, found {counted[worst]}; "
            "these counts belong to another list"
        )


def _by_query(qid: pa.ChunkedArray[Any]) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Distinct qids ascending, rows sorted by them (stable), offsets into those rows."""
    array = _one_chunk(qid)
    codes = _ascending_codes(array)
    qids = [str(qid) for qid in array.unique().sort().to_pylist()]
    return qids, np.argsort(codes, kind="stable"), _offsets(np.bincount(codes, minlength=len(qids)))


def _ascending_codes(strings: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """Place of each string among the distinct ones in ascending byte order, (n,) int64."""
    encoded = strings.dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    place = np.empty(order.shape[0], np.int64)
    place[order] = np.arange(order.shape[0])
    codes: npt.NDArray[np.int64] = place[encoded.indices.to_numpy()]
    return codes


def _places_in(strings: pa.ChunkedArray[Any] | pa.Array[Any], values: list[str]) -> npt.NDArray[np.int64]:
    """Index of each string in ``values``, -1 where it is not there, (n,) int64."""
    index = pc.index_in(strings, value_set=pa.array(values, pa.string())).fill_null(-1)
    return _one_chunk(index).to_numpy().astype(np.int64)


def _one_chunk(column: pa.ChunkedArray[Any] | pa.Array[Any]) -> pa.Array[Any]:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _offsets(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _has_doc_ids(table: pa.Table) -> bool:
    return "doc_id" in table.column_names and table.column("doc_id").null_count == 0


def _refuse_repeated(keys: npt.NDArray[np.int64], table: pa.Table, where: str) -> None:
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(np.diff(keys[order]) == 0)
    if again.size:
        row = int(order[again + 1].min())
        doc_id, qid = table.column("doc_id")[row].as_py(), table.column("qid")[row].as_py()
        raise CandidatesRejected(
            f"{where}: expected each document once a query, found {doc_id!r} of query {qid!r} again"
        )
