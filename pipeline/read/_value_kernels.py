"""Parse the usual objects of JSON lines; what is unusual, valid or not, is left to Python's parser."""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.pipeline.read._line_kernels import PRIME, SEED, end_of_string
from rankmill.pipeline.read._number_kernels import NUMBER, number_at, plain_at

_1, _2, _3, _4, _5 = (np.uint64(k) for k in (1, 2, 3, 4, 5))

# What parse_objects does with the value of a key.
IGNORED, FEATURE, TEXT, PRECISE, GRADED, NESTED = range(6)

_POINT = 46
_EXACT = np.uint64(16)  # a point and 15 digits: the number in float64 is exact up to rounding
_LONGEST = np.uint64(18)  # digits of a whole number as text
_NO_KEY = -1


@kernel
def _after_blanks(text, i):
    while text[i] == 32 or text[i] == 9:
        i += _1
    return i


@kernel
def _ends_value(c):
    return c == 44 or c == 125 or c == 93 or c == 32 or c == 9


@kernel
def _end_of_word(text, i):
    """Return the end of the ``null``, ``true`` or ``false`` at ``text[i]``, and the number it means; the end is ``i`` if it is none."""
    if text[i] == 110 and text[i + _1] == 117 and text[i + _2] == 108 and text[i + _3] == 108:
        return i + _4, np.nan
    if text[i] == 116 and text[i + _1] == 114 and text[i + _2] == 117 and text[i + _3] == 101:
        return i + _4, 1.0
    if text[i] == 102 and text[i + _1] == 97 and text[i + _2] == 108 and text[i + _3] == 115 and text[i + _4] == 101:
        return i + _5, 0.0
    return i, np.nan


@kernel
def _number(text, i, powers):
    """Parse the JSON number at ``text[i]``; return (end, number, whether it is exact as float64); the end is ``i`` if it is none.

    The number rounds to the right float32.
    """
    first = i
    if text[i] == 45:
        i += _1
    begin = i
    if not 48 <= text[i] <= 57 or (text[i] == 48 and 48 <= text[i + _1] <= 57):
        return first, np.nan, False
    x, i = plain_at(text, i, _POINT, powers)
    if text[i - _1] == _POINT:
        return first, np.nan, False
    if x == x and _ends_value(text[i]):  # not NaN
        return i, -x if begin != first else x, i - begin <= _EXACT
    verdict, i, number = number_at(text, first, _POINT, powers)
    if verdict == NUMBER and _ends_value(text[i]):
        return i, np.float64(number), False
    return first, np.nan, False


@kernel
def _value(text, i, powers):
    """Return the end of the number, ``null``, ``true`` or ``false`` at ``text[i]``, and the number; the end is ``i`` if it is none."""
    end, x, _ = _number(text, i, powers)
    if end == i:
        end, x = _end_of_word(text, i)
    return end, x


@kernel
def _after_simple(text, i, powers):
    """Return the end of the string, number or word at ``text[i]``; ``i`` itself if it is another value, or none."""
    if text[i] == 34:
        end, _, valid = end_of_string(text, i)
        return end + _1 if valid else i
    end, _ = _value(text, i, powers)
    return end


@kernel
def _after_ignored(text, i, powers):
    """Return the end of the value at ``text[i]``; ``i`` itself if it is unusual, or none.

    ``within`` has a bit for each open bracket, the last one lowest: 1 in an object, 0 in an array.  They are DEEPEST at most.
    """
    begin, depth, within = i, 0, np.uint64(0)
    while True:
        key = depth > 0 and within & _1 != 0  # first a key
        i = _after_blanks(text, i)
        if key:
            after = _after_simple(text, i, powers) if text[i] == 34 else i
            if after == i:
                return begin
            i = _after_blanks(text, after)
            if text[i] != 58:
                return begin
            i = _after_blanks(text, i + _1)
        if text[i] == 123 or text[i] == 91:
            depth += 1
            within = within << _1 | np.uint64(text[i] == 123)
            i = _after_blanks(text, i + _1)
            if text[i] != (125 if within & _1 != 0 else 93):
                continue  # with what is in it
        else:
            after = _after_simple(text, i, powers)
            if after == i:
                return begin
            if depth == 0:
                return after
            i = _after_blanks(text, after)
        while depth > 0 and text[i] == (125 if within & _1 != 0 else 93):
            depth -= 1
            within >>= _1
            i += _1
            if depth == 0:
                return i
            i = _after_blanks(text, i)
        if text[i] != 44:
            return begin
        i += _1


@kernel
def _hash_of(text, start, stop, depth):
    """Return the hash of the key ``text[start:stop]`` in an object at ``depth``."""
    h = SEED
    for i in range(start, stop):
        h = (h ^ np.uint64(text[i])) * PRIME
    h = (h ^ np.uint64(depth)) * PRIME
    return h ^ (h >> np.uint64(32))


@kernel
def enter_keys(names, name_from, depths, table):
    """Enter keys into the hash ``table``, filled with -1, whose size is a power of two; key k is names[name_from[k]:name_from[k + 1]]."""
    mask = np.uint64(table.shape[0] - 1)
    for k in range(depths.shape[0]):
        place = _hash_of(names, name_from[k], name_from[k + 1], depths[k]) & mask
        while table[place] != _NO_KEY:
            place = (place + _1) & mask
        table[place] = k


@kernel
def _is_key(text, i, key, names, name_from):
    """Whether ``text[i:]`` is the key with this number, and its quote."""
    start, stop = name_from[key], name_from[key + 1]
    for k in range(start, stop):
        if text[i] != names[k]:
            return False
        i += _1
    return text[i] == 34


@kernel
def _find_key(text, i, depth, expected, names, name_from, depths, table):
    """Return the key whose text begins at ``text[i]``, and perhaps is the ``expected`` one; -1 if it is unknown."""
    if expected != _NO_KEY and _is_key(text, i, expected, names, name_from):
        return expected
    stop = i
    while text[stop] != 34 and text[stop] != 92 and text[stop] != 10:
        stop += _1
    mask = np.uint64(table.shape[0] - 1)
    place = _hash_of(text, i, stop, depth) & mask
    while table[place] != _NO_KEY:
        if depths[table[place]] == depth and _is_key(text, i, table[place], names, name_from):
            break
        place = (place + _1) & mask
    return table[place]


@kernel
def _after_array(text, i, row, array, values, powers):
    """Read the array of numbers at ``text[i]`` into ``values[row, array[k]]``, and return its end; ``i`` if it is unusual."""
    begin = i
    if text[i] != 91:
        return begin
    for k in range(array.shape[0]):
        i = _after_blanks(text, i + _1)
        end, x = _value(text, i, powers)
        if end == i:
            return begin
        if array[k] >= 0:
            values[row, array[k]] = np.float32(x)
        i = _after_blanks(text, end)
        if text[i] != (44 if k + 1 < array.shape[0] else 93):
            return begin
    return i + _1


@kernel
def parse_objects(
    text, line_from, line_to, names, name_from, depths, kinds, places, table, following, seen, array, nested, powers,
    values, numbers, cell_from, cell_to, escaped, words, known,
):  # fmt: skip
    """Parse the objects ``text[line_from[r]:line_to[r]]``; ``known[r]`` says whether row r was parsed.  The others are unusual.

    Key k, names[name_from[k]:name_from[k + 1]], is of objects at depth ``depths[k]``: 1, or 2 in the one at ``features``; ``table``
    finds it (see :func:`enter_keys`).  What happens to its value depends on ``kinds[k]`` and p = ``places[k]``: a FEATURE goes to
    ``values[r, p]``; TEXT, a string or a whole number, is text[cell_from[p, r]:cell_to[p, r]], as written if ``escaped[p, r]``; a
    PRECISE number goes to ``numbers[p, r]``; a GRADED value is in both, and ``words[p]`` is set if it is a string; and the key
    ``features`` is NESTED: an array of numbers if ``array`` has places for them, else an object.  With ``nested`` all rows need it.
    What an object lacks, or has as null, stays as it was in these arrays.

    Most objects have their keys in the order of the one before: ``following[k]`` is the key after k; the last two entries are the
    first keys at each depth.  ``seen`` has an entry for each key.
    """
    n_keys = depths.shape[0]
    seen[:] = -1
    for row in range(line_from.shape[0]):
        i, end = np.uint64(line_from[row]) + _1, np.uint64(line_to[row])
        depth, before, outer, nested_seen = 1, n_keys, n_keys, not nested
        known[row] = False
        while True:
            i = _after_blanks(text, i)
            if text[i] != 34:
                break
            i += _1
            key = _find_key(text, i, depth, following[before], names, name_from, depths, table)
            if key == _NO_KEY or seen[key] == row:
                break
            following[before] = key
            seen[key] = row
            before = key
            i = _after_blanks(text, i + np.uint64(name_from[key + 1] - name_from[key]) + _1)
            if text[i] != 58:
                break
            i = _after_blanks(text, i + _1)
            kind, place = kinds[key], places[key]
            after = i
            if kind == FEATURE:
                after, x = _value(text, i, powers)
                values[row, place] = np.float32(x)
            elif kind == IGNORED:
                after = _after_ignored(text, i, powers)
            elif kind == NESTED:
                nested_seen = True
                if array.shape[0] > 0:
                    after = _after_array(text, i, row, array, values, powers)
                elif text[i] == 123:
                    after = _after_blanks(text, i + _1)
                    if text[after] != 125:
                        depth, outer, before, i = 2, key, n_keys + 1, after
                        continue
                    after += _1
            elif text[i] == 34:
                after, with_escapes, valid = end_of_string(text, i)
                if kind == PRECISE or not valid:
                    break
                cell_from[place, row], cell_to[place, row], escaped[place, row] = i + _1, after, with_escapes
                words[place] = True
                after += _1
            elif text[i] == 110:
                after, _ = _end_of_word(text, i)
            else:
                after, x, exact = _number(text, i, powers)
                whole = after - i <= _LONGEST
                for k in range(i, after):
                    whole = whole and 48 <= text[k] <= 57
                if not (whole if kind == TEXT else exact):
                    break
                cell_from[place, row], cell_to[place, row] = i, after
                numbers[place, row] = x
            if after == i:
                break
            i = _after_blanks(text, after)
            if depth == 2 and text[i] == 125:
                depth, before = 1, outer
                i = _after_blanks(text, i + _1)
            if text[i] == 44:
                i += _1
                continue
            known[row] = text[i] == 125 and depth == 1 and nested_seen and i + _1 == end
            break
