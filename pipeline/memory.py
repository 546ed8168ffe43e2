"""What an ingest may hold: how many threads, and how much each of them, for a bound on the memory of the process.

Peak of the first pass: the resident part, and for each thread the text of a block, what its numbers and ids are parsed into, and
two copies of a batch of dense rows.  Peak of the second pass: the resident part, and for each thread the values of a bucket, or as
much of them as there is room for, a row group on its way out, batches of rows on their way in, and ids, order and digests of the
bucket.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rankmill.foundation.errors import InputError
from rankmill.pipeline.sources.batch import BATCH_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MIN_MEMORY = 512 * 10**6
RESIDENT = 290 * 10**6  # the process with its libraries and kernels, and what allocators keep
BYTES_A_ROW = 120  # ids of usual length, order and digest of a row of a bucket
USUAL_ID_BYTES = 20  # of a row, in BYTES_A_ROW; those above it are held thrice while they are sorted
_BYTES_A_COLUMN, _BYTES_A_COLUMN_CHUNK = 4000, 1650  # what a Parquet file on its way holds besides values; measured
_LITTLE = 32 << 20  # of that: in RESIDENT
_MOST_ID_BYTES = 2**31 - 1  # that Arrow has in one column
_M_MMAP_THRESHOLD = -3  # of malloc.h
_LARGE = 4 << 20
_BLOCKS = 4  # a block of text, the one it was cut from, and its numbers and ids
_LEAST_VALUES = 64 << 20  # fewer of a bucket at once, and it is read too often


@dataclass(frozen=True, slots=True)
class Share:
    """What one pass may use: threads, and bytes for the values that each of them holds."""

    threads: int
    values: int


def settle_malloc() -> None:
    """Have glibc's malloc return large arrays to the system when they are freed; elsewhere nothing is done.

    Left alone, it takes the first large array that is freed as a sign that more will come, and keeps up to 32 MiB of each for
    every thread that allocates, which is more than all the rest of a small bound.  It is set for the process; what it costs is
    fresh pages, about one part in twenty of the time of an ingest.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and sys.platform == "linux":
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def release_freed() -> None:
    """Give memory that is free within the process back to the system: the pool of Arrow's, and with glibc that of malloc."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None and sys.platform == "linux":
        trim(0)


def check_memory(memory: int) -> None:
    """Raise InputError if ``memory`` bytes are less than the process needs."""
    if memory < MIN_MEMORY:
        raise InputError(f"--memory must be at least {MIN_MEMORY // 10**6}MB, got {memory:,} bytes")


def reading_threads(memory: int, threads: int, block_bytes: int) -> int:
    """Return how many of ``threads`` there is room for in the first pass, 1 or more."""
    each = _BLOCKS * block_bytes + 2 * BATCH_BYTES
    return max(1, min(threads, (memory - RESIDENT) // each))


def writing_share(
    memory: int,
    threads: int,
    *,
    row_group_bytes: int,
    bucket_rows: int,
    row_bytes: int,
    id_bytes: npt.NDArray[np.int64] | None = None,
    settling_bytes: int = 0,
) -> Share:
    """Return how to write the shards.

    Parameters
    ----------
    memory
        Bound on the process.
    threads
        How many there may be.
    row_group_bytes
        Values of a row group.
    bucket_rows
        Rows of the largest bucket.
    row_bytes
        Values of a row.
    id_bytes
        (2, buckets) those of the ids of queries and of documents; None: they are of usual length.
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
            f"the largest bucket has {ids / 1e6:,.0f} MB of ids, more than one shard can hold; give more --buckets"
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
            return Share(count, int(min(room, max(whole, least))))
    needed = RESIDENT + fixed + least
    raise InputError(
        f"the largest bucket has {bucket_rows:,} rows, which take {needed / 1e6:,.0f} MB to sort;"
        f" give --memory {-(-needed // 10**8) * 100}MB or more --buckets"
    )
