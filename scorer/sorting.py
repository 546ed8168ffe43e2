"""External sort of scored rows: narrow rows are spilled to a private folder and come back ranked, in bounded memory."""

from __future__ import annotations

import errno
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scorer.schemas import GRADE_COUNTS, RANKED, SCORED_ROW

SORT_THREADS = 4  # each thread holds buffers that the limit does not count
SPILL_ROWS = 131_072  # rows of a row group of the spill, and of a batch that comes back
MEMORY_OF_A_THREAD = 32 << 20


@dataclass(frozen=True, slots=True)
class RankedBatch:
    """Ranked rows, and which of them begin a query."""

    rows: pa.Table
    first_of_query: npt.NDArray[np.bool_]


class Spill:
    """Scored rows on disk.  Use as a context: write, ``close_for_reading``, then read sorted as often as needed."""

    def __init__(self, folder: Path, *, sort_bytes: int, n_threads: int) -> None:
        self._file = folder / "scored.parquet"
        self._temporary = folder / "sort"
        self._sort_bytes = sort_bytes
        self._n_threads = max(1, min(n_threads, SORT_THREADS, sort_bytes // MEMORY_OF_A_THREAD))
        self._writer: pq.ParquetWriter | None = pq.ParquetWriter(
            self._file, SCORED_ROW, compression="lz4", use_dictionary=False, write_statistics=False
        )
        self._held: list[pa.RecordBatch] = []
        self._n_held = 0
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
        if self._n_held >= SPILL_ROWS:
            self._flush()

    def close_for_reading(self) -> None:
        """End the writing and open the sorter."""
        import duckdb

        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        pa.default_memory_pool().release_unused()  # what scoring took is the sort's now
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{self._sort_bytes}B",
                "temp_directory": str(self._temporary),
                "threads": self._n_threads,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        self._connection.execute("SET enable_progress_bar = false")  # it would go to stdout, into the middle of JSON

    def ranked(self, top_k: int | None) -> Generator[RankedBatch, None, None]:
        """Yield the rows by qid, score (highest first), doc_id, input row, with their ranks; ``top_k`` a query at most.

        Ids are compared byte by byte.  Where a batch ends means nothing.
        """
        last_qid: str | None = None
        last_rank = 0
        order = "SELECT qid, doc_id, score, grade FROM read_parquet(?) ORDER BY qid, score DESC, doc_id, row"
        for batch in self._query(order):
            qid = batch.column("qid")
            n = batch.num_rows
            first = np.ones(n, dtype=np.bool_)
            first[1:] = _differ(qid)
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
            "SELECT qid, grade, count(*)::BIGINT AS count FROM read_parquet(?) WHERE grade IS NOT NULL "
            "GROUP BY qid, grade ORDER BY qid, grade"
        )
        for batch in self._query(counts):
            yield pa.Table.from_arrays(batch.columns, schema=GRADE_COUNTS)

    def _flush(self) -> None:
        if self._held and self._writer is not None:
            self._writer.write_table(pa.Table.from_batches(self._held, SCORED_ROW).combine_chunks())
        self._held, self._n_held = [], 0

    def _query(self, sql: str) -> Generator[pa.RecordBatch, None, None]:
        import duckdb

        try:
            # A relation's reader streams; a plain execute() would hold the whole result.
            for batch in self._connection.sql(sql, params=[str(self._file)]).to_arrow_reader(SPILL_ROWS):
                if batch.num_rows:
                    yield batch
        except duckdb.IOException as error:
            raise OSError(errno.EIO, f"the sort failed: {str(error).splitlines()[0]}") from error


def _differ(column: pa.Array[Any]) -> npt.NDArray[np.bool_]:
    """Whether each entry after the first differs from the one before it, (n - 1,)."""
    differ: npt.NDArray[np.bool_] = pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return differ
