"""Scored lists with their grades: rows brought together by query, judgments looked up, the ideal list found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.scorer.ranked_file import GRADE_COUNTS
from rankmill.scorer.trec import read_qrels

Ideal = Literal["list", "qrels", "grade counts"]
_NOT_JUDGED = 0  # the grade of a document that nobody graded


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredLists:
    """Scored documents of q queries, n rows in all, sorted by query; queries ascend by qid.

    ``doc_order`` ascends with the document id within each query.  ``ideal_grades`` (with offsets) are the grades of all documents known
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
    """Take the grades from the table itself (columns of `rankmill.scorer.scored_file.read_scored`).

    Raises
    ------
    InputError
        No row has a grade.
    """
    if "grade" not in table.column_names or table.column("grade").null_count == table.num_rows:
        raise InputError(f"{where}: there are no grades in it; give the judgments with --qrels FILE")
    return _scored_lists(_by_query(pl.DataFrame(table)), n_unjudged_documents=table.column("grade").null_count)


def judged_lists(table: pa.Table, where: str, qrels: Path, *, complete: bool) -> ScoredLists:
    """Look the grades up in TREC judgments; ``complete`` keeps judged queries of which the table has no row.

    Raises
    ------
    InputError
        There is no such file.
    CandidatesRejected
        A row has no doc_id, a document is scored twice for a query, no query is judged, a line is malformed.
    """
    scored, judged = pl.DataFrame(table), pl.DataFrame(read_qrels(qrels))
    if not _has_doc_ids(scored):
        raise CandidatesRejected(f"{where}: expected a doc_id in every row, to look it up in {qrels}; some have none")
    rows = scored.select("qid", "doc_id", "score").join(judged, on="qid", how="semi", maintain_order="left")
    if rows.is_empty():
        found = scored["qid"][0]
        raise CandidatesRejected(f"{where}: expected queries judged in {qrels}, found none, not even {found!r}")
    _refuse_repeated(rows, where)
    rows = rows.join(judged, on=["qid", "doc_id"], how="left", maintain_order="left")
    lists = _by_query(rows)
    known = judged.group_by("qid").agg(ideal="grade")
    queries = known.join(lists, on="qid", how="left" if complete else "inner").sort("qid")
    return replace(
        _scored_lists(queries, n_unjudged_documents=rows["grade"].null_count()),
        ideal="qrels",
        ideal_grades=_values(queries["ideal"]),
        ideal_starts=_offsets(queries["ideal"].list.len()),
        n_unjudged_queries=scored["qid"].n_unique() - lists.height,
        n_missing_queries=known.height - lists.height,
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
    table = read_grade_counts(grade_counts)
    queries = pl.DataFrame({"qid": pl.Series(lists.qids, dtype=pl.String)})
    counts = pl.DataFrame(table).join(queries, on="qid", how="semi").sort("qid", "grade")
    _refuse_foreign(lists, counts, where)
    totals = counts.group_by("qid").agg(pl.col("count").sum())
    sizes = queries.join(totals, on="qid", how="left", maintain_order="left")["count"]
    return replace(
        lists,
        ideal="grade counts",
        ideal_grades=np.repeat(counts["grade"].to_numpy(), counts["count"].to_numpy()),
        ideal_starts=_offsets(sizes),
    )


def read_grade_counts(grade_counts: pa.Table | Path) -> pa.Table:
    """Return a table (or Parquet file) of grade counts as ``GRADE_COUNTS``; errors as `with_grade_counts`."""
    where = "grade counts" if isinstance(grade_counts, pa.Table) else str(grade_counts)
    if isinstance(grade_counts, Path):
        try:
            grade_counts = pq.read_table(grade_counts, columns=GRADE_COUNTS.names, partitioning=None)
        except FileNotFoundError:
            raise InputError(f"{where}: no such file") from None
        except pa.ArrowInvalid as error:
            raise CandidatesRejected(f"{where}: {str(error).splitlines()[0]}") from None
    try:
        table: pa.Table = grade_counts.select(GRADE_COUNTS.names).cast(GRADE_COUNTS)
        table.validate(full=True)
    except (KeyError, ValueError):  # no such column; not a whole number, or none
        raise CandidatesRejected(f"{where}: expected whole numbers in columns qid, grade, count") from None
    return table


def _refuse_foreign(lists: ScoredLists, counts: pl.DataFrame, where: str) -> None:
    """Raise CandidatesRejected where a relevant grade occurs more often among the rows than it was counted."""
    query_of_row = np.repeat(np.arange(len(lists.qids)), np.diff(lists.starts))
    rows = pl.DataFrame({"qid": pl.Series(lists.qids).gather(query_of_row), "grade": lists.grades})
    found = rows.filter(pl.col("grade") > 0).group_by("qid", "grade").agg(found=pl.len())
    counted = counts.group_by("qid", "grade").agg(counted=pl.col("count").sum())
    short = (
        found.join(counted, on=["qid", "grade"], how="left")
        .with_columns(pl.col("counted").fill_null(0))
        .filter(pl.col("found") > pl.col("counted"))
        .sort("qid", "grade")
    )
    if not short.is_empty():
        qid, grade, n_found, n_counted = short.row(0)
        raise CandidatesRejected(
            f"{where}: expected grade {grade} at least {n_found} times for query {qid!r}, found {n_counted}; "
            "these counts belong to another list"
        )


def _refuse_repeated(rows: pl.DataFrame, where: str) -> None:
    """Raise CandidatesRejected for the first row whose document was scored for its query before."""
    repeated = rows.select("qid", "doc_id").filter(~pl.struct("qid", "doc_id").is_first_distinct())
    if not repeated.is_empty():
        qid, doc_id = repeated.row(0)
        raise CandidatesRejected(
            f"{where}: expected each document once a query, found {doc_id!r} of query {qid!r} again"
        )


def _by_query(rows: pl.DataFrame) -> pl.DataFrame:
    """Gather rows into one a query, ascending by qid: lists of score, grade and doc_order, which keep the rows' order.

    Polars compares strings byte by byte.  Without a doc_id in every row there is no doc_order.
    """
    columns = [pl.col("score"), pl.col("grade").fill_null(_NOT_JUDGED)]
    if _has_doc_ids(rows):
        columns.append(pl.col("doc_id").rank("dense").cast(pl.Int64).alias("doc_order"))
    return rows.group_by("qid").agg(columns).sort("qid")


def _scored_lists(queries: pl.DataFrame, *, n_unjudged_documents: int) -> ScoredLists:
    """Lay out what `_by_query` gathered; a query without a list has no rows."""
    return ScoredLists(
        qids=queries["qid"].to_list(),
        starts=_offsets(queries["score"].list.len()),
        scores=_values(queries["score"]),
        grades=_values(queries["grade"]),
        doc_order=_values(queries["doc_order"]) if "doc_order" in queries.columns else None,
        n_unjudged_documents=n_unjudged_documents,
    )


def _values(lists: pl.Series) -> npt.NDArray[Any]:
    """Values of all ``lists``, one list after the other."""
    return lists.drop_nulls().explode().to_numpy(writable=True)


def _offsets(sizes: pl.Series) -> npt.NDArray[np.int64]:
    """Where lists of these ``sizes`` (q,) start and end when they follow each other, (q + 1,); null is 0."""
    ends = sizes.fill_null(0).cast(pl.Int64).cum_sum().to_numpy()
    return np.concatenate([np.zeros(1, np.int64), ends])


def _has_doc_ids(rows: pl.DataFrame) -> bool:
    return "doc_id" in rows.columns and rows["doc_id"].null_count() == 0
