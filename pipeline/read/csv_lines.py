"""Lines of delimited text as a strict reader takes them: rows of as many cells as the header, in plain quotes or none.

A row is one line.  Empty lines are no rows, and blanks around cells do not count.  As in Python's csv module, a cell is in quotes if it
begins with one; what follows the closing quote belongs to it, and a quote elsewhere is a character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rankmill.pipeline.sources.blocks import Block

Positions = npt.NDArray[np.int64]
_BLANKS = (b" ", b"\t")
_NEWLINE, _CR = 10, 13
_FROM_QUOTE = re.compile(rb'"((?:[^"]|"")*+)"?(.*)', re.DOTALL)


class BadLine(NamedTuple):
    """A line with another number of cells than the header, or one that ends in a quote."""

    start: int
    line: int
    """In the block, from 0."""
    cells: int


@dataclass(frozen=True, slots=True)
class CsvLines:
    """The lines of a block."""

    text: bytes
    """The rows, a line each, with plain quotes and without blanks around cells."""
    start: Positions
    """(n,) where the line of each row begins in the data of the block."""
    line: Positions
    """(n,) the number of its line in the block, from 0."""
    ragged: Sequence[BadLine]
    """Lines that are no rows."""
    unclosed: BadLine | None
    """The first line that ends in a quote; nothing behind it is a row."""


def csv_lines(block: Block, delimiter: str, width: int) -> CsvLines:
    """Return the rows of ``block``, of ``width`` cells each."""
    mark, view = delimiter.encode(), block.bytes_view[block.start : block.stop]
    ends = np.flatnonzero(view == _NEWLINE)
    start = np.concatenate([[0], ends + 1])[:-1]
    empty = (ends == start) | ((ends == start + 1) & (view[start] == _CR))
    text = view.tobytes()
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    cells_of: dict[int, list[bytes]] = {}
    unclosed = len(ends)
    if b'"' in text:
        outside = _quoted(mark).sub(b"0", b"\n" + text)  # the same lines, without what is in plain quotes
        if _is_odd(outside, mark):
            lines = text.split(b"\n")
            for number, line in enumerate(outside[1:].split(b"\n")):
                if _is_odd(b"\n%b\n" % line, mark):
                    cells = split_line(lines[number], mark)
                    if cells is None:
                        unclosed = number
                        break
                    cells_of[number] = cells
                    lines[number] = mark.join(b'"%b"' % cell.replace(b'"', b'""') for cell in cells)
            text = b"\n".join(lines)
    else:
        outside = b"\n" + text
        while _is_odd(outside, mark):
            for blank, edges in _edges(mark).items():
                for edge in edges:
                    outside = outside.replace(edge, edge.replace(blank, b""))
        text = outside[1:]
    separators = np.frombuffer(outside, dtype=np.uint8)[1:]
    at = np.flatnonzero((separators == mark[0]) | (separators == _NEWLINE))
    counts = np.diff(np.flatnonzero(separators[at] == _NEWLINE), prepend=-1)
    for number, cells in cells_of.items():
        counts[number] = len(cells)
    if width == 1:  # blanks alone
        empty |= np.diff(np.flatnonzero(separators == _NEWLINE), prepend=-1) == 1
    before = np.arange(len(ends)) < unclosed
    (rows,) = (before & ~empty & (counts == width)).nonzero()
    (ragged,) = (before & ~empty & (counts != width)).nonzero()
    if len(rows) < len(ends):
        lines = text.split(b"\n")
        text = b"".join(lines[number] + b"\n" for number in rows.tolist())
    start += block.start
    return CsvLines(
        text,
        start[rows],
        rows,
        [BadLine(int(start[number]), number, int(counts[number])) for number in ragged.tolist()],
        BadLine(int(start[unclosed]), unclosed, 0) if unclosed < len(ends) else None,
    )


def split_line(line: bytes, mark: bytes) -> list[bytes] | None:
    """Return the cells of ``line``; None if a quote does not close.

    >>> split_line(b'a, b ," c", "d","e""f"g', b",")
    [b'a', b'b', b' c', b'd', b'e"fg']
    """
    cells, form, at = [], _cell(mark), 0
    while (found := form.match(line, at)) is not None:
        cell = found[0].strip(b" \t")
        if (quoted := _FROM_QUOTE.match(cell)) is not None:
            cell = quoted[1].replace(b'""', b'"') + quoted[2]
        cells.append(cell)
        at = found.end() + 1
        if at > len(line):
            return cells
    return None


def _is_odd(outside: bytes, mark: bytes) -> bool:
    """Return whether there is a quote or a blank at the edge of a cell ``outside`` of plain quotes."""
    return b'"' in outside or any(
        blank in outside and any(edge in outside for edge in edges) for blank, edges in _edges(mark).items()
    )


@cache
def _edges(mark: bytes) -> dict[bytes, tuple[bytes, ...]]:
    """Return by blank how it stands at the edge of a cell."""
    blanks = [blank for blank in _BLANKS if blank != mark]
    return {blank: (mark + blank, blank + mark, b"\n" + blank, blank + b"\n") for blank in blanks}


@cache
def _quoted(mark: bytes) -> re.Pattern[bytes]:
    mark = re.escape(mark)
    return re.compile(rb'"(?<=[%b\n]")(?:[^"\n]|"")*+"(?=[%b\n])' % (mark, mark))


@cache
def _cell(mark: bytes) -> re.Pattern[bytes]:
    return re.compile(rb'(?:"(?:[^"]|"")*+"|(?!"))[^%b]*+' % re.escape(mark))
