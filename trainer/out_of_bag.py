"""What the trees of a round do to the loss of what they were not grown from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.trainer import _kernels
from rankmill.trainer.objectives.protocol import QUERIES, Objective
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.sampling import Sampler

Floats = npt.NDArray[np.float64]


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

    def __init__(
        self, objective: Objective, sampler: Sampler, parameters: TrainParameters, offsets: Floats | None
    ) -> None:
        self._objective, self._sampler, self._offsets = objective, sampler, offsets
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

    def improvement(self, round_number: int, before: Floats, after: Floats) -> float:
        """Return by how much the mean loss of what is left out fell from the scores ``before`` to those ``after``.

        Both losses are taken as the objective stands after the gradients of the round: with the same draws.
        """
        outside, losses = self.left_out(round_number), self._objective.losses
        fall = losses(self._final(before, round_number - 1)) - losses(self._final(after, round_number))
        return float(_kernels.total_of(fall, outside)) / int(np.count_nonzero(outside))

    def _final(self, scores: Floats, n_rounds: int) -> Floats:
        """Return the scores of the forest that so many rounds make, where the objective weighs its trees."""
        of_tree, of_start = self._objective.final_weights(n_rounds)
        if of_tree == of_start == 1.0:
            return scores
        fixed = 0.0 if self._offsets is None else self._offsets
        start = self._objective.starting_score
        found: Floats = fixed + of_start * start + of_tree * (scores - fixed - start)
        return found
