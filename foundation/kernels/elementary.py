"""Exponentials and logarithms of + - * / alone, rounded one by one: the bits are the same on every CPU.

There are two exponentials: models are made with :func:`exp_negative`, scores of several outputs with
:func:`exp_precise`, and stored bytes depend on each (tests pin both).
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.instructions import bits_of, float_of

MAGIC = 6755399441055744.0  # 1.5 * 2 ** 52: adding it leaves the rounded integer in the low bits of the double
LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453
_LN2_HIGH = 0.6931471803691238  # 32 significant bits: k * _LN2_HIGH is exact for |k| < 2 ** 20
_LN2_LOW = 1.9082149292705877e-10
_SQRT2 = 1.4142135623730951
_LEAST_EXPONENT = -708.0  # below it exp is not a normal double
_HALVINGS = np.ldexp(1.0, -np.arange(1024))  # 2 ** -k, exact


@kernel
def exp_negative(x):
    """exp(x) for x <= 0; relative error <= 1e-11; exp(-700) below -700.

    x = k ln 2 + r, |r| <= ln 2 / 2; a Taylor polynomial of degree 10 in r; 2 ** k through the exponent bits.
    """
    x = max(x, -700.0)
    shifted = x * LOG2_E + MAGIC
    k = bits_of(shifted) - bits_of(MAGIC)
    whole = shifted - MAGIC
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


@kernel
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
    return np.float64(e) + 2.0 * s * p * LOG2_E


@kernel
def exp_precise(x):
    """exp(x) for x <= 0, relative error <= 1e-15; 0 below -708; NaN for NaN.

    x = r - k ln 2, |r| <= ln 2 / 2 (a little more where rounding decides); a Taylor polynomial of degree 12 in r, whose
    remainder is below 2e-16, times an exact power of two.
    """
    if not x >= _LEAST_EXPONENT:
        return 0.0 if x < _LEAST_EXPONENT else x
    k = np.int64(0.5 - x * LOG2_E)
    r = (x + k * _LN2_HIGH) + k * _LN2_LOW
    p = 2.08767569878681e-09  # 1 / 12!
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
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
    return p * _HALVINGS[k]


@kernel
def exp_clipped(x):
    """Return exp(x), with x clamped to [-700, 700]."""
    return exp_negative(x) if x <= 0.0 else 1.0 / exp_negative(-x)


@kernel
def log_positive(x):
    """Natural logarithm of a normal x > 0."""
    return LN2 * log2_positive(x)


@kernel
def softplus(x):
    """log(1 + exp(x)); absolute error about 1e-12."""
    return max(x, 0.0) + LN2 * log2_positive(1.0 + exp_negative(-abs(x)))


@kernel
def sigmoid(x):
    """1 / (1 + exp(-x)), accurate at both ends."""
    e = exp_negative(-abs(x))
    return 1.0 / (1.0 + e) if x >= 0.0 else e / (1.0 + e)


@kernel
def normal(u):
    """Return the quantile u of the standard normal distribution (Wichura 1988, AS 241), relative error about 1e-12."""
    q = u - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        top = 2.5090809287301226727e3
        top = top * r + 3.3430575583588128105e4
        top = top * r + 6.7265770927008700853e4
        top = top * r + 4.5921953931549871457e4
        top = top * r + 1.3731693765509461125e4
        top = top * r + 1.9715909503065514427e3
        top = top * r + 1.3314166789178437745e2
        top = top * r + 3.3871328727963666080e0
        low = 5.2264952788528545610e3
        low = low * r + 2.8729085735721942674e4
        low = low * r + 3.9307895800092710610e4
        low = low * r + 2.1213794301586595867e4
        low = low * r + 5.3941960214247511077e3
        low = low * r + 6.8718700749205790830e2
        low = low * r + 4.2313330701600911252e1
        low = low * r + 1.0
        return q * top / low
    r = np.sqrt(-LN2 * log2_positive(u if q < 0.0 else 1.0 - u))
    if r <= 5.0:
        r -= 1.6
        top = 7.74545014278341407640e-4
        top = top * r + 2.27238449892691845833e-2
        top = top * r + 2.41780725177450611770e-1
        top = top * r + 1.27045825245236838258e0
        top = top * r + 3.64784832476320460504e0
        top = top * r + 5.76949722146069140550e0
        top = top * r + 4.63033784615654529590e0
        top = top * r + 1.42343711074968357734e0
        low = 1.05075007164441684324e-9
        low = low * r + 5.47593808499534494600e-4
        low = low * r + 1.51986665636164571966e-2
        low = low * r + 1.48103976427480074590e-1
        low = low * r + 6.89767334985100004550e-1
        low = low * r + 1.67638483018380384940e0
        low = low * r + 2.05319162663775882187e0
        low = low * r + 1.0
    else:
        r -= 5.0
        top = 2.01033439929228813265e-7
        top = top * r + 2.71155556874348757815e-5
        top = top * r + 1.24266094738807843860e-3
        top = top * r + 2.65321895265761230930e-2
        top = top * r + 2.96560571828504891230e-1
        top = top * r + 1.78482653991729133580e0
        top = top * r + 5.46378491116411436990e0
        top = top * r + 6.65790464350110377720e0
        low = 2.04426310338993978564e-15
        low = low * r + 1.42151175831644588870e-7
        low = low * r + 1.84631831751005468180e-5
        low = low * r + 7.86869131145613259100e-4
        low = low * r + 1.48753612908506148525e-2
        low = low * r + 1.36929880922735808310e-1
        low = low * r + 5.99832206555887937690e-1
        low = low * r + 1.0
    return top / low if q > 0.0 else -top / low
