"""A pool of histograms, one for each node that may still be split, within a bound."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainer.aligned import aligned_empty
from trainer.dtypes import BINS_A_FEATURE, PACKED

DEFAULT_POOL_BYTES = 512 * 2**20
FEWEST_SLOTS = 3  # a node, its smaller child, and one that waits


class HistogramPool:
    """``cells`` of shape (n_slots, n_features, 256) int64.

    A node beyond ``n_slots`` costs time, never another result: the waiting node of the least gain gives up its
    histogram and counts again when its turn comes.  Memory is used when a slot is first written.
    """

    def __init__(self, n_features: int, max_leaves: int, most_bytes: int = DEFAULT_POOL_BYTES) -> None:
        self.n_slots = self.slots_for(n_features, max_leaves, most_bytes)
        self.cells: npt.NDArray[np.int64] = aligned_empty((self.n_slots, n_features, BINS_A_FEATURE), PACKED)

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
