"""Huber's error: squared near the label, absolute far from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import LEAST_ROWS, Floats, Pointwise
from rankmill.trainer.objectives.pointwise.quantile import Residuals, check_alpha
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team


@dataclass(frozen=True, slots=True, kw_only=True)
class HuberOptions:
    """Which part of the residuals, the smallest ones, counts with its square."""

    alpha: float = 0.9

    def __post_init__(self) -> None:
        check_alpha("huber", self.alpha)


class Huber(Pointwise):
    """Minimise ``w r^2 / 2`` where |r| <= delta, ``w delta (|r| - delta / 2)`` beyond; r = y - s (METHODS 3.4).

    Source: Friedman 2001, algorithm 4 (M-TreeBoost).  delta is the weighted alpha-quantile of |r| over all rows, found
    anew for every gradient; ``losses`` and leaves use the one of the last gradient (before any, that of the scores
    given), ``deviance`` always that of the scores given, so that it depends on nothing before.  g = w clip(s - y,
    +-delta).  The second derivative is w within delta and 0 beyond; the h written is w everywhere, so ``se`` is the
    only criterion.  Start: the weighted median of y - o, as there is no delta yet.  Leaves: the weighted median of
    their residuals plus the weighted mean of clip(r - median, +-delta), Friedman's one step towards the minimum.
    """

    name: ClassVar[str] = "huber"
    criteria: ClassVar[tuple[str, ...]] = ("se",)
    additive: ClassVar[bool] = False
    Options: ClassVar[type[Any]] = HuberOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: HuberOptions) -> None:
        super().__init__(rows, parameters, options)
        self._alpha = options.alpha
        self._residuals = Residuals(self._targets, self._weights, self._offsets)
        self._delta: float | None = None

    def start(self) -> float:
        """Return the weighted median of y - o."""
        return self._residuals.of_start(0.5)

    def gradients(
        self,
        step: int,  # noqa: ARG002 - nothing is drawn
        scores: Floats,
        g: Floats,
        h: Floats,
        team: Team,
    ) -> None:
        """Find delta, then write g and h."""
        self._delta = delta = self._residuals.of_sizes(self._alpha, scores)

        def share(first: int, last: int, _: int) -> None:
            kernels.huber(scores, self._targets, self._weights, delta, first, last, g, h)

        team.share(len(scores), LEAST_ROWS, share)

    def deviance(self, scores: Floats) -> float:
        """Return the weighted mean loss, delta being the quantile at these scores."""
        frozen, self._delta = self._delta, None
        try:
            return super().deviance(scores)
        finally:
            self._delta = frozen

    def leaf_steps(
        self,
        output: int,  # noqa: ARG002 - there is one
        scores: Floats,
        rows: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int64],
        team: Team,
    ) -> Floats:
        """Return Friedman's step of each leaf, with the delta of the last gradient."""
        return self._residuals.of_leaves_clipped(self._delta_at(scores), scores, rows, starts, team)

    def _delta_at(self, scores: Floats) -> float:
        return self._residuals.of_sizes(self._alpha, scores) if self._delta is None else self._delta

    def _derive(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.huber(scores, self._targets, self._weights, self._delta_at(scores), first, last, g, h)

    def _lose(self, scores: Floats, out: Floats) -> None:
        kernels.huber_losses(scores, self._targets, self._weights, self._delta_at(scores), out)
