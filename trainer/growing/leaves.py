"""How a loss, or a sample, changes the values of leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankmill.trainer.objectives.protocol import Leaves

Floats = npt.NDArray[np.float64]
LeafSteps = Callable[[Leaves], Floats | None]
InsideLeaves = Callable[[npt.NDArray[np.int32], int], Floats]  # leaf of every row, number of leaves


@dataclass(frozen=True, slots=True)
class LeafRules:
    """How leaf values differ from a Newton step over the rows that the tree was grown from.

    Attributes
    ----------
    inside
        For exact steps, -G / (H - 2 C + lambda): called with the leaf of every row (n_rows,) int32, -1 for none, and
        how many leaves there are; returns C of each, the hessian of all pairs inside it.
    steps
        Returns the step of each leaf, or None for Newton's.
    of_all
        (g, h), both (n_rows,), from which leaf values are computed, over all rows; None: those that the tree was grown
        from, over its rows.
    """

    inside: InsideLeaves | None = None
    steps: LeafSteps | None = None
    of_all: tuple[Floats, Floats] | None = None
