"""What grades the rows of a bucket have, which of them become one, and which nobody has judged.

Without files of judgments each row is a judgment itself.  Rows of one document stay as they are, or are merged into one
where they are told to be aggregated.  With files of judgments these alone say the grades, and rows stay as they are.
Only narrow columns of one bucket are looked at, and nothing depends on their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from pipeline.errors import DataRejected
from pipeline.judgments.aggregate import AGGREGATES, DOCUMENT, WITH_LABEL, aggregated
from pipeline.sources.grades import UNKNOWN_GRADE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipeline.judgments.aggregate import Aggregate
    from pipeline.sources.grades import Unjudged

TIME = "time"
_ROW = "row"
_DIGEST = ("high", "low")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRows:
    """The narrow columns of all rows of a bucket, in whatever order.

    Attributes
    ----------
    qid, doc_id
        (n,) ids; a document may have none.
    grade
        (n,) int32, `UNKNOWN_GRADE` where the row has none.
    source
        (n,) int32 number of the input file.
    digest
        (n, 2) uint64 of the features, without the grade.
    extras
        Optional columns, (n,) each.
    """

    qid: pa.Array[Any]
    doc_id: pa.Array[Any]
    grade: npt.NDArray[np.int32]
    source: npt.NDArray[np.int32]
    digest: npt.NDArray[np.uint64]
    extras: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.grade)

    def frame(self) -> pl.DataFrame:
        """Return all of it as a frame, rows numbered, the optional columns under their names after ``its``."""
        columns: dict[str, Any] = {
            _ROW: np.arange(len(self), dtype=np.int64),
            "qid": pl.Series(self.qid, dtype=pl.String),
            "doc_id": pl.Series(self.doc_id, dtype=pl.String),
            "grade": self.grade,
            "source": self.source,
            "high": self.digest[:, 0].copy(),
            "low": self.digest[:, 1].copy(),
        }
        return pl.DataFrame(columns | {f"its {name}": column for name, column in self.extras.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What happened to the judgments of some buckets; tallies add up.

    Attributes
    ----------
    merged
        Rows that went into another row of the same document.
    repeated, conflicting
        Documents that were judged more than once, and those of them that got different grades.
    judgments, ungraded
        Judgments in files of their own that say a grade, and those that say that there is none.
    without_row
        Judgments of a document that has no row.
    """

    merged: int = 0
    repeated: int = 0
    conflicting: int = 0
    judgments: int = 0
    ungraded: int = 0
    without_row: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The rows of a bucket with their grades.

    Attributes
    ----------
    judged, unjudged
        (m,) and (u,) int64, ascending: the rows with a grade, and those without.  What is in neither was merged into another.
    grade
        (n,) int32, of all rows; that of a merged row is of no meaning.
    label
        (n,) float64 what mean or median gave, before it was rounded; None for other aggregates.
    time
        (n,) int64, the latest time of the rows that went into a row; None where rows have no times.
    tally
        What happened.
    """

    judged: npt.NDArray[np.int64]
    unjudged: npt.NDArray[np.int64]
    grade: npt.NDArray[np.int32]
    label: npt.NDArray[np.float64] | None = None
    time: npt.NDArray[np.int64] | None = None
    tally: Tally = field(default_factory=Tally)


def settle_by_judgments(
    rows: BucketRows, judgments: pl.DataFrame, how: Aggregate | None, unjudged: Unjudged = "keep"
) -> Settled:
    """Look up the grades of rows among judgments.

    Parameters
    ----------
    rows
        The rows; their own grades do not matter.
    judgments
        Columns qid, doc_id, grade, time; the queries of the same bucket, in any order.
    how
        What several judgments of a document make; None: they must be the same.
    unjudged
        What becomes of rows without a judgment: they are kept as unjudged, have grade 0, or are refused.

    Raises
    ------
    DataRejected
        Judgments of a document differ and nothing says what they make; a row has no judgment and must have one.
    """
    graded = judgments.filter(pl.col("grade") >= 0)
    documents = aggregated(graded.lazy(), how).collect()
    different = documents.filter(pl.col("lowest") != pl.col("highest"))
    if how is None and len(different):
        _refuse_conflict(different, graded)
    ids = rows.frame().select(_ROW, *DOCUMENT)
    found = ids.join(documents, on=DOCUMENT, how="left", maintain_order="left")
    grade = found["grade"].fill_null(UNKNOWN_GRADE).to_numpy().astype(np.int32)
    if unjudged == "zero":
        grade[grade == UNKNOWN_GRADE] = 0
    elif unjudged == "reject" and (grade == UNKNOWN_GRADE).any():
        _refuse_unjudged(found.filter(pl.col("grade").is_null()))
    label = None
    if how in WITH_LABEL:
        label = found["label"].fill_null(0.0).to_numpy().copy()
    tally = Tally(
        repeated=len(documents.filter(pl.col("judgments") > 1)),
        conflicting=len(different),
        judgments=len(graded),
        ungraded=len(judgments) - len(graded),
        without_row=graded.join(ids, on=DOCUMENT, how="anti").height,
    )
    return _settled(grade, np.ones(len(rows), dtype=np.bool_), tally, label=label, time=rows.extras.get(TIME))


def settle_rows(rows: BucketRows) -> Settled:
    """Keep all rows as they are."""
    return _settled(rows.grade, np.ones(len(rows), dtype=np.bool_), Tally(), time=rows.extras.get(TIME))


def merge_rows(
    rows: BucketRows,
    how: Aggregate,
    features: Sequence[str],
    values_of: Callable[[Sequence[int]], npt.NDArray[np.float32]],
) -> Settled:
    """Make one row of the rows of each document; rows without a doc_id stay as they are.

    The rows of a document must agree in features and optional columns, but for ``latest``, which keeps the latest row whole: of
    rows of the same time that with the highest grade, of these the first in the order of digest and optional columns.  Rows
    that nobody has judged count where all rows of the document are such.

    Parameters
    ----------
    rows
        The rows.
    how
        What their grades make.
    features
        Names of the features, for a message.
    values_of
        Returns the features (k, F) of some rows, for a message.

    Raises
    ------
    DataRejected
        Rows of a document do not agree, or rows of a query are in several splits.
    """
    frame = rows.frame()
    several = frame.filter(pl.col("doc_id").is_not_null() & pl.struct(DOCUMENT).is_duplicated())
    grade = rows.grade.copy()
    time = rows.extras[TIME].copy() if TIME in rows.extras else None
    label = np.where(grade == UNKNOWN_GRADE, 0, grade).astype(np.float64) if how in WITH_LABEL else None
    stays = np.ones(len(rows), dtype=np.bool_)
    if several.is_empty():
        return _settled(grade, stays, Tally(), label=label, time=time)
    if how != "latest":
        _check_agreement(several, how, features, values_of)
    if TIME in rows.extras:
        several = several.rename({f"its {TIME}": TIME})
    judged = several.filter(pl.col("grade") != UNKNOWN_GRADE)
    documents = aggregated(judged.lazy(), how).collect()
    chosen = _chosen(several, how).join(documents, on=DOCUMENT, how="left")
    row = chosen[_ROW].to_numpy()
    stays[several[_ROW].to_numpy()] = False
    stays[row] = True
    grade[row] = chosen["grade"].fill_null(UNKNOWN_GRADE).to_numpy()
    if label is not None:
        label[row] = chosen["label"].fill_null(0.0).to_numpy()
    if time is not None:
        time[row] = chosen[TIME].to_numpy()
    tally = Tally(
        merged=len(several) - len(chosen),
        repeated=len(documents.filter(pl.col("judgments") > 1)),
        conflicting=len(documents.filter(pl.col("lowest") != pl.col("highest"))),
    )
    return _settled(grade, stays, tally, label=label, time=time)


def repeats(qid: pa.Array[Any], doc_id: pa.Array[Any], grade: npt.NDArray[np.int32]) -> Tally:
    """Count the documents that have several rows, and those of them with different grades, in rows sorted by qid and doc_id."""
    n = len(grade)
    if n < 2:
        return Tally()
    frame = pl.DataFrame({"qid": pl.Series(qid, dtype=pl.String), "doc_id": pl.Series(doc_id, dtype=pl.String)})
    same = frame.select(pl.col(name).eq(pl.col(name).shift()).fill_null(value=False) for name in DOCUMENT)
    again = same.select(pl.all_horizontal(pl.all())).to_series().to_numpy()
    if not again.any():
        return Tally()
    starts = np.flatnonzero(~again)
    several = np.diff(np.append(starts, n)) > 1
    differ = np.minimum.reduceat(grade, starts) != np.maximum.reduceat(grade, starts)
    return Tally(repeated=int(np.count_nonzero(several)), conflicting=int(np.count_nonzero(several & differ)))


def _settled(
    grade: npt.NDArray[np.int32],
    stays: npt.NDArray[np.bool_],
    tally: Tally,
    *,
    label: npt.NDArray[np.float64] | None = None,
    time: npt.NDArray[np.int64] | None = None,
) -> Settled:
    known = grade != UNKNOWN_GRADE
    return Settled(
        judged=np.flatnonzero(stays & known),
        unjudged=np.flatnonzero(stays & ~known),
        grade=grade,
        label=label,
        time=time,
        tally=tally,
    )


def _chosen(several: pl.DataFrame, how: Aggregate) -> pl.DataFrame:
    """Return row, qid, doc_id and time of the row that stays of each document."""
    extras = [name for name in several.columns if name.startswith("its ")]
    latest = ["time", "grade"] if how == "latest" else []
    keys = [*latest, *_DIGEST, *extras]
    descending = [True] * len(latest) + [False] * (len(keys) - len(latest))
    known = pl.col("grade") != UNKNOWN_GRADE
    # nobody's judgment is no latest one, unless there is no other
    ordered = several.with_columns(unknown=~known).sort("unknown", *keys, descending=[False, *descending])
    first = ordered.unique(DOCUMENT, keep="first", maintain_order=True).select(_ROW, *DOCUMENT)
    if TIME not in several.columns:
        return first
    times = several.select(*DOCUMENT, TIME)
    if how == "latest":
        return first.join(several.select(_ROW, TIME), on=_ROW)
    return first.join(times.group_by(DOCUMENT).agg(pl.col(TIME).max()), on=DOCUMENT)


def _check_agreement(
    several: pl.DataFrame,
    how: Aggregate,
    features: Sequence[str],
    values_of: Callable[[Sequence[int]], npt.NDArray[np.float32]],
) -> None:
    extras = [name for name in several.columns if name.startswith("its ") and name != f"its {TIME}"]
    columns = [*_DIGEST, *extras]
    differ = several.group_by(DOCUMENT).agg((pl.col(name).min() != pl.col(name).max()) for name in columns)
    differ = differ.filter(pl.any_horizontal(columns)).sort(DOCUMENT)
    if differ.is_empty():
        return
    first = differ.row(0, named=True)
    theirs = several.filter(*(pl.col(name) == first[name] for name in DOCUMENT))
    if first["high"] or first["low"]:
        ends = theirs.sort(_DIGEST)[_ROW]
        one, other = values_of([int(ends[0]), int(ends[-1])])
        place = int(np.flatnonzero(one.view(np.uint32) != other.view(np.uint32))[0])
        what, found = f"feature {features[place]!r}", sorted([float(one[place]), float(other[place])])
    else:
        column = next(name for name in extras if first[name])
        what, found = f"column {column.removeprefix('its ')!r}", np.unique(theirs[column].to_numpy())[[0, -1]].tolist()
    raise DataRejected(
        f"query {first['qid']!r}, document {first['doc_id']!r}: its rows have {found[0]:g} and {found[1]:g} in {what}; "
        f"--aggregate {how} makes one row only of rows that differ in nothing but the grade (latest keeps the latest row whole)"
    )


def _refuse_conflict(different: pl.DataFrame, judgments: pl.DataFrame) -> None:
    first = different.sort(DOCUMENT).row(0, named=True)
    theirs = judgments.filter(*(pl.col(name) == first[name] for name in DOCUMENT))
    grades = theirs["grade"].unique().sort().to_list()
    shown = ", ".join(map(str, grades[:-1])) + f" and {grades[-1]}"
    raise DataRejected(
        f"query {first['qid']!r}, document {first['doc_id']!r} has the grades {shown} in the judgments; "
        f"say what they make: --aggregate {'|'.join(AGGREGATES)}"
    )


def _refuse_unjudged(rows: pl.DataFrame) -> None:
    first = rows.sort(DOCUMENT, nulls_last=True).row(0, named=True)
    document = "a row without doc_id" if first["doc_id"] is None else f"document {first['doc_id']!r}"
    raise DataRejected(
        f"query {first['qid']!r}, {document}: expected a judgment of it, found none; "
        "--unjudged keep stores such rows for re-ranking, --unjudged zero gives them grade 0"
    )
