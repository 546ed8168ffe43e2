"""The population stability index of two samples, and how large chance makes it.

``PSI = sum over cells of (p - q) ln(p / q)`` for the shares p and q of the rows of the former and of the new sample.  A cell that
a sample has no rows in would make it infinite: half an effective row (see below) is added to every cell of either.

Where both samples are of one distribution, p - q is small and the index is nearly ``sum (p - q)^2 / m``, m = (p + q) / 2: a
quadratic form of a normal vector with the covariance V of p - q, so a sum of independent chi-squares, weighted by the eigenvalues
of D^-1/2 V D^-1/2, D = diag(m).  It has the mean and the variance of a chi-square of ``d`` degrees of freedom times ``c``, where
c d is the sum of the eigenvalues and c^2 d the sum of their squares (Satterthwaite 1946); its quantiles are taken for those of
the index (Rao and Scott, "The analysis of categorical data from complex sample surveys", 1981).

Of n and m independent rows in B cells all eigenvalues but one are 1/n + 1/m: the mean is (B - 1)(1/n + 1/m).  Rows of a query are
not independent, though: what is a fact of the query counts once, not once for each of its documents.  So V is estimated from the
queries: with z = (rows of the query in each cell) - (its documents) p, the covariance of p is the sum of z z' over the queries,
divided by the square of the number of rows.  The effective rows of a sample are as many independent ones as would have the same
mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.binspec import FeatureBins, feature_bins
from rankmill.pipeline.quantiles import EDGE, Values, bin_ends
from rankmill.pipeline.statistics import _kernels

_SMOOTHING = 0.5  # effective rows added to every cell

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sums:
    """What is added up over the queries of a sample for B cells: whole numbers, which can be kept and joined without rounding.

    With c the rows of a query in each cell and n all its rows: the sums of c, of c n, of c c' and of n^2.
    """

    counts: npt.NDArray[np.int64]  # (B,)
    weighted: npt.NDArray[np.int64]  # (B,)
    products: npt.NDArray[np.int64]  # (B, B)
    squares: int

    @classmethod
    def of(cls, cells: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], n_cells: int) -> Sums:
        """Count ``cells`` (n,), numbers below ``n_cells``; the queries begin at ``starts`` (q + 1,)."""
        counts, weighted = np.zeros(n_cells, dtype=np.int64), np.zeros(n_cells, dtype=np.int64)
        products = np.zeros((n_cells, n_cells), dtype=np.int64)
        _kernels.moments(cells, starts, counts, products, weighted)
        return cls(counts, weighted, products, int((np.diff(starts) ** 2).sum()))

    def joined(self, into: npt.NDArray[np.int64]) -> Sums:
        """Return those of fewer cells; ``into`` (B,) says which of them each cell becomes a part of."""
        n_cells = int(into.max()) + 1
        counts, weighted = np.zeros(n_cells, dtype=np.int64), np.zeros(n_cells, dtype=np.int64)
        products = np.zeros((n_cells, n_cells), dtype=np.int64)
        np.add.at(counts, into, self.counts)
        np.add.at(weighted, into, self.weighted)
        np.add.at(products, (into[:, None], into[None, :]), self.products)
        return Sums(counts, weighted, products, self.squares)


@dataclass(frozen=True, slots=True)
class Cells:
    """How the rows of one sample fall into B cells, query by query."""

    counts: npt.NDArray[np.int64]  # (B,)
    covariance: Numbers  # (B, B) of the shares

    @classmethod
    def of_sums(cls, sums: Sums) -> Cells:
        """Take the covariance of the shares from ``sums``."""
        rows = max(1, int(sums.counts.sum()))
        share = sums.counts / rows
        mixed = np.outer(sums.weighted, share)
        spread = sums.products - mixed - mixed.T + float(sums.squares) * np.outer(share, share)
        return cls(sums.counts, spread / rows**2)

    @property
    def rows(self) -> int:
        """Rows of the sample."""
        return int(self.counts.sum())

    def shares(self, effective: float) -> Numbers:
        """Return the share of each cell, with half of one of ``effective`` rows more in each."""
        smooth = self.counts + _SMOOTHING * self.rows / max(1.0, effective)
        return np.asarray(smooth / smooth.sum())

    def effective(self, middle: Numbers) -> float:
        """Return how many independent rows would vary as much, as far as the index is concerned."""
        used = middle > 0
        mean = float((np.diag(self.covariance)[used] / middle[used]).sum())
        return (int(np.count_nonzero(used)) - 1) / mean if mean > 0 else float(self.rows)


@dataclass(frozen=True, slots=True)
class Index:
    """The index of two samples, and what it would be by chance."""

    psi: float
    scale: float
    """c of the docstring of this module; 0 where nothing varies."""
    freedom: float
    effective: tuple[float, float]
    """Independent rows that the former and the new sample are worth."""

    @classmethod
    def of(cls, old: Cells, new: Cells) -> Index:
        """Compare two samples of the same cells."""
        used = (old.counts + new.counts) > 0
        middle = np.where(used, (old.counts / max(1, old.rows) + new.counts / max(1, new.rows)) / 2, 0.0)
        sizes = (old.effective(middle), new.effective(middle))
        p, q = old.shares(sizes[0]), new.shares(sizes[1])
        psi = float(((p - q) * np.log(p / q)).sum())
        root = np.sqrt(middle[used])
        covariance = (old.covariance + new.covariance)[np.ix_(used, used)] / np.outer(root, root)
        mean, square = float(np.trace(covariance)), float((covariance * covariance).sum())
        if mean <= 0 or square <= 0:
            return cls(psi, 0.0, 1.0, sizes)
        return cls(psi, square / mean, mean * mean / square, sizes)

    @property
    def expected(self) -> float:
        """Mean of the index where both samples are of one distribution."""
        return self.scale * self.freedom

    def quantile(self, tail: float) -> float:
        """Return what the index exceeds by chance with probability ``tail``."""
        return self.scale * chi_square_quantile(tail, self.freedom)


def chi_square_quantile(tail: float, freedom: float) -> float:
    """Return what a chi-square of ``freedom`` degrees exceeds with probability ``tail``, by Wilson and Hilferty's cube (1931).

    It errs on the large side: for a tail of 0.001 by 3 % at one degree of freedom and 0.6 % at ten, for one of a millionth by
    15 % and 2 %.

    >>> round(chi_square_quantile(0.001, 10), 1)  # 29.588
    29.8
    """
    z = -NormalDist().inv_cdf(tail)
    ninth = 2 / (9 * freedom)
    return float(freedom * (1 - ninth + z * ninth**0.5) ** 3)


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
