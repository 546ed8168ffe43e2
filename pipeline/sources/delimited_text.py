"""Read the lines of CSV and TSV into columns of text.

A cell in quotes may contain delimiters, and a quote as two; it ends on its line.  Blanks around a cell without quotes are no part
of it, in the first line too.  Empty lines are skipped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import DataRejected, MalformedLine
from rankmill.foundation.storage.arriving import readable
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, USUAL_DELIMITERS
from rankmill.pipeline.read.csv_lines import CsvLines, csv_lines, split_line
from rankmill.pipeline.read.tables import cells_of
from rankmill.pipeline.sources.batch import Quarantine, shorten
from rankmill.pipeline.sources.blocks import (
    Block,
    compression_of,
    damaged,
    read_blocks,
    refuse_foreign_content,
    unchecked_blocks,
)
from rankmill.pipeline.sources.table_rows import Problems

_HEADER_LIMIT = 16 << 20
_FIRST_BYTES = 1 << 20
_MOST_LINES = 1 << 17  # parsed at a time: short cells take many times the memory of their text


@dataclass(frozen=True, slots=True)
class DelimitedRows:
    """The rows of a block."""

    block: Block
    texts: pa.RecordBatch
    """The columns that were asked for; a cell that is empty is empty text, or null in those of numbers."""
    lines: CsvLines

    def __len__(self) -> int:
        return len(self.lines.line)

    @property
    def place(self) -> npt.NDArray[np.int64]:
        """(n,) the number of the line of each row in the file, from 1."""
        return self.block.first_line + self.lines.line


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

    def blocks(self, block_bytes: int = DEFAULT_BLOCK_BYTES, spare: list[bytearray] | None = None) -> Iterator[Block]:
        """Yield the lines as blocks to `parse`, the first one with the header."""
        return unchecked_blocks(self.path, block_bytes, spare, cr_ends_lines=True)

    def parse(self, block: Block, names: Iterable[str], numbers: Iterable[str] = ()) -> Iterator[DelimitedRows]:
        """Yield the columns ``names`` and ``numbers`` of the rows of ``block``, of several of a name the first; DataRejected if it is not text."""
        texts = frozenset(names)
        wanted = {name: self._column_of[name] for name in (*names, *numbers)}
        lines = block.check()
        if block.number == 0:
            block = replace(block, start=block.data.index(b"\n", block.start) + 1, lines_before=1)
            lines -= 1
        for piece, _ in block.pieces(lines, _MOST_LINES):
            found = csv_lines(piece, self.delimiter, len(self.header))
            cells = cells_of(found, self.delimiter, len(self.header), wanted)
            columns: list[pa.Array[Any]] = [
                cells.column(name).fill_null("") if name in texts else cells.column(name) for name in wanted
            ]
            yield DelimitedRows(piece, pa.RecordBatch.from_arrays(columns, list(wanted)), found)

    def texts(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns ``names``, which differ; DataRejected if the file is malformed."""
        for block in self.blocks():
            for rows in self.parse(block, names):
                self.report(rows, Problems(len(rows)), Quarantine())
                yield rows.texts

    def sample(self) -> DelimitedRows | None:
        """Return the first rows, all columns as text; None if there are none or the text is malformed."""
        try:
            for block in self.blocks(_FIRST_BYTES):
                for rows in self.parse(block, self.header):
                    if len(rows) or rows.lines.unclosed:
                        return None if rows.lines.unclosed else rows
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
            text, _ = rows.block.line_at(int(rows.lines.start[row]))
            column, cell = _cell(text, self._column_of[names.get(part, part)], self.delimiter)
            number = int(rows.place[row])
            found.append((MalformedLine(self.path, number, column, shorten(cell), expected, cure), column, text))
        for start, line, cells in rows.lines.ragged if ragged else ():
            number, wanted = rows.block.first_line + line, f"{len(self.header)} cells as in the first line"
            text, column = rows.block.line_at(start)
            found.append((MalformedLine(self.path, number, column, f"{cells} cells", wanted), column, text))
        for error, column, text in sorted(found, key=lambda each: each[0].line):
            quarantine.add(error, column, text)
        if (unclosed := rows.lines.unclosed) is not None:
            text, _ = rows.block.line_at(unclosed.start)
            raise self._unclosed_quote(rows.block.first_line + unclosed.line, text)

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
        split = split_line(line.rstrip("\r\n").encode(), self.delimiter.encode())
        return cells if split is None else [cell.decode() for cell in split]

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
