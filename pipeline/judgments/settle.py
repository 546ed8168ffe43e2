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
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.group.bucket_rows import BucketRows
from rankmill.pipeline.judgments.aggregate import aggregated
from rankmill.pipeline.judgments.documents import number_documents
from rankmill.pipeline.judgments.rules import AGGREGATES, WITH_LABEL, check_aggregate
from rankmill.pipeline.judgments.tally import Settled, Tally, settled_as
from rankmill.pipeline.sources.grades import UNKNOWN_GRADE
from rankmill.pipeline.sources.times import TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from rankmill.pipeline.judgments.aggregate import Aggregated
    from rankmill.pipeline.judgments.documents import Documents
    from rankmill.pipeline.judgments.rules import Aggregate
    from rankmill.pipeline.judgments.spill import JudgmentSpill
    from rankmill.pipeline.sources.grades import Unjudged

_BYTES_A_JUDGMENT = 300  # or row: ids put together, their numbers, what is sorted by them; measured
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
    rows: BucketRows, judgments: pa.Table, how: Aggregate | None, unjudged: Unjudged = "keep"
) -> Settled:
    """Look up the grades of rows among judgments.

    Parameters
    ----------
    rows
        The rows; their own grades do not matter.
    judgments
        Columns qid, doc_id, grade, time (null where they have none); the queries of the same bucket, in any order.
    how
        What several judgments of a document make; None: they must be the same.
    unjudged
        What becomes of rows without a judgment: they are kept as unjudged, have grade 0, or are refused.

    Raises
    ------
    DataRejected
        Judgments of a document differ and nothing says what they make; a row has no judgment and must have one.
    """
    given = judgments.filter(pc.greater_equal(judgments.column("grade"), pa.scalar(0, pa.int32()))).combine_chunks()
    qid, doc_id = (given.column(name).combine_chunks() for name in ("qid", "doc_id"))
    documents, (row, judged) = number_documents((rows.qid, rows.doc_id), (qid, doc_id))
    grades = given.column("grade").to_numpy()
    time = given.column(TIME).to_numpy() if how == "latest" else None
    found = aggregated(judged, grades, time, how)
    if how is None and found.different.any():
        _refuse_conflict(documents, found, judged, grades)
    place = found.find(row)
    grade = np.where(place >= 0, found.grade[place], UNKNOWN_GRADE) if len(found) else np.full(len(rows), UNKNOWN_GRADE)
    grade = grade.astype(np.int32)
    if unjudged == "zero":
        grade[place < 0] = 0
    elif unjudged == "reject" and (place < 0).any():
        _refuse_unjudged(rows, place < 0)
    label = None
    if found.label is not None:
        label = np.where(place >= 0, found.label[place], 0.0) if len(found) else np.zeros(len(rows))
    of_rows = np.zeros(len(found), dtype=np.bool_)
    of_rows[place[place >= 0]] = True
    tally = Tally(
        repeated=int(np.count_nonzero(found.judgments > 1)),
        conflicting=int(np.count_nonzero(found.different)),
        judgments=len(given),
        ungraded=len(judgments) - len(given),
        without_row=int(found.judgments[~of_rows].sum()),
        rows_with_id=len(rows) - rows.doc_id.null_count,
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
        Rows of a document do not agree.
    """
    documents, (number,) = number_documents((rows.qid, rows.doc_id))
    grade = rows.grade.copy()
    time = rows.extras[TIME].copy() if TIME in rows.extras else None
    label = np.where(grade == UNKNOWN_GRADE, 0, grade).astype(np.float64) if how in WITH_LABEL else None
    stays = np.ones(len(rows), dtype=np.bool_)
    several = _several(rows, number, how)
    if not len(several):
        return settled_as(grade, stays, Tally(), label=label, time=time)
    starts = np.flatnonzero(np.append(True, number[several][1:] != number[several][:-1]))
    if how != "latest":
        _check_agreement(rows, documents, number, several, starts, how, features, values_of)
    judged = several[grade[several] != UNKNOWN_GRADE]
    found = aggregated(number[judged], grade[judged], None if time is None else time[judged], how)
    kept = several[starts]
    stays[several] = False
    stays[kept] = True
    place = found.find(number[kept])
    known = place >= 0
    grade[kept[known]] = found.grade[place[known]]
    if label is not None and found.label is not None:
        label[kept[known]] = found.label[place[known]]
    if time is not None and how != "latest":
        time[kept] = np.maximum.reduceat(time[several], starts)
    tally = Tally(
        merged=len(several) - len(kept),
        repeated=int(np.count_nonzero(found.judgments > 1)),
        conflicting=int(np.count_nonzero(found.different)),
    )
    return settled_as(grade, stays, tally, label=label, time=time)


def _several(rows: BucketRows, number: npt.NDArray[np.int64], how: Aggregate) -> npt.NDArray[np.int64]:
    """Return the rows of documents that have several, those of a document together, the one that stays first."""
    order = np.argsort(number, kind="stable")
    same = number[order][1:] == number[order][:-1]
    again = np.zeros(len(order), dtype=np.bool_)
    again[1:] |= same
    again[:-1] |= same
    several: npt.NDArray[np.int64] = order[again & (number[order] >= 0)]
    if not len(several):
        return several
    keys = [column[several] for name, column in rows.extras.items() if name != TIME][::-1]
    keys += [rows.digest[several, 1], rows.digest[several, 0]]
    if how == "latest":
        keys += [~rows.grade[several], ~rows.extras[TIME][several]]  # from high to low
    keys += [
        rows.grade[several] == UNKNOWN_GRADE,
        number[several],
    ]  # nobody's judgment is none, unless there is no other
    ordered: npt.NDArray[np.int64] = several[np.lexsort(keys)]
    return ordered


def _check_agreement(
    rows: BucketRows,
    documents: Documents,
    number: npt.NDArray[np.int64],
    several: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    how: Aggregate,
    features: Sequence[str],
    values_of: Callable[[Sequence[int]], npt.NDArray[np.float32]],
) -> None:
    columns = {"high": rows.digest[:, 0], "low": rows.digest[:, 1]}
    columns |= {f"its {name}": column for name, column in rows.extras.items() if name != TIME}
    differ = {name: _differ(column[several], starts) for name, column in columns.items()}
    bad = np.logical_or.reduce(list(differ.values()))
    if not bad.any():
        return
    first = documents.first(number[several[starts[bad]]])
    group = int(np.flatnonzero(number[several[starts]] == first)[0])
    theirs = several[number[several] == first]
    qid, doc_id = documents.ids(first)
    if differ["high"][group] or differ["low"][group]:
        order = theirs[np.lexsort((rows.digest[theirs, 1], rows.digest[theirs, 0]))]
        one, other = values_of([int(order[0]), int(order[-1])])
        place = int(np.flatnonzero(one.view(np.uint32) != other.view(np.uint32))[0])
        what, found = f"feature {features[place]!r}", sorted([float(one[place]), float(other[place])])
    else:
        column = next(name for name in columns if differ[name][group])
        what, found = f"column {column.removeprefix('its ')!r}", np.unique(columns[column][theirs])[[0, -1]].tolist()
    raise DataRejected(
        f"query {qid!r}, document {doc_id!r}: its rows have {found[0]:g} and {found[1]:g} in {what}; "
        f"--aggregate {how} makes one row only of rows that differ in nothing but the grade (latest keeps the latest row whole)"
    )


def _differ(column: npt.NDArray[Any], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Say of each group of a column, (groups,), whether it has two values."""
    differ: npt.NDArray[np.bool_] = np.minimum.reduceat(column, starts) != np.maximum.reduceat(column, starts)
    return differ


def _refuse_conflict(
    documents: Documents, found: Aggregated, judged: npt.NDArray[np.int64], grades: npt.NDArray[np.int32]
) -> None:
    first = documents.first(found.document[found.different])
    qid, doc_id = documents.ids(first)
    theirs = np.unique(grades[judged == first]).tolist()
    shown = ", ".join(map(str, theirs[:-1])) + f" and {theirs[-1]}"
    raise DataRejected(
        f"query {qid!r}, document {doc_id!r} has the grades {shown} in the judgments; "
        f"say what they make: --aggregate {'|'.join(AGGREGATES)}"
    )


def _refuse_unjudged(rows: BucketRows, which: npt.NDArray[np.bool_]) -> None:
    places = as_array(np.flatnonzero(which))
    ids = zip(rows.qid.take(places).to_pylist(), rows.doc_id.take(places).to_pylist(), strict=True)
    qid, doc_id = min(ids, key=lambda pair: (str(pair[0]).encode(), pair[1] is None, (pair[1] or "").encode()))
    document = "a row without doc_id" if doc_id is None else f"document {doc_id!r}"
    raise DataRejected(
        f"query {qid!r}, {document}: expected a judgment of it, found none; "
        "--unjudged keep stores such rows for re-ranking, --unjudged zero gives them grade 0"
    )
