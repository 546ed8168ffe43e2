"""A pool of histograms, one for each node that may still be split, within a bound."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainer.aligned import aligned_empty
from trainer.dtypes import BINS_A_FEATURE, PACKED
from trainer.parameters import TrainParameters

DEFAULT_POOL_BYTES = 512 * 2**20
_NO_BOUND = 2**62
FEWEST_SLOTS = 3  # a node, its smaller child, and one that waits


class HistogramPool:
    """``cells`` of shape (n_slots, n_features, 256) int64.

    A node beyond ``n_slots`` costs time, never another result: the waiting node of the least gain gives up its
    histogram and counts again when its turn comes.  Memory is used when a slot is first written.
    """

    def __init__(self, n_features: int, max_leaves: int, most_bytes: int = DEFAULT_POOL_BYTES) -> None:
        self.n_slots = self.slots_for(n_features, max_leaves, most_bytes)
        self.cells: npt.NDArray[np.int64] = aligned_empty((self.n_slots, n_features, BINS_A_FEATURE), PACKED)

    @classmethod
    def of(cls, n_features: int, parameters: TrainParameters, most_bytes: int = DEFAULT_POOL_BYTES) -> HistogramPool:
        """Return the pool for trees of ``parameters``, arguments as in :meth:`bytes_for`."""
        return cls(n_features, *_demand(parameters, most_bytes))

    @classmethod
    def bytes_for(cls, n_features: int, parameters: TrainParameters, most_bytes: int = DEFAULT_POOL_BYTES) -> int:
        """Return the bytes of the pool for trees of ``parameters`` over ``n_features`` (filled up to whole blocks)."""
        return cls.bytes_needed(n_features, *_demand(parameters, most_bytes))

    @staticmethod
    def slots_for(n_features: int, max_leaves: int, most_bytes: int) -> int:
        """Return how many histograms of ``n_features`` (filled up to whole blocks) ``most_bytes`` can hold."""
        one = n_features * BINS_A_FEATURE * np.dtype(PACKED).itemsize
        return max(FEWEST_SLOTS, min(max_leaves, most_bytes // one))

    @classmethod
    def bytes_needed(cls, n_features: int, max_leaves: int, most_bytes: int = DEFAULT_POOL_BYTES) -> int:
        """Return the bytes of the pool."""
        one = n_features * BINS_A_FEATURE * np.dtype(PACKED).itemsize
        return one * cls.slots_for(n_features, max_leaves, most_bytes)


def _demand(parameters: TrainParameters, most_bytes: int) -> tuple[int, int]:
    """Return how many histograms trees can use, and the bound: none for oblivious ones, which search a depth at once."""
    return (parameters.leaves // 2, _NO_BOUND) if parameters.grow == "oblivious" else (parameters.leaves, most_bytes)
