"""Objectives by their names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainer.objectives.l2 import SquaredError
from trainer.objectives.lambdamart import LambdaMart
from trainer.objectives.protocol import Objective
from trainer.parameters import TrainParameters


def objective_of(
    grades: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64] | None,
    parameters: TrainParameters,
) -> Objective:
    """Return the loss that ``parameters.objective`` names, over these rows.

    ``grades`` (n_rows,), ``starts`` (n_queries + 1,), ``weights`` (n_rows,) or None: every document weighs the same.

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        As the objective says.
    """
    if parameters.objective == "l2":
        return SquaredError(grades, weights)
    return LambdaMart(grades, starts, parameters, weights)
