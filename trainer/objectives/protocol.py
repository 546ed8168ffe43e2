"""What the boosting loop asks of a loss; nothing else may reach it."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from trainer.workers import Team


class Objective(Protocol):
    """A loss L over the scores of one training set, to be minimised.

    Trees fit ``-g`` and leaves take Newton steps, so ``h`` must be 0 or more; where the true second derivative is
    not, the objective writes a surrogate and its docstring says which.
    """

    name: ClassVar[str]  # stable: written into the model file

    def start(self) -> float:
        """Return the score that every row starts from."""
        ...

    def gradients(
        self,
        round_number: int,
        scores: npt.NDArray[np.float64],  # (n_rows,) IN
        g: npt.NDArray[np.float64],  # (n_rows,) dL/ds, OUT, every cell written
        h: npt.NDArray[np.float64],  # (n_rows,) d2L/ds2, OUT, every cell written
        team: Team,
    ) -> None:
        """Write g and h for tree ``round_number`` (1, 2, ..); the same bits for any team."""
        ...
