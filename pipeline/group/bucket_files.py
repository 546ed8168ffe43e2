"""Spilled rows by bucket: an Arrow IPC stream and a file of raw bytes for each bucket.

Files are opened for each append, so the number of buckets is not limited by the number of open files.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.pipeline.arrow import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from io import FileIO


class RowFiles(Protocol):
    """Files with rows by bucket, such as :class:`BucketFiles`."""

    schema: pa.Schema
    rows: npt.NDArray[np.int64]

    def add(
        self,
        rows: pa.RecordBatch,
        counts: npt.NDArray[np.int64],
        raw: Callable[[slice], npt.NDArray[Any]] | None = None,
    ) -> None:
        """Append rows."""
        ...

    def batches(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``bucket``."""
        ...

    def raw(self, bucket: int) -> AbstractContextManager[RawBytes]:
        """Open the raw bytes of ``bucket``."""
        ...

    def drop(self, bucket: int) -> None:
        """Remove the rows of ``bucket``."""
        ...


class RawBytes(Protocol):
    """A file that is read into arrays."""

    @property
    def name(self) -> Any:
        """Its path."""
        ...

    def readinto(self, into: memoryview, /) -> int | None:
        """Read some bytes."""
        ...


class BucketFiles:
    """An Arrow IPC stream for each bucket, all with the same schema, optionally with a file of raw bytes.

    Several threads may add rows; the rows of one call stay together.  A copy in another process can only read them.
    """

    def __init__(self, folder: Path, buckets: int, schema: pa.Schema) -> None:
        folder.mkdir()
        self._folder = folder
        self.schema = schema
        self.rows = np.zeros(buckets, dtype=np.int64)
        self._adding = [threading.Lock() for _ in range(buckets)]

    def add(
        self,
        rows: pa.RecordBatch,
        counts: npt.NDArray[np.int64],
        raw: Callable[[slice], npt.NDArray[Any]] | None = None,
    ) -> None:
        """Append ``rows``, which are sorted by bucket; ``counts`` (buckets,) are the numbers of rows.

        ``raw`` returns the raw bytes of some of the rows.
        """
        ends = np.cumsum(counts)
        buckets = np.flatnonzero(counts)
        # threads begin at random buckets, so that they seldom wait for each other
        for number in np.roll(buckets, int(ends[-1])).tolist():
            start, stop = int(ends[number] - counts[number]), int(ends[number])
            with self._adding[number]:
                path = self._path(number)
                with path.open("ab", buffering=0) as file:
                    if not self.rows[number]:
                        write_all(file, self.schema.serialize())
                    write_all(file, rows.slice(start, stop - start).serialize())
                if raw is not None:
                    with self._raw_path(number).open("ab", buffering=0) as file:
                        write_all(file, bytes_of(raw(slice(start, stop))))
                self.rows[number] += counts[number]

    def batches(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``bucket`` in the order they were added."""
        if not self.rows[bucket]:
            return
        with pa.OSFile(str(self._path(bucket)), "rb") as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def raw(self, bucket: int) -> AbstractContextManager[FileIO]:
        """Open the raw bytes of ``bucket``."""
        return self._raw_path(bucket).open("rb", buffering=0)

    def drop(self, bucket: int) -> None:
        """Remove the files of ``bucket``, whose rows were written to a shard."""
        self._path(bucket).unlink(missing_ok=True)
        self._raw_path(bucket).unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs to read the rows."""
        return {name: value for name, value in vars(self).items() if name != "_adding"}

    def _raw_path(self, bucket: int) -> Path:
        return self._folder / f"{bucket:05d}.raw"

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket:05d}.arrows"


def write_all(file: FileIO, data: Any) -> None:
    """Write all of ``data``, as the system may write only a part per call."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
