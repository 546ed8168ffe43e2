"""A pool of histograms, one for each node that may still be split, within a bound."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankmill.trainer.aligned import aligned_empty
from rankmill.trainer.dtypes import BINS_A_FEATURE, PACKED
from rankmill.trainer.parameters import TrainParameters

DEFAULT_POOL_BYTES = 512 * 2**20
FEWEST_SLOTS = 3  # a node, its smaller child, and one that waits


class HistogramPool:
    """``cells`` of shape (n_slots, n_features, 256) int64, for trees of ``parameters``.

    ``n_features`` is filled up to whole blocks.  A node beyond ``n_slots`` costs time, never another result: the
    waiting node whose turn comes last gives up its histogram and counts again.  Memory is used when a slot is first
    written.
    """

    def __init__(self, n_features: int, parameters: TrainParameters, most_bytes: int = DEFAULT_POOL_BYTES) -> None:
        self.n_slots = self.bytes_needed(n_features, parameters, most_bytes) // _bytes_of_one(n_features)
        self.cells: npt.NDArray[np.int64] = aligned_empty((self.n_slots, n_features, BINS_A_FEATURE), PACKED)

    @staticmethod
    def bytes_needed(n_features: int, parameters: TrainParameters, most_bytes: int = DEFAULT_POOL_BYTES) -> int:
        """Return the bytes of the pool: ``most_bytes`` at most, but for oblivious trees, which search a depth at once."""
        one = _bytes_of_one(n_features)
        if parameters.grow == "oblivious":
            return one * max(FEWEST_SLOTS, parameters.leaves // 2)
        return one * max(FEWEST_SLOTS, min(parameters.leaves, most_bytes // one))


def _bytes_of_one(n_features: int) -> int:
    return n_features * BINS_A_FEATURE * np.dtype(PACKED).itemsize
