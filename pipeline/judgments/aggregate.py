"""Assign grades to the rows of a bucket, merge rows of one document, and separate unjudged rows.

Without files of judgments each row is a judgment.  Rows of one document stay as they are or, if an aggregate is given,
are merged into one.  With files of judgments, only these determine the grades, and rows are not merged. Only the narrow
columns of one bucket are read, and their order does not matter: Polars groups and joins them.

The aggregate of several judgments of one document:

===========  ========================================================================================================
mean         arithmetic mean; the grade is the mean rounded to a whole number, halves up
median       the middle one, or the mean of the two in the middle; the grade is the median rounded, halves up
max          the highest grade
majority     the most frequent grade; the lowest if there are several
latest       the latest grade; the highest if several have the same time
heaviest     the grade with the largest weight; the highest if several have the same weight
===========  ========================================================================================================

Mean and median also set the label: the number before rounding.  Separate judgments may have labels and weights.  Their
labels are then combined, too (of the chosen judgment with ``latest`` and ``heaviest``), the mean is weighted, and the
row gets the largest weight. A judgment without a weight weighs 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.cures import spelled_with
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.dataset.manifest import Tally
from rankmill.pipeline.group.spill import HIGH, LOW, extras_of, row_schema, with_columns
from rankmill.pipeline.judgments.judgment_files import SPILLED
from rankmill.pipeline.options import AGGREGATES, WITH_LABEL
from rankmill.pipeline.read.column_roles import OF_JUDGMENTS
from rankmill.pipeline.read.grades import UNKNOWN_GRADE
from rankmill.pipeline.read.times import TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from rankmill.pipeline.group.spill import SpilledRows
    from rankmill.pipeline.options import Aggregate, Unjudged

_POLARS = 34 << 20  # bytes of the library itself, which the rest of an ingest does not need
_BYTES_A_JUDGMENT = 300  # or row: combined ids, their numbers, and sorted columns; measured
_NO_ROWS = pa.RecordBatch.from_pylist([], row_schema())

Graded = tuple[pa.RecordBatch, Tally]
"""Rows with their grades, and counts of what was merged and joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """How grades are determined, if not by each row alone.

    Attributes
    ----------
    aggregate
        How to combine several judgments of a document.
    judgments
        Judgments from separate files; None: the rows are the judgments, and rows of a document are merged.
    unjudged
        How to treat rows without a judgment.
    goals
        The goals of the rows.
    labels_are_grades
        Whether the judgments have labels without grades that are all whole numbers.
    """

    aggregate: Aggregate | None
    judgments: SpilledRows | None
    unjudged: Unjudged
    goals: tuple[str, ...] = ()
    labels_are_grades: bool = False

    @property
    def extras(self) -> tuple[str, ...]:
        """The optional columns that rows get besides the grade."""
        of_judgments = [] if self.judgments is None else self.judgments.schema.names
        found = [name for name in OF_JUDGMENTS if name in of_judgments]
        return tuple(dict.fromkeys([*found, *(["label"] if self.aggregate in WITH_LABEL else [])]))

    def bytes_held(self, rows: npt.NDArray[np.int64]) -> int:
        """Return how much memory the grades of a bucket take in addition to its rows.

        ``rows`` (buckets,) are the numbers of rows.
        """
        judgments = 0 if self.judgments is None else self.judgments.rows
        return _POLARS + int(_BYTES_A_JUDGMENT * (rows + judgments).max())

    def left_over(self, buckets: Collection[int]) -> Tally:
        """Count the judgments in all other buckets, whose queries have no rows."""
        tally = Tally()
        if self.judgments is None:
            return tally
        for bucket in np.flatnonzero(self.judgments.rows).tolist():
            if bucket not in buckets:
                tally += self._by_judgments(_NO_ROWS, self.judgments.take(bucket), "keep")[1]
        return tally

    def graded(
        self,
        bucket: int,
        rows: pa.RecordBatch,
        features: Sequence[str],
        values_of: Callable[[Sequence[int]], npt.NDArray[np.float32]],
    ) -> Graded:
        """Return the rows of a bucket with their grades; see the functions below.

        The digests of the rows cover only the values.
        """
        if self.judgments is not None:
            return self._by_judgments(rows, self.judgments.take(bucket), self.unjudged)
        return merge_rows(rows, self.aggregate, features, values_of, self.goals)

    def _by_judgments(self, rows: pa.RecordBatch, judgments: pa.Table, unjudged: Unjudged) -> Graded:
        if self.labels_are_grades:
            grade = judgments.column("label").cast(pa.int32())
            judgments = judgments.set_column(2, SPILLED.field("grade"), grade)
        return grade_by_judgments(rows, judgments, self.aggregate, unjudged)


def one_judgment(judged: pl.DataFrame, how: Aggregate | None) -> pl.DataFrame:
    """Combine the judgments of each document into one, as in the table above.

    Parameters
    ----------
    judged
        Columns ``document`` (numbers of documents), ``grade`` (0 or more), ``time`` for ``latest``, and optionally
        ``label`` and ``weight``, in any order.
    how
        None: the lowest grade, for judgments that are all equal.

    Returns
    -------
    polars.DataFrame
        One row per document, in any order: ``document``, ``grade``, ``label`` (float64: the number before rounding for
        ``mean`` and ``median``, or of the labels), ``weight`` (the largest, if there are weights), ``judgments`` (their
        number), ``lowest`` and ``highest`` grade (or label).
    """
    has_label, has_weight = "label" in judged.columns, "weight" in judged.columns
    if not has_weight:
        judged = judged.with_columns(weight=1.0)
    if not has_label:
        judged = judged.with_columns(label=pl.col("grade").cast(pl.Float64))
    # float sums in one order, and ties decided by it
    first = {"latest": [TIME], "heaviest": ["weight"]}.get(how or "", [])
    judged = judged.sort("document", *first, "grade", "label", "weight")
    label, grade, weight = pl.col("label"), pl.col("grade").cast(pl.Float64), pl.col("weight")
    heavy = pl.when(weight.sum() > 0.0).then(weight).otherwise(1.0)
    mean = (grade * heavy).sum() / heavy.sum()
    chosen: list[pl.Expr] = {
        "mean": [(mean + 0.5).floor().alias("grade"), ((label * heavy).sum() / heavy.sum()).alias("label")],
        "median": [(grade.median() + 0.5).floor().alias("grade"), label.median()],
        "max": [grade.max(), label.max()],
        "majority": [grade.mode().min(), label.min()],
        "latest": [grade.last(), label.last()],
        "heaviest": [grade.last(), label.last()],
    }.get(how or "", [grade.min(), label.min()])
    found = judged.group_by("document", maintain_order=True).agg(
        *chosen,
        weight.max(),
        pl.len().cast(pl.Int64).alias("judgments"),
        label.min().alias("lowest"),
        label.max().alias("highest"),
    )
    lacking = ([] if has_label or how in WITH_LABEL else ["label"]) + ([] if has_weight else ["weight"])
    return found.with_columns(pl.col("grade").cast(pl.Int32)).drop(lacking)


def grade_by_judgments(
    rows: pa.RecordBatch, judgments: pa.Table, how: Aggregate | None, unjudged: Unjudged = "keep"
) -> Graded:
    """Look up the grades of rows among judgments.

    Parameters
    ----------
    rows
        The rows; their own grades are ignored.
    judgments
        Columns qid, doc_id, grade, time (null if missing) and optionally label and weight, for the queries of the same
        bucket, in any order.
    how
        How to combine several judgments of a document; None: they must be equal.
    unjudged
        How to treat rows without a judgment: keep them as unjudged, set grade 0, or raise an error.

    Raises
    ------
    DataRejected
        Judgments of a document differ and no aggregate is given, or a row lacks a required judgment.
    """
    given = judgments.filter(pc.greater_equal(judgments.column("grade"), pa.scalar(0, pa.int32()))).combine_chunks()
    qid, doc_id = (given.column(name).combine_chunks() for name in ("qid", "doc_id"))
    of_rows, of_judgments = _number_documents(rows.columns[:2], (qid, doc_id))
    columns = {name: given.column(name) for name in ("grade", TIME, *OF_JUDGMENTS) if name in given.column_names}
    judged = pl.DataFrame({"document": of_judgments, **columns})
    found = one_judgment(judged, how)
    different = found.filter(pl.col("lowest") != pl.col("highest"))
    if how is None and len(different):
        _refuse_conflict(pl.DataFrame(given).filter(judged["document"].is_in(different["document"].implode())))
    documents = pl.DataFrame({"document": of_rows})
    joined = documents.join(found, on="document", how="left", maintain_order="left")
    known = joined["grade"].is_not_null().to_numpy()
    if unjudged == "reject" and not known.all():
        _refuse_unjudged(rows, ~known)
    grade = joined["grade"].fill_null(0 if unjudged == "zero" else UNKNOWN_GRADE).to_numpy()
    of_unjudged = {"label": 0.0, "weight": 1.0}
    more = {
        name: joined[name].fill_null(of_unjudged[name]).to_numpy() for name in OF_JUDGMENTS if name in joined.columns
    }
    tally = Tally(
        repeated=len(found.filter(pl.col("judgments") > 1)),
        conflicting=len(different),
        judgments=len(given),
        ungraded=len(judgments) - len(given),
        without_row=int(found.join(documents, on="document", how="anti")["judgments"].sum()),
        rows_with_id=len(rows) - rows.column("doc_id").null_count,
    )
    return with_columns(rows, {"grade": grade, **more}), tally


def merge_rows(
    rows: pa.RecordBatch,
    how: Aggregate | None,
    features: Sequence[str],
    values_of: Callable[[Sequence[int]], npt.NDArray[np.float32]],
    goals: Sequence[str] = (),
) -> Graded:
    """Merge the rows of each document into one; rows without a doc_id stay as they are.

    The rows of a document must agree in features and optional columns.  With ``latest`` they may differ, and the latest
    row is kept. Among rows with the same time, the one with the highest grade is kept, then the first by digest and
    optional columns.  Unjudged rows are ignored unless all rows of the document are unjudged.  The grades of each goal
    are combined like the main ones.

    Parameters
    ----------
    rows
        The rows; their digests cover only the values.
    how
        How to combine their grades.
    features
        Names of the features, for error messages.
    values_of
        Returns the features (k, F) of some rows, for error messages.
    goals
        Names of the goals.

    Raises
    ------
    DataRejected
        Rows of a document differ.
    """
    extras = [name for name in extras_of(rows) if name not in goals]
    own = {
        "grade": "grade",
        "high": HIGH,
        "low": LOW,
        **{name if name == TIME else f"its {name}": name for name in extras},
    }
    (document,) = _number_documents(rows.columns[:2])
    narrow = {name: rows.column(column) for name, column in own.items()}
    frame = pl.DataFrame({"document": document, **narrow}).with_row_index("row")
    grade = frame["grade"].to_numpy().copy()
    changed: dict[str, npt.NDArray[Any]] = {"grade": grade}
    if how in WITH_LABEL:
        changed["label"] = np.where(grade == UNKNOWN_GRADE, 0, grade).astype(np.float64)
    several = frame.filter((pl.col("document") >= 0) & pl.col("document").is_duplicated())
    if not len(several):
        return with_columns(rows, changed), Tally()
    same = [name for name in narrow if name not in {"grade", TIME}]
    if how != "latest":
        _check_agreement(rows, several, same, how, features, values_of)
    judged = one_judgment(several.filter(pl.col("grade") != UNKNOWN_GRADE), how)
    kept = _kept_rows(several, same, how).drop("grade").join(judged, on="document", how="left")
    row, known = kept["row"].to_numpy(), kept["grade"].is_not_null().to_numpy()
    stays = np.ones(len(rows), dtype=np.bool_)
    stays[several["row"].to_numpy()] = False
    stays[row] = True
    grade[row[known]] = kept["grade"].to_numpy()[known]
    if how in WITH_LABEL:
        changed["label"][row[known]] = kept["label"].to_numpy()[known]
    if TIME in extras and how != "latest":
        changed[TIME] = frame[TIME].to_numpy().copy()
        changed[TIME][row] = kept["last"].to_numpy()
    for name in goals:
        column = changed[name] = rows.column(name).to_numpy().copy()
        graded = several.with_columns(grade=pl.Series(column)[several["row"]]).filter(pl.col("grade") != UNKNOWN_GRADE)
        found = kept.select("document", "row").join(one_judgment(graded, how), on="document")
        column[found["row"].to_numpy()] = found["grade"].to_numpy()
    tally = Tally(
        merged=len(several) - len(kept),
        repeated=len(judged.filter(pl.col("judgments") > 1)),
        conflicting=len(judged.filter(pl.col("lowest") != pl.col("highest"))),
    )
    return with_columns(rows, changed).filter(pa.array(stays)), tally


def _kept_rows(several: pl.DataFrame, same: Sequence[str], how: Aggregate | None) -> pl.DataFrame:
    """Return the row to keep of each document, with the latest time of its rows if there are times."""
    latest_first = [-pl.col(TIME), -pl.col("grade")] if how == "latest" else []
    # unjudged rows count only if there is no judged one
    order = [pl.col("grade") == UNKNOWN_GRADE, *latest_first, *same, "row"]
    kept = several.sort(order).unique("document", keep="first", maintain_order=True)
    if TIME in several.columns:
        kept = kept.join(several.group_by("document").agg(pl.col(TIME).max().alias("last")), on="document")
    return kept


def _number_documents(*ids: Sequence[pa.Array[Any]]) -> list[npt.NDArray[np.int64]]:
    """Assign numbers to the documents of some lists of (qid, doc_id).

    Equal ones have the same number in all lists. A row without doc_id gets -1.

    Grouping and joining is several times faster with numbers than with text.
    """
    qid, doc_id = (pa.concat_arrays([part[which] for part in ids]).dictionary_encode() for which in (0, 1))
    number = qid.indices.to_numpy().astype(np.int64) * len(doc_id.dictionary)
    number += doc_id.indices.fill_null(0).to_numpy()
    number[doc_id.indices.is_null().to_numpy(zero_copy_only=False)] = -1
    return np.split(number, np.cumsum([len(part[0]) for part in ids])[:-1])


def _check_agreement(
    rows: pa.RecordBatch,
    several: pl.DataFrame,
    same: Sequence[str],
    how: Aggregate | None,
    features: Sequence[str],
    values_of: Callable[[Sequence[int]], npt.NDArray[np.float32]],
) -> None:
    """Raise DataRejected if the rows of a document differ in one of the columns ``same``."""
    differing = several.group_by("document").agg(pl.col(name).min() != pl.col(name).max() for name in same)
    differing = differing.filter(pl.any_horizontal(same))
    if not len(differing):
        return
    bad = several.filter(pl.col("document").is_in(differing["document"].implode()))
    places = as_array(bad["row"].to_numpy())
    bad = bad.with_columns(**{name: pl.Series(rows.column(name).take(places)) for name in ("qid", "doc_id")})
    qid, doc_id, document = bad.sort("qid", "doc_id").select("qid", "doc_id", "document").row(0)
    first = differing.row(by_predicate=pl.col("document") == document, named=True)
    theirs = bad.filter(pl.col("document") == document).sort("high", "low", "row")
    if first["high"] or first["low"]:
        one, other = values_of([theirs["row"][0], theirs["row"][-1]])
        place = int(np.flatnonzero(one.view(np.uint32) != other.view(np.uint32))[0])
        what, found = f"feature {features[place]!r}", sorted([float(one[place]), float(other[place])])
    else:
        column = next(name for name in same if first[name])
        what, found = (
            f"column {column.removeprefix('its ')!r}",
            theirs[column].sort().to_list()[:: max(1, len(theirs) - 1)],
        )
    raise DataRejected(
        f"query {qid!r}, document {doc_id!r}: its rows have {found[0]:g} and {found[1]:g} in {what};"
        f" {spelled('aggregate')} {how} merges rows only if they differ in nothing but the grade;"
        " correct the rows, or use latest, which keeps the latest row"
    )


def _refuse_conflict(given: pl.DataFrame) -> None:
    """Raise DataRejected for the first document with different grades."""
    qid, doc_id = given.sort("qid", "doc_id").select("qid", "doc_id").row(0)
    theirs = given.filter(pl.col("qid") == qid, pl.col("doc_id") == doc_id)
    what = "label" if "label" in given.columns else "grade"
    grades = [f"{value:g}" for value in theirs[what].unique().sort()]
    shown = ", ".join(grades[:-1]) + f" and {grades[-1]}"
    raise DataRejected(
        f"query {qid!r}, document {doc_id!r} has the {what}s {shown} in the judgments; choose how to combine them "
        f"with {spelled_with('aggregate', 'max')} (or {', '.join(each for each in AGGREGATES if each != 'max')})"
    )


def _refuse_unjudged(rows: pa.RecordBatch, which: npt.NDArray[np.bool_]) -> None:
    places = as_array(np.flatnonzero(which))
    ids = zip(*(column.take(places).to_pylist() for column in rows.columns[:2]), strict=True)
    qid, doc_id = min(ids, key=lambda pair: (str(pair[0]).encode(), pair[1] is None, (pair[1] or "").encode()))
    document = "a row without doc_id" if doc_id is None else f"document {doc_id!r}"
    raise DataRejected(
        f"query {qid!r}, {document}: expected a judgment of it, found none; {spelled('unjudged')} keep"
        f" stores such rows for re-ranking; {spelled('unjudged')} zero reads them as grade 0"
    )
