"""The rows that one process of a training holds.

The rows of a set are cut into shards of whole queries, one for each process.  Every process knows grades, weights and
the other columns of *all* rows. So row and query numbers, random draws, weights relative to a mean and starting scores
are the same as in one process.  Bins, scores and gradients are for all rows too, but only the pages of the shard are
ever touched, and only those take memory::

    rows        0 ..              first ..              last ..               n_rows
    bins        (never touched)   |#####################|   (never touched)
    gradients   (never touched)   |#####################|   (never touched)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rankmill.foundation.cluster.dask_peers import DaskPeers


@dataclass(frozen=True, slots=True)
class Span:
    """The rows and queries that a process holds of one set of rows."""

    first: int
    last: int
    first_query: int
    last_query: int
    n_rows: int  # of all processes
    peers: DaskPeers | None = None  # None: this process has all rows

    @classmethod
    def whole(cls, starts: npt.NDArray[np.int64]) -> Span:
        """Return the span of all rows; ``starts`` (n_queries + 1,)."""
        return cls(0, int(starts[-1]), 0, len(starts) - 1, int(starts[-1]))

    @property
    def size(self) -> int:
        """How many rows it has."""
        return self.last - self.first

    def of_rows(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return those of the ascending ``rows`` that lie here."""
        return rows[slice(*np.searchsorted(rows, (self.first, self.last)))]

    def add_up(self, values: npt.NDArray[np.int64]) -> None:
        """Replace ``values`` (m,) by the sums over all processes."""
        if self.peers is not None:
            self.peers.add_up(values)

    def of_all_queries(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return ``values`` (m, n_queries) with those of the queries of other processes."""
        if self.peers is None:
            return values
        own = values[:, self.first_query : self.last_query].ravel()
        return np.concatenate([part.reshape(len(values), -1) for part in self.peers.gather(own)], axis=1)

    def total_and_least(self, total: int, least: int) -> tuple[int, int]:
        """Return the sum of ``total``, and the smallest ``least``, of all processes."""
        if self.peers is None:
            return total, least
        found = np.array(self.peers.gather(np.array([total, least], dtype=np.int64)))
        return int(found[:, 0].sum()), int(found[:, 1].min())


@dataclass(frozen=True, slots=True)
class RowShard:
    """What one process holds of every set of rows.

    Parameters
    ----------
    peers
        The processes of the training.
    cuts
        (size + 1,) ascending from 0 to 1: process p has the queries that begin in the part cuts[p] .. cuts[p + 1] of
        the rows.
    """

    peers: DaskPeers
    cuts: tuple[float, ...]

    @classmethod
    def even(cls, peers: DaskPeers) -> RowShard:
        """Return the shard of a process if all have about the same number of rows."""
        return cls(peers, tuple(k / peers.size for k in range(peers.size + 1)))

    def of(self, starts: npt.NDArray[np.int64]) -> Span:
        """Return the span of rows whose queries begin at ``starts`` (n_queries + 1,)."""
        n_rows, n_queries = int(starts[-1]), len(starts) - 1
        number = self.peers.number
        ends = [int(np.searchsorted(starts[:-1], cut * n_rows)) for cut in self.cuts[number : number + 2]]
        first = 0 if number == 0 else ends[0]
        last = n_queries if number == self.peers.size - 1 else ends[1]
        return Span(int(starts[first]), int(starts[last]), first, last, n_rows, self.peers)


def span_of(starts: npt.NDArray[np.int64], shard: RowShard | None) -> Span:
    """Return what ``shard`` has of rows whose queries begin at ``starts``; None: all."""
    return Span.whole(starts) if shard is None else shard.of(starts)
