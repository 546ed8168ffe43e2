"""Squared error of the grade: gradient boosting as first published (MART)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from trainer.objectives import _kernels
from trainer.objectives.weights import relative_weights
from trainer.workers import Team

_LEAST_ROWS = 131_072  # rows a worker, for passes of about a nanosecond a row


class SquaredError:
    """Minimise the sum of ``w (y - s)^2 / 2`` (METHODS 3.1; Friedman 2001): g = w (s - y), h = w.

    The target y is the grade.  Queries do not matter to this loss.

    Parameters
    ----------
    grades
        Shape (n_rows,) int32.
    weights
        Shape (n_rows,) float64, or None; taken relative to their mean.
    """

    name: ClassVar[str] = "l2"

    def __init__(self, grades: npt.NDArray[np.int32], weights: npt.NDArray[np.float64] | None = None) -> None:
        self._targets = grades.astype(np.float64)
        self._weights = relative_weights(weights, len(grades))

    def start(self) -> float:
        """Return the weighted mean of the targets."""
        return float(np.average(self._targets, weights=self._weights if len(self._weights) else None))

    def gradients(
        self,
        round_number: int,  # noqa: ARG002 - nothing is drawn
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
