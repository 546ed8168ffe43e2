"""What the trees of a round do to the loss of what they were not grown from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainer import _kernels
from trainer.errors import InvalidParameter, TrainingDataRejected
from trainer.objectives.protocol import QUERIES, Objective
from trainer.parameters import TrainParameters
from trainer.sampling import Sampler


class OutOfBag:
    """Which units, whole queries or documents as the loss is a sum of, a round does not see, and what it does to them.

    The trees of a round have not seen these units, so their loss tells whether the round was worth it; but the scores
    that the round started from have: earlier rounds saw them.  So the estimate is conservative, it says stop too
    early (gbm's guide says the same of its own).

    Raises
    ------
    InvalidParameter
        Every unit is in every sample.
    """

    def __init__(self, objective: Objective, sampler: Sampler, parameters: TrainParameters) -> None:
        self._objective, self._sampler = objective, sampler
        self._by_query = objective.sums_over == QUERIES
        if parameters.query_fraction == 1.0 and (self._by_query or parameters.row_fraction == 1.0):
            needed = "query_fraction" if self._by_query else "row_fraction or query_fraction"
            raise InvalidParameter(
                f"rounds_by oob needs {self._objective.sums_over} that a tree does not see: set {needed} below 1, such as 0.5"
            )

    def left_out(self, round_number: int) -> npt.NDArray[np.bool_]:
        """Return (n_units,), true where the trees of this round see nothing of the unit.

        Raises
        ------
        TrainingDataRejected
            There are so few units that the sample holds all of them.
        """
        outside = self._sampler.left_out(self._sampler.draw(round_number), self._by_query)
        if not outside.any():
            raise TrainingDataRejected(
                f"rounds_by oob: the sample holds all {len(outside)} {self._objective.sums_over}; lower its fraction"
            )
        return outside

    def improvement(self, round_number: int, before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> float:
        """Return by how much the mean loss of what is left out fell from the scores ``before`` to those ``after``.

        Both losses are taken as the objective stands after the gradients of the round: with the same draws.
        """
        outside = self.left_out(round_number)
        fall = self._objective.losses(before) - self._objective.losses(after)
        return float(_kernels.total_of(fall, outside)) / int(np.count_nonzero(outside))
