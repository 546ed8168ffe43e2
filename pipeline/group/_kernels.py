"""Hashes of queries and rows, and transposition from rows to columns."""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.randoms import GOLDEN, MIX_1, MIX_2, mix

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
