"""Exponential, logarithm and random bits: functions of which every bit is part of the models.

Kernels may import them.  Numba's cache of a kernel does not notice edits in another file, so nothing here ever changes:
what has to be otherwise gets another name, in another file (a test knows the digest of this one).  They are made of
+ - * / alone, and rounded one by one, so that the bits are the same on every CPU.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from rankmill.trainer._intrinsics import bits_of, float_of

_MAGIC = 6755399441055744.0  # 1.5 * 2 ** 52: adding it leaves the rounded integer in the low bits of the double
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # 32 significant bits: k * _LN2_HIGH is exact for |k| < 2 ** 20
_LN2_LOW = 1.9082149292705877e-10
_SQRT2 = 1.4142135623730951


@njit(nogil=True, cache=True, error_model="numpy")
def exp_negative(x):
    """exp(x) for x <= 0; relative error <= 1e-11; exp(-700) below -700.

    x = k ln 2 + r, |r| <= ln 2 / 2; a Taylor polynomial of degree 10 in r; 2 ** k through the exponent bits.
    """
    x = max(x, -700.0)
    shifted = x * _LOG2_E + _MAGIC
    k = bits_of(shifted) - bits_of(_MAGIC)
    whole = shifted - _MAGIC
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    p = 2.7557319223985893e-07  # 1 / 10!
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 1.984126984126984e-04
    p = p * r + 1.388888888888889e-03
    p = p * r + 8.333333333333333e-03
    p = p * r + 4.1666666666666664e-02
    p = p * r + 1.6666666666666666e-01
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * float_of((k + np.int64(1023)) << np.int64(52))


@njit(nogil=True, cache=True, error_model="numpy")
def log2_positive(x):
    """log2(x) for a normal x > 0; absolute error <= 1e-12.

    x = m 2 ** e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m - 1) / (m + 1)) by its odd series.
    """
    bits = bits_of(x)
    e = (bits >> np.int64(52)) - np.int64(1023)
    m = float_of((bits & np.int64(0xFFFFFFFFFFFFF)) | np.int64(0x3FF0000000000000))
    if m > _SQRT2:
        m = m * 0.5
        e = e + np.int64(1)
    s = (m - 1.0) / (m + 1.0)
    s2 = s * s
    p = 1.0 / 15.0
    p = p * s2 + 1.0 / 13.0
    p = p * s2 + 1.0 / 11.0
    p = p * s2 + 1.0 / 9.0
    p = p * s2 + 1.0 / 7.0
    p = p * s2 + 1.0 / 5.0
    p = p * s2 + 1.0 / 3.0
    p = p * s2 + 1.0
    return np.float64(e) + 2.0 * s * p * _LOG2_E


@njit(nogil=True, cache=True, error_model="numpy")
def jitter(key, row):
    """64 bits that depend on (key, row) only: the finaliser of SplitMix64 (Steele, Lea & Flood 2014)."""
    z = key + np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(nogil=True, cache=True, error_model="numpy")
def uniform(bits):
    """Return a number between 0 and 1, neither of the two, from 64 random bits; exact."""
    return (np.float64(np.int64(bits >> np.uint64(12))) + 0.5) * 2.220446049250313e-16
