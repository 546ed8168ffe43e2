"""Line search: the step size of a round that minimises the loss."""

from __future__ import annotations

from collections.abc import Callable

FARTHEST = 10.0
EVALUATIONS = 24  # the bracket is then some 10 * 0.618 ** 22 = 0.0003 wide
_GOLDEN = 0.6180339887498949
_STEPS_A_UNIT = 1024.0  # candidates are on a grid, so that the last bits of a loss rarely decide


def best_step(loss: Callable[[float], float]) -> float:
    """Return the step in [0, ``FARTHEST``] with the lowest ``loss`` among the steps of a golden-section search, and 1.

    A fixed number of evaluations, and only + - * / between them: the same losses give the same step.  If ``loss`` has
    several minima, one of them is found, but never a step worse than 1.  A NaN loss counts as the worst.

    >>> round(best_step(lambda step: (step - 2.5) ** 2), 2)
    2.5
    """
    best, lowest = 1.0, _or_infinite(loss(1.0))

    def tried(step: float) -> tuple[float, float]:
        nonlocal best, lowest
        step = round(step * _STEPS_A_UNIT) / _STEPS_A_UNIT
        value = _or_infinite(loss(step))
        if value < lowest:
            best, lowest = step, value
        return step, value

    low, high = 0.0, FARTHEST
    left, at_left = tried(high - _GOLDEN * (high - low))
    right, at_right = tried(low + _GOLDEN * (high - low))
    for _ in range(EVALUATIONS - 3):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left, at_left = tried(high - _GOLDEN * (high - low))
        else:
            low, left, at_left = left, right, at_right
            right, at_right = tried(low + _GOLDEN * (high - low))
    return best


def _or_infinite(value: float) -> float:
    return value if value == value else float("inf")  # noqa: PLR0124 - not NaN
