"""Squared error of the label: gradient boosting as first published (MART)."""

from __future__ import annotations

from math import fsum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from trainer.objectives import _kernels
from trainer.objectives.protocol import ROWS, NoOptions, Objective
from trainer.objectives.weights import document_weights
from trainer.parameters import TrainParameters
from trainer.rows import RankedRows
from trainer.workers import Team

_LEAST_ROWS = 131_072  # rows a worker, for passes of about a nanosecond a row


class SquaredError(Objective):
    """Minimise the sum of ``w (y - s)^2 / 2`` (METHODS 3.1; Friedman 2001): g = w (s - y), h = w.

    The target y is the label, or the grade where there are none.  Queries do not matter to this loss.
    """

    name: ClassVar[str] = "l2"
    sums_over: ClassVar[str] = ROWS
    criteria: ClassVar[tuple[str, ...]] = ("rwse", "se", "ole")
    additive: ClassVar[bool] = True

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: NoOptions) -> None:  # noqa: ARG002
        self._targets = rows.targets
        self._weights = document_weights(rows)
        self._offsets = rows.offsets

    def start(self) -> float:
        """Return the weighted mean of the targets less their offsets."""
        rest = self._targets if self._offsets is None else self._targets - self._offsets
        return float(np.average(rest, weights=self._weights if len(self._weights) else None))

    def gradients(
        self,
        step: int,  # noqa: ARG002 - nothing is drawn
        scores: npt.NDArray[np.float64],
        g: npt.NDArray[np.float64],
        h: npt.NDArray[np.float64],
        team: Team,
    ) -> None:
        """Write g and h, both (n_rows,)."""
        team.share(
            len(scores),
            _LEAST_ROWS,
            lambda first, last, _: _kernels.squared_error(scores, self._targets, self._weights, first, last, g, h),
        )

    def losses(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return w (y - s)^2 / 2, (n_rows,)."""
        residuals = self._targets - scores
        halves: npt.NDArray[np.float64] = 0.5 * residuals * residuals
        return halves * self._weights if len(self._weights) else halves

    def deviance(self, scores: npt.NDArray[np.float64]) -> float:
        """Return the weighted mean of (y - s)^2."""
        return 2.0 * fsum(self.losses(scores).tolist()) / len(scores)
