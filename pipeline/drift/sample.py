"""One feature of a sample cut into cells: all that another sample needs to be compared with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.binspec import FeatureBins, feature_bins
from rankmill.pipeline.drift import _kernels
from rankmill.pipeline.drift.psi import Sums
from rankmill.pipeline.quantiles import EDGE, Values, bin_ends

VALUE_CELLS = 20  # more are noise: the index of chance grows with their number
_QUERIES_A_CELL = 10  # fewer, and a chi-square no longer says what chance does
_OTHERS = 3  # missing, below and above all that there was

Starts = npt.NDArray[np.int64]


def cells_for(*queries: int) -> int:
    """Return how many cells of values to cut samples of so many ``queries`` into.

    >>> cells_for(1000), cells_for(70, 1000), cells_for(3)
    (20, 7, 2)
    """
    return min(VALUE_CELLS, max(2, min(queries) // _QUERIES_A_CELL))


def cell_edges(bins: FeatureBins, most: int = VALUE_CELLS) -> tuple[Values, np.float32, np.float32]:
    """Return where ``bins`` are cut into at most ``most`` cells of about equal mass, and the least and the greatest value."""
    low, high = (np.nan if value is None else value for value in (bins.minimum, bins.maximum))
    cumulative = np.concatenate(([0], np.cumsum(bins.counts[1:])))
    ends = bin_ends(cumulative.astype(np.int64), most)
    return bins.edges[ends[:-1] - 1], EDGE(low), EDGE(high)


@dataclass(frozen=True, slots=True)
class FeatureSample:
    """The cells of one feature, and what of the sample that they were made for falls into them.

    Cell 0 has the missing values, cell 1 those below ``low``, the last one those above ``high``, the others are cut at ``edges``.
    """

    name: str
    edges: Values
    low: np.float32
    high: np.float32
    sums: Sums

    @classmethod
    def of(
        cls, name: str, values: Values, starts: Starts, most: int = VALUE_CELLS, bins: FeatureBins | None = None
    ) -> FeatureSample:
        """Cut ``values`` (n,), whose queries begin at ``starts`` (q + 1,), into at most ``most`` cells; ``bins`` if they are known."""
        edges, low, high = cell_edges(feature_bins(name, values) if bins is None else bins, most)
        return cls(name, edges, low, high, _sums(values, starts, edges, low, high))

    def placed(self, values: Values, starts: Starts) -> Sums:
        """Return what falls into these cells of other ``values``."""
        return _sums(values, starts, self.edges, self.low, self.high)

    def joined(self, most: int) -> FeatureSample:
        """Return the same with neighbouring cells joined, so that there are at most ``most`` for values."""
        if len(self.edges) < most:
            return self
        cumulative = np.concatenate(([0], np.cumsum(self.sums.counts[2:-1])))
        ends = bin_ends(cumulative.astype(np.int64), most)
        values = np.repeat(np.arange(len(ends)), np.diff(np.concatenate(([0], ends))))
        into = np.concatenate(([0, 1], 2 + values, [2 + len(ends)])).astype(np.int64)
        return FeatureSample(self.name, self.edges[ends[:-1] - 1], self.low, self.high, self.sums.joined(into))


def _sums(values: Values, starts: Starts, edges: Values, low: np.float32, high: np.float32) -> Sums:
    found = np.empty(len(values), dtype=np.uint8)
    _kernels.place(values, edges, low, high, found)
    return Sums.of(found, starts, len(edges) + 1 + _OTHERS)
