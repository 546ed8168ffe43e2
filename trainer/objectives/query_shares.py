"""Distribute queries over workers by the amount of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.trainer.objectives.protocol import Floats, PairHessians
from rankmill.trainer.team import Team

# kernel(first query, last query, ends, fill, first rows, second rows, hessians) counts pairs, or writes them
PairKernel = Callable[
    [
        int,
        int,
        npt.NDArray[np.int64],
        bool,
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        Floats,
    ],
    object,
]


class QueryShares:
    """Ranges of queries, one per worker, with about equal work.

    Parameters
    ----------
    work
        Shape (n_queries,), 0 or more: the work of each query.
    least
        Minimum work per worker; with less, fewer workers share it.
    """

    def __init__(self, work: npt.NDArray[np.int64], least: int) -> None:
        self._until = np.concatenate(([0], np.cumsum(work)))
        self._least = least
        self._limits = 0, len(work)

    def limit_to(self, first: int, last: int) -> None:
        """Let later calls of :meth:`each` take only the queries first .. last - 1."""
        self._limits = first, last

    def in_order(self, queries: npt.NDArray[np.intp]) -> QueryShares:
        """Return the shares of these queries in this order, without limits."""
        return QueryShares(np.diff(self._until)[queries], self._least)

    def each(self, team: Team, task: Callable[[int, int, int], object]) -> None:
        """Run ``task(first_query, last_query, worker)`` so that the ranges make up all queries, within the limits."""
        first, last = self._limits
        done = int(self._until[first])
        total = int(self._until[last]) - done
        busy = team.busy(total, self._least)
        if busy == 1:
            task(first, last, 0)
            return
        until = self._until[first : last + 1]
        cuts = first + np.searchsorted(until, done + total * np.arange(busy + 1) / busy)
        cuts[0], cuts[-1] = first, last
        team.each(lambda worker: task(int(cuts[worker]), int(cuts[worker + 1]), worker), busy)

    def pairs(self, team: Team, kernel: PairKernel) -> PairHessians:
        """Return the pairs of all queries in their order, which ``kernel`` first counts and then writes."""
        ends = np.zeros(len(self._until), dtype=np.int64)

        def run(n: int, *, fill: bool) -> PairHessians:
            pairs = PairHessians(np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.float64))
            self.each(
                team,
                lambda first, last, _: kernel(first, last, ends, fill, pairs.first, pairs.second, pairs.hessian),
            )
            return pairs

        run(0, fill=False)
        np.cumsum(ends, out=ends)
        return run(int(ends[-1]), fill=True)


class Workspaces:
    """Arrays of given shapes and types, one set per worker."""

    def __init__(self, *arrays: tuple[tuple[int, ...], type[np.generic]]) -> None:
        self._arrays = arrays
        self._held: dict[int, list[npt.NDArray[Any]]] = {}

    def of(self, worker: int) -> list[npt.NDArray[Any]]:
        """Return the arrays of ``worker``, as it left them."""
        if worker not in self._held:
            self._held[worker] = [np.zeros(shape, kind) for shape, kind in self._arrays]
        return self._held[worker]
