"""How often chance alone makes two rankings differ by so much: the sign-flip randomisation test of paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rankmill.scorer.metrics import _flip_kernels

FLIPS = 100_000
SEED = 19350101
EXACT_UP_TO = 20  # queries that differ
_BITS, _SUM_BITS = 40, 62  # of a difference, and of their sum


def sign_flip_p(
    differences: npt.NDArray[np.float64], *, flips: int = FLIPS, seed: int = SEED
) -> npt.NDArray[np.float64]:
    """Two-sided p of each row of ``differences`` (c, q) float64: that their mean is 0 but for chance.

    If two rankings are equally good, the sign of each query's difference is a coin's.  With at most 20 queries that
    differ all 2^m choices of signs are counted, and p is the share of those whose sum is at least as far from 0 as the
    one found; else ``flips`` choices are drawn, and p = (1 + those) / (1 + flips), which is valid at any number (Phipson
    & Smyth 2010).  Source: Fisher 1935; Smucker, Allan & Carterette, CIKM 2007, for rankings.

    Each row's differences are rounded to whole multiples of its largest one divided by 2^40, so that sums are exact in any
    order; a sum nearer to the one found than rounding can tell counts as equal to it, which can only raise p.

    The signs are bits of Philox counters with key (seed, 64 queries): the same for every row, in any number of threads.
    NaN is 0, a difference that no sign changes.  Memory: 8 ``flips`` bytes a row.
    """
    found = [_rounded(row) for row in differences]
    p = np.ones(len(found))
    drawn = []
    for i, (whole, least) in enumerate(found):
        moving = np.abs(whole[whole != 0])
        if moving.size > EXACT_UP_TO:
            drawn.append(i)
        elif moving.size:
            p[i] = _flip_kernels.count_all_signs(moving, least) / 2**moving.size
    sums = np.zeros((len(drawn), flips), dtype=np.int64)
    table = np.empty((8, 256), dtype=np.int64)
    n = differences.shape[1]
    for word, first in enumerate(range(0, n, 64) if drawn else ()):
        raw = np.random.Philox(key=np.array([seed, word], np.uint64)).random_raw(flips)
        for row, i in zip(sums, drawn, strict=True):
            part = np.zeros(64, dtype=np.int64)
            part[: min(64, n - first)] = found[i][0][first : first + 64]
            if part.any():
                _flip_kernels.add_flipped(part, raw, table, row)
    for row, i in zip(sums, drawn, strict=True):
        p[i] = (1 + int(np.count_nonzero(np.abs(row) >= found[i][1]))) / (1 + flips)
    return p


def holm(p: Sequence[float]) -> list[float]:
    """Adjust ``p`` of several comparisons so that one of them below a level is wrong with that probability at most.

    The i-th smallest of m is multiplied by m - i + 1, never below its predecessor, at most 1 (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p)
    least = 0.0
    for done, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        least = max(least, min(1.0, (len(p) - done) * p[i]))
        adjusted[i] = least
    return adjusted


def _rounded(differences: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the differences as whole numbers, and how far from 0 a sum must be to count as far as theirs."""
    values = np.where(np.isnan(differences), 0.0, differences)
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0.0:
        return np.zeros(len(values), dtype=np.int64), 0
    bits = min(_BITS, _SUM_BITS - len(values).bit_length())
    whole = np.rint(np.ldexp(values, bits - math.frexp(largest)[1])).astype(np.int64)
    return whole, abs(int(whole.sum())) - int(np.count_nonzero(whole))
