"""Gauss and Legendre's rules on [0, 1], correctly rounded: the same bits on every machine."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from functools import lru_cache
from math import cos, pi

import numpy as np
import numpy.typing as npt

DIGITS = 50
_STEPS = 100  # Newton's method takes about six


@lru_cache(maxsize=8)
def rules_up_to(n: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the points and weights of the rules of 1, 2, .. ``n`` points, (n (n + 1) / 2,) each, one rule after the other.

    The rule of m points is exact for polynomials of degree up to 2 m - 1.  Points are roots of Legendre's polynomial by
    Newton's method in ``DIGITS`` decimal digits, so that each is the double nearest to the true one.

    >>> points, weights = rules_up_to(2)
    >>> points.round(4).tolist(), weights.tolist()
    ([0.5, 0.2113, 0.7887], [1.0, 0.5, 0.5])
    """
    points, weights = [], []
    for m in range(1, n + 1):
        rule = [_point(m, i) for i in range(m)]
        points += [float(x) for x, _ in rule]
        weights += [float(w) for _, w in rule]
    return np.array(points, dtype=np.float64), np.array(weights, dtype=np.float64)


def _point(m: int, i: int) -> tuple[Decimal, Decimal]:
    """Point ``i`` from the least, and its weight, of the rule of ``m`` points on [0, 1]."""
    with localcontext(Context(prec=DIGITS)):
        x = Decimal(-cos(pi * (i + 0.75) / (m + 0.5)))  # near enough; what it is refined to does not depend on it
        for _ in range(_STEPS):
            value, slope = _legendre(m, x)
            step = value / slope
            x -= step
            if abs(step) < Decimal(10) ** (8 - DIGITS):
                break
        _, slope = _legendre(m, x)
        return (1 + x) / 2, 1 / ((1 - x * x) * slope * slope)


def _legendre(m: int, x: Decimal) -> tuple[Decimal, Decimal]:
    """Legendre's polynomial of degree ``m`` at ``x``, and its derivative."""
    before, value = Decimal(1), x
    for k in range(2, m + 1):
        before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
    return value, m * (before - x * value) / (1 - x * x)
