"""The rows of a bucket: spilled by the first pass in input order, read and sorted into canonical order by the second.

Narrow columns are spilled as Arrow record batches, the values of the rows as float32 (`rankmill.pipeline.group.bucket_files`).
Each row has its own width, because the number of features is known only after all input was read.

Canonical order inside a bucket: qid, doc_id (rows without one last), a 128-bit digest of grade and values, then the optional
columns; ids are compared byte by byte.  Rows equal in all of these have the same bytes (except with probability 2^-128), so the
result does not depend on the order of the input.
"""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.pipeline.arrow import as_array, bytes_of, schema_of
from rankmill.pipeline.group import _kernels
from rankmill.pipeline.group.query_splits import buckets_of
from rankmill.pipeline.read.batch import BATCH_BYTES
from rankmill.pipeline.read.column_roles import type_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rankmill.pipeline.group.bucket_files import RawBytes, RowFiles
    from rankmill.pipeline.read.batch import RowBatch


_MOST_ROWS = 1 << 17  # sorted at a time: with few features, ids and order take most of the memory
_SOURCE, _WIDTH = " source", " width"  # columns of spilled rows, with a space, as no goal has such a name


@dataclass(frozen=True, slots=True)
class SpilledRows:
    """Some rows of a bucket."""

    qid: pa.Array[Any]
    doc_id: pa.Array[Any]
    grade: npt.NDArray[np.int32]
    source: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]  # (n, width)
    extras: Mapping[str, npt.NDArray[Any]]  # (n,) each

    def slice(self, first: int, count: int) -> SpilledRows:
        """Return up to ``count`` rows from ``first`` on, not copied."""
        here = slice(first, first + count)
        return SpilledRows(
            qid=self.qid.slice(first, count),
            doc_id=self.doc_id.slice(first, count),
            grade=self.grade[here],
            source=self.source[here],
            values=self.values[here],
            extras={name: column[here] for name, column in self.extras.items()},
        )


def spilled_schema(extras: Sequence[str] = ()) -> pa.Schema:
    """Return the schema of spilled rows with these optional columns and goals."""
    return schema_of(
        [
            ("qid", pa.string(), False),
            ("doc_id", pa.string(), True),
            ("grade", pa.int32(), False),
            (_SOURCE, pa.int32(), False),
            (_WIDTH, pa.int32(), False),
            *((name, type_of(name), False) for name in extras),
        ]
    )


class RowSpill:
    """The spilled rows of an ingest, in ``files`` of a `spilled_schema`.  Memory: for each thread a copy of the rows of a batch for one bucket."""

    def __init__(self, files: RowFiles) -> None:
        self.files = files
        self._extras = tuple(files.schema.names[len(spilled_schema()) :])
        self.width = 0
        self.id_bytes = np.zeros((2, len(files.rows)), dtype=np.int64)
        """Bytes of query ids and of document ids of each bucket."""
        self._counting = threading.Lock()

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Rows of each bucket, (buckets,)."""
        return self.files.rows

    @property
    def extras(self) -> tuple[str, ...]:
        """The optional columns and goals of the rows."""
        return self._extras

    def add(self, batch: RowBatch, source: int) -> None:
        """Append the rows of ``batch``, which came from input file number ``source``; missing grades are 0."""
        for first in range(0, len(batch), _MOST_ROWS):
            self._add(batch.slice(first, _MOST_ROWS), source)

    def _add(self, batch: RowBatch, source: int) -> None:
        n, width = batch.values.shape
        grade = np.zeros(n, dtype=np.int32) if batch.grade is None else batch.grade
        bucket = buckets_of(batch.qid, len(self.rows))
        with self._counting:
            self.width = max(self.width, width)
            for k, ids in enumerate((batch.qid, batch.doc_id)):
                if ids is not None:
                    found = np.bincount(bucket, _lengths(ids), minlength=len(self.rows))
                    self.id_bytes[k] += found.astype(np.int64)
        order = np.argsort(bucket, kind="stable")
        counts = np.bincount(bucket, minlength=len(self.rows))
        doc_id = pa.nulls(n, pa.string()) if batch.doc_id is None else batch.doc_id
        places = as_array(order)
        rows = pa.record_batch(
            [
                batch.qid.take(places),
                doc_id.take(places),
                as_array(grade[order]),
                as_array(np.full(n, source, dtype=np.int32)),
                as_array(np.full(n, width, dtype=np.int32)),
                *(as_array(batch.extras[name][order]) for name in self._extras),
            ],
            schema=self.files.schema,
        )
        self.files.add(rows, counts, lambda some: batch.values[order[some]])

    def batches(self, bucket: int, into: npt.NDArray[np.float32] | None = None) -> Iterator[SpilledRows]:
        """Yield the rows of ``bucket`` in the order they were added.

        Values are read into ``into`` (rows of the bucket, width) if it is given and has their width.
        """
        if not self.rows[bucket]:
            return
        low = 0
        with self.files.raw(bucket) as file:
            for batch in self.files.batches(bucket):
                n, width = len(batch), batch.column(_WIDTH)[0].as_py()
                if into is not None and into.shape[1] == width:
                    values = into[low : low + n]
                else:
                    values = np.empty((n, width), dtype=np.float32)
                _read_all(file, values)
                low += n
                yield SpilledRows(
                    qid=batch.column("qid"),
                    doc_id=batch.column("doc_id"),
                    grade=batch.column("grade").to_numpy(),
                    source=batch.column(_SOURCE).to_numpy(),
                    values=values,
                    extras={name: batch.column(name).to_numpy() for name in self._extras},
                )

    def drop(self, bucket: int) -> None:
        """Remove the files of ``bucket``, whose rows were written to a shard."""
        self.files.drop(bucket)


def _lengths(ids: pa.StringArray) -> npt.NDArray[np.int32]:
    """Return the lengths of ``ids`` in bytes."""
    found: npt.NDArray[np.int32] = pc.binary_length(ids).fill_null(0).to_numpy()
    return found


def _read_all(file: RawBytes, values: npt.NDArray[np.float32]) -> None:
    """Fill ``values`` from ``file``."""
    left = bytes_of(values)
    while left:
        count = file.readinto(left)
        if not count:
            raise OSError(errno.EIO, "cut short", file.name)
        left = left[count:]


_MOST_PARTS = 1024  # before concatenation: a part has an overhead of about 2 KB, and may have only one row


@dataclass(frozen=True, slots=True)
class BucketRows:
    """The rows of a bucket, without their values."""

    qid: pa.Array[Any]  # (n,)
    doc_id: pa.Array[Any]  # (n,), null if a row has none
    grade: npt.NDArray[np.int32]  # (n,)
    source: npt.NDArray[np.int32]  # (n,) number of the input file
    digest: npt.NDArray[np.uint64]  # (n, 2) of grade and values, or only of the values
    extras: Mapping[str, npt.NDArray[Any]]  # (n,) each, in the stored type
    place: npt.NDArray[np.int64]  # (n,) index of the spilled row

    def __len__(self) -> int:
        return len(self.grade)

    def take(self, rows: npt.NDArray[np.int64]) -> BucketRows:
        """Return the rows with indices ``rows`` (m,), in that order."""
        places = as_array(rows)
        return BucketRows(
            qid=self.qid.take(places),
            doc_id=self.doc_id.take(places),
            grade=self.grade[rows],
            source=self.source[rows],
            digest=self.digest[rows],
            extras={name: column[rows] for name, column in self.extras.items()},
            place=self.place[rows],
        )

    def sorted(self) -> BucketRows:
        """Return the rows in canonical order."""
        columns = {
            "qid": self.qid,
            "doc_id": self.doc_id,
            "high": as_array(self.digest[:, 0].copy()),
            "low": as_array(self.digest[:, 1].copy()),
        }
        columns |= {f"its {name}": as_array(column) for name, column in self.extras.items()}
        keys = [(name, "ascending") for name in columns]
        order = pc.sort_indices(pa.table(columns), sort_keys=cast("Any", keys)).to_numpy().astype(np.int64)
        return self.take(order)


def read_bucket(
    spill: RowSpill,
    bucket: int,
    width: int,
    absent: float,
    *,
    labels_are_grades: bool = False,
    values_alone: bool = False,
    into: npt.NDArray[np.float32] | None = None,
) -> BucketRows:
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
    n = int(spill.rows[bucket])
    qids: list[pa.Array[Any]] = []
    doc_ids: list[pa.Array[Any]] = []
    grade = np.empty(n, dtype=np.int32)
    source = np.empty(n, dtype=np.int32)
    digest = np.empty((n, 2), dtype=np.uint64)
    columns = {name: np.empty(n, dtype=type_of(name).to_pandas_dtype()) for name in spill.extras}
    low = 0
    for rows, values in padded(spill, bucket, width, absent, into):
        high = low + len(rows.grade)
        grade[low:high] = rows.extras["label"] if labels_are_grades else rows.grade
        source[low:high] = rows.source
        for name, column in columns.items():
            column[low:high] = rows.extras[name]
        digested = np.zeros(high - low, dtype=np.int32) if values_alone else grade[low:high]
        _kernels.digest_rows(values.view(np.uint32), digested, digest[low:high])
        qids.append(rows.qid)
        doc_ids.append(rows.doc_id)
        if len(qids) == _MOST_PARTS:
            qids, doc_ids = [pa.concat_arrays(qids)], [pa.concat_arrays(doc_ids)]
        low = high
    return BucketRows(
        qid=pa.concat_arrays(qids),
        doc_id=pa.concat_arrays(doc_ids),
        grade=grade,
        source=source,
        digest=digest,
        extras=columns,
        place=np.arange(n),
    )


def padded(
    spill: RowSpill, bucket: int, width: int, absent: float, into: npt.NDArray[np.float32] | None = None
) -> Iterator[tuple[SpilledRows, npt.NDArray[np.float32]]]:
    """Yield the rows of ``bucket`` as spilled, and their values at full width, in ``into`` if it is given.

    Otherwise in small batches, as narrow rows may expand to many bytes.
    """
    low = 0
    step = max(1, BATCH_BYTES // (4 * max(1, width)))
    for rows in spill.batches(bucket, into):
        n, found = rows.values.shape
        if found == width:
            yield rows, rows.values
        elif into is not None:
            yield rows, _filled_up(rows.values, absent, into[low : low + n])
        else:
            for first in range(0, n, step):
                some = rows.slice(first, step)
                yield some, _filled_up(some.values, absent, np.empty((len(some.grade), width), dtype=np.float32))
        low += n


def _filled_up(values: npt.NDArray[np.float32], absent: float, out: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Copy ``values`` into the wider ``out``, and fill the rest with ``absent``."""
    out[:, : values.shape[1]] = values
    out[:, values.shape[1] :] = absent
    return out


def runs_of(qid: pa.Array[Any]) -> tuple[pa.Array[Any], npt.NDArray[np.int64]]:
    """Return the distinct ids (q,) of rows grouped by query, and the first row of each (q,)."""
    runs = qid.dictionary_encode()  # codes increase by one from query to query
    return runs.dictionary, np.searchsorted(runs.indices.to_numpy(), np.arange(len(runs.dictionary)))
