"""Hashes of queries and rows, transposition from rows to columns, and statistics of columns while they are written.

Sums and extremes of columns are computed on whole numbers, so that the loops are vectorised.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.randoms import GOLDEN, MIX_1, MIX_2, mix, random_bits

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_ROW_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_S29, _S32 = np.uint64(29), np.uint64(32)

TILE = 64


@kernel
def hash_strings(data, offsets, salt, out):
    """out[k] = splitmix64 finaliser of (salt xor FNV-1a of ``data[offsets[k]:offsets[k + 1]]``)."""
    for k in range(out.shape[0]):
        h = _FNV_OFFSET
        for i in range(offsets[k], offsets[k + 1]):
            h = (h ^ np.uint64(data[i])) * _FNV_PRIME
        out[k] = mix(h ^ salt)


@kernel
def _scatter(word):
    """Mix high bits downwards and low bits upwards, as rows often differ only in signs, that is in the top bits."""
    word = (word ^ (word >> _S32)) * GOLDEN
    return word ^ (word >> _S29)


@kernel
def digest_rows(words, grade, out):
    """out[r] (two words) = digest of the grade and the bits of the values ``words[r]`` (uint32) of row r."""
    width = words.shape[1]
    for r in range(words.shape[0]):
        a = GOLDEN ^ np.uint64(grade[r])
        b = _ROW_2 + np.uint64(grade[r])
        for f in range(0, width - 1, 2):
            word = _scatter((np.uint64(words[r, f]) << _S32) | np.uint64(words[r, f + 1]))
            a = (a ^ word) * MIX_1
            a ^= a >> _S32
            b = (b + word) * MIX_2
            b ^= b >> _S29
        if width & 1:
            word = _scatter(np.uint64(words[r, width - 1]))
            a = (a ^ word) * MIX_1
            a ^= a >> _S32
            b = (b + word) * MIX_2
            b ^= b >> _S29
        out[r, 0] = mix(a)
        out[r, 1] = mix(b)


@kernel
def turn(values, order, out):
    """out[f, k] = values[order[k], f], in tiles of rows so that input and output stay in cache."""
    for top in range(0, order.shape[0], TILE):
        end = min(top + TILE, order.shape[0])
        for f in range(values.shape[1]):
            for k in range(top, end):
                out[f, k] = values[order[k], f]


_ZERO = np.float32(0)
_SIGN = np.int32(31)
_REST = np.int32(0x7FFFFFFF)
_LEAST = np.int32(-0x80000000)
MISSING = np.int32(0x7FC00000)


@kernel
def weigh(first, out):
    """out[k] = number first + k of the splitmix64 sequence of seed 0: the weight of row first + k in a digest."""
    for k in range(out.shape[0]):
        out[k] = random_bits(np.uint64(0), first + k + 1)


@kernel
def _digest(words, weights):
    """Return the sum of ``words`` times ``weights`` modulo 2^64."""
    total = np.uint64(0)
    for k in range(words.shape[0]):
        total += weights[k] * np.uint64(np.uint32(words[k]))
    return total


@kernel
def _spread(words):
    """Return the minimum and the maximum as order-preserving whole numbers, and the numbers of NaN and 0."""
    low, high, missing, zeros = _REST, _LEAST, 0, 0
    for k in range(words.shape[0]):
        word = words[k]
        absent = word == MISSING
        missing += absent
        zeros += word == 0
        key = word ^ ((word >> _SIGN) & _REST)
        low = min(low, _REST if absent else key)
        high = max(high, _LEAST if absent else key)
    return low, high, missing, zeros


@kernel
def _normalise(column, words, out):
    """Set out[k] to the bits of column[k], with one pattern for both zeros and one for all NaN.

    ``words`` are the bits of the column.
    """
    for k in range(column.shape[0]):
        x = column[k]
        word = words[k]
        word = np.int32(0) if x == _ZERO else word
        out[k] = word if x == x else MISSING


@kernel
def _differ(words, first, last):
    """Return a number other than 0 if ``words[first:last]`` are not all equal."""
    found = np.int32(0)
    start = words[first]
    for k in range(first, last):
        found |= words[k] ^ start
    return found


@kernel
def add_columns(columns, words, starts, goes_on, weights, out, counts, digests, keys, before, varied):
    """Add rows to the statistics of each feature.

    ``columns`` (F, m) are their values and ``words`` the same bits as int32; ``starts`` (q + 1,) are the starts of the
    queries and the end of the last; ``goes_on``: the first query has earlier rows.  ``out`` (m,) is scratch.
    ``counts`` (F, 3): missing values, zeros, queries with several values; ``digests`` (F,); ``keys`` (F, 2): extremes
    as order-preserving numbers; ``before`` (F,) and ``varied`` (F,): last value of the unfinished query, and whether it
    has several values.
    """
    for f in range(columns.shape[0]):
        _normalise(columns[f], words[f], out)
        low, high, missing, zeros = _spread(out)
        keys[f, 0] = min(keys[f, 0], low)
        keys[f, 1] = max(keys[f, 1], high)
        counts[f, 0] += missing
        counts[f, 1] += zeros
        digests[f] += _digest(out, weights)
        several = 0
        is_varied = varied[f]
        for q in range(starts.shape[0] - 1):
            different = _differ(out, starts[q], starts[q + 1]) != 0
            if q == 0 and goes_on:
                different = different or out[0] != before[f]
                several += different and not is_varied
                is_varied = is_varied or different
            else:
                several += different
                is_varied = different
        counts[f, 2] += several
        varied[f] = is_varied
        before[f] = out[out.shape[0] - 1]
