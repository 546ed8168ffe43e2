"""Divide the memory limit of ingest and binning into numbers of threads and bytes per thread.

Peak of the first pass of an ingest: the resident part, and for each thread the text of a block, what its numbers and ids are parsed
into, and two copies of a batch of dense rows.  Peak of the second pass: the resident part, and for each thread the values of a bucket,
or as much of them as there is memory for, a row group on its way out, batches of rows on their way in, and ids, order and digests of the
bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import checked_memory, fitting_threads
from rankmill.pipeline.sources.batch import BATCH_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rankmill.pipeline.dataset_manifest import Manifest


RESIDENT = 290 * 10**6  # the process with its libraries and kernels, and what allocators keep
BYTES_A_ROW = 120  # ids of usual length, order and digest of a row of a bucket
USUAL_ID_BYTES = 20  # of a row, in BYTES_A_ROW; those above it are held thrice while they are sorted
_BYTES_A_COLUMN, _BYTES_A_COLUMN_CHUNK = 4000, 1650  # what a Parquet file on its way holds besides values; measured
_LITTLE = 32 << 20  # of that: in RESIDENT
_MOST_ID_BYTES = 2**31 - 1  # that Arrow has in one column
_BLOCKS = 4  # a block of text, the one it was cut from, and its numbers and ids
_LEAST_VALUES = 64 << 20  # fewer of a bucket at once, and it is read too often


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """What one pass may use: threads, and bytes for the values that each of them holds."""

    threads: int
    values: int


def reading_threads(memory: int, threads: int, block_bytes: int) -> int:
    """Return how many of ``threads`` there is room for in the first pass, 1 or more."""
    each = _BLOCKS * block_bytes + 2 * BATCH_BYTES
    return fitting_threads(memory - RESIDENT, each, threads)


def writing_share(
    memory: int,
    threads: int,
    *,
    row_group_bytes: int,
    bucket_rows: int,
    row_bytes: int,
    id_bytes: npt.NDArray[np.int64] | None = None,
    settling_bytes: int = 0,
) -> MemoryShare:
    """Return how many of ``threads`` may write shards at once, and how much of ``memory`` each has for values.

    The largest bucket has ``bucket_rows`` rows of ``row_bytes`` bytes of values, of which ``row_group_bytes`` are written at a time.

    Parameters
    ----------
    id_bytes
        (2, buckets) bytes of the ids of queries and of documents; None: they are of usual length.
    settling_bytes
        What looking up or merging the judgments of a bucket takes besides.

    Raises
    ------
    InputError
        Not even one thread has room for the ids of the largest bucket.
    """
    ids = 0 if id_bytes is None else int(id_bytes.sum(axis=0).max())
    if id_bytes is not None and id_bytes.max() > _MOST_ID_BYTES:
        raise InputError(
            f"the largest bucket has {ids / 1e6:,.0f} MB of ids, more than one shard can hold;"
            f" increase {spelled('buckets')}"
        )
    ids_and_order = bucket_rows * BYTES_A_ROW + 3 * max(0, ids - bucket_rows * USUAL_ID_BYTES)
    whole = bucket_rows * row_bytes
    a_column = _BYTES_A_COLUMN + _BYTES_A_COLUMN_CHUNK * -(-whole // max(1, row_group_bytes))
    of_columns = max(0, row_bytes // 4 * a_column - _LITTLE)
    fixed = row_group_bytes + ids_and_order + of_columns + settling_bytes + 2 * BATCH_BYTES
    least = max(row_group_bytes, min(_LEAST_VALUES, whole))
    for count in range(threads, 0, -1):
        room = (memory - RESIDENT) // count - fixed
        if room >= least:
            return MemoryShare(count, int(min(room, max(whole, least))))
    needed = RESIDENT + fixed + least
    raise InputError(
        f"the largest bucket has {bucket_rows:,} rows, which take {needed / 1e6:,.0f} MB to sort; give"
        f" {spelled('memory')} {-(-needed // 10**8) * 100}MB or increase {spelled('buckets')}"
    )


MOST_SAMPLED_ROWS = 1 << 20
LEAST_SAMPLED_ROWS = 1 << 16  # of fewer, shares are off by more than half a bin of 255
_RESIDENT = 270 * 10**6  # the process with its libraries and compiled kernels
_QUERY = 5  # bytes: split and size
_SORTED = 4  # bytes a row of a column that is read
_COUNTED = 8  # bytes a row of the one that is counted, at most: where all its values differ
_SAMPLED = 4  # bytes a sampled row of a column
_WEIGHED = 90  # bytes a sampled row: its place, and what is counted of the one column that is cut
_COUNTERS = 48 << 10  # bytes of a column's candidates for heavy values
_BLOCK = 16 << 20  # bytes of values that are written at a time
_ROW_GROUP = 64 << 20  # bytes of the values of a row group
_BATCH_ROWS = 65536  # that are read at a time, and written at most
_PAGE = 1 << 20  # bytes of a page of a column, before compression
_WORTHWHILE = 512 << 20  # more columns at a time are no faster


@dataclass(frozen=True, slots=True)
class BinPlan:
    """How a dataset is binned in bounded memory."""

    rows: int
    """Rows of the train split."""
    features: int
    columns: int
    """Features that are looked at together, at least one."""
    sampled_rows: int | None
    """Rows that the edges come from; None: all."""
    batch_rows: int
    """Rows that are written at a time: a function of the number of features alone, since it shows in the files."""
    peak_bytes: int
    """Upper bound on the memory of the process."""

    @classmethod
    def of(cls, manifest: Manifest, memory: int) -> BinPlan:
        """Return the plan for a dataset that has a train split; InputError if ``memory`` is too little for any."""
        checked_memory(memory)
        features, rows = len(manifest.features), manifest.splits["train"].rows
        fitting = max(1, _BLOCK // (4 * features))
        batch_rows = min(1 << (fitting.bit_length() - 1), _BATCH_ROWS)
        base = _RESIDENT + _QUERY * manifest.queries + max((shard.rows for shard in manifest.shards), default=0)
        reading = 4 * _BATCH_ROWS + 3 * min(_PAGE, _ROW_GROUP // features)
        free = memory - base
        sampled = None
        fixed, column = _COUNTED * rows, _SORTED * rows + reading
        if fixed + column > free:
            each = 2 * _WEIGHED
            sampled = min(MOST_SAMPLED_ROWS, rows, (free - reading) // each)
            if sampled < min(rows, LEAST_SAMPLED_ROWS):
                needed = base + reading + LEAST_SAMPLED_ROWS * each
                raise InputError(
                    f"{spelled('memory')}: {manifest.queries:,} queries and {rows:,} rows cannot be"
                    f" binned in {memory:,} bytes of memory; give {-(-needed // 10**8) * 100}MB"
                )
            fixed, column = _WEIGHED * sampled, _SAMPLED * sampled + _COUNTERS + reading
        columns = max(1, min(features, min(free - fixed, _WORTHWHILE) // column))
        writing = 16 * batch_rows * features + 2 * _ROW_GROUP
        return cls(
            rows=rows,
            features=features,
            columns=columns,
            sampled_rows=sampled,
            batch_rows=batch_rows,
            peak_bytes=base + max(fixed + columns * column, writing),
        )

    def render(self) -> str:
        """Return one line for a person."""
        rows = f"all {self.rows:,} rows of the train split"
        if self.sampled_rows is not None:
            rows = f"a sample of {self.sampled_rows:,} of the {self.rows:,} rows of the train split"
        return (
            f"edges from {rows}, {self.columns:,} of {self.features:,} features at a time;"
            f" at most {self.peak_bytes / 1e6:,.0f} MB of memory"
        )
