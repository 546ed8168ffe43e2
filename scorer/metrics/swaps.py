"""The change of a metric when two documents swap their ranks, for every pair of a list.

A metric computes its own deltas, as flat arrays of one of three shapes, for code that weights pairs (LambdaMART).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.scorer.metrics import _kernels
from rankmill.scorer.metrics.arrangement import grade_levels
from rankmill.scorer.metrics.discount import discounts, gains, persistence, stop_probabilities
from rankmill.scorer.metrics.metric import MEASURES, Metric
from rankmill.scorer.metrics.metric_options import Policy
from rankmill.scorer.metrics.per_query import PreparedQueries

Floats = npt.NDArray[np.float64]
Order = npt.NDArray[np.uint32]

BY_RANK, BY_PLACE, TABLE = "by_rank", "by_place", "table"
SWAPPABLE = tuple(name for name, measure in MEASURES.items() if measure.loop != "ERRORS")
_CONCORDANCE = frozenset({"concordance", "concordance_micro"})
_ALL = 2**31
_PASSES: dict[str, Callable[..., None]] = {
    "err": _kernels.err_swaps,
    "map": _kernels.map_swaps,
    "mrr": _kernels.mrr_swaps,
}


@dataclass(slots=True)
class SwapDeltas:
    """Swap deltas of one metric on fixed queries.

    For documents at the ranks i < j (from 0) of query q, whose rows begin at ``first``, dZ is ``scales[q]`` times

    ``by_rank``
        ``|x_i - x_j| (upper[i] - lower[j])``: gain times discount.
    ``by_place``
        ``|x_i - x_j| lift[first + i] (upper[first + i] - lower[first + j])``; :meth:`prepare` writes the arrays.
    ``table``
        what :meth:`fill` writes.

    Attributes
    ----------
    shape
        One of these three.
    values
        (n_rows,) x of every document, by row.
    scales
        (n_queries,); 0 if no swap changes anything; such queries are skipped.
    depth
        Only pairs with ``i < depth`` change anything.
    upper, lower, lift
        (longest query + spare,), or (n_rows + spare,) by place; the spare cells are unused.
    levels
        (n_rows,) of a table: the grades of a query numbered from its best.
    """

    shape: str
    values: Floats
    scales: Floats
    depth: int
    upper: Floats
    lower: Floats
    lift: Floats
    _starts: npt.NDArray[np.int64]
    _name: str = ""
    _cut: int = 0
    levels: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def prepare(self, order: Order, first_query: int, last_query: int) -> None:
        """Write the arrays by place of these queries; ``order`` (n_rows,) holds the rows of each, best first."""
        if self.shape == BY_PLACE:
            _PASSES[self._name](
                order, self._starts, first_query, last_query, self.scales, self.values, self._cut,
                self.upper, self.lower, self.lift,
            )  # fmt: skip

    def fill(
        self, order: Order, first_query: int, last_query: int, depth: int, cells: npt.NDArray[np.int64], table: Floats
    ) -> None:
        """Write ``table[cells[q] - cells[first_query] + i n_q + j]`` for these queries.

        The ranks are i < depth and j > i.
        """
        n_levels = int(self.levels.max(initial=0)) + 1
        longest = int(np.diff(self._starts[first_query : last_query + 1]).max(initial=0))
        _kernels.concordance_swaps(
            order, self._starts, first_query, last_query, self.scales, self.levels, n_levels, depth, cells,
            np.empty(n_levels, dtype=np.int64), np.empty(longest, dtype=np.int64), table,
        )  # fmt: skip


def swap_deltas(
    metric: Metric,
    grades: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    policy: Policy,
    *,
    tail: bool = False,
    spare: int = 0,
) -> SwapDeltas:
    """Return the swap deltas of ``metric``.

    Parameters
    ----------
    metric
        One of ``SWAPPABLE``, with or without a cutoff.
    grades, starts
        (n_rows,) int32 and (n_queries + 1,) int64, as for :class:`PreparedQueries`.
    policy
        The conventions; ties do not matter, since the order is given.
    tail
        For ``ndcg@k`` and ``dcg@k``: discounts continue below k, so that a swap below k counts too; the ideal is that
        of k.  LightGBM and XGBoost do so.
    spare
        Extra cells at the ends of ``upper``, ``lower`` and ``lift``.

    Raises
    ------
    InputError
        The metric has no swap deltas; ``err`` without a usable ``max_grade``; grades too high
        for the gain.
    """
    if metric.name not in SWAPPABLE:
        raise InputError(f"metric {metric}: no swap deltas are known; expected one of {', '.join(SWAPPABLE)}")
    grades = np.maximum(grades, 0)
    divisor = PreparedQueries(grades, starts, policy).divisor(metric)
    scales = np.where(divisor > 0.0, 1.0 / np.where(divisor > 0.0, divisor, 1.0), 0.0)
    longest = int(np.diff(starts).max(initial=0))
    cut = longest if metric.k is None else min(metric.k, longest)
    none = np.empty(0, dtype=np.float64)
    product = _product_of(metric, grades, starts, policy, cut, tail=tail)
    if product is not None:
        values, weights, depth = product
        table = np.concatenate((weights, np.zeros(spare)))
        return SwapDeltas(BY_RANK, values, scales, depth, table, table, none, starts)
    if metric.name in _CONCORDANCE:
        levels = grade_levels(grades, starts)
        return SwapDeltas(TABLE, levels.astype(np.float64), scales, _ALL, none, none, none, starts, levels=levels)
    relevant = (grades >= policy.relevant_from).astype(np.float64)
    values = stop_probabilities(grades, policy.max_grade) if metric.name == "err" else relevant
    upper, lower, lift = (np.zeros(len(grades) + spare) for _ in range(3))
    return SwapDeltas(BY_PLACE, values, scales, cut, upper, lower, lift, starts, metric.name, cut)


def _product_of(
    metric: Metric,
    grades: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    policy: Policy,
    cut: int,
    *,
    tail: bool,
) -> tuple[Floats, Floats, int] | None:
    """Return values of rows, weights of ranks and the depth, or None.

    None unless a swap changes the metric by the product of differences.
    """
    longest = int(np.diff(starts).max(initial=0))
    relevant = (grades >= policy.relevant_from).astype(np.float64)
    inside = np.arange(longest) < cut
    if metric.name in {"ndcg", "dcg"}:
        discount = discounts(longest, policy.discount)
        kept = tail or metric.k is None
        return gains(grades, policy.gain), discount if kept else np.where(inside, discount, 0.0), _ALL if kept else cut
    if metric.name in {"precision", "recall"}:
        return relevant, inside.astype(np.float64), cut
    if metric.name == "rbp":
        return relevant, np.where(inside, persistence(longest, metric.parameter or 0.0), 0.0), cut
    if metric.name == "wta":
        best = grade_levels(grades, starts) == 0
        return best.astype(np.float64), (np.arange(longest) < 1).astype(np.float64), 1
    if metric.name in _CONCORDANCE:
        levels = grade_levels(grades, starts)
        if int(levels.max(initial=0)) <= 1:  # |r_i - r_j| for two grades
            return levels.astype(np.float64), np.arange(longest, 0.0, -1.0), _ALL
    return None
