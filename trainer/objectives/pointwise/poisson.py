"""Counts: the logarithm of the mean."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import Floats, Pointwise, share_leaves
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team

LIMIT = 19.0  # scores beyond +-19 count as that much, as in gbm and R's glm


class Poisson(Pointwise):
    """Minimise ``w (e^s - y s)``, y a count or any number from 0 on (METHODS 3.7; gbm guide 4.7).

    g = w (e^s - y), h = w e^s; beyond +-19 the exponential goes on as a straight line, so that g stays the derivative
    of the loss, and h is the one at +-19.  Start and leaves are exact: ``log(sum w y / sum w e^s)``, held so that no
    score of the leaf passes +-19, which is also where a leaf without any count goes.  Deviance: twice the weighted
    mean of the loss (without the term log y! that no score changes).
    """

    name: ClassVar[str] = "poisson"
    deviance_factor: ClassVar[float] = 2.0

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: Any) -> None:
        super().__init__(rows, parameters, options)
        bad = ~(self._targets >= 0.0)
        if bad.any():
            row = int(np.argmax(bad))
            raise TrainingDataRejected(
                f"{self.name} expects labels of 0 or more, found {self._targets[row]} in row {row};"
                " learn labels of either sign by l2"
            )

    def start(self) -> float:
        """Return log(sum w y / sum w e^o), within +-19."""
        seen = self._targets > 0.0
        if not (seen.any() if len(self._weights) == 0 else (seen & (self._weights > 0.0)).any()):
            raise TrainingDataRejected(f"{self.name} finds nothing to learn: every label is 0")
        n = len(self._targets)
        scores = self._offsets if len(self._offsets) else np.zeros(n)
        steps = self._steps(scores, np.arange(n, dtype=np.int32), np.array([0, n], dtype=np.int64), Team(1))
        return float(steps[0])

    def leaf_steps(
        self,
        output: int,  # noqa: ARG002 - there is one
        scores: Floats,
        rows: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int64],
        team: Team,
    ) -> Floats:
        """Return the exact step of each leaf."""
        return self._steps(scores, rows, starts, team)

    def _steps(self, scores: Floats, rows: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], team: Team) -> Floats:
        out = np.empty(len(starts) - 1, dtype=np.float64)

        def share(first: int, last: int) -> None:
            kernels.counts_steps(scores, self._targets, self._weights, LIMIT, rows, starts, first, last, out)

        share_leaves(team, starts, share)
        return out

    def _derive(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.counts(scores, self._targets, self._weights, LIMIT, first, last, g, h)

    def _lose(self, scores: Floats, out: Floats) -> None:
        kernels.counts_losses(scores, self._targets, self._weights, LIMIT, out)
