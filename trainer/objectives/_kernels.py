"""Gradients of pairs of documents.  No checks: the objectives next door have done them.

``row`` counts documents as stored; ``rank`` counts places in the order of the scores, 0 first; ``order[rank]`` is
the row that stands there.  ``high``/``low`` compare grades, never scores.  ``exp`` and ``log`` are polynomials from
+ - * / alone, so that the bits are the same on every CPU.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_MAGIC = 6755399441055744.0  # 1.5 * 2 ** 52: adding it leaves the rounded integer in the low bits of the double
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # 32 significant bits: k * _LN2_HIGH is exact for |k| < 2 ** 20
_LN2_LOW = 1.9082149292705877e-10
_SQRT2 = 1.4142135623730951


@intrinsic
def bits_of(typingctx, value):
    """Return the 64 bits of a float64 as an int64."""
    signature = types.int64(types.float64)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return signature, codegen


@intrinsic
def float_of(typingctx, value):
    """Return the float64 whose bits are those of an int64."""
    signature = types.float64(types.int64)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return signature, codegen


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
def _stands_before(scores, key, a, b):
    """Whether row a ranks before row b: the higher score, then the smaller jitter, then the lower row."""
    if scores[a] != scores[b]:
        return scores[a] > scores[b]
    ja, jb = jitter(key, a), jitter(key, b)
    if ja != jb:
        return ja < jb
    return a < b


@njit(nogil=True, cache=True, error_model="numpy")
def order_by_score(scores, key, first, last, order, spare):
    """Sort ``order[first:last]``, which holds the rows first .. last in any order, best row first.

    The order is strict, so the result does not depend on what ``order`` held; it is quick where that was nearly right,
    as it is from one round to the next.  Merge sort from runs of eight; ``spare`` has room for last - first rows.
    """
    n = last - first
    run = 8
    for start in range(first, last, run):
        for i in range(start + 1, min(last, start + run)):
            row = order[i]
            j = i
            while j > start and _stands_before(scores, key, row, order[j - 1]):
                order[j] = order[j - 1]
                j -= 1
            order[j] = row
    while run < n:
        for start in range(first, last, 2 * run):
            middle, end = min(last, start + run), min(last, start + 2 * run)
            if middle >= end or not _stands_before(scores, key, order[middle], order[middle - 1]):
                continue
            for i in range(start, middle):
                spare[i - start] = order[i]
            i, held, j, k = 0, middle - start, middle, start
            while i < held:
                if j < end and _stands_before(scores, key, order[j], spare[i]):
                    order[k] = order[j]
                    j += 1
                else:
                    order[k] = spare[i]
                    i += 1
                k += 1
        run *= 2


# The pair loop is cut into short loops that the compiler turns into vector code: unsigned indices (no test for
# negative ones), few arrays each (every pair that may overlap costs a test), no sum of floats inside.


@njit(nogil=True, cache=True, error_model="numpy")
def _exponentials(s, score, sigma, first, last, e):
    """e[j] = exp(-sigma (score - s[j])), never above 1."""
    for j in range(first, last):
        e[j] = exp_negative(sigma * (s[j] - score))


@njit(nogil=True, cache=True, error_model="numpy")
def _deltas(s, gain, discount, score, gain_i, discount_i, scale, floor, slope, first, last, c):
    """c[j] = scale (gain_i - gain[j]) (discount_i - discount[j]) / (floor + slope (score - s[j])), of either sign."""
    for j in range(first, last):
        c[j] = (gain_i - gain[j]) * (discount_i - discount[j]) * scale / (floor + slope * (score - s[j]))


@njit(nogil=True, cache=True, error_model="numpy")
def _forces(e, c, gain, gain_i, sigma, first, last):
    """From exponentials and deltas to c[j] = what the pair adds to g_j (and takes from g_i), e[j] = its curvature.

    rho is e / (1 + e) where i, which ranks higher, has the better grade, and 1 / (1 + e) where j has.
    """
    for j in range(first, last):
        v = e[j]
        inverse = 1.0 / (1.0 + v)
        f = c[j] * inverse
        c[j] = f * v if gain_i > gain[j] else f
        e[j] = abs(f) * sigma * v * inverse


@njit(nogil=True, cache=True, error_model="numpy")
def _add_both(c, e, g, h, first, last):
    """Add c to g and e to h."""
    for j in range(first, last):
        g[j] += c[j]
        h[j] += e[j]


@njit(nogil=True, cache=True, error_model="numpy")
def _sum(x, first, last):
    """Sum x[first:last] in eight lanes: a fixed order."""
    eight = np.uint64(8)
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    p, q, r, s = 0.0, 0.0, 0.0, 0.0
    whole = first + (last - first) // eight * eight
    for j in range(first, whole, eight):
        a += x[j]
        b += x[j + np.uint64(1)]
        c += x[j + np.uint64(2)]
        d += x[j + np.uint64(3)]
        p += x[j + np.uint64(4)]
        q += x[j + np.uint64(5)]
        r += x[j + np.uint64(6)]
        s += x[j + np.uint64(7)]
    for j in range(whole, last):
        a += x[j]
    return ((a + b) + (c + d)) + ((p + q) + (r + s))


@njit(nogil=True, cache=True, error_model="numpy")
def _sum_absolute(x, first, last):
    """Sum |x[first:last]| in four lanes: a fixed order."""
    four = np.uint64(4)
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = first + (last - first) // four * four
    for j in range(first, whole, four):
        a += abs(x[j])
        b += abs(x[j + np.uint64(1)])
        c += abs(x[j + np.uint64(2)])
        d += abs(x[j + np.uint64(3)])
    for j in range(whole, last):
        a += abs(x[j])
    return (a + b) + (c + d)


@njit(nogil=True, cache=True, error_model="numpy")
def lambdas(
    scores, starts, first_query, last_query, gains, discounts, inverse_ideal, sigma, truncation, normalise,
    key, order, spare, work, gradients, curvatures,
):  # fmt: skip
    """Gradients and curvatures of LambdaMART for a metric whose swap delta is a product of gain and discount.

    For each pair with different grades and at least one document among the first ``truncation`` ranks,
    dZ = |gain_i - gain_j| |discount_i - discount_j| / ideal (Burges 2010, section 6), rho = 1/(1+exp(sigma (s_high -
    s_low))):  g_high -= sigma dZ rho,  g_low += sigma dZ rho,  both curvatures += sigma^2 dZ rho (1 - rho).
    ``normalise``: dZ is divided by 0.01 + |s_i - s_j| unless all scores of the query are equal, and the query's
    sums are scaled by log2(1 + S) / S with S = the sum over both members of sigma dZ rho (LightGBM's two rules).

    ``gains`` (n_rows,) holds each document's gain; documents of different grades differ in it.  ``order`` (n_rows,) holds each query's rows in any order and is left sorted; ``spare`` and the six rows of ``work``
    are as long as the longest query.
    """
    s, gain, e, c, g, h = work[0], work[1], work[2], work[3], work[4], work[5]
    for q in range(first_query, last_query):
        first, last = starts[q], starts[q + 1]
        n = last - first
        for row in range(first, last):
            gradients[row] = 0.0
            curvatures[row] = 0.0
        if n < 2 or inverse_ideal[q] == 0.0:
            continue
        order_by_score(scores, key, first, last, order, spare)
        for rank in range(n):
            row = order[first + rank]
            s[rank] = scores[row]
            gain[rank] = gains[row]
            g[rank] = 0.0
            h[rank] = 0.0
        damp = normalise and s[0] != s[n - 1]
        floor, slope = (0.01, 1.0) if damp else (1.0, 0.0)
        scale = inverse_ideal[q] * sigma
        total = 0.0
        end = np.uint64(n)
        for i in range(min(truncation, n - 1)):
            j = np.uint64(i + 1)
            _exponentials(s, s[i], sigma, j, end, e)
            _deltas(s, gain, discounts, s[i], gain[i], discounts[i], scale, floor, slope, j, end, c)
            _forces(e, c, gain, gain[i], sigma, j, end)
            _add_both(c, e, g, h, j, end)
            g[i] -= _sum(c, j, end)
            h[i] += _sum(e, j, end)
            if normalise:
                total += 2.0 * _sum_absolute(c, j, end)
        factor = log2_positive(1.0 + total) / total if normalise and total > 0.0 else 1.0
        for rank in range(n):
            row = order[first + rank]
            gradients[row] = g[rank] * factor
            curvatures[row] = h[rank] * factor


@njit(nogil=True, cache=True, error_model="numpy")
def holds_two_grades(grades, starts, out):
    """out[q] = whether query q has documents of different grades."""
    for q in range(out.shape[0]):
        out[q] = False
        for row in range(starts[q] + 1, starts[q + 1]):
            if grades[row] != grades[starts[q]]:
                out[q] = True
                break
