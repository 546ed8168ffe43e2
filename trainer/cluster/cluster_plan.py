"""The cost of training on a cluster, known before it starts.

It is the memory of a worker, bytes and exchanges a round, and the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log2

import numpy as np

from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.trainer.candidates.train_on_dataset import BYTES_OF_METRICS, TrainingPlan

# measured: docs/benchmarks/training-rounds.md and docs/benchmarks/cluster.md
_SECONDS_A_VALUE = 4.6e-10  # of one thread, for each row, feature and level of a tree; all phases of a round
_SECONDS_A_TREE = 0.008  # that do not depend on rows
_POWER_OF_THREADS = 0.6  # 16 threads do the work of 5 on 720,000 rows
_SECONDS_AN_EXCHANGE = 0.0014  # two workers on 16 cores
_BYTES_A_SECOND = 400e6  # of one worker, from memory to memory
_BYTES_OF_DASK = 60 << 20  # messages, and heaps of more threads
_OTHER_EXCHANGES = 5  # of a tree: scales, the root, leaf values, metrics of the train and the valid split
_EXCHANGES_A_LEAF, _FIRST_EXCHANGES = 0.58, 7  # of a tree that is grown node by node, 8 to 255 leaves
_PREPARED = 1.18  # histograms of such a tree that are added up, to those that it needs


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The costs of a training on some workers."""

    workers: int
    bytes_a_worker: int
    bytes_a_round: int  # that each worker sends
    exchanges_a_round: int
    seconds_a_round: float
    seconds_alone: float  # in one process on the machine with the most threads

    @classmethod
    def of(
        cls, plan: TrainingPlan, dataset: Dataset, threads: Mapping[str, int], *, one_machine: bool = False
    ) -> ClusterPlan:
        """Return the costs of ``plan`` on workers with ``threads`` each, which may share ``one_machine``."""
        p, n_workers = plan.parameters, max(1, len(threads))
        cells = int(dataset.binspec().n_bins.sum())
        trees = plan.n_outputs * p.members
        by_level = p.grow == "oblivious"
        histograms = 1 << max(0, p.depth - 1) if by_level else p.leaves
        of_nodes = 3 * p.depth if by_level else _FIRST_EXCHANGES + round(_EXCHANGES_A_LEAF * p.leaves)
        # more than two workers add up histograms twice: a slice each, then all slices; each takes a message for each
        # doubling
        sums = of_nodes + _OTHER_EXCHANGES + (of_nodes // 2 if n_workers > 2 else 0)
        exchanges = sums * (n_workers - 1).bit_length()
        # two send each other everything; more of them a slice to each, and then the sum of a slice to all
        times = 0.0 if n_workers == 1 else 1.0 if n_workers == 2 else 2.0 * (n_workers - 1) / n_workers
        sent = 8.0 * cells * histograms * times * (1.0 if by_level else _PREPARED)
        work = _SECONDS_A_VALUE * plan.train_rows * plan.n_features * (p.depth if by_level else log2(max(2, p.leaves)))
        speeds = np.array(list(threads.values()) or [1], dtype=np.float64) ** _POWER_OF_THREADS
        alone = max(1, sum(threads.values())) ** _POWER_OF_THREADS if one_machine else speeds.max()
        moving = exchanges * _SECONDS_AN_EXCHANGE + sent / _BYTES_A_SECOND if n_workers > 1 else 0.0
        return cls(
            workers=n_workers,
            bytes_a_worker=_bytes_of_share(plan, n_workers),
            bytes_a_round=int(trees * sent),
            exchanges_a_round=trees * exchanges if n_workers > 1 else 0,
            seconds_a_round=trees * float(_SECONDS_A_TREE + work / n_workers / speeds.min() + moving),
            seconds_alone=trees * float(_SECONDS_A_TREE + work / alone),
        )

    def render(self) -> str:
        """Return a line for people."""
        line = (
            f"on {self.workers} workers: about {self.bytes_a_worker / 1e6:,.0f} MB each, which send "
            f"{self.bytes_a_round / 1e6:,.1f} MB a round in {self.exchanges_a_round:,} exchanges; about "
            f"{self.seconds_a_round:.2g} s a round, {self.seconds_alone:.2g} in one process on one machine"
        )
        if self.workers > 1 and self.seconds_alone <= self.seconds_a_round:
            line += ": one process is faster, if the data fit into its memory"
        return line


def _bytes_of_share(plan: TrainingPlan, n_workers: int) -> int:
    """Return the bytes of one of ``n_workers``: its share of everything, and the columns of all rows."""
    share = replace(
        plan,
        train_rows=-(-plan.train_rows // n_workers),
        valid_rows=-(-plan.valid_rows // n_workers),
        column_bytes=0,
        objective_bytes=0,
    )
    of_all = plan.column_bytes * (plan.train_rows + plan.valid_rows) // plan.train_rows
    rows = plan.train_rows + plan.valid_rows
    # also of the rows of other workers
    of_metrics = BYTES_OF_METRICS * (rows - share.train_rows - share.valid_rows)
    return share.bytes_needed + of_all + 4 * rows + of_metrics + plan.objective_bytes + _BYTES_OF_DASK
