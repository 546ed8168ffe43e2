"""Read the lines of CSV and TSV into columns of text and a matrix of numbers.

A cell in quotes may contain delimiters, and a quote as two; it ends on its line.  Blanks around a cell without quotes are no part
of it, in the first line too.  Empty lines are skipped.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import DataRejected, MalformedLine
from rankmill.foundation.storage.arriving import readable
from rankmill.pipeline.arrow import strings_from
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, USUAL_DELIMITERS
from rankmill.pipeline.read import _delimited_kernels as _kernels
from rankmill.pipeline.read._number_kernels import POWERS
from rankmill.pipeline.read.batch import Quarantine, shorten
from rankmill.pipeline.read.blocks import (
    Block,
    compression_of,
    damaged,
    read_blocks,
    refuse_foreign_content,
    unchecked_blocks,
)
from rankmill.pipeline.read.table_rows import Problems

_HEADER_LIMIT = 16 << 20
_FIRST_BYTES = 1 << 20
_MOST_LINES = 1 << 17  # parsed at a time: short cells take many times the memory of their text
_ODD_CELLS = 1 << 14
_BLANKS = " \t"
_IS_BLANK = np.isin(np.arange(256), [ord(blank) for blank in _BLANKS])

Positions = npt.NDArray[np.int64]


class Wanted(NamedTuple):
    """The columns to read; see `DelimitedText.wanted`."""

    kinds: npt.NDArray[np.int64]
    """What the kernel does with each column of the header."""
    texts: tuple[str, ...]
    numbers: int
    """How many columns are numbers."""
    point: int
    """The byte before decimals; 0: none, which no text has."""


class BadLine(NamedTuple):
    """A line with another number of cells than the header, or one that ends in a quote."""

    start: int
    line: int
    """In the block, from 0."""
    cells: int


class OddCells(NamedTuple):
    """Cells of columns of numbers that need a closer look, in the order of the file: words, or numbers with many digits."""

    row: Positions
    number: Positions
    """Its place among the columns of numbers."""
    text: pa.StringArray


@dataclass(frozen=True, slots=True)
class DelimitedRows:
    """The rows of a block."""

    block: Block
    texts: pa.RecordBatch
    """The columns of text; a cell that is empty is empty text."""
    numbers: npt.NDArray[np.float32]
    """(n, columns) NaN if empty; undefined for odd cells."""
    odd: OddCells
    row_from: Positions
    """(n,) where the line of each row begins."""
    line: Positions
    """(n,) the number of its line in the block, from 0."""
    ragged: Sequence[BadLine]
    """Lines that are no rows."""
    unclosed: BadLine | None
    """The first line that ends in a quote; nothing behind it was read."""

    def __len__(self) -> int:
        return len(self.line)

    @property
    def place(self) -> Positions:
        """(n,) the number of the line of each row in the file, from 1."""
        return self.block.first_line + self.line


class DelimitedText:
    """A file of delimited text, plain or compressed.

    Attributes
    ----------
    delimiter
        The character between cells.
    header
        Names of the columns.
    """

    def __init__(self, path: Path, delimiter: str, *, certain: bool = True) -> None:
        """Open ``path``; unless the ``delimiter`` is ``certain``, a first line without it may show another one."""
        self.path = path
        self.delimiter = delimiter
        self._certain = certain
        self.header = self._read_header()
        self._column_of = {name: column for column, name in reversed([*enumerate(self.header)])}

    def wanted(self, texts: Iterable[str] = (), numbers: Sequence[str] = (), *, decimal_comma: bool = False) -> Wanted:
        """Say which columns to read as text, and which as ``numbers``; a column in both is text.  Of several of a name, the first is read."""
        kinds, texts = np.full(len(self.header), _kernels.IGNORED), tuple(dict.fromkeys(texts))
        for k, name in enumerate(numbers):
            kinds[self._column_of[name]] = k
        for t, name in enumerate(texts):
            kinds[self._column_of[name]] = -2 - t
        point = "," if decimal_comma else "."
        return Wanted(kinds, texts, len(numbers), 0 if point == self.delimiter else ord(point))

    def blocks(self, block_bytes: int = DEFAULT_BLOCK_BYTES, spare: list[bytearray] | None = None) -> Iterator[Block]:
        """Yield the lines as blocks to `parse`, the first one with the header."""
        return unchecked_blocks(self.path, block_bytes, spare, cr_ends_lines=True)

    def parse(self, block: Block, wanted: Wanted, room: int = 0) -> Iterator[DelimitedRows]:
        """Yield the rows of ``block``; it may stop after more than ``room`` ragged lines.  DataRejected if it is not text."""
        lines = block.check()
        if block.number == 0:
            block = replace(block, start=block.data.index(b"\n", block.start) + 1, lines_before=1)
            lines -= 1
        for piece, n in block.pieces(lines, _MOST_LINES):
            yield self._parse(piece, n, wanted, room)

    def texts(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns ``names``, which differ; DataRejected if the file is malformed."""
        wanted = self.wanted(names)
        for block in self.blocks():
            for rows in self.parse(block, wanted):
                self.report(rows, Problems(len(rows)), Quarantine())
                yield rows.texts

    def sample(self) -> DelimitedRows | None:
        """Return the first rows, all columns as text; None if there are none or the text is malformed."""
        wanted = self.wanted(self.header)
        try:
            for block in self.blocks(_FIRST_BYTES):
                for rows in self.parse(block, wanted, sys.maxsize):
                    if len(rows) or rows.unclosed:
                        return None if rows.unclosed else rows
        except DataRejected:  # reading the rows reports it
            pass
        return None

    def report(
        self,
        rows: DelimitedRows,
        problems: Problems,
        quarantine: Quarantine,
        column_of: Mapping[str, str] | None = None,
        *,
        ragged: bool = True,
    ) -> None:
        """Quarantine the rows with ``problems``, and if asked the ``ragged`` lines, in the order of the file.

        ``column_of`` is the column of each role.

        Raises
        ------
        MalformedLine
            A quote does not end on its line: the rest of the file is ambiguous.
        """
        names, found = column_of or {}, []
        for row, part, _, expected, cure in problems.sorted():
            text, _ = rows.block.line_at(int(rows.row_from[row]))
            column, cell = _cell(text, self._column_of[names.get(part, part)], self.delimiter)
            number = rows.block.first_line + int(rows.line[row])
            found.append((MalformedLine(self.path, number, column, shorten(cell), expected, cure), column, text))
        for start, line, cells in rows.ragged if ragged else ():
            number, wanted = rows.block.first_line + line, f"{len(self.header)} cells as in the first line"
            text, column = rows.block.line_at(start)
            found.append((MalformedLine(self.path, number, column, f"{cells} cells", wanted), column, text))
        for error, column, text in sorted(found, key=lambda each: each[0].line):
            quarantine.add(error, column, text)
        if rows.unclosed is not None:
            text, _ = rows.block.line_at(rows.unclosed.start)
            raise self._unclosed_quote(rows.block.first_line + rows.unclosed.line, text)

    def _parse(self, block: Block, lines: int, wanted: Wanted, room: int) -> DelimitedRows:
        text, kinds = block.bytes_view, wanted.kinds
        # a row has at least a byte for each cell, with the delimiter or line end behind it; a ragged line begins like a row
        most = min(lines, (block.stop - block.start) // len(kinds)) + 1
        values = np.empty((most, wanted.numbers), dtype=np.float32)
        cell_from, cell_to = (np.empty((len(wanted.texts), most), dtype=np.int64) for _ in range(2))
        row_from, line = (np.empty(most, dtype=np.int64) for _ in range(2))
        odd = np.empty((4, max(_ODD_CELLS, len(kinds))), dtype=np.int64)
        state = np.zeros(_kernels.STATE_CELLS, dtype=np.int64)
        state[_kernels.AT] = block.start
        found: list[npt.NDArray[np.int64]] = []
        ragged: list[BadLine] = []
        code = _kernels.FULL
        while code not in {_kernels.END, _kernels.UNCLOSED} and len(ragged) <= room:
            _kernels.parse_rows(
                text, block.stop, ord(self.delimiter), wanted.point, kinds, POWERS, values, cell_from, cell_to, row_from, line, odd,
                state,
            )  # fmt: skip
            code = int(state[_kernels.CODE])
            bad = BadLine(*(int(state[k]) for k in (_kernels.WHERE, _kernels.BAD_LINE, _kernels.CELLS)))
            if code == _kernels.RAGGED:
                ragged.append(bad)
            if state[_kernels.ODD] or not found:
                found.append(odd[:, : state[_kernels.ODD]].copy())
                state[_kernels.ODD] = 0
        n = int(state[_kernels.ROWS])
        row, number, start, stop = np.concatenate(found, axis=1)
        columns = [_cells(text, *_stripped(text, cell_from[t, :n], cell_to[t, :n])) for t in range(len(wanted.texts))]
        return DelimitedRows(
            block=block,
            texts=pa.RecordBatch.from_arrays(columns, list(wanted.texts)) if columns else _no_columns(n),
            numbers=values[:n],
            odd=OddCells(row, number, _cells(text, start, stop)),
            row_from=row_from[:n],
            line=line[:n],
            ragged=ragged,
            unclosed=bad if code == _kernels.UNCLOSED else None,
        )

    def _text(self) -> io.TextIOWrapper:
        stream = pa.input_stream(readable(self.path), compression=cast("Any", compression_of(self.path)))
        return io.TextIOWrapper(cast("Any", stream), encoding="utf-8-sig", newline="")

    def _read_header(self) -> list[str]:
        refuse_foreign_content(self.path)
        try:
            with self._text() as file:
                line = file.readline(_HEADER_LIMIT)
        except UnicodeDecodeError:
            raise self._no_text() from None
        except (OSError, pa.ArrowInvalid) as error:
            if compression_of(self.path) is None or getattr(error, "errno", None):
                raise
            raise damaged(self.path, error) from None
        if line.startswith("\ufeff"):  # a second one: utf-8-sig has removed the first
            raise DataRejected(f"{self.path}:1: begins with two byte-order marks; remove one")
        if "\0" in line:
            raise DataRejected(f"{self.path}:1: not a text file: it has a NUL byte")
        cells = next(csv.reader([line], delimiter=self.delimiter), [])
        if len(cells) == 1 and not self._certain:
            usual = max(USUAL_DELIMITERS, key=line.count)
            if len(others := next(csv.reader([line], delimiter=usual))) > 1:
                self.delimiter, cells = usual, others
        if cells and cells[-1].endswith(("\n", "\r")):
            raise self._unclosed_quote(1, line)
        if not cells:
            found = "an empty line" if line else "an empty file"
            raise DataRejected(f"{self.path}:1: expected the names of the columns, found {found}")
        if any(cell != cell.strip(_BLANKS) for cell in cells):
            cells = _without_blanks(line.rstrip("\r\n"), self.delimiter)
        return cells

    def _unclosed_quote(self, line: int, text: str) -> DataRejected:
        """Return the error for a quote that does not close in ``line``, whose content is ``text``."""
        opened, quoted = 0, False
        for place, letter in enumerate(text):
            if letter == '"':
                opened, quoted = (opened, False) if quoted else (place, True)
        found = shorten(text[opened:].rstrip("\r\n"))
        expected = "a cell that ends on its line"
        return MalformedLine(self.path, line, opened + 1, found, expected, "close the quote; a row must be one line")

    def _no_text(self) -> DataRejected:
        """Return the error with the first line that is not UTF-8 text; takes another pass over the file."""
        try:
            for _ in read_blocks(self.path, _FIRST_BYTES):
                pass
        except DataRejected as error:
            return error
        return DataRejected(f"{self.path}: not a text file in UTF-8; convert it to UTF-8")


def _without_blanks(line: str, delimiter: str) -> list[str]:
    """Return the cells of ``line``, without blanks around those that do not begin with a quote.

    >>> _without_blanks('a, b," c", "d" ,"e"', ",")
    ['a', 'b', ' c', 'd', 'e']
    """
    found = []
    for quoted, rest in re.findall(rf'(?:^|{re.escape(delimiter)})("(?:[^"]|"")*")?([^{re.escape(delimiter)}]*)', line):
        cell = f"{quoted}{rest}".strip(_BLANKS)
        found.append(cell[1:-1].replace('""', '"') if re.fullmatch('"(?:[^"]|"")*"', cell) else cell)
    return found


def _stripped(text: npt.NDArray[np.uint8], start: Positions, stop: Positions) -> tuple[Positions, Positions]:
    """Return where cells begin and stop without blanks around them; a cell in quotes begins with its quote.

    >>> text = np.frombuffer(b'a, b ,  ," c"', dtype=np.uint8)
    >>> start, stop = _stripped(text, np.array([0, 2, 6, 9]), np.array([1, 5, 8, 13]))
    >>> [bytes(text[k:m]) for k, m in zip(start, stop)]
    [b'a', b'b', b'', b'" c"']
    """
    while len(here := np.flatnonzero((start < stop) & _IS_BLANK[text[np.minimum(start, len(text) - 1)]])):
        start = start.copy()
        start[here] += 1
    while len(here := np.flatnonzero((start < stop) & _IS_BLANK[text[stop - 1]])):
        stop = stop.copy()
        stop[here] -= 1
    return start, stop


def _cells(text: npt.NDArray[np.uint8], start: Positions, stop: Positions) -> pa.StringArray:
    """Copy cells of valid UTF-8 ``text`` without their quotes."""
    offsets = np.empty(len(start) + 1, dtype=np.int32)
    data = np.empty(int((stop - start).sum()), dtype=np.uint8)
    _kernels.copy_cells(text, start, stop, offsets, data)
    return strings_from(offsets, data)


def _no_columns(n: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(n)], [""]).select([])


def _cell(line: str, number: int, delimiter: str) -> tuple[int, str]:
    """Return the character position, from 1, and the content of cell ``number`` of ``line``.

    >>> _cell('a,"b,""c",d', 1, ","), _cell('a,"b,c",d', 2, ",")
    ((3, 'b,"c'), (9, 'd'))
    """
    form = re.compile(rf'(?:"((?:[^"]|"")*)")?([^{re.escape(delimiter)}]*)')
    start, found = 0, cast("re.Match[str]", form.match(line))
    for _ in range(number):
        start = found.end() + 1
        found = cast("re.Match[str]", form.match(line, start))
    quoted, rest = found.groups()
    return start + 1, (quoted or "").replace('""', '"') + rest
