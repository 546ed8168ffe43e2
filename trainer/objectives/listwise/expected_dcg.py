"""Expected metrics over random orders.

Orders come from the Plackett-Luce model (DCG), or from noise added to scores (ERR and MRR too).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.options import option, option_like, options
from rankmill.scorer.metrics.arrangement import queries_of
from rankmill.scorer.metrics.discount import discounts, stop_probabilities
from rankmill.scorer.metrics.metric import Metric, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.listwise import _expected_kernels
from rankmill.trainer.objectives.listwise.list_loss import (
    AT_REST,
    DRAWS,
    ListLoss,
    gains_of,
    key_of,
    mixed_lists,
)
from rankmill.trainer.objectives.pairwise.lambdamart import LambdaMartOptions, policy_of
from rankmill.trainer.objectives.protocol import OF_GRADIENTS, Floats, Splits
from rankmill.trainer.objectives.query_shares import QueryShares, Workspaces
from rankmill.trainer.objectives.weights import list_weights
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

_WHOLE_LIST = 2**31 - 1
_CASCADES = frozenset({"err", "mrr"})


class ExpectedDcg(ListLoss):
    """``w (1 - E nDCG@k)`` or ``w (ideal DCG@k - E DCG@k)``, as ``metric`` says, summed over the lists of two grades.

    A subclass may have ``err`` and ``mrr`` among its ``metrics``; these are ``cascade``.  A reader goes down the list,
    and each document stops the reader with a chance, which stands for its gain.  A stop at rank r is worth 1/r.  For
    ``mrr`` the chance is 1 for relevant documents and 0 for others.

    Attributes
    ----------
    gains
        (n_rows,) of the documents; chances of a cascade.
    rewards
        (n_rows,) gains minus the smallest of the list, which changes DCG by a constant per list.
    scales
        (n_queries,) factor of (ideal DCG - DCG), 0 if a list does not count.
    ideal
        (n_queries,) DCG@k, ERR@k or MRR@k of the best order.
    """

    metrics: ClassVar[tuple[str, ...]] = ("ndcg", "dcg")
    splits: ClassVar[Splits] = OF_GRADIENTS  # a surrogate h is no exact second derivative of the loss

    def __init__(self, rows: RankedRows, parameters: TrainParameters, max_grade: int = 0) -> None:
        metric = parse_metric(parameters.metric)
        if metric.name not in self.metrics:
            raise InvalidParameter(
                f"metric {parameters.metric!r} cannot be optimised by {self.name}; expected one of"
                f" {', '.join(self.metrics)}, with or without @k (any metric can be the stop metric)"
            )
        policy = policy_of(metric, rows, parameters, max_grade)
        self.cascade = metric.name in _CASCADES
        self._starts, self._seed = rows.starts, parameters.seed
        self.cutoff = metric.k or _WHOLE_LIST
        sizes = np.diff(rows.starts)
        self.longest = int(sizes.max(initial=0))
        self.places = min(self.longest, self.cutoff)
        self.discounts = discounts(self.longest + 1)
        self.gains = gains_of(rows, parameters)
        if self.cascade:
            self.discounts = 1.0 / np.arange(1.0, self.longest + 2.0)
            relevant = (rows.grades >= policy.relevant_from).astype(np.float64)
            self.gains = stop_probabilities(rows.grades, policy.max_grade) if metric.name == "err" else relevant
        self.rewards = self.gains.copy()
        filled = sizes > 0
        lowest = np.minimum.reduceat(self.gains, rows.starts[:-1][filled])
        self.rewards -= np.repeat(lowest, sizes[filled])
        counts = mixed_lists(rows)
        if self.cascade:
            self.ideal = np.zeros(rows.n_queries)
            best_first = self.gains[np.lexsort((-self.gains, queries_of(rows.starts)))]
            _expected_kernels.best_cascades(rows.starts, best_first, self.discounts, self.cutoff, self.ideal)
            counts[filled] &= np.maximum.reduceat(self.rewards, rows.starts[:-1][filled]) > 0.0
        else:
            self.ideal = PreparedQueries(rows.grades, rows.starts, policy).divisor(Metric("ndcg", metric.k))
        self.weights = np.where(counts & (self.ideal > 0.0), list_weights(rows), 0.0)
        if not self.weights.any():
            raise TrainingDataRejected(
                "no query with a weight above 0 has documents of two different gains,"
                " so there is nothing to learn; check the grades and weights"
            )
        self.scales = self.weights
        if metric.name == "ndcg":
            self.scales = self.weights / np.where(self.ideal > 0.0, self.ideal, 1.0)


_MOST_SAMPLES = 100_000
_LEAST_WORK = 10_000  # minimum draws or pairs per worker: some 300 us


@options
class ApxDcgOptions:
    """Options of ``apxdcg``: how the expectation is computed."""

    samples: int = option(
        default=16, least=2, most=_MOST_SAMPLES, help="Number of random orders to sample per list and step."
    )
    exact: int = option(
        default=7,
        least=0,
        most=12,
        help="Maximum list length for exact computation instead of sampling; n documents cost n 2^n.",
    )


class ApxDcg(ExpectedDcg):
    r"""Maximise E[DCG@k] or E[nDCG@k] over orders drawn with strengths exp(s) (Gulin & Karpovich 2009).

    An order is drawn from the top, each place from the remaining documents with probability proportional to strength.
    With G_p the DCG from place p on and p_i^(p) the probability of i at place p, the gradient is that of the score
    function, d log P / d s_i = 1 - sum of p_i^(p) over the places up to that of i, place by place:

        dE / ds_i = E[sum_p (G_p - b_p) ([i stands at p] - p_i^(p))]

    Lists of up to ``exact`` documents use the exact expectation, over the sets that can come before a place (2^n sets
    replace n!  orders).  Longer lists use the mean over ``samples`` orders, keyed by (seed, step, query, place in the
    list), with b_p the mean of G_p over the other samples.  This is unbiased, and the gradient sums to 0 over the list
    in every draw.  Draws depend on the order of rows.

    The loss is not convex: **h is a surrogate**, positive if g is not 0,

        h_i = E[sum_p p_i^(p) (1 - p_i^(p)) (gain_i + mean gain at p) / 2 (discount_p - mean of the later discounts)],

    sums over the places up to that of i, gains minus the smallest of the list.  It has the size that g_i would have if
    a document gained the difference of the discounts by being at p and not later, with 1/2 (a + b) for |a - b|, times 1
    - p:
    steps g / h are at most about 2, as in LambdaMART.  (The hessian of the bound from Jensen's inequality, G_p in place
    of the last two factors, is a true one, but ten times as large: training becomes very slow.)  ``ole`` is therefore
    not available.

    A list of one grade does not count.  ``losses`` are exact for short lists, and otherwise estimated with draws that
    are the same for all steps.  Uses ``metric`` (ndcg, dcg, with or without cutoff), ``gain`` and ``seed``.

    Raises
    ------
    InvalidParameter
        Another metric.
    TrainingDataRejected
        Bad weights, or no query that counts holds two grades.
    """

    name: ClassVar[str] = "apxdcg"
    Options: ClassVar[type[ApxDcgOptions]] = ApxDcgOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: ApxDcgOptions) -> None:
        super().__init__(rows, parameters)
        self._options = options
        sizes = np.diff(rows.starts)
        work = np.where(sizes <= options.exact, sizes << np.minimum(sizes, options.exact), 2 * sizes * options.samples)
        self._shares = QueryShares(np.where(self.scales > 0.0, work, 1), _LEAST_WORK)
        room = max(self.longest, options.samples, 2**options.exact)
        self._work = Workspaces(
            ((9, room), np.float64), ((2, self.longest), np.int32), ((options.samples, self.places), np.int32)
        )

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, both (n_rows,), for the draws of this step."""
        key, options = key_of(self._seed, step, DRAWS), self._options

        def share(first: int, last: int, worker: int) -> None:
            floats, whole, orders = self._work.of(worker)
            _expected_kernels.expected_dcg_gradients(
                scores, self._starts, first, last, self.rewards, self.discounts, self.cutoff, self.scales,
                options.exact, options.samples, key, floats, whole, orders, g, h,
            )  # fmt: skip

        self._shares.each(team, share)

    def losses(self, scores: Floats) -> Floats:
        """Return the ideal minus the expected metric, times the weight, (n_queries,)."""
        out, options = np.empty(len(self.weights)), self._options
        floats, whole, _ = self._work.of(0)
        _expected_kernels.expected_dcg_losses(
            scores, self._starts, self.gains, self.discounts, self.cutoff, self.scales, self.ideal, options.exact,
            options.samples, key_of(self._seed, AT_REST, DRAWS), floats, whole, out,
        )  # fmt: skip
        return out


@options
class StochasticRankOptions:
    """Options of ``stochasticrank``."""

    noise: float = option(default=1.0, above=0, help="Standard deviation of the noise added to scores.")
    samples: int = option(default=8, least=1, most=_MOST_SAMPLES, help="Number of noise samples per list and step.")
    max_grade: int = option_like(LambdaMartOptions, "max_grade", default=0)


class StochasticRank(ExpectedDcg):
    r"""Maximise the mean of DCG@k, nDCG@k, ERR@k or MRR@k of ``s + noise z``, z independent and standard normal.

    From Ustimenko & Prokhorenkova come the smoothed metric and the estimate of its gradient by **coordinate conditional
    sampling**.  For each of ``samples`` draws of z and each document i, its own z_i is integrated out.  With the others
    fixed at x_j = s_j + noise z_j, DCG jumps by (gain_i - gain_j)(discount_r - discount_{r+1}) when i passes the
    document j at rank r of the others, so

        d/ds_i = mean over draws of  sum_j jump_ij phi((x_j - s_i) / noise) / noise,

    which is unbiased.  For ERR and MRR the gains are the chances R to stop the reader (0 or 1 for MRR), and the
    discount is 1/r.  A jump counts times the product of 1 - R over the other documents above j.  The mean over the
    list, 0 for the true gradient, is subtracted.  **Not** used are their scale-free smoothing (noise that grows with
    the scores, and the shift that makes it consistent) and the Langevin noise of their boosting.  Draws are keyed by
    (seed, step, query, place in the list), so they depend on the order of rows.

    The loss is not convex: **h is a surrogate**, the same sum with \|jump\| phi / noise^2, as a pair of LambdaMART has
    sigma times its slope.  ``ole`` is therefore not available.  A list of one grade does not count; ``losses`` are
    estimated with draws that are the same for all steps, and are step functions of the scores.  Uses ``metric`` (ndcg,
    dcg, err, mrr, with or without cutoff), ``gain`` and ``seed``.

    Raises
    ------
    InvalidParameter
        Another metric.
    TrainingDataRejected
        Bad weights, or no query that counts holds two grades.
    """

    name: ClassVar[str] = "stochasticrank"
    metrics: ClassVar[tuple[str, ...]] = ("ndcg", "dcg", "err", "mrr")
    Options: ClassVar[type[StochasticRankOptions]] = StochasticRankOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: StochasticRankOptions) -> None:
        super().__init__(rows, parameters, options.max_grade)
        self._options = options
        sizes = np.diff(rows.starts)
        work = options.samples * sizes * (np.minimum(sizes, self.cutoff) + 4)
        self._shares = QueryShares(np.where(self.scales > 0.0, work, 1), _LEAST_WORK)
        self._work = Workspaces(((2, self.longest), np.float64), ((3, self.longest), np.int32))

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, both (n_rows,), for the draws of this step."""
        key, options = key_of(self._seed, step, DRAWS), self._options

        def share(first: int, last: int, worker: int) -> None:
            floats, whole = self._work.of(worker)
            _expected_kernels.smoothed_gradients(
                scores, self._starts, first, last, self.gains, self.discounts, self.cutoff, self.cascade, self.scales,
                options.noise, options.samples, key, floats, whole, g, h,
            )  # fmt: skip

        self._shares.each(team, share)

    def losses(self, scores: Floats) -> Floats:
        """Return the ideal minus the estimated metric, times the weight, (n_queries,)."""
        out, options = np.empty(len(self.weights)), self._options
        floats, whole = self._work.of(0)
        _expected_kernels.smoothed_losses(
            scores, self._starts, self.gains, self.discounts, self.cutoff, self.cascade, self.scales, self.ideal,
            options.noise, options.samples, key_of(self._seed, AT_REST, DRAWS), floats, whole, out,
        )  # fmt: skip
        return out
