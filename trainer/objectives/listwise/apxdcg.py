"""Expected DCG under Plackett and Luce's model (Gulin & Karpovich 2009)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.objectives.listwise import _expected_kernels
from rankmill.trainer.objectives.listwise.expected import ExpectedDcg
from rankmill.trainer.objectives.listwise.list_loss import AT_REST, DRAWS, key_of
from rankmill.trainer.objectives.sharing import QueryShares, Workspaces
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team

_MOST_SAMPLES, _MOST_EXACT = 100_000, 12
_LEAST_WORK = 10_000  # draws a worker: some 300 us


@dataclass(frozen=True, slots=True, kw_only=True)
class ApxDcgOptions:
    """How the expectation is taken.

    Attributes
    ----------
    samples
        Orders drawn for every list at every step, 2 to 100000.
    exact
        Lists of at most so many documents are not sampled, 0 to 12: n documents cost n 2^n.

    Raises
    ------
    InvalidParameter
        A value is outside its bounds.
    """

    samples: int = 16
    exact: int = 7

    def __post_init__(self) -> None:
        if not 2 <= self.samples <= _MOST_SAMPLES:
            raise InvalidParameter(f"samples must be between 2 and {_MOST_SAMPLES}, got {self.samples}")
        if not 0 <= self.exact <= _MOST_EXACT:
            raise InvalidParameter(f"exact must be between 0 and {_MOST_EXACT}, got {self.exact}")


class ApxDcg(ExpectedDcg):
    r"""Maximise E[DCG@k] or E[nDCG@k] over orders drawn with strengths exp(s) (METHODS 3.19); the slides take f > 0 itself.

    An order is drawn from the top, each place from what is left with probabilities in proportion to strength.  With
    G_p the DCG from place p on and p_i^(p) the probability of i at place p, the gradient is that of the score function,
    d log P / d s_i = 1 - sum of p_i^(p) over the places up to that of i, place by place:

        dE / ds_i = E[sum_p (G_p - b_p) ([i stands at p] - p_i^(p))]

    Lists of up to ``exact`` documents take the expectation itself, over the sets that can stand before a place (2^n
    of them do what n! orders would).  Longer ones take the mean over ``samples`` orders, keyed by (seed, step, query, place in
    the list), with b_p the mean of G_p over the other samples: right on average, and it sums to 0 over the list in every
    draw.  Draws depend on the order of rows.

    The loss is not convex: **h is a surrogate**, positive wherever g is not 0,

        h_i = E[sum_p p_i^(p) (1 - p_i^(p)) (gain_i + mean gain at p) / 2 (discount_p - mean of the later discounts)],

    sums over the places up to that of i, gains less the smallest of the list.  It is the size that g_i would have if
    a document were to gain the difference of the discounts by standing at p and not later, with 1/2 (a + b) for
    |a - b|, times 1 - p: steps g / h are about 2 at most, as LambdaMART's are.  (The curvature of the bound that Jensen's
    inequality gives, G_p in place of the last two factors, is a true one, but ten times as large: training crawls.)  So
    ``ole`` is not for this loss.

    A list of one grade does not count.  ``losses`` are exact for short lists, and for others estimated by draws that
    no step changes.  Uses ``metric`` (ndcg, dcg, with or without cutoff), ``gain`` and ``seed``.

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

    def gradients(
        self,
        step: int,
        scores: npt.NDArray[np.float64],
        g: npt.NDArray[np.float64],
        h: npt.NDArray[np.float64],
        team: Team,
    ) -> None:
        """Write g and h, both (n_rows,), for the draws of this step."""
        key, options = key_of(self._seed, step, DRAWS), self._options

        def share(first: int, last: int, worker: int) -> None:
            floats, whole, orders = self._work.of(worker)
            _expected_kernels.expected_dcg_gradients(
                scores, self._starts, first, last, self.rewards, self.discounts, self.cutoff, self.scales,
                options.exact, options.samples, key, floats, whole, orders, g, h,
            )  # fmt: skip

        self._shares.each(team, share)

    def losses(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the expected metric's distance from its ideal, times the weight, (n_queries,)."""
        out, options = np.empty(len(self.weights)), self._options
        floats, whole, _ = self._work.of(0)
        _expected_kernels.expected_dcg_losses(
            scores, self._starts, self.gains, self.discounts, self.cutoff, self.scales, self.ideal, options.exact,
            options.samples, key_of(self._seed, AT_REST, DRAWS), floats, whole, out,
        )  # fmt: skip
        return out
