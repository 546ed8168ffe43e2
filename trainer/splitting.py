"""The best split of a node, as the kernels hand it over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Split:
    """Rows with ``bin <= threshold`` of ``feature`` go left; the missing (bin 0) go left if ``missing_left``."""

    gain: float
    feature: int
    threshold: int
    missing_left: bool
    left_sum: int  # packed gradient and curvature of the rows that go left


def best_of(gains: npt.NDArray[np.float64], splits: npt.NDArray[np.int64]) -> Split | None:
    """Return the best split over blocks, (n_blocks,) gains and (n_blocks, 4) splits; equal gains: lowest feature."""
    block = int(np.argmax(gains))  # the first of equals
    if gains[block] <= 0.0:
        return None
    feature, threshold, missing_left, left_sum = (int(v) for v in splits[block])
    return Split(float(gains[block]), feature, threshold, bool(missing_left), left_sum)
