"""Numbers in text: the same float32 as Python's float() rounded once more.

Every loop over a token ends at a byte that is not part of it, and every text ends with a newline, so no bounds checks
are needed.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel

# Results of number_at.
NUMBER = 0
MISSING = 1  # nan, null
DEFERRED = 2  # a number whose last bit needs Python's float()
MALFORMED = 3

TRUTH = {"true": 1.0, "false": 0.0}
FEATURE_WORDS = {**TRUTH, **dict.fromkeys(("na", "n/a", "#n/a", "<na>", "none"), float("nan"))}
"""Words allowed as features, in lower case: booleans, and missing values of pandas, R and spreadsheets."""

# 10^0 .. 10^308, each correctly rounded to float64; exact up to 10^22.
POWERS = np.array([float(f"1e{k}") for k in range(309)], dtype=np.float64)

# One rounded conversion of the first 18 digits, one rounded table entry and one rounded product (or quotient) give a
# value within a relative error of 4 * 2^-53, and so is the correctly rounded float64.
_SLACK = 2.0**-50


# Positions are unsigned: signed indices cost a test at every access, as negative ones count from the end.
_0, _1, _2, _3, _4, _5, _15, _18 = (np.uint64(k) for k in (0, 1, 2, 3, 4, 5, 15, 18))


@kernel
def _digits_at(text, i, mantissa):
    """Append the digits at ``text[i]`` to those of ``mantissa``; return (mantissa, end)."""
    c = text[i]
    while 48 <= c <= 57:
        mantissa = mantissa * 10 + (np.int64(c) - 48)
        i += _1
        c = text[i]
    return mantissa, i


@kernel
def plain_at(text, i, point, powers):
    """Parse the digits at ``text[i]``, with at most one ``point`` between, before or after them; return (number, end).

    Most numbers are like this.  The number, float64, rounds to the right float32; it is NaN if :func:`number_at` has to
    parse the token: it has no digits or more than 18, or is too close to the middle of two float32.
    """
    first = i
    mantissa, i = _digits_at(text, i, 0)
    digits = i - first
    decimals = _0
    if text[i] == point:
        first = i + _1
        mantissa, i = _digits_at(text, first, mantissa)
        decimals = i - first
        digits += decimals
    if digits == _0 or digits > _18:
        return np.nan, i
    x = np.float64(mantissa) / powers[decimals]
    if digits > _15:  # below that, one division of exact numbers rounds correctly; see number_at
        slack = x * _SLACK
        if np.float32(x - slack) != np.float32(x + slack):
            return np.nan, i
    return x, i


@kernel
def number_at(text, i, point, powers):
    """Parse the number at ``text[i]`` as float32; return (verdict, end, number).

    Grammar: sign? (digits [point digits] | point digits) ([eE] sign? digits)? | sign? (inf | infinity | nan) | null,
    letters in any case.  The result is float32(float64(token)), both correctly rounded.  Up to 2^53 and with a power of
    ten up to 22 both factors are exact in float64, so one operation rounds correctly.  Otherwise the correctly rounded
    float64 is between x - slack and x + slack, and rounding to float32 is monotone: if both ends round to the same
    float32, that is the result. The rest (one in about ten million) is deferred, with an approximation without sign.
    """
    c = text[i]
    negative = c == 45
    if c == 45 or c == 43:
        i += _1
        c = text[i]
    mantissa = 0
    kept = 0
    power = 0
    seen = 0
    cut = False
    while 48 <= c <= 57:
        if kept < 18:
            mantissa = mantissa * 10 + (np.int64(c) - 48)
            kept += mantissa > 0
        else:
            power += 1
            cut = True
        seen += 1
        i += _1
        c = text[i]
    if c == point:
        i += _1
        c = text[i]
        while 48 <= c <= 57:
            if kept < 18:
                mantissa = mantissa * 10 + (np.int64(c) - 48)
                kept += mantissa > 0
                power -= 1
            else:
                cut = True
            seen += 1
            i += _1
            c = text[i]
        if seen == 0:
            return MALFORMED, i, np.float32(np.nan)
    if seen == 0:
        return _word_at(text, i, negative)
    if c == 101 or c == 69:
        i += _1
        c = text[i]
        below = c == 45
        if c == 45 or c == 43:
            i += _1
            c = text[i]
        if not 48 <= c <= 57:
            return MALFORMED, i, np.float32(np.nan)
        exponent = 0
        while 48 <= c <= 57:
            if exponent < 100000000:
                exponent = exponent * 10 + (np.int64(c) - 48)
            i += _1
            c = text[i]
        power += -exponent if below else exponent
    if mantissa == 0:
        return NUMBER, i, np.float32(-0.0) if negative else np.float32(0.0)
    if power < -308 or power > 308:
        return DEFERRED, i, np.float32(0.0) if power < 0 else np.float32(np.inf)
    x = np.float64(mantissa)
    x = x * powers[power] if power >= 0 else x / powers[-power]
    if cut or mantissa > 9007199254740992 or power > 22 or power < -22:
        slack = x * _SLACK
        if np.float32(x - slack) != np.float32(x + slack):
            # x is infinite (inf - inf would be NaN), and float() returns inf too
            if x < np.inf:
                return DEFERRED, i, np.float32(x)
    return NUMBER, i, np.float32(-x) if negative else np.float32(x)


@kernel
def _word_at(text, i, negative):
    """Parse inf, infinity, nan or null at ``text[i]``."""
    a = text[i] | 32
    if a == 110:  # n
        b = text[i + _1] | 32
        if b == 97 and text[i + _2] | 32 == 110:
            return MISSING, i + _3, np.float32(np.nan)
        if b == 117 and text[i + _2] | 32 == 108 and text[i + _3] | 32 == 108:
            return MISSING, i + _4, np.float32(np.nan)
    elif a == 105 and text[i + _1] | 32 == 110 and text[i + _2] | 32 == 102:
        i += _3
        if (
            text[i] | 32 == 105
            and text[i + _1] | 32 == 110
            and text[i + _2] | 32 == 105
            and text[i + _3] | 32 == 116
            and text[i + _4] | 32 == 121
        ):
            i += _5
        return NUMBER, i, np.float32(-np.inf) if negative else np.float32(np.inf)
    return MALFORMED, i, np.float32(np.nan)
