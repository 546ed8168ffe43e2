"""Find the objects of JSON lines and their keys, and parse the usual ones.

``find_objects`` and ``find_keys`` do not validate JSON: brackets are counted regardless of their kind, and words are not checked.
``parse_objects`` leaves whatever is unusual, valid or not, to Python's parser.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.pipeline.sources._number_kernels import NUMBER, number_at, plain_at

_1, _2, _3, _4, _5 = (np.uint64(k) for k in (1, 2, 3, 4, 5))
_SEED, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a

# Bytes that mean nothing in an object, outside of strings; and those that are neither near a key nor end a line.
_INSIDE, _BETWEEN_KEYS = (np.array([chr(c) not in others for c in range(256)]) for others in ('"{}[]\n', '"{}[],\n'))

_ESCAPED, _HEXADECIMAL = (
    np.array([chr(c) in some for c in range(256)]) for some in ('"\\/bfnrt', "0123456789abcdefABCDEF")
)

DEEPEST = 64  # nested brackets
OBJECT, ARRAY = 1, 2  # kind of the value of ``features``

# Indices into ``state`` of find_keys.
KEYS, FORM, FORM_LINE = range(3)
STATE_CELLS = 3

# What parse_objects does with the value of a key.
IGNORED, FEATURE, TEXT, PRECISE, GRADED, NESTED = range(6)

_POINT = 46
_EXACT = np.uint64(16)  # a point and 15 digits: the number in float64 is exact up to rounding
_LONGEST = np.uint64(18)  # digits of a whole number as text
_NO_KEY = -1


@kernel
def find_objects(text, start, stop, number, line_from, line_to, wrong):
    """Find the non-blank lines of ``text[start:stop]`` (the last one ends with a newline); return their number.

    The k-th is line ``number[k]`` from 0, and is ``text[line_from[k]:line_to[k]]`` without surrounding blanks.  ``wrong[k]`` is -1
    if the line is one object, otherwise the position of the error: a first character other than ``{``, text after the object,
    a bracket that is nested too deeply, or the end of the line if a bracket or a string is still open.
    """
    i = np.uint64(start)
    stop = np.uint64(stop)
    row = 0
    lines = 0
    while i < stop:
        while text[i] == 32 or text[i] == 9 or text[i] == 13:
            i += _1
        if text[i] == 10:
            lines += 1
            i += _1
            continue
        begin = i
        depth = 0
        broken = np.int64(-1)
        if text[i] != 123:
            broken = np.int64(i)
        while True:
            if depth > 0:
                while _INSIDE[text[i]]:
                    i += _1
            c = text[i]
            if c == 10:
                break
            if c == 34:
                if depth <= 0 and broken < 0:
                    broken = np.int64(i)
                i += _1
                while text[i] != 34 and text[i] != 10:
                    if text[i] == 92 and text[i + _1] != 10:
                        i += _1
                    i += _1
                if text[i] == 10:
                    depth += 1
                    break
            elif c == 123 or c == 91:
                if depth == 0 and i != begin and broken < 0:
                    broken = np.int64(i)
                depth += 1
                if depth > DEEPEST and broken < 0:
                    broken = np.int64(i)
            elif c == 125 or c == 93:
                depth -= 1
                if depth < 0 and broken < 0:
                    broken = np.int64(i)
            elif depth <= 0 and broken < 0 and not (c == 32 or c == 9 or c == 13):
                broken = np.int64(i)
            i += _1
        end = i
        while end > begin and (text[end - _1] == 32 or text[end - _1] == 9 or text[end - _1] == 13):
            end -= _1
        if broken < 0 and depth != 0:
            broken = np.int64(end)
        number[row] = lines
        line_from[row] = begin
        line_to[row] = end
        wrong[row] = broken
        row += 1
        lines += 1
        i += _1
    return row


@kernel
def find_keys(text, line_from, line_to, wrong, word, table, key_from, key_to, key_level, state):
    """Find the keys of the lines' objects, each once, in the order of the text.

    The k-th of ``state[KEYS]`` is ``text[key_from[k]:key_to[k]]`` between its quotes, with escapes as written.  Its level is 1, or 2
    in the object at the key ``word`` of level 1.  ``state[FORM]`` is the kind of the first value of that key, and
    ``state[FORM_LINE]`` its line.  ``table`` is a hash set, initially zeros and kept from block to block; its size is a power of
    two.  If there are more new keys than entries in ``key_from``, it stops with one more in ``state[KEYS]``.
    """
    mask = np.uint64(table.shape[0] - 1)
    found = 0
    for line in range(line_from.shape[0]):
        if wrong[line] >= 0:
            continue
        i = np.uint64(line_from[line])
        end = np.uint64(line_to[line])
        depth = 0
        inside = False  # in the object at the key ``word``
        ahead = False  # the value of ``word`` comes next
        expected = False  # a key comes next
        while True:
            while _BETWEEN_KEYS[text[i]]:
                i += _1
            if i >= end:
                break
            c = text[i]
            if c == 34 and not expected:
                i, _, _ = _end_of_string(text, i)
            elif c == 34:
                expected = False
                i += _1
                first = i
                h = _SEED
                while text[i] != 34:
                    if text[i] == 92:
                        h = (h ^ np.uint64(text[i])) * _PRIME
                        i += _1
                    h = (h ^ np.uint64(text[i])) * _PRIME
                    i += _1
                h = (h ^ np.uint64(depth)) * _PRIME | _1
                place = (h ^ (h >> np.uint64(32))) & mask
                while table[place] != 0 and table[place] != h:
                    place = (place + _1) & mask
                if table[place] == 0:
                    if found == key_from.shape[0]:
                        state[KEYS] = found + 1
                        return
                    table[place] = h
                    key_from[found] = first
                    key_to[found] = i
                    key_level[found] = depth
                    found += 1
                if depth == 1:
                    ahead = i - first == np.uint64(word.shape[0])
                    for k in range(word.shape[0]):
                        ahead = ahead and text[first + np.uint64(k)] == word[k]
            elif c == 123:
                depth += 1
                if depth == 2 and ahead:
                    inside = True
                    if state[FORM] == 0:
                        state[FORM] = OBJECT
                        state[FORM_LINE] = line
                expected = depth == 1 or (depth == 2 and inside)
            elif c == 91:
                depth += 1
                if depth == 2 and ahead and state[FORM] == 0:
                    state[FORM] = ARRAY
                    state[FORM_LINE] = line
                expected = False
            elif c == 125 or c == 93:
                depth -= 1
                if depth == 1:
                    inside = False
                expected = False
            elif c == 44:
                if depth == 1:
                    expected = True
                    ahead = False
                elif depth == 2 and inside:
                    expected = True
            i += _1
    state[KEYS] = found


@kernel
def _after_blanks(text, i):
    while text[i] == 32 or text[i] == 9:
        i += _1
    return i


@kernel
def _ends_value(c):
    return c == 44 or c == 125 or c == 93 or c == 32 or c == 9


@kernel
def _end_of_string(text, i):
    """Return the place of the quote that ends the string at ``text[i]``, whether it has escapes, and whether it is valid."""
    escaped, valid = False, True
    i += _1
    while text[i] != 34:
        if text[i] < 32:
            valid = False
            if text[i] == 10:
                break
        if text[i] == 92:
            escaped = True
            i += _1
            c = text[i]
            if c == 117:
                for _ in range(4):
                    valid = valid and _HEXADECIMAL[text[i + _1]]
                    i += np.uint64(valid)
            elif not _ESCAPED[c]:
                valid = False
                if c == 10:
                    break
        i += _1
    return i, escaped, valid


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
        end, _, valid = _end_of_string(text, i)
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
def hash_of(text, start, stop, depth):
    """Return the hash of the key ``text[start:stop]`` in an object at ``depth``."""
    h = _SEED
    for i in range(start, stop):
        h = (h ^ np.uint64(text[i])) * _PRIME
    h = (h ^ np.uint64(depth)) * _PRIME
    return h ^ (h >> np.uint64(32))


@kernel
def enter_keys(names, name_from, depths, table):
    """Enter keys into the hash ``table``, filled with -1, whose size is a power of two; key k is names[name_from[k]:name_from[k + 1]]."""
    mask = np.uint64(table.shape[0] - 1)
    for k in range(depths.shape[0]):
        place = hash_of(names, name_from[k], name_from[k + 1], depths[k]) & mask
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
    place = hash_of(text, i, stop, depth) & mask
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
                after, with_escapes, valid = _end_of_string(text, i)
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
