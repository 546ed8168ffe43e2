"""Divide the memory limit of ingest and binning into numbers of threads and bytes per thread.

Peak of the first pass of an ingest: the resident part and parts of each thread. These are the text of a block, the
parsed numbers and ids, and two copies of a batch of dense rows.  Peak of the second pass: the resident part and parts
of each thread. These are the values of a bucket (or as many as fit), an output row group, input batches, and ids, order
and digests of the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import checked_memory, fitting_threads
from rankmill.pipeline.bins.vocabulary import MOST_BYTES
from rankmill.pipeline.read.batch import BATCH_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rankmill.pipeline.dataset.manifest import Manifest


RESIDENT = 290 * 10**6  # bytes of the process with libraries and kernels, and memory that allocators keep
BYTES_A_ROW = 120  # of a bucket: ids of usual length, order and digest
USUAL_ID_BYTES = 20  # per row, included in BYTES_A_ROW; longer ids are held three times while sorting
_BYTES_A_COLUMN, _BYTES_A_COLUMN_CHUNK = 4000, 1650  # memory of a Parquet writer in addition to values; measured
_LITTLE = 32 << 20  # of that, included in RESIDENT
_MOST_ID_BYTES = 2**31 - 1  # limit of Arrow for one column
_BLOCKS = 4  # a block of text, the one before it, and its numbers and ids
_LEAST_VALUES = 64 << 20  # with less, a bucket is read too often


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The resources of one pass: threads, and bytes for the values that each of them holds."""

    threads: int
    values: int


def bytes_of_texts(memory: int, features: int) -> int:
    """Return how much of ``memory`` the texts of categorical ``features`` may take.

    It is at most half of what the process leaves.
    """
    return min(features * MOST_BYTES, max(0, memory - RESIDENT) // 2)


def reading_threads(memory: int, threads: int, block_bytes: int, database_bytes: int = 0) -> int:
    """Return how many of ``threads`` fit into memory in the first pass, at least 1.

    Each needs ``database_bytes`` of DuckDB.
    """
    each = _BLOCKS * block_bytes + 2 * BATCH_BYTES + database_bytes
    return fitting_threads(memory - RESIDENT, each, threads)


def writing_share(
    memory: int,
    threads: int,
    *,
    row_group_bytes: int,
    bucket_rows: int,
    row_bytes: int,
    id_bytes: npt.NDArray[np.int64] | None = None,
    grading_bytes: int = 0,
) -> MemoryShare:
    """Return how many of ``threads`` may write shards at once, and how much of ``memory`` each has for values.

    The largest bucket has ``bucket_rows`` rows of ``row_bytes`` bytes of values, of which ``row_group_bytes`` are
    written at a time.

    Parameters
    ----------
    id_bytes
        (2, buckets) bytes of the ids of queries and of documents; None: ids of usual length.
    grading_bytes
        Extra memory for joining or merging the judgments of a bucket.

    Raises
    ------
    InputError
        The ids of the largest bucket do not fit, even with one thread.
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
    fixed = row_group_bytes + ids_and_order + of_columns + grading_bytes + 2 * BATCH_BYTES
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
LEAST_SAMPLED_ROWS = 1 << 16  # with fewer, errors exceed half a bin of 255
_RESIDENT = 270 * 10**6  # bytes of the process with libraries and compiled kernels
_QUERY = 5  # bytes: split and size
_SORTED = 4  # bytes per row of a column in memory
_COUNTED = 9  # bytes per row of the column being counted, at most (all values distinct)
_SAMPLED = 4  # bytes per sampled row of a column
_WEIGHED = 90  # bytes per sampled row: its position, and the counts of the column being divided
_COUNTERS = 48 << 10  # bytes per column for candidates for heavy values
_BLOCK = 16 << 20  # bytes of values written at a time
_ROW_GROUP = 64 << 20  # bytes of the values of a row group
_BATCH_ROWS = 65536  # rows read at a time, and maximum written at a time
_PAGE = 1 << 20  # bytes of a page of a column, before compression
_VOCABULARY = 40  # bytes in memory per byte of the file with the texts of categories
_WORTHWHILE = 512 << 20  # bytes of columns; reading more at a time is not faster


@dataclass(frozen=True, slots=True)
class BinPlan:
    """How to bin a dataset in bounded memory."""

    rows: int
    """Number of rows of the train split."""
    features: int
    columns: int
    """Features processed together, at least one."""
    sampled_rows: int | None
    """Rows to sample for the edges; None: all."""
    batch_rows: int
    """Rows written at a time."""
    peak_bytes: int
    """Upper bound on the memory of the process."""

    @classmethod
    def of(cls, manifest: Manifest, memory: int) -> BinPlan:
        """Return the plan for a dataset with a train split; InputError if ``memory`` is too small."""
        checked_memory(memory)
        features, rows = len(manifest.features), manifest.splits["train"].rows
        fitting = max(1, _BLOCK // (4 * features))
        batch_rows = min(1 << (fitting.bit_length() - 1), _BATCH_ROWS)
        base = _RESIDENT + _QUERY * manifest.queries + max((shard.rows for shard in manifest.shards), default=0)
        base += 0 if manifest.categories is None else _VOCABULARY * manifest.categories.size
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
        """Return the plan as one line of text."""
        rows = f"all {self.rows:,} rows of the train split"
        if self.sampled_rows is not None:
            rows = f"a sample of {self.sampled_rows:,} of the {self.rows:,} rows of the train split"
        return (
            f"edges from {rows}, {self.columns:,} of {self.features:,} features at a time;"
            f" at most {self.peak_bytes / 1e6:,.0f} MB of memory"
        )
