"""Squared error of the label: gradient boosting as first published (MART)."""

from __future__ import annotations

from typing import ClassVar

from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import Floats, Pointwise


class SquaredError(Pointwise):
    """Minimise the sum of ``w (y - s)^2 / 2`` (METHODS 3.1; Friedman 2001): g = w (s - y), h = w.

    Deviance: the weighted mean of (y - s)^2.
    """

    name: ClassVar[str] = "l2"
    deviance_factor: ClassVar[float] = 2.0

    def start(self) -> float:
        """Return the weighted mean of the targets less their offsets."""
        rest = self._targets - self._offsets if len(self._offsets) else self._targets
        return float(kernels.weighted_mean(rest, self._weights))

    def _derive(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.squared_error(scores, self._targets, self._weights, first, last, g, h)

    def _lose(self, scores: Floats, out: Floats) -> None:
        kernels.squared_losses(scores, self._targets, self._weights, out)
