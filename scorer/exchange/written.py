"""What a written model is, how exactly its scores can follow ours, and why a format may not take a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ConversionRefused
from rankmill.scorer.exchange.plain import takes_missing_as_zero
from rankmill.scorer.forest import Forest

FLOAT32_ROUNDING = 2.0**-24  # a sum or a conversion is off by this share of it at most
FLOAT64_ROUNDING = 2.0**-53
FLOAT32_TINY = 2.0**-150  # and by this much where it is nearly 0
FLOAT32_MAX = float(np.finfo(np.float32).max)

SAME_BITS = "the same float64 bits as here: sums in float64, in the order of the trees"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A model in the format of another tool."""

    data: bytes
    exactness: str
    """In words, how its scores there compare with ours."""
    bound: float = 0.0
    """By how much they can differ at most."""
    notes: tuple[str, ...] = ()
    """What a user has to know besides, a line each."""


def reach(forest: Forest) -> float:
    """Return the greatest absolute value that base score and leaves of one document can add up to, each taken positive."""
    leaves = np.where(forest.node_feature < 0, np.abs(forest.node_value), 0.0)
    highest = np.maximum.reduceat(leaves, forest.tree_starts[:-1]) if forest.n_trees else np.zeros(0)
    return abs(forest.base_score) + float(np.sum(np.abs(forest.tree_weights) * highest))


def float32_sums(forest: Forest) -> float:
    """Return by how much sums in float32 of leaves rounded to float32 can differ from ours, whatever their order.

    n terms are rounded, then added: each passes at most n roundings of a share u = 2^-24, so that the sum is off by
    ``n u / (1 - n u)`` times the sum of the absolute terms at most (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.2).  The terms are the trees, the base score, and one more for a sum that starts at 0.
    """
    n = forest.n_trees + 2
    share = n * FLOAT32_ROUNDING
    return share / (1.0 - share) * reach(forest) + n * FLOAT32_TINY


def said_in_float32(forest: Forest, target: str) -> str:
    """Say how float32 sums compare with ours; ConversionRefused where they could overflow."""
    if reach(forest) > FLOAT32_MAX / 2.0:
        raise ConversionRefused(
            f"{target} adds in float32, and scores of this model reach {reach(forest):g}; convert it --to lightgbm or c"
        )
    return f"sums in float32: within {float32_sums(forest):.2g} of the scores here, so that near ties may swap"


def need_one_output(forest: Forest, target: str) -> None:
    """Refuse a forest of several outputs."""
    if forest.link != "identity":
        raise ConversionRefused(
            f"{target} cannot make one score of {forest.n_outputs} outputs (the link {forest.link} of {forest.objective});"
            " convert it --to c or onnx, or train an objective of one output"
        )


def need_missing_as_zero(forest: Forest, target: str) -> None:
    """Refuse a forest that treats missing values otherwise than 0."""
    if not takes_missing_as_zero(forest):
        raise ConversionRefused(
            f"{target} takes missing values for 0, and this model sends them elsewhere at some nodes; where none are missing,"
            " or where they may count as 0, convert it with --missing zero"
        )


def shortest32(values: npt.NDArray[np.floating]) -> list[float]:
    """Return ``values``, rounded to float32, as numbers whose shortest decimal is the shortest that names that float32.

    Readers of float32 get the same bits from it, and need no more than nine digits.

    >>> shortest32(np.array([0.1, 1 / 3]))
    [0.1, 0.33333334]
    """
    with np.errstate(over="ignore"):
        return [float(str(value)) for value in np.asarray(values).astype(np.float32)]


def java(value: float) -> str:
    """Write a number as Java reads it."""
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, str(value))
