"""Typed conversions between NumPy and Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.errors import DataRejected

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def as_buffer(array: npt.NDArray[Any]) -> pa.Buffer:
    """Return the bytes of a contiguous ``array`` as a buffer, not copied."""
    return pa.py_buffer(cast("Any", array))


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of a contiguous ``array``, not copied."""
    return memoryview(cast("Any", array)).cast("B") if array.size else memoryview(b"")


def as_array(array: npt.NDArray[Any]) -> pa.Array[Any]:
    """Return a one-dimensional ``array`` of numbers as an Arrow array, not copied if it is contiguous."""
    return cast("pa.Array[Any]", pa.array(cast("Any", array)))


def as_numbers(buffer: pa.Buffer | None, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return ``buffer`` as a read-only array of ``dtype``, not copied; empty for None."""
    if buffer is None or not buffer.size:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(cast("Any", buffer), dtype=dtype, count=buffer.size // np.dtype(dtype).itemsize)


def strings_from(
    offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], known: npt.NDArray[np.bool_] | None = None
) -> pa.StringArray:
    """Return a string array over valid UTF-8 ``data`` with ``offsets`` (n + 1,); null where ``known`` (n,) is false."""
    bitmap = None if known is None or known.all() else as_buffer(np.packbits(known, bitorder="little"))
    return pa.StringArray.from_buffers(len(offsets) - 1, as_buffer(offsets), as_buffer(data), bitmap)


def parts_of(strings: pa.Array[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return offsets (n + 1,) and bytes of a ``pa.string()`` array, not copied; the first offset may be above 0."""
    if not len(strings):
        return np.zeros(1, dtype=np.int32), np.empty(0, dtype=np.uint8)
    _, offsets, data = strings.buffers()
    starts = as_numbers(offsets, np.int32)
    return starts[strings.offset : strings.offset + len(strings) + 1], as_numbers(data, np.uint8)


def refused_by_arrow(path: Path, error: Exception, otherwise: str) -> str:
    """Return the message for a file ``path`` that Arrow refuses with ``error``.

    ``otherwise`` is for errors other than an unknown type.
    """
    reason = str(error).split("\n", 1)[0].rstrip(" .")
    if "more than 64 bits" in reason:
        return (
            f"{path}: has whole numbers of 128 bits (Int128), which Arrow cannot read; write ids as text and numbers "
            "as floats: in Polars cast(pl.String) and cast(pl.Float64)"
        )
    return f"{path}: {otherwise}: {reason}"


def parquet_metadata(path: Path) -> pq.FileMetaData:
    """Return the metadata of a Parquet file of a user.

    Raises
    ------
    DataRejected
        It claims another number of rows than its row groups have: readers that believe one of them lose rows.
    OSError, pa.ArrowException
        It cannot be read.
    """
    metadata = pq.read_metadata(str(path))
    rows = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    if rows != metadata.num_rows:
        raise DataRejected(
            f"{path}: the Parquet data are damaged: the file claims {metadata.num_rows:,} rows, its row groups have "
            f"{rows:,}; write it again"
        )
    return metadata


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open ``path`` for reading in batches; memory: one row group.

    Arrow's default prefetches all row groups, which may be many gigabytes.
    """
    return pq.ParquetFile(str(path), pre_buffer=False, buffer_size=1 << 16)


def schema_of(fields: Iterable[tuple[str, pa.DataType, bool]]) -> pa.Schema:
    """Build a schema from (name, type, nullable)."""
    return pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in fields])


class ScratchBuffer:
    """A scratch buffer for one float32 array at a time; it grows as needed."""

    def __init__(self) -> None:
        self._cells = np.empty(0, dtype=np.float32)

    def array(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        """Return an uninitialised array (rows, columns), which overwrites the one returned before."""
        if rows * columns > len(self._cells):
            self._cells = np.empty(0, dtype=np.float32)  # free the old buffer before allocating the new one
            self._cells = np.empty(rows * columns, dtype=np.float32)
        return self._cells[: rows * columns].reshape(rows, columns)
