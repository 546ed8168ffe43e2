"""A pool of histograms, one for each node that may still be split."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainer.dtypes import BINS_A_FEATURE, PACKED


class HistogramPool:
    """Histograms of shape (n_features, 256) int64, made when first taken and used again for the next tree."""

    def __init__(self, n_features: int) -> None:
        self._shape = (n_features, BINS_A_FEATURE)
        self._slots: list[npt.NDArray[np.int64]] = []
        self._free: list[int] = []

    def __getitem__(self, slot: int) -> npt.NDArray[np.int64]:
        return self._slots[slot]

    def take(self) -> int:
        """Return a slot that nobody holds; its cells hold anything."""
        if self._free:
            return self._free.pop()
        self._slots.append(np.empty(self._shape, dtype=PACKED))
        return len(self._slots) - 1

    def give_back(self, slot: int) -> None:
        """Make ``slot`` free again; -1 stands for none."""
        if slot >= 0:
            self._free.append(slot)

    @staticmethod
    def bytes_needed(n_features: int, most: int) -> int:
        """Return the bytes of ``most`` histograms of ``n_features`` (filled up to whole blocks)."""
        return n_features * BINS_A_FEATURE * np.dtype(PACKED).itemsize * most
