"""First pass: each row goes to the file of its bucket, in the order it comes.

A bucket's file is an Arrow IPC stream in a staging folder.  The values of a row travel as the bytes of its float32s,
because how many features there are is known only when all input has been read.  Files are opened for each append, so
the number of buckets is not bounded by the number of open files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.arrow import as_array, as_buffer, as_numbers, schema_of
from pipeline.group.hashing import buckets_of
from pipeline.sources.optional import TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pipeline.sources.batch import RowBatch


@dataclass(frozen=True, slots=True)
class SpilledRows:
    """Some rows of a bucket."""

    qid: pa.Array[Any]
    doc_id: pa.Array[Any]
    grade: npt.NDArray[np.int32]
    source: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]  # (n, width)
    extras: Mapping[str, npt.NDArray[Any]]  # (n,) each


class BucketFiles:
    """One Arrow IPC stream a bucket, all of one schema."""

    def __init__(self, folder: Path, buckets: int, schema: pa.Schema) -> None:
        folder.mkdir()
        self._folder = folder
        self.schema = schema
        self.rows = np.zeros(buckets, dtype=np.int64)

    def add(self, rows: pa.RecordBatch, counts: npt.NDArray[np.int64]) -> None:
        """Append ``rows``, which stand in the order of their buckets; ``counts`` (buckets,) says how many each gets."""
        start = 0
        for number in np.flatnonzero(counts):
            count = int(counts[number])
            self._append(int(number), rows.slice(start, count))
            start += count
        self.rows += counts

    def batches(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``bucket`` in the order they were added."""
        if not self.rows[bucket]:
            return
        with pa.OSFile(str(self._path(bucket)), "rb") as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def drop(self, bucket: int) -> None:
        """Remove the file of ``bucket``: its rows are in a shard now."""
        self._path(bucket).unlink(missing_ok=True)

    def _append(self, bucket: int, rows: pa.RecordBatch) -> None:
        path = self._path(bucket)
        new = not self.rows[bucket]
        with path.open("ab") as file:
            if new:
                file.write(self.schema.serialize())
            file.write(rows.serialize())

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket:05d}.arrows"


class Spill:
    """The buckets of an ingest.  Memory: a copy of the batch that is being added."""

    def __init__(self, folder: Path, buckets: int, extras: Sequence[str] = ()) -> None:
        self._extras = tuple(extras)
        schema = schema_of(
            [
                ("qid", pa.string(), False),
                ("doc_id", pa.string(), True),
                ("grade", pa.int32(), False),
                ("source", pa.int32(), False),
                ("values", pa.large_binary(), False),
                *((name, TYPES[name], False) for name in self._extras),
            ]
        )
        self._files = BucketFiles(folder, buckets, schema)
        self.width = 0

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Rows of each bucket, (buckets,)."""
        return self._files.rows

    def add(self, batch: RowBatch, source: int) -> None:
        """Append the rows of ``batch``, which came from input file number ``source``; grades are 0 where there are none."""
        n, width = batch.values.shape
        grade = np.zeros(n, dtype=np.int32) if batch.grade is None else batch.grade
        self.width = max(self.width, width)
        bucket = buckets_of(batch.qid, len(self.rows))
        order = np.argsort(bucket, kind="stable")
        counts = np.bincount(bucket, minlength=len(self.rows))
        doc_id = pa.nulls(n, pa.string()) if batch.doc_id is None else batch.doc_id
        offsets = (
            np.arange(0, 4 * width * n + 1, 4 * width, dtype=np.int64) if width else np.zeros(n + 1, dtype=np.int64)
        )
        values = pa.Array.from_buffers(pa.large_binary(), n, [None, as_buffer(offsets), as_buffer(batch.values[order])])
        places = as_array(order)
        rows = pa.record_batch(
            [
                batch.qid.take(places),
                doc_id.take(places),
                as_array(grade[order]),
                as_array(np.full(n, source, dtype=np.int32)),
                values,
                *(as_array(batch.extras[name][order]) for name in self._extras),
            ],
            schema=self._files.schema,
        )
        self._files.add(rows, counts)

    def batches(self, bucket: int) -> Iterator[SpilledRows]:
        """Yield the rows of ``bucket`` in the order they were added."""
        for batch in self._files.batches(bucket):
            _, _, data = batch.column("values").buffers()
            width = len(batch.column("values")[0].as_buffer()) // 4
            values = as_numbers(data, np.float32)[: len(batch) * width]
            yield SpilledRows(
                qid=batch.column("qid"),
                doc_id=batch.column("doc_id"),
                grade=batch.column("grade").to_numpy(),
                source=batch.column("source").to_numpy(),
                values=values.reshape(len(batch), width),
                extras={name: batch.column(name).to_numpy() for name in self._extras},
            )

    def drop(self, bucket: int) -> None:
        """Remove the file of ``bucket``: its rows are in a shard now."""
        self._files.drop(bucket)
