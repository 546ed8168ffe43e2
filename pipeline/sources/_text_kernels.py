"""Byte-level parsing of LETOR text and of numbers.

Every loop over a token ends at a byte that is not part of it, and every text ends with a newline, so no bounds checks are needed.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel

# Results of number_at.
NUMBER = 0
MISSING = 1  # nan, null
DEFERRED = 2  # a number whose last bit needs Python's float()
MALFORMED = 3

# Results of parse_lines for the line at which it stopped.
END = 0
GRADE_TOO_HIGH = 2
NO_QID = 3
EMPTY_QID = 4
BAD_FEATURE = 5
BAD_VALUE = 6
BELOW_BASE = 7
ABOVE_TOP = 8
REPEATED = 9
BAD_LABEL = 10

# Indices into ``state``.
AT, ROWS, ENTRIES, DEFERS, STAMP, CODE, WHERE, LINE_START, WIDTH, GRADE_ASKED = range(10)
STATE_CELLS = 10

ASKED = -2  # a grade that the caller has to parse

# 10^0 .. 10^308, each correctly rounded to float64; exact up to 10^22.
POWERS = np.array([float(f"1e{k}") for k in range(309)], dtype=np.float64)

# One rounded conversion of the first 18 digits, one rounded table entry and one rounded product (or quotient) give a value
# within a relative error of 4 * 2^-53, and so is the correctly rounded float64.
_SLACK = 2.0**-50


# Positions are unsigned: signed indices cost a test at every access, as negative ones count from the end.
_0, _1, _2, _3, _4, _5, _15 = (np.uint64(k) for k in (0, 1, 2, 3, 4, 5, 15))


@kernel
def number_at(text, i, out, cell, powers):
    """Parse the number at ``text[i]`` into ``out[cell]`` as float32; return (verdict, end).

    Grammar: sign? (digits [. digits] | . digits) ([eE] sign? digits)? | sign? (inf | infinity | nan) | null, letters in
    any case.  The result is float32(float64(token)), both correctly rounded.  Up to 2^53 and with a power of ten up to 22
    both factors are exact in float64, so one operation rounds correctly.  Otherwise the correctly rounded float64 is between
    x - slack and x + slack, and rounding to float32 is monotone: if both ends round to the same float32, that is the result.
    The rest (one in about ten million) is deferred, with an approximation without sign in ``out``.
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
    if c == 46:
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
            return MALFORMED, i
    if seen == 0:
        return _word_at(text, i, out, cell, negative)
    if c == 101 or c == 69:
        i += _1
        c = text[i]
        below = c == 45
        if c == 45 or c == 43:
            i += _1
            c = text[i]
        if not 48 <= c <= 57:
            return MALFORMED, i
        exponent = 0
        while 48 <= c <= 57:
            if exponent < 100000000:
                exponent = exponent * 10 + (np.int64(c) - 48)
            i += _1
            c = text[i]
        power += -exponent if below else exponent
    if mantissa == 0:
        out[cell] = np.float32(-0.0) if negative else np.float32(0.0)
        return NUMBER, i
    if power < -308 or power > 308:
        out[cell] = np.float32(0.0) if power < 0 else np.float32(np.inf)
        return DEFERRED, i
    x = np.float64(mantissa)
    x = x * powers[power] if power >= 0 else x / powers[-power]
    if cut or mantissa > 9007199254740992 or power > 22 or power < -22:
        slack = x * _SLACK
        if np.float32(x - slack) != np.float32(x + slack):
            # x is infinite (inf - inf would be NaN), and float() returns inf too
            if x < np.inf:
                out[cell] = np.float32(x)
                return DEFERRED, i
    out[cell] = np.float32(-x) if negative else np.float32(x)
    return NUMBER, i


@kernel
def _word_at(text, i, out, cell, negative):
    """Parse inf, infinity, nan or null at ``text[i]``."""
    a = text[i] | 32
    if a == 110:  # n
        b = text[i + _1] | 32
        if b == 97 and text[i + _2] | 32 == 110:
            out[cell] = np.float32(np.nan)
            return MISSING, i + _3
        if b == 117 and text[i + _2] | 32 == 108 and text[i + _3] | 32 == 108:
            out[cell] = np.float32(np.nan)
            return MISSING, i + _4
    elif a == 105 and text[i + _1] | 32 == 110 and text[i + _2] | 32 == 102:
        out[cell] = np.float32(-np.inf) if negative else np.float32(np.inf)
        i += _3
        if (
            text[i] | 32 == 105
            and text[i + _1] | 32 == 110
            and text[i + _2] | 32 == 105
            and text[i + _3] | 32 == 116
            and text[i + _4] | 32 == 121
        ):
            i += _5
        return NUMBER, i
    return MALFORMED, i


@kernel(inline="always")
def _ends_token(text, i):
    """Whether ``text[i]`` is a blank, the end of the line or the start of a comment."""
    c = text[i]
    return c == 32 or c == 10 or c == 9 or c == 35 or (c == 13 and text[i + _1] == 10)


@kernel
def parse_lines(
    text, stop, index_base, top, max_grade, ask, real, grouped, powers, last_line,
    grade, label_from, label_to, scratch, qid_from, qid_to, doc_from, doc_to, entry_from, feature, value, defer_entry, defer_from, defer_to, state,
):  # fmt: skip
    """Parse the lines of ``text[state[AT]:stop]`` (the last one ends with a newline) into rows and sparse entries.

    Stops at the first malformed line, without output for it, and sets ``state[CODE]`` to the reason and ``state[WHERE]`` to
    the position; the caller may set ``state[AT]`` to the next line and call again.  ``last_line[f]`` is the number
    (``state[STAMP]``) of the last line with feature ``f``, to detect duplicates.  ``entry_from`` has one entry more than there
    are rows.  A grade that is not a plain number, or any with ``ask``, is ASKED, and ``label_from`` and ``label_to`` are its
    position; ``state[GRADE_ASKED]`` says so for the line at which it stopped.  With ``real`` the first number is a label in the
    range of float32 (``scratch`` has one cell), at the same positions, and grades are 0.  With ``grouped`` lines have no qid,
    and ``qid_from`` is the start of the line.
    """
    i = np.uint64(state[AT])
    stop = np.uint64(stop)
    row = state[ROWS]
    entry = state[ENTRIES]
    defers = state[DEFERS]
    stamp = state[STAMP]
    width = state[WIDTH]
    code = END
    where = i
    line_start = i
    label = 0
    while i < stop:
        line_start = i
        while text[i] == 32 or text[i] == 9:
            i += _1
        if text[i] == 13 and text[i + _1] == 10:
            i += _1
        if text[i] == 35:
            while text[i] != 10:
                i += _1
        if text[i] == 10:
            i += _1
            continue

        # The grade: digits, with only zeros after a point; or a label: any number.
        where = i
        label = 0
        first = i
        if real:
            verdict, i = number_at(text, first, scratch, _0, powers)
            if (
                verdict == MALFORMED
                or verdict == MISSING
                or not (np.abs(scratch[0]) < np.inf)
                or not _ends_token(text, i)
            ):
                code = BAD_LABEL
                break
            label_from[row] = first
            label_to[row] = i
        else:
            while 48 <= text[i] <= 57:
                if label <= 2147483647:
                    label = label * 10 + (np.int64(text[i]) - 48)
                i += _1
            bad = i == first
            if text[i] == 46:
                i += _1
                while text[i] == 48:
                    i += _1
            if ask or bad or not _ends_token(text, i):
                i = first
                while not _ends_token(text, i):
                    i += _1
                label = ASKED
                label_from[row] = first
                label_to[row] = i
            elif label > max_grade:
                code = GRADE_TOO_HIGH
                break

        while text[i] == 32 or text[i] == 9:
            i += _1
        where = i
        if grouped:
            query_from = line_start
            query_to = line_start
        else:
            if not (text[i] == 113 and text[i + _1] == 105 and text[i + _2] == 100 and text[i + _3] == 58):
                code = NO_QID
                break
            i += _4
            query_from = i
            while not _ends_token(text, i):
                i += _1
            query_to = i
            if query_from == query_to:
                code = EMPTY_QID
                break

        line_entry = entry
        line_defers = defers
        line_width = width
        stamp += 1
        while True:
            while text[i] == 32 or text[i] == 9:
                i += _1
            if _ends_token(text, i):
                break
            where = i
            index = 0
            while 48 <= text[i] <= 57:
                if index <= 1000000:
                    index = index * 10 + (np.int64(text[i]) - 48)
                i += _1
            if i == where or text[i] != 58:
                code = BAD_FEATURE
                break
            if index < index_base:
                code = BELOW_BASE
                break
            if index > top:
                code = ABOVE_TOP
                break
            if last_line[np.uint64(index)] == stamp:
                code = REPEATED
                break
            last_line[np.uint64(index)] = stamp
            i += _1

            # Most values have few digits and a point: one division is exact (see number_at).
            begin = i
            mantissa = 0
            c = text[i]
            while 48 <= c <= 57:
                mantissa = mantissa * 10 + (np.int64(c) - 48)
                i += _1
                c = text[i]
            length = i - begin
            decimals = _0
            if c == 46:
                i += _1
                point = i
                c = text[i]
                while 48 <= c <= 57:
                    mantissa = mantissa * 10 + (np.int64(c) - 48)
                    i += _1
                    c = text[i]
                decimals = i - point
                length += decimals
            if _0 < length <= _15 and (c == 32 or c == 10):
                value[entry] = np.float32(np.float64(mantissa) / powers[decimals])
                verdict = NUMBER
            else:
                verdict, i = number_at(text, begin, value, entry, powers)
                if verdict == MALFORMED or not _ends_token(text, i):
                    code = BAD_VALUE
                    break
            if verdict == DEFERRED:
                defer_entry[defers] = entry
                defer_from[defers] = begin
                defer_to[defers] = i
                defers += 1
            column = index - index_base
            feature[entry] = column
            if column >= width:
                width = column + 1
            entry += 1
        if code != END:
            entry = line_entry
            defers = line_defers
            width = line_width
            break

        doc_from[row] = -1
        doc_to[row] = -1
        if text[i] == 35:
            i += _1
            while text[i] == 32 or text[i] == 9:
                i += _1
            if (
                text[i] | 32 == 100
                and text[i + _1] | 32 == 111
                and text[i + _2] | 32 == 99
                and text[i + _3] | 32 == 105
                and text[i + _4] | 32 == 100
            ):
                i += _5
                while text[i] == 32 or text[i] == 9:
                    i += _1
                if text[i] == 61:
                    i += _1
                    while text[i] == 32 or text[i] == 9:
                        i += _1
                    first = i
                    while not (
                        text[i] == 32 or text[i] == 9 or text[i] == 10 or (text[i] == 13 and text[i + _1] == 10)
                    ):
                        i += _1
                    if i > first:
                        doc_from[row] = first
                        doc_to[row] = i
            while text[i] != 10:
                i += _1
        elif text[i] == 13:
            i += _1
        i += _1
        grade[row] = label
        qid_from[row] = query_from
        qid_to[row] = query_to
        row += 1
        entry_from[row] = entry
    state[AT] = i
    state[ROWS] = row
    state[ENTRIES] = entry
    state[DEFERS] = defers
    state[STAMP] = stamp
    state[WIDTH] = width
    state[CODE] = code
    state[WHERE] = where
    state[LINE_START] = line_start
    state[GRADE_ASKED] = code != END and label == ASKED


@kernel
def densify(feature, value, entry_from, first, out):
    """Copy the entries of rows ``first``.. into ``out`` (n, width), which is filled with the absent value."""
    for row in range(out.shape[0]):
        for entry in range(entry_from[first + row], entry_from[first + row + 1]):
            out[row, feature[entry]] = value[entry]


@kernel
def split_words(text, start, stop, line, count, word_from, word_to, comment):
    """Split the lines of ``text[start:stop]`` (the last one ends with a newline) at blanks; return how many have words.

    The k-th of these is line ``line[k]`` of the text, from 0, and has ``count[k]`` words; the w-th word is
    ``text[word_from[w, k]:word_to[w, k]]``, as far as these arrays have rows.  Lines whose first word begins with the byte
    ``comment`` are skipped; a newline means no comments.
    """
    i = np.uint64(start)
    stop = np.uint64(stop)
    row = 0
    number = 0
    while i < stop:
        words = 0
        while True:
            while text[i] == 32 or text[i] == 9:
                i += _1
            if text[i] == 13 and text[i + _1] == 10:
                i += _1
            if words == 0 and text[i] == comment:
                while text[i] != 10:
                    i += _1
            if text[i] == 10:
                break
            begin = i
            while not (text[i] == 32 or text[i] == 9 or text[i] == 10 or (text[i] == 13 and text[i + _1] == 10)):
                i += _1
            if words < word_from.shape[0]:
                word_from[words, row] = begin
                word_to[words, row] = i
            words += 1
        i += _1
        if words:
            line[row] = number
            count[row] = words
            row += 1
        number += 1
    return row


@kernel
def copy_tokens(text, start, stop, offsets, out):
    """Concatenate the tokens ``text[start[k]:stop[k]]`` in ``out``; the k-th begins at ``offsets[k]``."""
    for k in range(start.shape[0]):
        at = offsets[k]
        for i in range(start[k], stop[k]):
            out[at] = text[i]
            at += 1
