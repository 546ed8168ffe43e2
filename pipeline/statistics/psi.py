"""The population stability index of two samples, and its distribution by chance.

``PSI = sum over cells of (p - q) ln(p / q)`` for the shares p and q of rows of the old and of the new sample in a cell.
An empty cell would make it infinite, so half an effective row (see below) is added to every cell of both.

If both samples have the same distribution, p - q is small and the index is nearly ``sum (p - q)^2 / m``, m = (p + q) /
2.  That is a quadratic form of a normal vector with the covariance V of p - q.  So it is a sum of independent
chi-squares, weighted by the eigenvalues of ``D^-1/2 V D^-1/2``, D = diag(m).  It is approximated by ``c`` times a
chi-square of ``d`` degrees of freedom with the same mean and variance.  Here ``c d`` is the sum of the eigenvalues and
``c^2 d`` the sum of their squares (Satterthwaite 1946; Rao and Scott, "The analysis of categorical data from complex
sample surveys", 1981).

For n and m independent rows in B cells, all eigenvalues but one are 1/n + 1/m, and the mean is (B - 1)(1/n + 1/m).  But
rows of a query are not independent: a property of the query counts once, not once per document.  So V is estimated from
the queries.  With ``z = (rows of the query in each cell) - (its documents) p``, the covariance of p is the sum of
``z z'`` over the queries, divided by the square of the number of rows.  The effective rows of a sample are the number
of independent rows with the same mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.bins.quantiles import EDGE, Values, bin_ends
from rankmill.pipeline.bins.spec import FeatureBins, feature_bins, most_frequent

_QUERIES_COUNTED = 1 << 14  # together
_SMOOTHING = 0.5  # effective rows added to every cell

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the queries of a sample for B cells: whole numbers, which can be stored and merged without rounding.

    If c is the number of rows of a query in each cell and n its number of rows: the sums of c, c n, c c' and n^2.
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
        for first in range(0, len(starts) - 1, _QUERIES_COUNTED):
            ends = starts[first : first + _QUERIES_COUNTED + 1]
            sizes = np.diff(ends)
            places = np.repeat(np.arange(len(sizes)) * n_cells, sizes) + cells[ends[0] : ends[-1]]
            of_query = np.bincount(places, minlength=len(sizes) * n_cells).reshape(-1, n_cells)
            counts += of_query.sum(axis=0)
            weighted += sizes @ of_query
            whole = of_query.astype(np.float64)  # sums of whole numbers below 2^53, so exact in any order
            products += (whole.T @ whole).astype(np.int64)
        return cls(counts, weighted, products, int((np.diff(starts) ** 2).sum()))

    def joined(self, into: npt.NDArray[np.int64]) -> Sums:
        """Merge cells; ``into`` (B,) is the new cell of each cell."""
        n_cells = int(into.max()) + 1
        counts, weighted = np.zeros(n_cells, dtype=np.int64), np.zeros(n_cells, dtype=np.int64)
        products = np.zeros((n_cells, n_cells), dtype=np.int64)
        np.add.at(counts, into, self.counts)
        np.add.at(weighted, into, self.weighted)
        np.add.at(products, (into[:, None], into[None, :]), self.products)
        return Sums(counts, weighted, products, self.squares)

    @property
    def rows(self) -> int:
        """Number of rows of the sample."""
        return int(self.counts.sum())

    @property
    def covariance(self) -> Numbers:
        """The covariance of the shares of the cells, (B, B)."""
        rows = max(1, self.rows)
        share = self.counts / rows
        mixed = np.outer(self.weighted, share)
        spread: Numbers = self.products - mixed - mixed.T + float(self.squares) * np.outer(share, share)
        return spread / rows**2

    def shares(self, effective: float) -> Numbers:
        """Return the share of each cell, with half of one of ``effective`` rows added to each."""
        smooth = self.counts + _SMOOTHING * self.rows / max(1.0, effective)
        return np.asarray(smooth / smooth.sum())

    def effective(self, middle: Numbers) -> float:
        """Return the number of independent rows with the same variance of the index."""
        used = middle > 0
        mean = float((np.diag(self.covariance)[used] / middle[used]).sum())
        return (int(np.count_nonzero(used)) - 1) / mean if mean > 0 else float(self.rows)


@dataclass(frozen=True, slots=True)
class Index:
    """The index of two samples, and its distribution by chance."""

    psi: float
    scale: float
    """c in the docstring of this module; 0 if nothing varies."""
    freedom: float
    effective: tuple[float, float]
    """Effective number of independent rows of the old and of the new sample."""

    @classmethod
    def of(cls, old: Sums, new: Sums) -> Index:
        """Compare two samples with the same cells."""
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
        """Mean of the index if both samples have the same distribution."""
        return self.scale * self.freedom

    def quantile(self, tail: float) -> float:
        """Return the value that the index exceeds by chance with probability ``tail``."""
        return self.scale * chi_square_quantile(tail, self.freedom)


def chi_square_quantile(tail: float, freedom: float) -> float:
    """Return the upper ``tail`` quantile of a chi-square of ``freedom`` degrees.

    The approximation is that of Wilson and Hilferty (1931).

    For a tail of 0.001 it is too large by 3 % at one degree of freedom and 0.6 % at ten.  For a millionth it is too
    large by 15 % and 2 %.

    >>> round(chi_square_quantile(0.001, 10), 1)  # 29.588
    29.8
    """
    z = -NormalDist().inv_cdf(tail)
    ninth = 2 / (9 * freedom)
    return float(freedom * (1 - ninth + z * ninth**0.5) ** 3)


VALUE_CELLS = 20  # the index by chance grows with their number
_QUERIES_A_CELL = 10  # with fewer, the chi-square approximation fails
_OTHERS = 3  # missing, and below and above the old range
_NONE: Values = np.empty(0, dtype=EDGE)

Starts = npt.NDArray[np.int64]


def cells_for(*queries: int) -> int:
    """Return the number of value cells for samples of so many ``queries``.

    >>> cells_for(1000), cells_for(70, 1000), cells_for(3)
    (20, 7, 2)
    """
    return min(VALUE_CELLS, max(2, min(queries) // _QUERIES_A_CELL))


def cell_edges(bins: FeatureBins, most: int = VALUE_CELLS) -> tuple[Values, np.float32, np.float32]:
    """Join ``bins`` into at most ``most`` cells of about equal mass; return their edges, the minimum and the maximum.

    Of a categorical feature these are the codes of its most frequent categories, and NaN.
    """
    if bins.categorical:
        return bins.edges[most_frequent(bins.counts[1:-1], most - 1)], EDGE(np.nan), EDGE(np.nan)
    low, high = (np.nan if value is None else value for value in (bins.minimum, bins.maximum))
    cumulative = np.concatenate(([0], np.cumsum(bins.counts[1:])))
    ends = bin_ends(cumulative.astype(np.int64), most)
    return bins.edges[ends[:-1] - 1], EDGE(low), EDGE(high)


@dataclass(frozen=True, slots=True)
class FeatureSample:
    """The cells of one feature, and the distribution over them of the sample that they were made from.

    Cell 0 has the missing values, cell 1 those below ``low``, the last one those above ``high``; ``edges`` separate the
    others.  A categorical feature has NaN for ``low`` and ``high``.  Cell 2 + i has the values equal to ``edges[i]``,
    and the one after these has the other ones of ``known``, all categories of the sample.  The last one has new
    categories.
    """

    name: str
    edges: Values
    low: np.float32
    high: np.float32
    sums: Sums
    known: Values = field(default_factory=lambda: _NONE)
    """Ascending codes of all categories; empty if the feature is a number."""

    @classmethod
    def of(
        cls,
        name: str,
        values: Values,
        starts: Starts,
        most: int = VALUE_CELLS,
        bins: FeatureBins | None = None,
        *,
        categorical: bool = False,
    ) -> FeatureSample:
        """Divide ``values`` (n,) into at most ``most`` cells, using ``bins`` if given.

        Queries begin at ``starts`` (q + 1,).
        """
        bins = feature_bins(name, values, categorical=categorical) if bins is None else bins
        edges, low, high = cell_edges(bins, most)
        known = np.unique(values[~np.isnan(values)] + EDGE(0)) if bins.categorical else values[:0].copy()
        return cls(name, edges, low, high, _sums(values, starts, edges, low, high, known), known)

    @property
    def categorical(self) -> bool:
        """Whether the cells are those of categories; also true if there is no value."""
        return bool(np.isnan(self.low))

    def beyond(self, sums: Sums) -> int:
        """Return how many rows of ``sums`` are outside the range, or of new categories."""
        return int(sums.counts[[1, -1]].sum())

    def placed(self, values: Values, starts: Starts) -> Sums:
        """Return the distribution of other ``values`` over these cells."""
        return _sums(values, starts, self.edges, self.low, self.high, self.known)

    def joined(self, most: int) -> FeatureSample:
        """Join neighbouring cells, so that there are at most ``most`` value cells."""
        if len(self.edges) < most:
            return self
        if self.categorical:
            kept = most_frequent(self.sums.counts[2:-2], most - 1)
            values = np.full(len(self.edges) + 1, len(kept))
            values[kept] = np.arange(len(kept))
            into = np.concatenate(([0, 1], 2 + values, [3 + len(kept)])).astype(np.int64)
            return replace(self, edges=self.edges[kept], sums=self.sums.joined(into))
        cumulative = np.concatenate(([0], np.cumsum(self.sums.counts[2:-1])))
        ends = bin_ends(cumulative.astype(np.int64), most)
        values = np.repeat(np.arange(len(ends)), np.diff(np.concatenate(([0], ends))))
        into = np.concatenate(([0, 1], 2 + values, [2 + len(ends)])).astype(np.int64)
        return FeatureSample(self.name, self.edges[ends[:-1] - 1], self.low, self.high, self.sums.joined(into))


def _sums(values: Values, starts: Starts, edges: Values, low: np.float32, high: np.float32, known: Values) -> Sums:
    return Sums.of(cells_of(values, edges, low, high, known), starts, len(edges) + 1 + _OTHERS)


def cells_of(
    values: Values, edges: Values, low: np.float32, high: np.float32, known: Values = _NONE
) -> npt.NDArray[np.uint8]:
    """Return the cell of each of ``values`` (n,), numbered as :class:`FeatureSample` says."""
    cells = 2 + np.searchsorted(edges, values)
    if np.isnan(low):
        others = len(edges) + (~_among(values, known) if len(known) else 0)
        cells = np.where(_among(values, edges), cells, 2 + others)
    else:
        cells[values < low] = 1
        cells[values > high] = len(edges) + _OTHERS
    cells[np.isnan(values)] = 0
    return cells.astype(np.uint8)


def _among(values: Values, codes: Values) -> npt.NDArray[np.bool_]:
    """Return which of ``values`` (n,) are among the ascending ``codes`` (c,)."""
    found: npt.NDArray[np.bool_] = np.append(codes, EDGE(np.nan))[np.searchsorted(codes, values)] == values
    return found
