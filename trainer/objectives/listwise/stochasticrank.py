"""DCG smoothed by noise on the scores, after StochasticRank (Ustimenko & Prokhorenkova 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
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

_MOST_SAMPLES = 100_000
_LEAST_WORK = 10_000  # pairs a worker: some 300 us


@dataclass(frozen=True, slots=True, kw_only=True)
class StochasticRankOptions:
    """``noise``, above 0: the standard deviation of what is added to scores; ``samples``, 1 to 100000, a list and step.

    Raises
    ------
    InvalidParameter
        A value is outside its bounds.
    """

    noise: float = 1.0
    samples: int = 8

    def __post_init__(self) -> None:
        if not (self.noise > 0.0 and isfinite(self.noise)):
            raise InvalidParameter(f"noise must be a number above 0, got {self.noise}")
        if not 1 <= self.samples <= _MOST_SAMPLES:
            raise InvalidParameter(f"samples must be between 1 and {_MOST_SAMPLES}, got {self.samples}")


class StochasticRank(ExpectedDcg):
    r"""Maximise the mean of DCG@k or nDCG@k of ``s + noise z``, z independent and standard normal.

    What is taken from Ustimenko & Prokhorenkova is the smoothed metric and the estimate of its gradient by **coordinate
    conditional sampling**: for each of ``samples`` draws of z and each document i, its own z_i is integrated out. With the
    others fixed at x_j = s_j + noise z_j, DCG jumps by (gain_i - gain_j)(discount_r - discount_{r+1}) where i passes
    the document j at rank r of the others, so

        d/ds_i = mean over draws of  sum_j jump_ij phi((x_j - s_i) / noise) / noise,

    which is right on average.  The mean over the list, 0 for the true gradient, is taken away.  What is **not**
    taken is their scale-free smoothing (noise that grows with the scores, and the shift that makes it consistent) and
    the Langevin noise of their boosting.  Draws are keyed by (seed, step, query, place in the list), so they depend on
    the order of rows.

    The loss is not convex: **h is a surrogate**, the same sum with \|jump\| phi / noise^2, as a pair of LambdaMART has
    sigma times its slope.  So ``ole`` is not for it.  A list of one grade does not count; ``losses`` are estimated by
    draws that no step changes, and are steps in the scores.  Uses ``metric`` (ndcg, dcg, with or without cutoff),
    ``gain`` and ``seed``.

    Raises
    ------
    InvalidParameter
        Another metric.
    TrainingDataRejected
        Bad weights, or no query that counts holds two grades.
    """

    name: ClassVar[str] = "stochasticrank"
    Options: ClassVar[type[StochasticRankOptions]] = StochasticRankOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: StochasticRankOptions) -> None:
        super().__init__(rows, parameters)
        self._options = options
        sizes = np.diff(rows.starts)
        work = options.samples * sizes * (np.minimum(sizes, self.cutoff) + 4)
        self._shares = QueryShares(np.where(self.scales > 0.0, work, 1), _LEAST_WORK)
        self._work = Workspaces(((2, self.longest), np.float64), ((3, self.longest), np.int32))

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
            floats, whole = self._work.of(worker)
            _expected_kernels.smoothed_dcg_gradients(
                scores, self._starts, first, last, self.gains, self.discounts, self.cutoff, self.scales,
                options.noise, options.samples, key, floats, whole, g, h,
            )  # fmt: skip

        self._shares.each(team, share)

    def losses(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the estimated metric's distance from its ideal, times the weight, (n_queries,)."""
        out, options = np.empty(len(self.weights)), self._options
        floats, whole = self._work.of(0)
        _expected_kernels.smoothed_dcg_losses(
            scores, self._starts, self.gains, self.discounts, self.cutoff, self.scales, self.ideal, options.noise,
            options.samples, key_of(self._seed, AT_REST, DRAWS), floats, whole, out,
        )  # fmt: skip
        return out
