"""How to build a dataset, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import InputError
from rankmill.foundation.memory import checked_memory
from rankmill.pipeline.group.query_splits import rule_of
from rankmill.pipeline.judgments.rules import check_aggregate
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES, ReadOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankmill.pipeline.dataset_manifest import FoldChoice
    from rankmill.pipeline.group.query_splits import ByTime, SplitRule
    from rankmill.pipeline.judgments.rules import Aggregate

MAX_BUCKETS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """How to build a dataset.

    Attributes
    ----------
    format
        ``letor``, ``csv``, ``tsv``, ``parquet``, ``arrow``, ``jsonl``, ``run``; ``auto`` goes by each file's suffix.
    read
        What the input means.
    shares
        Shares of the splits, by hash of the query.
    split_time
        When the splits begin, by the times of ``read.time_column``.
    folds
        One of K folds, by hash of the query.  Without any of these three the splits are the files, as given.
    aggregate
        What several judgments of one document make (see :mod:`rankmill.pipeline.judgments.rules`); None: rows are kept as they are, and
        files of judgments must not contradict each other.
    max_rejects
        Bad rows, judgments and pairs to put aside before giving up.
    buckets
        Number of shards.  A constant of the dataset: the order of its rows depends on it.
    memory
        Bound in bytes on the memory of the process; a bucket that does not fit is read several times.
    threads
        Threads to use, as far as the memory allows; 0: one for each core.
    block_bytes
        Text parsed at a time by each of them.
    overwrite
        Whether a dataset that is in the way is replaced.
    append
        Whether the rows are added to the dataset that is there, with the same bytes as one ingest of all files.  What it was
        made with holds, and options that differ from it are errors.
    """

    format: str = "auto"
    read: ReadOptions = ReadOptions()  # noqa: RUF009  frozen
    shares: Mapping[str, float] | None = None
    split_time: ByTime | None = None
    folds: FoldChoice | None = None
    aggregate: Aggregate | None = None
    max_rejects: int = 0
    buckets: int = 32
    memory: int = 2 * 10**9
    threads: int = 0
    block_bytes: int = DEFAULT_BLOCK_BYTES
    overwrite: bool = False
    append: bool = False

    def __post_init__(self) -> None:
        if self.rule is not None and self.split_time is not None and self.read.time_column is None:
            raise InputError("--split-time goes by a column of times; name it with --time-column")
        if self.aggregate is not None:
            check_aggregate(self.aggregate)
        if self.max_rejects < 0:
            raise InputError(f"--max-rejects must be 0 or more, got {self.max_rejects}")
        if not 1 <= self.buckets <= MAX_BUCKETS:
            raise InputError(f"--buckets must be in 1..{MAX_BUCKETS}, got {self.buckets}")
        checked_memory(self.memory)
        if self.threads < 0:
            raise InputError(f"--threads must be 0 or more, got {self.threads}")
        if not 1 <= self.block_bytes <= 1 << 30:
            raise InputError(f"--block-size must be in 1 byte..1GiB, got {self.block_bytes}")

    @property
    def rule(self) -> SplitRule | None:
        """What says which split a query belongs to; None: the files."""
        return rule_of(self.shares, self.split_time, self.folds)

    @property
    def allowed_threads(self) -> int:
        """How many threads there may be."""
        return self.threads or available_cores()
