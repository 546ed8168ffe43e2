"""What binning a dataset takes, known before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError

if TYPE_CHECKING:
    from rankmill.pipeline.manifest import Manifest

DEFAULT_MEMORY = 2 * 10**9
MIN_MEMORY = 512 * 10**6
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


def checked_memory(memory: int) -> int:
    """Return ``memory`` if it is enough to bin anything at all; InputError if not."""
    if memory < MIN_MEMORY:
        raise InputError(f"--memory must be at least {MIN_MEMORY // 10**6}MB, got {memory:,} bytes")
    return memory


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
                    f"--memory: {manifest.queries:,} queries and {rows:,} rows cannot be binned in {memory:,} bytes;"
                    f" give {-(-needed // 10**8) * 100}MB"
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
