"""The final rows of a bucket.

They are read from the spill, graded, merged if requested, and sorted canonically; unjudged ones are kept separately.

They are a record batch of the narrow columns: qid, doc_id, grade, optional columns and goals. Columns whose names begin
with a space are the input file, two words of a digest, and the index among the spilled rows.

Canonical order: qid, doc_id (rows without one last), the 128-bit digest of grade and values, then the optional columns;
ids are compared byte by byte.  Rows equal in all of these have the same bytes (except with probability 2^-128), so the
result does not depend on the order of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.pipeline.dataset.manifest import SPLITS, Tally
from rankmill.pipeline.group import _kernels
from rankmill.pipeline.group.spill import HIGH, LOW, PLACE, SOURCE, extras_of, padded, with_columns
from rankmill.pipeline.read.grades import UNKNOWN_GRADE

if TYPE_CHECKING:
    from rankmill.pipeline.group.query_splits import QuerySplits
    from rankmill.pipeline.group.spill import SpilledRows
    from rankmill.pipeline.judgments.aggregate import Grading

    Floats = npt.NDArray[np.float32]

ROW_GROUP_BYTES = 64 << 20  # decoded; the number of rows is the largest power of two that fits, so 32 to 64 MiB
_ROW_GROUP_ROWS = 1 << 20  # at most
_MOST_PARTS = 1024  # before concatenation: a part has an overhead of about 2 KB, and may have only one row


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
    grading
        How grades are determined; None: each row has its own.
    categorical
        The numbers of the categorical features.
    """

    features: tuple[str, ...]
    absent: float
    rule: QuerySplits | None
    source_split: Sequence[int]
    source_name: Sequence[str]
    extras: tuple[str, ...] = ()
    goals: tuple[str, ...] = ()
    labels_are_grades: bool = False
    grading: Grading | None = None
    categorical: tuple[int, ...] = ()

    @property
    def row_group_rows(self) -> int:
        """Rows of a row group; depends only on the number of features."""
        fitting = max(1, ROW_GROUP_BYTES // (4 * len(self.features)))
        return int(min(1 << (fitting.bit_length() - 1), _ROW_GROUP_ROWS))


@dataclass(frozen=True, slots=True)
class Bucket:
    """A spilled bucket that is being written as a shard."""

    spilled: SpilledRows
    number: int
    layout: Layout
    values: Floats | None = None
    """(rows of the bucket, features) in the order of the spill; filled by :func:`read_graded`.  None: too large for
    memory."""

    def batches(self) -> Iterator[Floats]:
        """Yield the values of some rows at a time, (m, features), in the order of the spill."""
        for _, values in padded(self.spilled, self.number, len(self.layout.features), self.layout.absent):
            yield values

    def values_of(self, rows: Sequence[int]) -> Floats:
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

    def digested(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``rows`` with the digests of their values and final grades, which determine the canonical order."""
        place = rows.column(PLACE).to_numpy()
        grade = np.zeros(int(self.spilled.rows[self.number]), dtype=np.int32)
        grade[place] = rows.column("grade").to_numpy()
        digest = np.empty((len(grade), 2), dtype=np.uint64)
        low = 0
        for values in self.batches() if self.values is None else [self.values]:
            high = low + len(values)
            _kernels.digest_rows(values.view(np.uint32), grade[low:high], digest[low:high])
            low = high
        return with_columns(rows, {HIGH: digest[place, 0], LOW: digest[place, 1]})


def read_graded(bucket: Bucket) -> tuple[pa.RecordBatch, pa.RecordBatch, Tally, Tally]:
    """Read the rows of ``bucket`` and determine their grades; fill ``bucket.values`` if they fit into memory.

    Returns the rows with a grade and those without one, which have no goals either, in canonical order. Also returns
    counts of documents with several rows, of merged rows and of separate judgments.

    Raises
    ------
    DataRejected
        Judgments or rows of a document differ, and there is no aggregate.
    """
    layout = bucket.layout
    grading = layout.grading
    rows = read_bucket(
        bucket.spilled,
        bucket.number,
        len(layout.features),
        layout.absent,
        labels_are_grades=layout.labels_are_grades and grading is None,
        values_alone=grading is not None,
        into=bucket.values,
    )
    tally = Tally()
    if grading is not None:
        if grading.judgments is None and layout.rule is None:
            _check_splits(rows, layout)  # before rows are merged
        rows, tally = grading.graded(bucket.number, rows, layout.features, bucket.values_of)
        rows = bucket.digested(rows)
    known = pc.not_equal(rows.column("grade"), pa.scalar(UNKNOWN_GRADE, pa.int32()))

    def some(which: pa.Array[Any], extras: Sequence[str]) -> pa.RecordBatch:
        return in_order(rows.select(["qid", "doc_id", "grade", *extras, SOURCE, HIGH, LOW, PLACE]).filter(which))

    judged = some(known, [*layout.extras, *layout.goals])
    own = [name for name in bucket.spilled.schema.names[4:] if name not in layout.goals]
    unjudged = some(pc.invert(known), own)
    if grading is not None and grading.judgments is None:
        return judged, unjudged, tally, Tally()
    return judged, unjudged, repeats(judged), tally


def read_bucket(
    spilled: SpilledRows,
    bucket: int,
    width: int,
    absent: float,
    *,
    labels_are_grades: bool = False,
    values_alone: bool = False,
    into: Floats | None = None,
) -> pa.RecordBatch:
    """Read the rows of bucket number ``bucket``, in the order in which they were spilled.

    Parameters
    ----------
    width, absent
        Number of features, and the value of features that narrower rows omit.
    labels_are_grades
        Whether to take grades from labels, which are all whole numbers.
    values_alone
        Whether the digests cover only the values, without the grade.
    into
        (rows of the bucket, width) to fill with the values; None if they do not fit into memory.
    """
    parts: list[pa.RecordBatch] = []
    for rows, values in padded(spilled, bucket, width, absent, into):
        grade = rows.column("label" if labels_are_grades else "grade").to_numpy().astype(np.int32)
        digest = np.empty((len(grade), 2), dtype=np.uint64)
        _kernels.digest_rows(values.view(np.uint32), np.zeros_like(grade) if values_alone else grade, digest)
        parts.append(with_columns(rows, {"grade": grade, HIGH: digest[:, 0], LOW: digest[:, 1]}))
        if len(parts) == _MOST_PARTS:
            parts = [_joined(parts)]
    whole = _joined(parts)
    return with_columns(whole, {PLACE: np.arange(len(whole))})


def _joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    (whole,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return whole


def in_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``rows`` in canonical order."""
    keys = [(name, "ascending") for name in ("qid", "doc_id", HIGH, LOW, *extras_of(rows))]
    return rows.take(pc.sort_indices(rows, sort_keys=cast("Any", keys)))


def repeats(rows: pa.RecordBatch) -> Tally:
    """Count the documents with several ``rows``, and those of them with different grades.

    The rows are in canonical order.
    """
    n = len(rows)
    if n < 2:
        return Tally()
    again = np.ones(n - 1, dtype=np.bool_)
    for ids in rows.columns[:2]:
        same = pc.equal(ids.slice(1), ids.slice(0, n - 1)).fill_null(fill_value=False)
        again &= same.to_numpy(zero_copy_only=False)
    if not again.any():
        return Tally()
    starts = np.flatnonzero(np.concatenate([[True], ~again]))
    several = np.diff(np.append(starts, n)) > 1
    grade = rows.column("grade").to_numpy()
    differ = np.minimum.reduceat(grade, starts) != np.maximum.reduceat(grade, starts)
    return Tally(repeated=int(np.count_nonzero(several)), conflicting=int(np.count_nonzero(several & differ)))


def runs_of(qid: pa.Array[Any]) -> tuple[pa.Array[Any], npt.NDArray[np.int64]]:
    """Return the distinct ids (q,) of rows grouped by query, and the first row of each (q,)."""
    runs = qid.dictionary_encode()  # codes increase by one from query to query
    return runs.dictionary, np.searchsorted(runs.indices.to_numpy(), np.arange(len(runs.dictionary)))


def split_by_file(rows: pa.RecordBatch, starts: npt.NDArray[np.int64], layout: Layout) -> npt.NDArray[np.int64]:
    """Return the split (index into SPLITS) of each query; DataRejected if one is in two.

    Queries begin at ``starts`` (q,).
    """
    split = np.asarray(layout.source_split, dtype=np.int64)[rows.column(SOURCE).to_numpy()]
    return one_value(rows, starts, split, layout, lambda low, high, files: (
        f"is in {SPLITS[low]} ({files[0]}) and in {SPLITS[high]} ({files[1]}): a query must be in one split; "
        f"remove it from one of the files, or assign queries with {spelled('split')}"
    ))  # fmt: skip


def one_value(
    rows: pa.RecordBatch,
    starts: npt.NDArray[np.int64],
    values: npt.NDArray[Any],
    layout: Layout,
    complaint: Callable[[Any, Any, Sequence[str]], str],
) -> npt.NDArray[Any]:
    """Return the value (q,) that all rows of each query have in ``values`` (n,).

    Rows of a query are adjacent; ``starts`` (q,) are the first ones.  DataRejected if a query has several:
    ``complaint`` gets the lowest and the highest, and files that have them.
    """
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    mixed = np.flatnonzero(low != high)
    if not len(mixed):
        return low
    query = int(mixed[0])
    here = slice(starts[query], starts[query + 1] if query + 1 < len(starts) else len(values))
    source, both = rows.column(SOURCE).to_numpy()[here], (low[query], high[query])
    files = [layout.source_name[int(source[values[here] == side].min())] for side in both]
    raise DataRejected(f"query {rows.column('qid')[int(here.start)].as_py()!r} {complaint(*both, files)}")


def _check_splits(rows: pa.RecordBatch, layout: Layout) -> None:
    """Raise DataRejected if the rows of a query come from files of several splits."""
    if len(set(layout.source_split)) >= 2 and len(rows):
        ordered = rows.take(pc.sort_indices(rows.column("qid")))
        split_by_file(ordered, runs_of(ordered.column("qid"))[1], layout)
