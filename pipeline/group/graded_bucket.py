"""The final rows of a bucket: graded, merged if requested, with unjudged rows separated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.group import _kernels
from rankmill.pipeline.group.bucket_rows import BucketRows, padded, read_bucket, runs_of
from rankmill.pipeline.judgments.judgment_counts import Tally, repeats
from rankmill.pipeline.read.grades import UNKNOWN_GRADE
from rankmill.pipeline.read.times import TIME
from rankmill.pipeline.validate import check_one_split

if TYPE_CHECKING:
    from rankmill.pipeline.group.bucket_rows import RowSpill
    from rankmill.pipeline.group.query_splits import SplitRule
    from rankmill.pipeline.judgments.aggregate import Settling


ROW_GROUP_BYTES = 64 << 20  # decoded; the number of rows is the largest power of two that fits, so 32 to 64 MiB
_ROW_GROUP_ROWS = 1 << 20  # at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The common layout of all shards of a dataset.

    Attributes
    ----------
    features
        Names of the columns.
    absent
        Value of features that narrower rows omit.
    rule
        The rule that assigns queries to splits; None: the files do.
    source_split, source_name
        For each input file its split (index into SPLITS) and its name for error messages.
    extras
        Optional columns of the dataset.
    goals
        Its goals.
    labels_are_grades
        Whether to take grades from labels, which are all whole numbers.
    settling
        How grades are determined; None: each row has its own.
    categorical
        The numbers of the categorical features.
    """

    features: tuple[str, ...]
    absent: float
    rule: SplitRule | None
    source_split: Sequence[int]
    source_name: Sequence[str]
    extras: tuple[str, ...] = ()
    goals: tuple[str, ...] = ()
    labels_are_grades: bool = False
    settling: Settling | None = None
    categorical: tuple[int, ...] = ()

    @property
    def row_group_rows(self) -> int:
        """Rows of a row group; depends only on the number of features."""
        fitting = max(1, ROW_GROUP_BYTES // (4 * len(self.features)))
        return int(min(1 << (fitting.bit_length() - 1), _ROW_GROUP_ROWS))

    @property
    def row_group_bytes(self) -> int:
        """Bytes of the values of a row group."""
        return 4 * len(self.features) * self.row_group_rows


_LABEL, _WEIGHT = "label", "weight"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A spilled bucket that is being written as a shard."""

    spill: RowSpill
    number: int
    layout: Layout
    values: npt.NDArray[np.float32] | None = None
    """(rows of the bucket, features) in the order of the spill; filled by :func:`read_settled`.  None: too large for memory."""

    def batches(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the values of some rows at a time, (m, features), in the order of the spill."""
        for _, values in padded(self.spill, self.number, len(self.layout.features), self.layout.absent):
            yield values

    def values_of(self, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the values of a few rows, (k, features)."""
        if self.values is not None:
            return self.values[list(rows)]
        found = np.empty((len(rows), len(self.layout.features)), dtype=np.float32)
        low = 0
        for values in self.batches():
            for number, row in enumerate(rows):
                if low <= row < low + len(values):
                    found[number] = values[row - low]
            low += len(values)
        return found

    def digests(self, grade: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
        """Return the digests of all rows with their settled grades, (n, 2), which determine the canonical order."""
        digest = np.empty((len(grade), 2), dtype=np.uint64)
        low = 0
        for values in self.batches() if self.values is None else [self.values]:
            high = low + len(values)
            _kernels.digest_rows(values.view(np.uint32), grade[low:high], digest[low:high])
            low = high
        return digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledBucket:
    """Rows in canonical order, without their values.

    Attributes
    ----------
    judged, unjudged
        The rows with and without a grade.  The latter have no goals either.
    rows
        Counts of documents with several rows, and of merged rows.
    judgments
        Counts of separate judgments.
    """

    judged: BucketRows
    unjudged: BucketRows
    rows: Tally
    judgments: Tally


def read_settled(bucket: Bucket) -> SettledBucket:
    """Read the rows of ``bucket`` and settle their grades; fill ``bucket.values`` if they fit into memory.

    Raises
    ------
    DataRejected
        Judgments or rows of a document differ, and there is no aggregate.
    """
    settling, layout = bucket.layout.settling, bucket.layout
    rows = read_bucket(
        bucket.spill,
        bucket.number,
        len(layout.features),
        layout.absent,
        labels_are_grades=layout.labels_are_grades and settling is None,
        values_alone=settling is not None,
        into=bucket.values,
    )
    if settling is not None:
        return _settled(rows, settling, bucket)
    known = rows.grade != UNKNOWN_GRADE
    judged, unjudged = (rows if known.all() else rows.take(np.flatnonzero(known))), np.flatnonzero(~known)
    judged = judged.sorted()
    tally = repeats(judged.qid, judged.doc_id, judged.grade)
    return SettledBucket(judged=judged, unjudged=_unjudged(rows, unjudged, layout), rows=tally, judgments=Tally())


def _unjudged(rows: BucketRows, which: npt.NDArray[np.int64], layout: Layout) -> BucketRows:
    """Return the rows ``which`` (u,), without goals, in canonical order."""
    extras = {name: column for name, column in rows.extras.items() if name not in layout.goals}
    return replace(rows, extras=extras).take(which).sorted()


def _settled(rows: BucketRows, settling: Settling, bucket: Bucket) -> SettledBucket:
    layout = bucket.layout
    if settling.judgments is None and layout.rule is None:
        _check_splits(rows, layout)  # before rows are merged
    settled = settling.settle(bucket.number, rows, layout.features, bucket.values_of)
    extras = dict(rows.extras)
    if settled.time is not None:
        extras[TIME] = settled.time
    extras |= settled.goals
    rows = replace(rows, grade=settled.grade, digest=bucket.digests(settled.grade), extras=extras)
    labelled = rows
    given = {_LABEL: settled.label, _WEIGHT: settled.weight}
    if any(column is not None for column in given.values()):
        extras = extras | {name: column for name, column in given.items() if column is not None}
        labelled = replace(rows, extras={name: extras[name] for name in (*layout.extras, *layout.goals)})
    judged = labelled.take(settled.judged).sorted()
    unjudged = _unjudged(rows, settled.unjudged, layout)
    if settling.judgments is None:
        return SettledBucket(judged=judged, unjudged=unjudged, rows=settled.tally, judgments=Tally())
    tally = repeats(judged.qid, judged.doc_id, judged.grade)
    return SettledBucket(judged=judged, unjudged=unjudged, rows=tally, judgments=settled.tally)


def _check_splits(rows: BucketRows, layout: Layout) -> None:
    """Raise DataRejected if the rows of a query come from files of several splits."""
    if len(set(layout.source_split)) < 2 or not len(rows):
        return
    order = pc.sort_indices(rows.qid).to_numpy().astype(np.int64)
    qid, starts = runs_of(rows.qid.take(as_array(order)))
    source = rows.source[order]
    check_one_split(qid, starts, np.asarray(layout.source_split, dtype=np.int64)[source], source, layout.source_name)
