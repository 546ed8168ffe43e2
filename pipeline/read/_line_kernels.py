"""Find the objects of JSON lines and their keys.

This does not validate JSON: brackets are counted regardless of their kind, and words are not checked.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel

_1 = np.uint64(1)
SEED, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a

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


@kernel
def end_of_string(text, i):
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
                i, _, _ = end_of_string(text, i)
            elif c == 34:
                expected = False
                i += _1
                first = i
                h = SEED
                while text[i] != 34:
                    if text[i] == 92:
                        h = (h ^ np.uint64(text[i])) * PRIME
                        i += _1
                    h = (h ^ np.uint64(text[i])) * PRIME
                    i += _1
                h = (h ^ np.uint64(depth)) * PRIME | _1
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
