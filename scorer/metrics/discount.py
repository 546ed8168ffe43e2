"""Discounts and gains from + - * / only, so that every CPU gives the same bits.

The logarithms of C libraries differ in the last bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.scorer.metrics.metric_options import Discount, Gain, table_of

_SQRT_HALF = 0.7071067811865476
_TWO_OVER_LN_2 = 2.8853900817779268
_LARGEST_EXACT_EXPONENT = 52


def stable_log2(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Logarithm to base 2 of positive finite ``x`` (any shape, float64); exact for powers of two.

    It writes ``x = m * 2^e`` with m in [sqrt(1/2), sqrt(2)).  With ``z = (m - 1) / (m + 1)`` it sums
    ``log2(m) = 2/ln(2) * (z + z^3/3 + z^5/5 + ...)`` up to z^25.  As ``|z| <= 0.172``, the remainder is below 1e-20,
    and the rounding of the sum below 1e-15 for ranks.  NumPy's elementwise + - * / are rounded one by one (no fused
    multiply-add) and `frexp` is exact.
    """
    mantissa, exponent = np.frexp(np.asarray(x, dtype=np.float64))
    low = mantissa < _SQRT_HALF
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    whole = exponent.astype(np.float64) - low.astype(np.float64)
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square = z * z
    series = np.full_like(z, 1.0 / 25.0)
    for odd in range(23, 0, -2):
        series = series * square
        series = series + 1.0 / odd
    return whole + _TWO_OVER_LN_2 * (z * series)


def discounts(n: int, discount: Discount = "log2") -> npt.NDArray[np.float64]:
    """Return the discounts of ranks 1..n under a policy's ``discount``, shape (n,) float64; non-increasing.

    ``log2`` is ``1 / log2(rank + 1)``, of Burges et al. 2005, with exactly 1 at rank 1; the others are in
    `rankmill.scorer.metrics.Policy`.
    """
    ranks = np.arange(1.0, n + 1.0)
    if discount == "log2":
        return 1.0 / stable_log2(ranks + 1.0)
    if discount == "one_plus_log2":
        return 1.0 / (1.0 + stable_log2(ranks))
    if discount == "letor":
        return 1.0 / stable_log2(np.maximum(ranks, 2.0))
    out = np.zeros(n)
    table = np.array(table_of(discount), dtype=np.float64)[:n]
    out[: table.shape[0]] = table
    return out


def persistence(n: int, p: float) -> npt.NDArray[np.float64]:
    """Return the share of the readers who stop at ranks 1..n, (n,): ``(1 - p) p^(rank - 1)``.

    Each continues with probability p.

    Source: Moffat & Zobel 2008, "Rank-biased precision", eqn 4.  Powers are repeated products: the same bits on every
    CPU.
    """
    factors = np.full(n, p)
    factors[:1] = 1.0 - p
    return np.multiply.accumulate(factors)


def gains(grades: npt.NDArray[np.int32], gain: Gain) -> npt.NDArray[np.float64]:
    """Gain of each grade, same shape, float64: ``2^y - 1`` for ``exp``, ``y`` for ``linear``, 0 for a grade below 0.

    The values of these two are whole numbers below 2^53, so sums of them are exact in any order.

    Raises
    ------
    InputError
        ``exp`` with a grade above 52, or a table that ends below a grade.
    """
    y = np.maximum(grades, 0)
    if gain == "linear":
        return y.astype(np.float64)
    highest = int(y.max(initial=0))
    table = table_of(gain)
    if table is not None:
        if highest >= len(table):
            raise InputError(f"gain {gain} ends at grade {len(table) - 1}, found grade {highest}; add its gain")
        return np.array(table, dtype=np.float64)[y]
    if highest > _LARGEST_EXACT_EXPONENT:
        raise InputError(
            f"gain exp needs grades of at most {_LARGEST_EXACT_EXPONENT}, found {highest}; ask for linear gain"
        )
    return np.ldexp(1.0, y) - 1.0


def stop_probabilities(grades: npt.NDArray[np.int32], max_grade: int | None) -> npt.NDArray[np.float64]:
    """Probability that a document satisfies the reader, ``(2^y - 1) / 2^max_grade``, same shape, float64.

    Source: Chapelle, Metzler, Zhang & Grinspan 2009, "Expected reciprocal rank for graded relevance", eqn 1.

    Raises
    ------
    InputError
        ``max_grade`` is None, or a grade exceeds it.
    """
    if max_grade is None:
        raise InputError("metric err needs the highest grade of the scale: give max_grade, for example 4")
    highest = int(grades.max(initial=0))
    if highest > max_grade:
        raise InputError(
            f"metric err: found grade {highest}, above max_grade {max_grade}; give the scale's highest grade"
        )
    return np.ldexp(gains(grades, "exp"), -max_grade)
