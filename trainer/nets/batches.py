"""Batches of whole queries, in an order of their own for each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.kernels.randoms import random_keys
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.trainer.data.rows import RankedRows

_SHUFFLE = 0x73687566  # stream of random numbers


@dataclass(frozen=True, slots=True)
class Epoch:
    """The rows of an epoch in its order: query by query, so that a batch is a range of queries and of rows."""

    rows: RankedRows
    places: npt.NDArray[np.int64]  # (n_rows,) the row of the split that each row is

    @classmethod
    def of(cls, rows: RankedRows, seed: int, number: int) -> Epoch:
        """Return epoch 1, 2, ..: the queries of ``rows`` in a random order keyed by seed and number."""
        keys = random_keys(seed, _SHUFFLE, number, rows.query_names)
        return cls.in_order(rows, np.argsort(keys, kind="stable"))

    @classmethod
    def in_order(cls, rows: RankedRows, order: npt.NDArray[np.intp]) -> Epoch:
        """Return the queries in this order (n_queries,)."""
        places, starts = _gathered(rows.starts, order)

        def part(values: npt.NDArray[Any] | None, which: npt.NDArray[Any] = places) -> Any:
            return None if values is None else values[which]

        pairs = rows.pairs
        if pairs is not None:
            row_now = np.empty(rows.n_rows, dtype=np.int32)
            row_now[places] = np.arange(rows.n_rows, dtype=np.int32)
            which, pair_starts = _gathered(pairs.starts, order)
            pairs = PreferencePairs(
                better=row_now[pairs.better[which]],
                worse=row_now[pairs.worse[which]],
                weight=pairs.weight[which],
                probability=pairs.probability[which],
                starts=pair_starts,
            )
        ordered = replace(
            rows,
            grades=rows.grades[places],
            starts=starts,
            bins=(),
            weights=part(rows.weights),
            labels=part(rows.labels),
            events=part(rows.events),
            offsets=part(rows.offsets),
            query_weights=part(rows.query_weights, order),
            pairs=pairs,
            names=rows.query_names[order],
            codes={},
            goals={name: values[places] for name, values in rows.goals.items()},
        )
        return cls(ordered, places)

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


def _gathered(
    starts: npt.NDArray[np.int64], order: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places of the parts that begin at ``starts``, part after part in this ``order``, and where each begins then."""
    sizes = np.diff(starts)[order]
    begins = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return np.repeat(starts[:-1][order] - begins[:-1], sizes) + np.arange(begins[-1]), begins
