"""External sort of scored rows: narrow rows are spilled to a private folder and come back ranked, in bounded memory.

DuckDB sorts more than its memory limit, but not any amount: each sorted run that it merges needs some memory.  So rows
are first dealt out to files by ranges of qid, each a fraction of the limit, and the files are sorted one by one.  Where
the ranges lie depends on a sample, what comes out does not.
"""

from __future__ import annotations

import errno
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.schemas import GRADE_COUNTS, RANKED, SCORED_ROW

SORT_THREADS = 4  # each thread holds buffers that the limit does not count
BATCH_ROWS = 131_072  # rows of a batch of the spill, and of one that comes back
MEMORY_OF_A_THREAD = 32 << 20
SAMPLE = 65_536  # ids that the ranges are cut by
PARTS_OF_THE_LIMIT = 6  # a part is a sixth of what the sort may hold: with its copies and buffers it does not spill
MOST_PARTS = 128  # files open at a time; beyond, parts grow


@dataclass(frozen=True, slots=True)
class RankedBatch:
    """Ranked rows, and which of them begin a query."""

    rows: pa.Table
    first_of_query: npt.NDArray[np.bool_]


class Spill:
    """Scored rows on disk.  Use as a context: ``write``, ``close_for_reading``, then read as often as needed."""

    def __init__(self, folder: Path, *, sort_bytes: int, n_threads: int) -> None:
        self._folder = folder
        self._sort_bytes = sort_bytes
        self._n_threads = max(1, min(n_threads, SORT_THREADS, sort_bytes // MEMORY_OF_A_THREAD))
        self._parts = [folder / "scored.arrows"]
        self._writer: pa.RecordBatchStreamWriter | None = _open_writer(self._parts[0])
        self._held: list[pa.RecordBatch] = []
        self._n_held = 0
        self._bytes = 0
        self._sample = _Sample()
        self._connection: Any = None

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._connection is not None:
            self._connection.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows of the schema ``SCORED_ROW``."""
        self._held.append(batch)
        self._n_held += batch.num_rows
        if self._n_held >= BATCH_ROWS:
            self._flush()

    def close_for_reading(self) -> None:
        """End the writing, deal the rows out if they are many, and open the sorter."""
        import duckdb

        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        n_parts = min(MOST_PARTS, -(-PARTS_OF_THE_LIMIT * self._bytes // self._sort_bytes))
        bounds = self._sample.bounds(n_parts)
        if len(bounds) > 0:
            self._parts = _deal_out(self._parts[0], self._folder, bounds)
        pa.default_memory_pool().release_unused()  # what scoring took is the sort's now
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{self._sort_bytes}B",
                "temp_directory": str(self._folder / "sort"),
                "threads": self._n_threads,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "preserve_insertion_order": False,
            },
        )
        self._connection.execute("SET enable_progress_bar = false")  # it would go to stdout, into the middle of JSON

    def ranked(self, top_k: int | None) -> Generator[RankedBatch, None, None]:
        """Yield the rows by qid, score (highest first), doc_id, input row, with their ranks; ``top_k`` a query at most.

        Ids are compared byte by byte.  Where a batch ends means nothing.
        """
        last_qid: str | None = None
        last_rank = 0
        for batch in self._query("SELECT qid, doc_id, score, grade FROM part ORDER BY qid, score DESC, doc_id, row"):
            qid = batch.column("qid")
            n = batch.num_rows
            first = np.ones(n, dtype=np.bool_)
            first[1:] = pc.not_equal(qid[1:], qid[:-1]).to_numpy(zero_copy_only=False)
            first[0] = qid[0].as_py() != last_qid
            # Rank = rows since the query's first one; rows before the batch's first new query go on counting.
            place = np.arange(n)
            begin = np.maximum.accumulate(np.where(first, place, -1))
            rank = np.where(begin >= 0, place - begin + 1, place + 1 + last_rank)
            last_qid, last_rank = qid[n - 1].as_py(), int(rank[-1])
            columns = [qid, batch.column("doc_id"), batch.column("score"), pa.array(rank, pa.int32())]
            table = pa.Table.from_arrays([*columns, batch.column("grade")], schema=RANKED)
            if top_k is None:
                yield RankedBatch(table, first)
            else:
                kept = rank <= top_k
                yield RankedBatch(table.filter(pa.array(kept)), first[kept])

    def grade_counts(self) -> Generator[pa.Table, None, None]:
        """Yield (qid, grade, count) of the known grades, by qid and grade."""
        counts = (
            "SELECT qid, grade, count(*)::BIGINT AS count FROM part WHERE grade IS NOT NULL "
            "GROUP BY qid, grade ORDER BY qid, grade"
        )
        for batch in self._query(counts):
            yield pa.Table.from_arrays(batch.columns, schema=GRADE_COUNTS)

    def _flush(self) -> None:
        if self._held and self._writer is not None:
            for batch in pa.Table.from_batches(self._held, SCORED_ROW).combine_chunks().to_batches():
                self._writer.write_batch(batch)
                self._bytes += batch.nbytes
                self._sample.add(batch.column("qid"))
        self._held, self._n_held = [], 0

    def _query(self, sql: str) -> Generator[pa.RecordBatch, None, None]:
        """Run ``sql`` on one part after the other; a query's rows are all in one part, and the parts ascend by qid."""
        import duckdb

        try:
            for path in self._parts:
                with _open_reader(path) as reader:
                    self._connection.register("part", reader)
                    # A relation's reader streams; a plain execute() would hold the whole result.
                    for batch in self._connection.sql(sql).to_arrow_reader(BATCH_ROWS):
                        if batch.num_rows:
                            yield batch
                    self._connection.unregister("part")
        except (duckdb.Error, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            first_line = str(error).partition("\n")[0]
            if "Out of Memory" in first_line:
                raise OSError(
                    errno.ENOMEM, f"the sort needs more memory; give more with --memory ({first_line})"
                ) from error
            raise OSError(errno.EIO, f"the sort failed: {first_line}") from error


class _Sample:
    """At most ``SAMPLE`` ids, evenly spaced over all that were added, in bounded memory."""

    def __init__(self) -> None:
        self._ids: pa.Array[Any] = pa.array([], pa.string())
        self._step = 1
        self._skip = 0

    def add(self, ids: pa.Array[Any]) -> None:
        chosen = np.arange(self._skip, len(ids), self._step)
        self._skip = (self._skip - len(ids)) % self._step
        self._ids = pa.concat_arrays([self._ids, ids.take(chosen)])
        while len(self._ids) > SAMPLE:
            # Every second of those kept; the next one is as far away as it would have been.
            if len(self._ids) % 2 == 1:
                self._skip += self._step
            self._ids = self._ids.take(np.arange(0, len(self._ids), 2))
            self._step *= 2

    def bounds(self, n_parts: int) -> pa.Array[Any]:
        """Return ids in ascending order that cut the sample into at most ``n_parts`` ranges of about equal size."""
        if n_parts < 2 or len(self._ids) == 0:
            return pa.array([], pa.string())
        ascending = self._ids.take(pc.sort_indices(self._ids))
        places = np.unique(np.arange(1, n_parts) * len(ascending) // n_parts)
        return ascending.take(places).unique()


def _open_writer(path: Path) -> pa.RecordBatchStreamWriter:
    return pa.ipc.new_stream(str(path), SCORED_ROW, options=pa.ipc.IpcWriteOptions(compression="lz4"))


def _open_reader(path: Path) -> pa.RecordBatchStreamReader:
    return pa.ipc.open_stream(pa.OSFile(str(path), "r"))


def _deal_out(source: Path, folder: Path, bounds: pa.Array[Any]) -> list[Path]:
    """Move the rows of ``source`` to one file a range: file i holds the qids of at least bound i - 1 and below bound i."""
    paths = [folder / f"part-{i}.arrows" for i in range(len(bounds) + 1)]
    with ExitStack() as stack:
        writers = [stack.enter_context(_open_writer(path)) for path in paths]
        for batch in stack.enter_context(_open_reader(source)):
            for i, rows in _by_range(batch, bounds):
                writers[i].write_batch(rows)
    source.unlink()
    return paths


def _by_range(batch: pa.RecordBatch, bounds: pa.Array[Any]) -> Iterator[tuple[int, pa.RecordBatch]]:
    ids = batch.column("qid").dictionary_encode()
    both = pa.concat_arrays([bounds, ids.dictionary])
    order = pc.sort_indices(both).to_numpy()
    place = np.empty(len(both), dtype=np.int64)
    place[order] = np.arange(len(both))
    # An id's range is the number of bounds that are not above it: it may be one of them.
    bound_places = np.sort(place[: len(bounds)])
    range_of_id = np.searchsorted(bound_places, place[len(bounds) :], side="left")
    is_bound = pc.index_in(ids.dictionary, bounds)
    equal = is_bound.is_valid().to_numpy(zero_copy_only=False)
    range_of_id[equal] = is_bound.drop_null().to_numpy() + 1
    range_of_row = range_of_id[ids.indices.to_numpy()]
    by_range = np.argsort(range_of_row, kind="stable")
    starts = np.searchsorted(range_of_row[by_range], np.arange(len(bounds) + 2))
    dealt = batch.take(by_range)
    for i in np.flatnonzero(np.diff(starts)):
        yield int(i), dealt.slice(starts[i], starts[i + 1] - starts[i])
