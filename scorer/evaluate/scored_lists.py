"""Scored lists with their grades: group rows by query, look judgments up, find the ideal list.

What `rerank` recorded about a list is read here, too: the highest grade of the scale, and the grade counts of whole
lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankmill.foundation.errors import CandidatesRejected, InputError, IntegrityError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import other_format
from rankmill.foundation.storage.publish import file_digest
from rankmill.scorer.evaluate.scored_file import QrelsFile, as_scored, read_scored
from rankmill.scorer.forest.links import MAX_GAINED_GRADE
from rankmill.scorer.metrics import Policy
from rankmill.scorer.metrics.arrangement import queries_of
from rankmill.scorer.metrics.conventions import Convention
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.rerank.ranked_file import (
    BESIDE,
    FACTS,
    FORMAT,
    GRADE_COUNTS,
    GRADE_TABLE,
    MANIFEST,
    counts_belong_to,
)

Ideal = Literal["list", "qrels", "grade counts"]
_NOT_JUDGED = 0  # the grade of an unjudged document


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredLists:
    """Scored documents of q queries, n rows in all, sorted by query; queries ascend by qid.

    ``doc_order`` ascends with the document id within each query.  ``ideal_grades`` (with offsets) are the grades of all
    known documents of each query, if there are more than its rows; ``ideal`` names their source.
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
    n_unjudged_queries: int = 0  # scored queries without judgments, left out
    n_missing_queries: int = 0  # judged queries that were not scored

    def with_all_known(self) -> ScoredLists:
        """Return lists with the documents of the ideal lists after the rows, without meaningful scores.

        Without ideal lists, return the lists themselves.
        """
        if self.ideal_grades is None or self.ideal_starts is None:
            return self
        order = np.argsort(np.concatenate([queries_of(self.starts), queries_of(self.ideal_starts)]), kind="stable")
        return replace(
            self,
            grades=np.concatenate([self.grades, self.ideal_grades])[order],
            starts=self.starts + self.ideal_starts,
            scores=np.zeros(len(order)),
            doc_order=None if self.doc_order is None else np.arange(len(order)),
        )


def read_lists(
    scored: Path | str | pa.Table,
    *,
    qrels: Path | str | QrelsFile | None = None,
    grade_counts: Path | str | pa.Table | None = None,
    complete: bool = False,
    goal: str = "",
    where: str = "",
) -> tuple[ScoredLists, pa.Table]:
    """Read scored lists with their grades, and the table they come from.

    Parameters and errors are those of `rankmill.scorer.evaluate.evaluate.evaluate_scored`.

    A file may have a document once in a query.  The documents of a query are in the order of the table's rows in both.
    The grades of ``goal``, if it is not empty, take the place of the main ones.
    """
    where = where or ("scored table" if isinstance(scored, pa.Table) else str(scored))
    table = _scored_table(scored, where, goal)
    if goal and (qrels is not None or grade_counts is not None):
        what = spelled("qrels") if qrels is not None else "the grade counts of lists that were cut to the top k"
        raise InputError(
            f"{where}: {what} have no grades of the goal {goal!r}; give whole lists with a column {goal!r}, or leave "
            "out its metrics"
        )
    if table.num_rows == 0:
        raise CandidatesRejected(f"{where}: expected scored documents, found none")
    judged = QrelsFile.of(qrels)
    if judged is not None:
        lists = judged_lists(table, where, judged, complete=complete)
    else:
        if not isinstance(scored, pa.Table):
            refuse_repeated(table, where)
        lists = graded_lists(table, where)
        if grade_counts is not None:
            lists = with_grade_counts(lists, Path(grade_counts) if isinstance(grade_counts, str) else grade_counts)
    return lists, table


def _scored_table(scored: Path | str | pa.Table, where: str, goal: str) -> pa.Table:
    """Read a scored table; the column ``goal``, if it is not empty, replaces the grade."""
    goals = [goal] if goal else []
    table = as_scored(scored, where, goals) if isinstance(scored, pa.Table) else read_scored(Path(scored), goals)
    if not goal:
        return table
    if goal not in table.column_names:
        raise InputError(f"{where}: no column {goal!r} with the grades of this goal")
    kept = [name for name in table.column_names if name not in {goal, "grade"}]
    return table.select(kept).append_column("grade", table.column(goal))


def prepared(lists: ScoredLists, policy: Policy) -> PreparedQueries:
    """Prepare ``lists`` for metrics under ``policy``."""
    return PreparedQueries(
        lists.grades,
        lists.starts,
        policy,
        doc_order=lists.doc_order,
        ideal_grades=lists.ideal_grades,
        ideal_starts=lists.ideal_starts,
    )


def recorded_facts(scored: Path, *, with_counts: bool) -> tuple[Path | None, int | None]:
    """Find what `rerank` recorded about a list.

    These are the grade counts of the whole lists, and the highest grade of the scale.

    Raises
    ------
    InputError
        ``with_counts``, and the counts of a list cut to the top k are missing or belong to another list.
    """
    facts = _recorded_facts(scored)
    return _grade_counts(scored, facts) if with_counts else None, known_scale(facts.get("max_grade"))


def with_scale(
    rules: Convention,
    table: pa.Table,
    qrels: QrelsFile | None,
    known_grade: int | None,
    counts: pa.Table | Path | None = None,
) -> Convention:
    """Complete ``rules`` without a highest grade: with ``known_grade``, else the highest grade in the data.

    ``table`` has the scored rows with their grades, ``counts`` the other grades of lists that were cut to the top k.
    """
    if rules.policy.max_grade is not None:
        return rules
    highest = known_grade
    if not highest:
        tables = [table if qrels is None else qrels.table] + ([] if counts is None else [read_grade_counts(counts)])
        highest = max(1, *(pc.max(each["grade"]).as_py() or 1 for each in tables if "grade" in each.column_names))
    return rules.but(max_grade=_checked_scale(highest))


def highest_grade(lists: ScoredLists) -> int:
    """Return the highest grade of ``lists`` as the scale of ERR, at least 1; InputError if it is too high."""
    return _checked_scale(max(1, int(lists.grades.max(initial=0))))


def _checked_scale(highest: int) -> int:
    if highest > MAX_GAINED_GRADE:
        raise InputError(
            f"metric err: found grade {highest}, the maximum for err is {MAX_GAINED_GRADE}; name "
            f"other metrics with {spelled('metrics')}"
        )
    return highest


def graded_lists(table: pa.Table, where: str) -> ScoredLists:
    """Take the grades from the table itself (columns of `rankmill.scorer.evaluate.scored_file.read_scored`).

    Raises
    ------
    InputError
        No row has a grade.
    """
    if "grade" not in table.column_names or table.column("grade").null_count == table.num_rows:
        raise InputError(
            f"{where}: it has no grades; call their column grade or label, or give the judgments with "
            f"{spelled('qrels')} FILE"
        )
    return _scored_lists(_by_query(pl.DataFrame(table)), n_unjudged_documents=table.column("grade").null_count)


def judged_lists(table: pa.Table, where: str, qrels: QrelsFile, *, complete: bool) -> ScoredLists:
    """Look the grades up in TREC judgments; ``complete`` keeps judged queries without rows in the table.

    Raises
    ------
    InputError
        There is no such file.
    CandidatesRejected
        A row has no doc_id, a document is scored twice for a query, no query is judged, a line is malformed.
    """
    scored, judged = pl.DataFrame(table), pl.DataFrame(qrels.table)
    if not _has_doc_ids(scored):
        raise CandidatesRejected(
            f"{where}: expected a doc_id in every row, to look it up in {qrels.path}; some have none"
        )
    rows = scored.select("qid", "doc_id", "score").join(judged, on="qid", how="semi", maintain_order="left")
    if rows.is_empty():
        found = scored["qid"][0]
        raise CandidatesRejected(f"{where}: expected queries judged in {qrels.path}, found none, not even {found!r}")
    refuse_repeated(rows, where)
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
        A column is missing, or a grade occurs more often in the rows than in the counts.
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
    """Read grade counts, a table or Parquet file, as ``GRADE_COUNTS``; errors as `with_grade_counts`."""
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
    except (KeyError, ValueError):  # no such column; a value that is missing or not a whole number
        raise CandidatesRejected(f"{where}: expected whole numbers in columns qid, grade, count") from None
    return table


def _refuse_foreign(lists: ScoredLists, counts: pl.DataFrame, where: str) -> None:
    """Raise CandidatesRejected if a relevant grade occurs more often in the rows than in the counts."""
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
            "these grade counts belong to another list"
        )


def refuse_repeated(rows: pa.Table | pl.DataFrame, where: str) -> None:
    """Raise CandidatesRejected for the first row whose document, if it has an id, is in its query before."""
    if "doc_id" not in (ids := pl.DataFrame(rows)).columns:
        return
    repeated = ids.drop_nulls("doc_id").select("qid", "doc_id").filter(~pl.struct("qid", "doc_id").is_first_distinct())
    if not repeated.is_empty():
        qid, doc_id = repeated.row(0)
        raise CandidatesRejected(
            f"{where}: expected each document once per query, found {doc_id!r} of query {qid!r} again"
        )


def _by_query(rows: pl.DataFrame) -> pl.DataFrame:
    """Group rows into one per query, by ascending qid: lists of score, grade and doc_order in the order of the rows.

    Polars compares strings byte by byte.  Without a doc_id in every row there is no doc_order.
    """
    columns = [pl.col("score"), pl.col("grade").fill_null(_NOT_JUDGED)]
    if _has_doc_ids(rows):
        columns.append(pl.col("doc_id").rank("dense").cast(pl.Int64).alias("doc_order"))
    return rows.group_by("qid").agg(columns).sort("qid")


def _scored_lists(queries: pl.DataFrame, *, n_unjudged_documents: int) -> ScoredLists:
    """Turn the result of `_by_query` into arrays; a query without a list has no rows."""
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
    """Return the offsets (q + 1,) of consecutive lists of these ``sizes`` (q,); null is 0."""
    ends = sizes.fill_null(0).cast(pl.Int64).cum_sum().to_numpy()
    return np.concatenate([np.zeros(1, np.int64), ends])


def _has_doc_ids(rows: pl.DataFrame) -> bool:
    return "doc_id" in rows.columns and rows["doc_id"].null_count() == 0


def known_scale(value: object) -> int | None:
    """Return ``value`` if it is the highest grade of a scale, else None."""
    return value if isinstance(value, int) and value >= 1 else None


def _recorded_facts(path: Path) -> Mapping[str, object]:
    """Return what `rerank` recorded about the list at ``path``; nothing if `rerank` did not write it or it is text."""
    try:
        if path.is_dir():
            manifest = path / MANIFEST
            if not manifest.exists():  # each shard has the same facts
                return _recorded_facts(min(path.glob("part-*.parquet"), default=manifest))
            facts = json.loads(manifest.read_bytes())
        elif path.suffix.lower() == ".parquet":
            facts = json.loads((pq.read_schema(path).metadata or {}).get(FACTS.encode(), b"{}"))
        else:
            return {}
    except (OSError, ValueError, pa.ArrowInvalid):
        return {}  # the reader of the rows reports what is wrong
    if not isinstance(facts, dict):
        return {}
    if facts.get("format", FORMAT) != FORMAT:
        raise IntegrityError(other_format(f"{path}: ranked list", facts["format"], FORMAT, "re-rank again"))
    return facts


def _grade_counts(path: Path, facts: Mapping[str, object]) -> Path | None:
    """Find the grade counts that `rerank` wrote for a list that it cut to the top k.

    InputError if they are missing (the ideal lists of the top alone would make metrics too high) or belong to another
    list.
    """
    if not path.exists():
        return None
    counts = path / GRADE_TABLE if path.is_dir() else path.with_name(f"{path.name}.{BESIDE}")
    if not counts.is_file():
        if facts.get("top_k") is not None and _has_grades(path):
            raise InputError(
                f"{path}: has the top {facts['top_k']} of each query, but the grade counts of the whole lists, "
                f"{counts.name}, are missing; restore the file, re-rank again, or give the judgments with "
                f"{spelled('qrels')} FILE"
            )
        return None
    if not path.is_dir() and counts_belong_to(counts) != file_digest(path):
        raise InputError(f"{counts}: belongs to another version of {path.name}; re-rank again, or remove it")
    return counts


def _has_grades(path: Path) -> bool:
    """Return whether any row of a Parquet list has a grade; otherwise it has no grade counts either."""
    scored = read_scored(path)
    return "grade" in scored.column_names and scored["grade"].null_count < scored.num_rows
