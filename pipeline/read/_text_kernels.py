"""Byte-level parsing of LETOR text and of lines of words.

Every loop over a token ends at a byte that is not part of it, and every text ends with a newline, so no bounds checks
are needed.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.pipeline.read._number_kernels import DEFERRED, MALFORMED, MISSING, NUMBER, number_at, plain_at

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

# Positions are unsigned: signed indices cost a test at every access, as negative ones count from the end.
_1, _2, _3, _4, _5 = (np.uint64(k) for k in (1, 2, 3, 4, 5))
_POINT = 46


@kernel(inline="always")
def _ends_token(text, i):
    """Whether ``text[i]`` is a blank or the end of the line.  A ``#`` is part of its token: a comment begins a word."""
    c = text[i]
    return c == 32 or c == 10 or c == 9 or (c == 13 and text[i + _1] == 10)


@kernel
def parse_lines(
    text, stop, index_base, top, max_grade, ask, real, grouped, powers, last_line,
    grade, label_from, label_to, qid_from, qid_to, doc_from, doc_to, entry_from, feature, value, defer_entry,
    defer_from, defer_to, state,
):  # fmt: skip
    """Parse the lines of ``text[state[AT]:stop]`` (the last one ends with a newline) into rows and sparse entries.

    Stops at the first malformed line, without output for it, and sets ``state[CODE]`` to the reason and
    ``state[WHERE]`` to the position; the caller may set ``state[AT]`` to the next line and call again.
    ``last_line[f]`` is the number (``state[STAMP]``) of the last line with feature ``f``, to detect duplicates.
    ``entry_from`` has one entry more than there are rows.  A grade that is not a plain number, or any with ``ask``, is
    ASKED, and ``label_from`` and ``label_to`` are its position; ``state[GRADE_ASKED]`` says so for the line at which it
    stopped.  With ``real`` the first number is a label in the range of float32, at the same positions, and grades are
    0.  With ``grouped`` lines have no qid, and ``qid_from`` is the start of the line.
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
            verdict, i, number = number_at(text, first, _POINT, powers)
            if verdict == MALFORMED or verdict == MISSING or not (np.abs(number) < np.inf) or not _ends_token(text, i):
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
            if text[i] == 35 or _ends_token(text, i):
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

            begin = i
            x, i = plain_at(text, begin, _POINT, powers)
            if x == x and (text[i] == 32 or text[i] == 10):  # not NaN
                value[entry] = np.float32(x)
                verdict = NUMBER
            else:
                verdict, i, value[entry] = number_at(text, begin, _POINT, powers)
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
                    while not _ends_token(text, i):
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
def split_words(text, start, stop, line, count, word_from, word_to):
    """Split the lines of ``text[start:stop]`` (the last one ends with a newline) at blanks; return how many have words.

    The k-th of these is line ``line[k]`` of the text, from 0, and has ``count[k]`` words; the w-th word is
    ``text[word_from[w, k]:word_to[w, k]]``, as far as these arrays have rows.
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
            if text[i] == 10:
                break
            begin = i
            while not _ends_token(text, i):
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
