"""Spill rows by hash bucket of their query: the first pass adds them in any order, the second reads a bucket at a time.

A spill file has pieces, one after the other: an Arrow IPC message with rows of one bucket, then their values as
float32, (n, width) row-major.  The width may differ from piece to piece, because the number of features is known only
after all input was read. Beside it, ``NAME.index.npy`` has what `PIECE` names of each piece, sorted by bucket.  On a
cluster, each range of the input has a file.
"""

from __future__ import annotations

import errno
import threading
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.pipeline.arrow import as_array, bytes_of, parts_of, schema_of
from rankmill.pipeline.group.query_splits import buckets_of
from rankmill.pipeline.read.batch import BATCH_BYTES
from rankmill.pipeline.read.column_roles import type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from io import FileIO

    from rankmill.pipeline.read.batch import RowBatch

    Floats = npt.NDArray[np.float32]

# columns of rows besides those of the files, with a space, as no goal has such a name
SOURCE = " source"  # the number of the input file
HIGH, LOW, PLACE = " high", " low", " place"  # two words of a digest, and the index among the spilled rows of a bucket
PIECE = np.dtype(
    [(name, np.int64) for name in ("bucket", "rows", "qid_bytes", "doc_id_bytes", "begin", "message", "values")]
)
"""Its bucket and rows, the bytes of their ids, its first byte, the bytes of the message, and those of the values."""
_MOST_ROWS = 1 << 17  # sorted at a time: with few features, ids and order take most of the memory


class SpillFile:
    """A spill file that is being written.

    Several threads may add rows; the rows of a bucket in one call stay together.
    """

    def __init__(self, path: Path, buckets: int, schema: pa.Schema) -> None:
        self.schema, self.buckets = schema, buckets
        self._path = path
        path.touch(exist_ok=False)
        self._pieces = array("q")
        self._end = 0
        self._writing = threading.Lock()

    def add(
        self, rows: pa.RecordBatch, counts: npt.NDArray[np.int64], values_of: Callable[[slice], Floats] | None = None
    ) -> None:
        """Append ``rows``, which are sorted by bucket; ``counts`` (buckets,) are their numbers.

        ``values_of`` returns the values of some of the rows.
        """
        ends = np.cumsum(counts)
        with self._path.open("ab", buffering=0) as file:  # by each call, so that nothing has to be closed in the end
            for number in np.flatnonzero(counts).tolist():
                stop = int(ends[number])
                n = int(counts[number])
                part = rows.slice(stop - n, n)
                message = memoryview(part.serialize())
                values = memoryview(b"") if values_of is None else bytes_of(values_of(slice(stop - n, stop)))
                ids = [_text_bytes(column) for column in part.columns[:2]]
                with self._writing:
                    self._pieces.extend((number, n, *ids, self._end, message.nbytes, values.nbytes))
                    self._end += message.nbytes + values.nbytes
                    _write_all(file, message)
                    _write_all(file, values)

    def finish(self) -> SpilledRows:
        """Write the index; return the rows for reading."""
        pieces = np.frombuffer(self._pieces, dtype=PIECE)
        np.save(_index_of(self._path), pieces[np.argsort(pieces["bucket"], kind="stable")])
        return SpilledRows.of([self._path], self.buckets, self.schema)


@dataclass(frozen=True, slots=True, eq=False)
class SpilledRows:
    """The rows in some finished spill files, which stay as they are: several workers may read a bucket.

    Attributes
    ----------
    rows, id_bytes
        (buckets,) the rows of each bucket, and (2, buckets) the bytes of their ids of queries and of documents.
    width
        The largest number of values of a row.
    """

    paths: tuple[Path, ...]
    schema: pa.Schema
    rows: npt.NDArray[np.int64]
    id_bytes: npt.NDArray[np.int64]
    width: int
    indexes: tuple[npt.NDArray[Any], ...]

    @classmethod
    def of(cls, paths: Sequence[Path], buckets: int, schema: pa.Schema) -> SpilledRows:
        """Open finished files."""
        indexes = tuple(np.load(_index_of(path), mmap_mode="r") for path in paths)
        sums = np.zeros((3, buckets), dtype=np.int64)
        for index in indexes:
            for total, name in zip(sums, ("rows", "qid_bytes", "doc_id_bytes"), strict=True):
                np.add.at(total, index["bucket"], index[name])
        width = max(int((index["values"] // (4 * index["rows"])).max(initial=0)) for index in indexes)
        return cls(tuple(paths), schema, sums[0], sums[1:], width, indexes)

    def __reduce__(self) -> Any:
        """Send the places of the files to another process."""
        return SpilledRows.of, (self.paths, len(self.rows), self.schema)

    def pieces(self, bucket: int, into: Floats | None = None) -> Iterator[tuple[pa.RecordBatch, Floats]]:
        """Yield rows of ``bucket`` with their values, (n, width).

        They come in the order of the files, and of adding within a file.

        Values are read into ``into`` (rows of the bucket, width) if it is given and has their width.
        """
        low = 0
        for path, index in zip(self.paths, self.indexes, strict=True):
            first, last = np.searchsorted(index["bucket"], [bucket, bucket + 1])
            if first == last:
                continue
            with path.open("rb", buffering=0) as file:
                for _, n, _, _, begin, size, n_bytes in index[first:last].tolist():
                    file.seek(begin)
                    rows = pa.ipc.read_record_batch(pa.py_buffer(file.read(size)), self.schema)
                    width = n_bytes // (4 * n)
                    inside = into is not None and into.shape[1] == width
                    values = into[low : low + n] if inside else np.empty((n, width), dtype=np.float32)  # type: ignore[index]
                    _read_all(file, values)
                    low += n
                    yield rows, values

    def take(self, bucket: int) -> pa.Table:
        """Return the rows of ``bucket`` without their values."""
        return pa.Table.from_batches([rows for rows, _ in self.pieces(bucket)], self.schema).combine_chunks()


def row_schema(extras: Sequence[str] = ()) -> pa.Schema:
    """Return the schema of spilled rows of files with these optional columns and goals."""
    return schema_of(
        [
            ("qid", pa.string(), False),
            ("doc_id", pa.string(), True),
            ("grade", pa.int32(), False),
            (SOURCE, pa.int32(), False),
            *((name, type_of(name), False) for name in extras),
        ]
    )


def with_columns(rows: pa.RecordBatch, columns: Mapping[str, npt.NDArray[Any]]) -> pa.RecordBatch:
    """Return ``rows`` with these ``columns`` (n,), which replace those of the same names."""
    for name, values in columns.items():
        column = as_array(np.ascontiguousarray(values))
        field_of = pa.field(name, column.type, nullable=False)
        place = rows.schema.get_field_index(name)
        rows = rows.append_column(field_of, column) if place < 0 else rows.set_column(place, field_of, column)
    return rows


def extras_of(rows: pa.RecordBatch) -> list[str]:
    """Return the names of the optional columns and goals of ``rows``."""
    return [name for name in rows.schema.names[3:] if not name.startswith(" ")]


def spill_rows(file: SpillFile, batch: RowBatch, source: int) -> None:
    """Append the rows of ``batch``, of input file number ``source``, to a ``file`` of `row_schema`.

    Missing grades are 0.

    Memory: for each thread a copy of the rows of a batch for one bucket.
    """
    for first in range(0, len(batch), _MOST_ROWS):
        part = batch.slice(first, _MOST_ROWS)
        n = len(part)
        columns = [
            part.qid,
            pa.nulls(n, pa.string()) if part.doc_id is None else part.doc_id,
            as_array(np.zeros(n, dtype=np.int32) if part.grade is None else part.grade),
            as_array(np.full(n, source, dtype=np.int32)),
            *(as_array(part.extras[name]) for name in file.schema.names[4:]),
        ]
        spill_by_query(file, columns, part.values)


def spill_by_query(file: SpillFile, columns: Sequence[pa.Array[Any]], values: Floats | None = None) -> None:
    """Append rows by hash of their query to ``file``.

    ``columns`` are those of its schema, ``qid`` first; ``values`` are (n, width).
    """
    rows = pa.record_batch([*columns], schema=file.schema)
    bucket = buckets_of(rows.column(0), file.buckets)
    order = np.argsort(bucket, kind="stable")
    counts = np.bincount(bucket, minlength=file.buckets)
    file.add(rows.take(as_array(order)), counts, None if values is None else lambda some: values[order[some]])


def padded(
    spilled: SpilledRows, bucket: int, width: int, absent: float, into: Floats | None = None
) -> Iterator[tuple[pa.RecordBatch, Floats]]:
    """Yield the rows of ``bucket`` and their values at full ``width``, in ``into`` if it is given.

    Features that narrower rows omit are ``absent``.  Without ``into`` they come in small batches, as narrow rows may
    expand to many bytes.
    """
    low = 0
    step = max(1, BATCH_BYTES // (4 * max(1, width)))
    for rows, values in spilled.pieces(bucket, into):
        n, found = values.shape
        if found == width:
            yield rows, values
        elif into is not None:
            yield rows, _filled_up(values, absent, into[low : low + n])
        else:
            for first in range(0, n, step):
                some = values[first : first + step]
                out = np.empty((len(some), width), dtype=np.float32)
                yield rows.slice(first, step), _filled_up(some, absent, out)
        low += n


def _filled_up(values: Floats, absent: float, out: Floats) -> Floats:
    """Copy ``values`` into the wider ``out``, and fill the rest with ``absent``."""
    out[:, : values.shape[1]] = values
    out[:, values.shape[1] :] = absent
    return out


def _text_bytes(column: pa.Array[Any]) -> int:
    """Return the bytes of a column of texts; 0 for another one."""
    if not pa.types.is_string(column.type):
        return 0
    offsets, _ = parts_of(column)
    return int(offsets[-1]) - int(offsets[0])


def _write_all(file: FileIO, left: memoryview) -> None:
    """Write all of ``left``, as the system may write only a part per call."""
    while left:
        left = left[file.write(left) :]


def _read_all(file: FileIO, values: Floats) -> None:
    """Fill ``values`` from ``file``."""
    left = bytes_of(values)
    while left:
        count = file.readinto(left)
        if not count:
            raise OSError(errno.EIO, "cut short", file.name)
        left = left[count:]


def _index_of(path: Path) -> Path:
    """Return the path of the index of the spill file ``path``."""
    return path.with_name(f"{path.name}.index.npy")
