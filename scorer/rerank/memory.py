"""Divide the memory limit of a re-ranking; the limit is for the whole process, so fixed costs are subtracted first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import fitting_threads
from rankmill.foundation.units import MIN_MEMORY

MB = 1_000_000
MIB = 1 << 20
LEAST = MIN_MEMORY
FLOOR = 230 * MIB
"""Interpreter, libraries, compiled kernels and the allocators' slack: about 210 MiB measured, before any data."""

READER = 200 * MIB
"""Bytes for reading a Parquet file of some hundred columns: pages of all columns, and the current batch."""
BLOCKS_FOR_BEST = 4
SHARE_OF_RUN = 8
"""The documents of a first-stage run may take this fraction of the remaining memory; reading them takes four times as
much."""
SHARE_OF_SORT = 3
"""The sort may hold this fraction of the remaining memory; its buffers and the libraries' caches take as much again."""
COPIES_OF_A_MODEL = 4
"""A model is held as its file, as arrays, and laid out for prediction."""
MOST_AT_ONCE = 4 * 10**9
"""Bytes of a table that inspection or prediction makes of a model, at most: a small file may ask for very large
ones."""
GROWTH = 12
"""Parsed text and dense rows take up to about this many times the bytes of a block."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory limits of the phases; scoring and sorting do not overlap, so each gets all that remains."""

    total: int
    """Maximum bytes of the whole process."""
    block_bytes: int
    """Bytes of input that a thread reads at a time."""
    sort_bytes: int
    """Bytes that the sort may hold before it spills; buffers that it does not count take about as much again."""
    held: int = 0
    """Bytes that the models, and the documents of a first-stage run (`rankmill.scorer.rerank.first_stage`), take
    throughout."""

    @classmethod
    def of(cls, total: int) -> MemoryPlan:
        """Divide ``total`` bytes; InputError below ``LEAST``."""
        if total < LEAST:
            raise InputError(f"{spelled('memory')} must be at least 512MB, got {total / MB:,.0f}MB")
        left = total - FLOOR
        return cls(total=total, block_bytes=min(max(left // 128, MIB), 8 * MIB), sort_bytes=left // SHARE_OF_SORT)

    @property
    def run_bytes(self) -> int:
        """Maximum bytes for the documents of a first-stage run."""
        return (self.total - FLOOR) // SHARE_OF_RUN

    def with_run(self, held: int) -> MemoryPlan:
        """Return the plan for a run whose documents take ``held`` bytes; the blocks are the same."""
        return replace(self, held=self.held + held, sort_bytes=self.sort_bytes - held // SHARE_OF_SORT)

    def with_models(self, file_bytes: int, table_bytes: int = 0) -> MemoryPlan:
        """Return the plan for models whose files have ``file_bytes`` together.

        InputError if they take more than half of what is left.

        ``table_bytes`` are those of tables that prediction makes of them.
        """
        held, left = COPIES_OF_A_MODEL * file_bytes + table_bytes, self.total - FLOOR
        if 2 * held > left:
            raise InputError(
                f"{spelled('memory')} {self.total / MB:,.0f}MB is too little for models that take about "
                f"{held / MB:,.0f} MB; set at least {(FLOOR + 2 * held) / MB + 1:,.0f}MB"
            )
        return self.with_run(held)

    def scoring_threads(self, wanted: int) -> int:
        """Return how many of the ``wanted`` threads fit into memory, each with its own block; at least 1."""
        return fitting_threads(self.total - FLOOR - READER - self.held, GROWTH * self.block_bytes, wanted)

    @property
    def best_bytes(self) -> int:
        """Bytes for the best scores of each query so far (`rankmill.scorer.rerank.top_k.BestScores`)."""
        return BLOCKS_FOR_BEST * self.block_bytes

    def columns_bytes(self, n_threads: int) -> int:
        """Return the bytes for each of ``n_threads`` to read a row group whose columns are read one at a time.

        As much again is reserved for results that wait for their turn, and for memory that allocators keep.
        """
        return max(self.total - FLOOR - self.held - self.best_bytes, 0) // (2 * n_threads)

    def render(self) -> str:
        """Return the plan as one line.

        >>> for part in MemoryPlan.of(2_000_000_000).render().split("; "):
        ...     print(part)
        memory 2,000 MB: 241 MB for the process itself
        then input blocks of 8 MB, or groups of rows of Parquet of 863 MB in all
        then a sort that spills above 586 MB
        """
        run = f", {self.held / MB:,.1f} MB for models and the documents of a run" if self.held else ""
        return (
            f"memory {self.total / MB:,.0f} MB: {FLOOR / MB:,.0f} MB for the process itself{run}; then input blocks "
            f"of {self.block_bytes / MB:,.0f} MB, or groups of rows of Parquet of {self.columns_bytes(1) / MB:,.0f} "
            f"MB in all; then a sort that spills above {self.sort_bytes / MB:,.0f} MB"
        )


def check_table(n_bytes: int, what: str, cure: str) -> None:
    """Raise InputError if a table of ``n_bytes`` is larger than ``MOST_AT_ONCE``.

    ``what`` needs it, and ``cure`` makes it smaller.
    """
    if n_bytes > MOST_AT_ONCE:
        raise InputError(f"{what} need {n_bytes / 1e9:,.1f} GB, at most {MOST_AT_ONCE / 1e9:,.0f} GB are taken; {cure}")
