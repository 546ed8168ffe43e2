"""Lines of delimited text without quotes.

What cannot be outside quotes is written with NUL bytes, which no text has.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_EDGE, _MARK, _QUOTE = b"\0b", b"\0d", b"\0q"
_FROM_QUOTE = re.compile(rb'"((?:[^"]|"")*+)"?(.*)', re.DOTALL)


def without_quotes(text: bytes, mark: bytes) -> tuple[bytes, int | None]:
    r"""Return the lines ``text``, whose cells end at ``mark``, without quotes; and which line, from 0, has an open one.

    What is behind that line is left out.  As in Python's csv module, a cell is in quotes if it begins with one; what
    follows the closing quote belongs to it, and a quote elsewhere is a character.  `with_quoted` returns what cells
    are.

    >>> without_quotes(b'"a",b\n"c,d",""\n"e\n', b",")
    (b'a,b\n\x00bc\x00dd\x00b,\n', 2)
    """
    plain = _quoted(mark).sub(lambda cell: _hidden(cell[1].replace(b'""', b'"'), mark), b"\n" + text)[1:]
    if b'"' in plain:  # perhaps in the middle of a cell
        lines = plain.split(b"\n")
        for number, line in enumerate(text.split(b"\n")):
            if b'"' in lines[number]:
                cells = split_line(line.removesuffix(b"\r"), mark)
                if cells is None:
                    return b"".join(line + b"\n" for line in lines[:number]), number
                lines[number] = mark.join(_hidden(cell, mark) for _, cell in cells)
        plain = b"\n".join(lines)
    return plain, None


def with_quoted(cells: pa.Array[Any], delimiter: str) -> pa.Array[Any]:
    """Return the content of ``cells`` of lines without quotes."""
    if not pc.any(pc.match_substring(cells, "\0")).as_py():
        return cells
    for hidden, letter in ((_EDGE, ""), (_MARK, delimiter), (_QUOTE, '"')):
        cells = pc.replace_substring(cells, hidden.decode(), letter)
    return cells


def split_line(line: bytes, mark: bytes) -> list[tuple[int, bytes]] | None:
    """Return where each cell of ``line`` begins, and the cell.

    Blanks around a cell without quotes are removed. None if a quote does not close.

    >>> split_line(b'a, b ," c", "d","e""f"g', b",")
    [(0, b'a'), (2, b'b'), (6, b' c'), (11, b'd'), (16, b'e"fg')]
    """
    cells, form, at = [], _cell(mark), 0
    while (found := form.match(line, at)) is not None:
        cell = found[0].strip(b" \t")
        if (quoted := _FROM_QUOTE.match(cell)) is not None:
            cell = quoted[1].replace(b'""', b'"') + quoted[2]
        cells.append((at, cell))
        at = found.end() + 1
        if at > len(line):
            return cells
    return None


def _hidden(cell: bytes, mark: bytes) -> bytes:
    """Return how the content of a cell in quotes is written without them."""
    if not {*cell}.isdisjoint(b'" \t' + mark):
        return b"%b%b%b" % (_EDGE, cell.replace(b'"', _QUOTE).replace(mark, _MARK), _EDGE)
    return cell


@cache
def _quoted(mark: bytes) -> re.Pattern[bytes]:
    mark = re.escape(mark)
    return re.compile(rb'"(?<=[%b\n]")((?:[^"\n]|"")*+)"(?=[%b\r\n])' % (mark, mark))


@cache
def _cell(mark: bytes) -> re.Pattern[bytes]:
    return re.compile(rb'(?:"(?:[^"]|"")*+"|(?!"))[^%b]*+' % re.escape(mark))
