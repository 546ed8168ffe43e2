"""Spilled rows of all buckets in one file, for workers that share a folder over a network.

A worker writes one such file for each range of the input, instead of two files for each bucket
(`rankmill.pipeline.group.bucket_files`), since opening files there is slow.  The file has pieces, one
after the other: an Arrow IPC message with rows of one bucket, then their raw bytes.  Beside it, ``NAME.index.npy`` has an int64
array (pieces, 4), sorted by bucket: the bucket, where the piece begins, the bytes of the message, the raw bytes.
"""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.storage.publish import fsync_file
from rankmill.pipeline.arrow import bytes_of
from rankmill.pipeline.group.bucket_files import write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from contextlib import AbstractContextManager
    from io import FileIO

    from rankmill.pipeline.group.bucket_files import RawBytes


class _Half:
    """Rows that are only written, or only read."""

    def add(
        self,
        rows: pa.RecordBatch,  # noqa: ARG002
        counts: npt.NDArray[np.int64],  # noqa: ARG002
        raw: Callable[[slice], npt.NDArray[Any]] | None = None,  # noqa: ARG002
    ) -> None:
        raise TypeError("finished files get no more rows")

    def batches(self, bucket: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise TypeError("rows are read when the file is finished")

    def raw(self, bucket: int) -> AbstractContextManager[RawBytes]:  # noqa: ARG002
        raise TypeError("rows are read when the file is finished")

    def drop(self, bucket: int) -> None:
        """Keep the rows: they are removed with the folder."""


class SpillFile(_Half):
    """The spilled rows of a range of the input.  Several threads may add rows."""

    def __init__(self, path: Path, buckets: int, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = np.zeros(buckets, dtype=np.int64)
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._pieces: list[tuple[int, int, int, int]] = []
        self._end = 0
        self._writing = threading.Lock()

    def add(
        self,
        rows: pa.RecordBatch,
        counts: npt.NDArray[np.int64],
        raw: Callable[[slice], npt.NDArray[Any]] | None = None,
    ) -> None:
        """Append rows, as `rankmill.pipeline.group.bucket_files.BucketFiles.add`."""
        ends = np.cumsum(counts)
        for number in np.flatnonzero(counts).tolist():
            start, stop = int(ends[number] - counts[number]), int(ends[number])
            message = memoryview(rows.slice(start, stop - start).serialize())
            values = memoryview(b"" if raw is None else bytes_of(raw(slice(start, stop))))
            with self._writing:
                self._pieces.append((number, self._end, message.nbytes, values.nbytes))
                self._end += message.nbytes + values.nbytes
                write_all(self._file, message)
                write_all(self._file, values)
                self.rows[number] += counts[number]

    def finish(self) -> None:
        """Write the index, and make both files durable."""
        self._file.close()
        pieces = np.array(sorted(self._pieces), dtype=np.int64).reshape(-1, 4)
        np.save(index_of(self._path), pieces)
        for path in (self._path, index_of(self._path)):
            fsync_file(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class SpillParts(_Half):
    """The rows of ``buckets`` buckets in some finished files; ``rows`` (buckets,) are their numbers.

    Nothing is removed, as several workers may read a bucket.
    """

    def __init__(self, paths: Sequence[Path], rows: npt.NDArray[np.int64], schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = rows
        self.paths = tuple(paths)
        self._parts = [(path, np.load(index_of(path), mmap_mode="r")) for path in paths]

    def batches(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``bucket``, file by file, in the order they were added."""
        with closing(self._pieces(bucket)) as pieces:
            for file, begin, size, _ in pieces:
                file.seek(begin)
                yield pa.ipc.read_record_batch(pa.py_buffer(file.read(size)), self.schema)

    @contextmanager
    def raw(self, bucket: int) -> Iterator[RawBytes]:
        """Open the raw bytes of ``bucket`` in the same order."""
        with closing(self._pieces(bucket)) as pieces:
            yield _Raw(pieces)

    def _pieces(self, bucket: int) -> Generator[tuple[FileIO, int, int, int], None, None]:
        for path, index in self._parts:
            first, last = np.searchsorted(index[:, 0], [bucket, bucket + 1])
            if first < last:
                with path.open("rb", buffering=0) as file:
                    for _, begin, size, raw in index[first:last].tolist():
                        yield file, begin, size, raw


class _Raw:
    """The raw bytes of some pieces, one after the other."""

    def __init__(self, pieces: Iterator[tuple[FileIO, int, int, int]]) -> None:
        self._pieces = pieces
        self._file: FileIO
        self._left = 0
        self.name: Any = ""

    def readinto(self, into: memoryview, /) -> int:
        """Read some bytes, and return their number; 0 at the end."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._file, begin, size, self._left = piece
            self.name = self._file.name
            self._file.seek(begin + size)
        count = self._file.readinto(into[: self._left]) or 0
        self._left -= count
        return count


def index_of(path: Path) -> Path:
    """Return the path of the index of the spill file ``path``."""
    return path.with_name(f"{path.name}.index.npy")
