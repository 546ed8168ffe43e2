"""Batches of whole queries, in an order of their own for each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rankmill.foundation.kernels.randoms import random_keys
from rankmill.trainer.data.rows import RankedRows, places_of

_SHUFFLE = 0x73687566  # stream of random numbers


@dataclass(frozen=True, slots=True)
class Epoch:
    """The rows of an epoch in its order: query by query, so that a batch is a range of queries and of rows."""

    rows: RankedRows
    places: npt.NDArray[np.int64]  # (n_rows,) the row of the split that each row is
    queries: npt.NDArray[np.intp]  # (n_queries,) the query of the split that each query is

    @classmethod
    def of(cls, rows: RankedRows, seed: int, number: int) -> Epoch:
        """Return epoch 1, 2, ..: the queries of ``rows`` in a random order keyed by seed and number."""
        keys = random_keys(seed, _SHUFFLE, number, rows.query_names)
        return cls.in_order(rows, np.argsort(keys, kind="stable"))

    @classmethod
    def in_order(cls, rows: RankedRows, order: npt.NDArray[np.intp]) -> Epoch:
        """Return the queries in this order (n_queries,)."""
        return cls(replace(rows, bins=(), codes={}).in_order(order), places_of(rows.starts, order)[0], order)

    def batches(self, documents: int) -> Iterator[tuple[int, int]]:
        """Yield the first and last + 1 query of each batch: as few queries as hold ``documents``.

        What is left at the end is a batch if it has half as many documents, or belongs to the last one.
        """
        starts, n_queries, first = self.rows.starts, self.rows.n_queries, 0
        while first < n_queries:
            last = min(int(np.searchsorted(starts, starts[first] + documents)), n_queries)
            if 2 * (starts[-1] - starts[last]) < documents:
                last = n_queries
            yield first, last
            first = last


def most_rows(rows: RankedRows, documents: int) -> int:
    """Return a bound on the rows of a batch of ``documents``."""
    longest = int(np.diff(rows.starts).max(initial=0))
    return max(1, min(rows.n_rows, documents + documents // 2 + longest))
