"""What grades the rows of a bucket have, which of them become one, and which nobody has judged.

Without files of judgments each row is a judgment itself.  Rows of one document stay as they are, or are merged into one
where they are told to be aggregated.  With files of judgments these alone say the grades, and rows stay as they are.
Only narrow columns of one bucket are looked at, and nothing depends on their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from pipeline.errors import DataRejected
from pipeline.group.bucket import BucketRows
from pipeline.judgments.aggregate import DOCUMENT, aggregated
from pipeline.judgments.rules import AGGREGATES, WITH_LABEL, check_aggregate
from pipeline.judgments.tally import Settled, Tally, settled_as
from pipeline.sources.grades import UNKNOWN_GRADE
from pipeline.sources.times import TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pipeline.judgments.rules import Aggregate
    from pipeline.judgments.spill import JudgmentSpill
    from pipeline.sources.grades import Unjudged

_ROW = "row"
_DIGEST = ("high", "low")
_BYTES_A_JUDGMENT = 320  # or row: narrow columns as frames, joined or sorted, and what was made of them; measured
_NO_ROWS = BucketRows(
    qid=pa.array([], pa.string()),
    doc_id=pa.array([], pa.string()),
    grade=np.empty(0, dtype=np.int32),
    source=np.empty(0, dtype=np.int32),
    digest=np.empty((0, 2), dtype=np.uint64),
    extras={},
    place=np.empty(0, dtype=np.int64),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """Where the grades of rows come from, if not from the rows alone.

    Attributes
    ----------
    aggregate
        What several judgments of a document make.
    judgments
        Those that came in files of their own; None: the rows are the judgments, and those of a document are merged.
    unjudged
        What becomes of rows without a judgment.
    """

    aggregate: Aggregate | None
    judgments: JudgmentSpill | None
    unjudged: Unjudged

    @property
    def with_label(self) -> bool:
        """Whether rows get a label besides the grade."""
        return self.aggregate in WITH_LABEL

    def bytes_held(self, rows: npt.NDArray[np.int64]) -> int:
        """Return how much memory settling a bucket takes besides its rows; ``rows`` (buckets,) says how many each has."""
        judgments = 0 if self.judgments is None else self.judgments.judgments
        return int(_BYTES_A_JUDGMENT * (rows + judgments).max())

    def left_over(self, buckets: Collection[int]) -> Tally:
        """Count the judgments of queries in other buckets than these: there are no rows of them at all."""
        tally = Tally()
        if self.judgments is None:
            return tally
        for bucket in np.flatnonzero(self.judgments.judgments).tolist():
            if bucket not in buckets:
                tally += settle_by_judgments(_NO_ROWS, self.judgments.take(bucket), self.aggregate).tally
        return tally

    def settle(
        self,
        bucket: int,
        rows: BucketRows,
        features: Sequence[str],
        values_of: Callable[[Sequence[int]], npt.NDArray[np.float32]],
    ) -> Settled:
        """Settle the rows of a bucket, whose digests are of the values alone; see the functions below."""
        if self.judgments is not None:
            return settle_by_judgments(rows, self.judgments.take(bucket), self.aggregate, self.unjudged)
        return merge_rows(rows, check_aggregate(str(self.aggregate)), features, values_of)


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
    ids = _frame(rows).select(_ROW, *DOCUMENT)
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
    return settled_as(grade, np.ones(len(rows), dtype=np.bool_), tally, label=label, time=rows.extras.get(TIME))


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
        The rows; their digests are of the values alone.
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
    frame = _frame(rows)
    several = frame.filter(pl.col("doc_id").is_not_null() & pl.struct(DOCUMENT).is_duplicated())
    grade = rows.grade.copy()
    time = rows.extras[TIME].copy() if TIME in rows.extras else None
    label = np.where(grade == UNKNOWN_GRADE, 0, grade).astype(np.float64) if how in WITH_LABEL else None
    stays = np.ones(len(rows), dtype=np.bool_)
    if several.is_empty():
        return settled_as(grade, stays, Tally(), label=label, time=time)
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
    return settled_as(grade, stays, tally, label=label, time=time)


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


def _frame(rows: BucketRows) -> pl.DataFrame:
    """Return the narrow columns as a frame, rows numbered, the optional columns under their names after ``its``."""
    columns: dict[str, Any] = {
        _ROW: np.arange(len(rows), dtype=np.int64),
        "qid": pl.Series(rows.qid, dtype=pl.String),
        "doc_id": pl.Series(rows.doc_id, dtype=pl.String),
        "grade": rows.grade,
        "high": rows.digest[:, 0].copy(),
        "low": rows.digest[:, 1].copy(),
    }
    return pl.DataFrame(columns | {f"its {name}": column for name, column in rows.extras.items()})
