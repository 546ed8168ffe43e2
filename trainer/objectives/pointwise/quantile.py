"""Absolute error and its lopsided relative: medians and other quantiles of the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import Floats, Pointwise, share_leaves
from rankmill.trainer.objectives.protocol import NoOptions
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team


class Residuals:
    """Weighted quantiles of the residuals y - s, in leaves and over all rows; sorted exactly, whatever their order was."""

    def __init__(self, targets: Floats, weights: Floats, offsets: Floats) -> None:
        self._targets, self._weights = targets, weights
        self._offsets = offsets if len(offsets) else np.zeros(len(targets))
        n = len(targets)
        self._space = np.empty(n), np.empty(n), np.empty(n), np.empty(n)  # no memory before they are written

    def of_start(self, alpha: float) -> float:
        """Return the quantile of y - o."""
        rows = np.arange(len(self._targets), dtype=np.int32)
        starts = np.array([0, len(rows)], dtype=np.int64)
        return float(self.of_leaves(alpha, self._offsets, rows, starts, Team(1))[0])

    def of_leaves(
        self, alpha: float, scores: Floats, rows: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], team: Team
    ) -> Floats:
        """Return the quantile of each leaf's residuals, (n_leaves,)."""
        return self._leaves(alpha, None, scores, rows, starts, team)

    def of_leaves_clipped(
        self, delta: float, scores: Floats, rows: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], team: Team
    ) -> Floats:
        """Return each leaf's median, and added to it the mean of what residuals lie off it, at most delta of each."""
        return self._leaves(0.5, delta, scores, rows, starts, team)

    def of_sizes(self, alpha: float, scores: Floats) -> float:
        """Return the quantile of |y - s| over all rows."""
        return float(kernels.quantile_of_sizes(scores, self._targets, self._weights, alpha, *self._space))

    def _leaves(
        self,
        alpha: float,
        delta: float | None,
        scores: Floats,
        rows: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int64],
        team: Team,
    ) -> Floats:
        out = np.zeros(len(starts) - 1, dtype=np.float64)
        values, mass, spare_values, spare_mass = self._space

        def share(first: int, last: int) -> None:
            kernels.leaf_quantiles(
                scores, self._targets, self._weights, alpha, rows, starts, first, last, values, mass,
                spare_values, spare_mass, out,
            )  # fmt: skip
            if delta is not None:
                kernels.leaf_clipped_means(starts, first, last, values, mass, delta, out)

        share_leaves(team, starts, share)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileOptions:
    """Which quantile: 0.9 is the value that nine labels of ten stay below."""

    alpha: float = 0.5

    def __post_init__(self) -> None:
        check_alpha("quantile", self.alpha)


def check_alpha(name: str, alpha: float) -> None:
    """Raise InvalidParameter unless alpha is between 0 and 1, both excluded."""
    if not 0.0 < alpha < 1.0:
        raise InvalidParameter(f"{name}: alpha must be above 0 and below 1, got {alpha}")


class Quantile(Pointwise):
    """Minimise ``w (alpha max(y - s, 0) + (1 - alpha) max(s - y, 0))``: the alpha-quantile of y (METHODS 3.3).

    Source: gbm guide 4.5, where z is the gradient and leaves are quantiles of the residuals, not of z.  g = -w alpha
    where y > s, w (1 - alpha) where y < s, 0 where they are equal.  The second derivative is 0 wherever there is one;
    the h written is the weight w, so criterion ``se`` is the only one with a meaning: the others would be the same
    under another name, and are refused.  Start and leaves are weighted quantiles of the residuals; where a value holds
    just alpha of the weight, the middle between it and the next one.
    """

    name: ClassVar[str] = "quantile"
    criteria: ClassVar[tuple[str, ...]] = ("se",)
    additive: ClassVar[bool] = False
    Options: ClassVar[type[Any]] = QuantileOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: QuantileOptions) -> None:
        super().__init__(rows, parameters, options)
        self._alpha = options.alpha
        self._slopes = options.alpha, 1.0 - options.alpha  # of the loss above and below the score
        self._residuals = Residuals(self._targets, self._weights, self._offsets)

    def start(self) -> float:
        """Return the weighted quantile of y - o."""
        return self._residuals.of_start(self._alpha)

    def leaf_steps(
        self,
        output: int,  # noqa: ARG002 - there is one
        scores: Floats,
        rows: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int64],
        team: Team,
    ) -> Floats:
        """Return the weighted quantile of each leaf's residuals."""
        return self._residuals.of_leaves(self._alpha, scores, rows, starts, team)

    def _derive(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.check_function(scores, self._targets, self._weights, *self._slopes, first, last, g, h)

    def _lose(self, scores: Floats, out: Floats) -> None:
        kernels.check_losses(scores, self._targets, self._weights, *self._slopes, out)


class Laplace(Quantile):
    """Minimise ``w |y - s|`` (METHODS 3.2; gbm guide 4.4, where leaves are medians of the residuals, not of z).

    g = -w sign(y - s).  Start and leaves are weighted medians of the residuals; h and criteria as for
    :class:`Quantile`, which for alpha = 1/2 is half of this loss.
    """

    name: ClassVar[str] = "laplace"
    Options: ClassVar[type[Any]] = NoOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: NoOptions) -> None:  # noqa: ARG002
        super().__init__(rows, parameters, QuantileOptions(alpha=0.5))
        self._slopes = 1.0, 1.0
