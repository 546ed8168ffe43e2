"""Parse lines of CSV and TSV: numbers to float32, and the places of the cells that stay text.

Every text ends with a newline, no loop over a cell goes beyond one, and a CR is only before it, so no bounds checks are needed.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.pipeline.read._number_kernels import FEATURE_WORDS, MISSING, NUMBER, number_at, plain_at

# Why parse_rows stopped.
END = 0
RAGGED = 1  # a line with another number of cells
UNCLOSED = 2  # a quote is open at the end of a line
FULL = 3  # no room for further odd cells

# Indices into ``state``.
AT, ROWS, LINES, ODD, CODE, WHERE, BAD_LINE, CELLS = range(8)
STATE_CELLS = 8

# Rows of ``odd``.
ODD_ROW, ODD_NUMBER, ODD_FROM, ODD_TO = range(4)

# Words that are numbers.
_LONGEST = np.uint64(max(map(len, FEATURE_WORDS)))
_WORDS = np.array([int.from_bytes(word.encode(), "big") for word in FEATURE_WORDS])
_MEANINGS = np.array(list(FEATURE_WORDS.values()), dtype=np.float32)

IGNORED = -1  # kinds of columns: numbers have 0 or more

_1 = np.uint64(1)
_BLANK, _TAB, _NEWLINE, _CR, _QUOTE, _MINUS = 32, 9, 10, 13, 34, 45


@kernel
def _end_of_cell(text, i, delimiter):
    """Return the end of the cell at ``text[i]``, and whether its line ends in a quote."""
    if text[i] == _QUOTE:
        i += _1
        while text[i] != _QUOTE or text[i + _1] == _QUOTE:
            if text[i] == _NEWLINE:
                return i, True
            i += _1 + np.uint64(text[i] == _QUOTE)
        i += _1
    while text[i] != delimiter and text[i] != _NEWLINE and text[i] != _CR:
        i += _1
    return i, False


@kernel
def _word_in(text, start, stop):
    """Return the bytes text[start:stop], capital letters as small ones, as one number; 0 if they are more than 5."""
    word = np.int64(0)
    if stop - start <= _LONGEST:
        for i in range(start, stop):
            c = np.int64(text[i])
            word = word * 256 + (c + 32 if 65 <= c <= 90 else c)
    return word


@kernel
def _number_in(text, start, stop, point, powers):
    """Parse the cell ``text[start:stop]``, which may be in quotes and have blanks around the number; return (whether it is one, number)."""
    if stop - start > _1 and text[start] == _QUOTE and text[stop - _1] == _QUOTE:
        start += _1
        stop -= _1
    while start < stop and (text[start] == _BLANK or text[start] == _TAB):
        start += _1
    while start < stop and (text[stop - _1] == _BLANK or text[stop - _1] == _TAB):
        stop -= _1
    if start == stop:
        return True, np.float32(np.nan)
    word = _word_in(text, start, stop)
    for k in range(_WORDS.shape[0]):
        if word == _WORDS[k]:
            return True, _MEANINGS[k]
    verdict, end, number = number_at(text, start, point, powers)
    return end == stop and (verdict == NUMBER or verdict == MISSING), number


@kernel
def parse_rows(text, stop, delimiter, point, kinds, powers, values, cell_from, cell_to, row_from, line, odd, state):
    """Parse the lines of ``text[state[AT]:stop]`` (the last one ends with a newline).

    Cell c of each line belongs to column c, whose kind is ``kinds[c]``: k >= 0 is a number, written to ``values[row, k]``, NaN if
    empty; IGNORED; and -2 - t is text, at ``text[cell_from[t, row]:cell_to[t, row]]``, with its quotes.  Row r is the line that
    begins at ``row_from[r]`` and has number ``line[r]``, from 0.  Empty lines are no rows.  Numbers that are not parsed here, such
    as unknown words, are in ``odd`` (4, room), as far as its ``state[ODD]`` columns say.

    Stops with ``state[CODE]``: at the END; after a RAGGED line, which is no row, or at a line with an UNCLOSED quote, with its start
    in ``state[WHERE]``, its number in ``state[BAD_LINE]`` and its ``state[CELLS]``; or if ``odd`` may become FULL.  If the caller
    takes what is in ``odd`` and sets ``state[ODD]`` to 0, it may call again.
    """
    i = np.uint64(state[AT])
    stop = np.uint64(stop)
    n_columns = kinds.shape[0]
    row, number, found, code = state[ROWS], state[LINES], state[ODD], END
    while i < stop:
        begin = i
        if text[i] == _CR:
            i += _1
        if text[i] == _NEWLINE:
            i += _1
            number += 1
            continue
        if found + n_columns > odd.shape[1]:
            i = begin
            code = FULL
            break
        cell, found_before = 0, found
        row_from[row] = begin
        while True:
            kind = kinds[cell] if cell < n_columns else IGNORED
            first = i
            if kind >= 0:
                negative = text[i] == _MINUS
                if negative:
                    i += _1
                x, i = plain_at(text, i, point, powers)
                c = text[i]
                if x == x and (c == delimiter or c == _NEWLINE):  # not NaN
                    values[row, kind] = np.float32(-x if negative else x)
                else:
                    i, unclosed = _end_of_cell(text, first, delimiter)
                    if unclosed:
                        code = UNCLOSED
                        break
                    known, values[row, kind] = _number_in(text, first, i, point, powers)
                    if not known:
                        odd[ODD_ROW, found], odd[ODD_NUMBER, found] = row, kind
                        odd[ODD_FROM, found], odd[ODD_TO, found] = first, i
                        found += 1
            else:
                i, unclosed = _end_of_cell(text, first, delimiter)
                if unclosed:
                    code = UNCLOSED
                    break
                if kind != IGNORED:
                    cell_from[-2 - kind, row], cell_to[-2 - kind, row] = first, i
            cell += 1
            if text[i] != delimiter:
                break
            i += _1
        if code == UNCLOSED:
            state[WHERE], state[BAD_LINE], state[CELLS] = begin, number, cell
            break
        while text[i] != _NEWLINE:
            i += _1
        i += _1
        line[row] = number
        number += 1
        if cell != n_columns:
            found, code = found_before, RAGGED
            state[WHERE], state[BAD_LINE], state[CELLS] = begin, number - 1, cell
            break
        row += 1
    state[AT], state[ROWS], state[LINES], state[ODD], state[CODE] = i, row, number, found, code


@kernel
def copy_cells(text, start, stop, offsets, out):
    """Copy the cells ``text[start[k]:stop[k]]`` without their quotes to ``out``; the k-th is out[offsets[k]:offsets[k + 1]]."""
    at = 0
    offsets[0] = 0
    for k in range(start.shape[0]):
        i, end = start[k], stop[k]
        quoted = i < end and text[i] == _QUOTE
        if quoted:
            i += 1
        while i < end:
            if quoted and text[i] == _QUOTE:
                i += 1
                if i == end or text[i] != _QUOTE:  # it closes; the rest is as written
                    quoted = False
                    continue
            out[at] = text[i]
            at += 1
            i += 1
        offsets[k + 1] = at
