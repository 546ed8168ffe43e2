"""Read the lines of CSV and TSV into columns of text and a matrix of numbers; DuckDB splits them.

A cell in quotes may contain delimiters, and a quote as two; it ends on its line.  Blanks around a cell without quotes
are no part of it, in the first line too.  Empty lines are skipped.
"""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.database import open_database
from rankmill.foundation.errors import DataRejected, MalformedLine
from rankmill.pipeline.arrow import as_array, as_numbers, parts_of, strings_from
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, USUAL_DELIMITERS
from rankmill.pipeline.read.batch import Problems, Quarantine, shorten
from rankmill.pipeline.read.blocks import (
    Block,
    compression_of,
    damaged,
    read_blocks,
    refuse_foreign_content,
    unchecked_blocks,
)
from rankmill.pipeline.read.quoted_cells import split_line, with_quoted, without_quotes

_HEADER_LIMIT = 16 << 20
_FIRST_BYTES = 1 << 20
_MOST_LINES, _MOST_CELLS = 1 << 17, 1 << 19  # parsed at a time: short cells take many times the memory of their text
DATABASE_BYTES = 64 * _MOST_CELLS
"""Memory of a query of DuckDB: of a cell, a string, its place in a list, a number, and the same in Arrow."""
_BLANKS = " \t"
_NEWLINE, _CR = 10, 13
_OTHER_NUMBERS = r"[0-9]_[0-9]|[nN]\(|\+-|[\v\f]"
"""What DuckDB reads in numbers, and we do not."""
_SIGNS_OF_OTHERS = {
    sign: re.compile(form)
    for sign, form in (
        (b"_", rb"_(?<=[0-9]_)[0-9]"),
        (b"(", rb"\((?<=[nN]\()"),
        (b"+", rb"\+-"),
        (b"\v", rb"\v"),
        (b"\f", rb"\f"),
    )
}
"""Text with such numbers has this byte, which is found quickly, and this form."""

Positions = npt.NDArray[np.int64]


class Wanted(NamedTuple):
    """The columns to read; see `DelimitedText.wanted`."""

    texts: dict[str, int]
    """The place of each column of text in the header."""
    numbers: Positions
    """(n,) the places of the columns of numbers; -1 for what is text."""
    decimal_comma: bool = False


class BadLine(NamedTuple):
    """A line with another number of cells than the header, or one that ends in a quote."""

    start: int
    line: int
    """In the block, from 0."""
    cells: int


class OddCells(NamedTuple):
    """Cells of columns of numbers that are no numbers for DuckDB, in the order of the file, such as words."""

    row: Positions
    number: Positions
    """Its place among the columns of numbers."""
    text: pa.Array[Any]


@dataclass(frozen=True, slots=True)
class DelimitedRows:
    """The rows of a block."""

    block: Block
    texts: pa.RecordBatch
    """The columns of text; a cell that is empty is empty text."""
    numbers: npt.NDArray[np.float32]
    """(n, columns) NaN if empty, and for odd cells."""
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
    guessed
        Whether the first line shows another delimiter than was expected.
    """

    def __init__(self, path: Path, delimiter: str, *, certain: bool = True) -> None:
        """Open ``path``; unless the ``delimiter`` is ``certain``, a first line without it may show another one."""
        self.path = path
        self.delimiter = delimiter
        self._certain, self.guessed = certain, False
        self.header = self._read_header()
        self._column_of = {name: column for column, name in reversed([*enumerate(self.header)])}

    def wanted(self, texts: Iterable[str] = (), numbers: Iterable[str] = (), *, decimal_comma: bool = False) -> Wanted:
        """Say which columns to read as text, and which as ``numbers``; a column in both is text.

        Of several of a name, the first is read.
        """
        of_text = {name: self._column_of[name] for name in texts}
        places = np.array([-1 if name in of_text else self._column_of[name] for name in numbers], dtype=np.int64)
        return Wanted(of_text, places, decimal_comma)

    def blocks(self, block_bytes: int = DEFAULT_BLOCK_BYTES, spare: list[bytearray] | None = None) -> Iterator[Block]:
        """Yield the lines as blocks to `parse`, the first one with the header."""
        return unchecked_blocks(self.path, block_bytes, spare, cr_ends_lines=True)

    def parse(self, block: Block, wanted: Wanted) -> Iterator[DelimitedRows]:
        """Yield the rows of ``block``; DataRejected if it is not text."""
        lines = block.check()
        if block.number == 0:
            block = replace(block, start=block.data.index(b"\n", block.start) + 1, lines_before=1)
            lines -= 1
        for piece, _ in block.pieces(lines, min(_MOST_LINES, 1 + _MOST_CELLS // len(self.header))):
            yield self._parse(piece, wanted)

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
                for rows in self.parse(block, wanted):
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
            at, cell = (split_line(text.encode(), self.delimiter.encode()) or [])[
                self._column_of[names.get(part, part)]
            ]
            column = 1 + len(text.encode()[:at].decode())
            number = rows.block.first_line + int(rows.line[row])
            found.append(
                (MalformedLine(self.path, number, column, shorten(cell.decode()), expected, cure), column, text)
            )
        for start, line, cells in rows.ragged if ragged else ():
            number, wanted = rows.block.first_line + line, f"{len(self.header)} cells as in the first line"
            text, column = rows.block.line_at(start)
            found.append((MalformedLine(self.path, number, column, f"{cells} cells", wanted), column, text))
        for error, column, text in sorted(found, key=lambda each: each[0].line):
            quarantine.add(error, column, text)
        if rows.unclosed is not None:
            text, _ = rows.block.line_at(rows.unclosed.start)
            raise self._unclosed_quote(rows.block.first_line + rows.unclosed.line, text)

    def _parse(self, block: Block, wanted: Wanted) -> DelimitedRows:
        data, unclosed = block.bytes_view[block.start : block.stop], None
        start = _line_starts(data)
        length, lines = np.diff(start), strings_from(start.astype(np.int32), data)
        if block.data.find(b'"', block.start, block.stop) >= 0:
            text, unclosed = without_quotes(data.tobytes(), self.delimiter.encode())
            plain = np.frombuffer(text, dtype=np.uint8)
            lines = strings_from(_line_starts(plain).astype(np.int32), plain)
        filled = (length > 1) & ((length > 2) | (data[start[:-1]] != _CR))  # a line ends with LF or CR LF
        (line,) = np.nonzero(filled[: len(lines)])
        if len(line) < len(lines):
            lines = lines.take(as_array(line))
        start += block.start
        mark, width = self.delimiter.replace("'", "''"), len(self.header)
        cells = select(_columns(block, wanted), f"string_split(line, '{mark}') AS cells", lines)
        counts = cells.column("n").to_numpy()
        whole = counts == width
        ragged = [BadLine(*of) for of in zip(*(of[~whole].tolist() for of in (start[line], line, counts)), strict=True)]
        if ragged:
            keep = as_array(whole)
            line, lines, cells = line[whole], lines.filter(keep), cells.filter(keep)
        texts = self._contents(cast("pa.ListArray[Any]", cells.column("texts")).flatten())
        every = [texts.take(as_array(np.arange(k, len(texts), len(wanted.texts)))) for k in range(len(wanted.texts))]
        numbers, odd = self._numbers(cast("pa.ListArray[Any]", cells.column("numbers")).flatten(), lines, wanted)
        return DelimitedRows(
            block=block,
            texts=pa.RecordBatch.from_arrays(every, list(wanted.texts)) if every else _no_columns(len(line)),
            numbers=numbers,
            odd=odd,
            row_from=start[line],
            line=line,
            ragged=ragged,
            unclosed=None if unclosed is None else BadLine(int(start[unclosed]), unclosed, 0),
        )

    def _numbers(
        self, every: pa.Array[Any], lines: pa.Array[Any], wanted: Wanted
    ) -> tuple[npt.NDArray[np.float32], OddCells]:
        """Return the numbers that are wanted of ``every`` cell of ``lines``, and the cells with text that is none."""
        places, shape = wanted.numbers, (len(lines), len(self.header) if len(wanted.numbers) else 0)
        here: Any = places
        if len(places) and places[0] >= 0 and (np.diff(places) == 1).all():
            here = slice(places[0], places[-1] + 1)  # several times faster
        missing = every.is_null().to_numpy(zero_copy_only=False).reshape(shape)[:, here]
        with np.errstate(over="ignore", invalid="ignore"):
            values = as_numbers(every.buffers()[1], np.float64)[every.offset : every.offset + len(every)]
            numbers = values.reshape(shape)[:, here].astype(np.float32)
        numbers[missing | np.isnan(numbers)] = np.nan  # one bit pattern for all NaN
        row, number = np.nonzero(missing & (places >= 0))
        rows, place = np.unique(row, return_inverse=True)
        cells = pc.split_pattern(lines.take(as_array(rows)), self.delimiter).flatten()
        at = place * len(self.header) + places[number]
        filled = np.diff(parts_of(cells)[0])[at] > 0
        texts = self._contents(cells.take(as_array(at[filled])))
        return numbers, OddCells(row[filled], number[filled], texts)

    def _contents(self, cells: pa.Array[Any]) -> pa.Array[Any]:
        """Return what is written in ``cells`` of lines without quotes, perhaps with the end of the line."""
        return with_quoted(pc.utf8_trim(cells, characters=_BLANKS + "\r\n"), self.delimiter)

    def _text(self) -> io.TextIOWrapper:
        stream = pa.input_stream(str(self.path), compression=cast("Any", compression_of(self.path)))
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
                self.delimiter, cells, self.guessed = usual, others, True
        if cells and cells[-1].endswith(("\n", "\r")):
            raise self._unclosed_quote(1, line)
        if not cells:
            found = "an empty line" if line else "an empty file"
            raise DataRejected(f"{self.path}:1: expected the names of the columns, found {found}")
        split = split_line(line.rstrip("\r\n").encode(), self.delimiter.encode())
        return cells if split is None else [cell.decode() for _, cell in split]

    def _unclosed_quote(self, line: int, text: str) -> DataRejected:
        """Return the error for a quote that does not close in ``line``, whose content is ``text``."""
        opened, quoted = 0, False
        for place, letter in enumerate(text):
            if letter == '"':
                opened, quoted = (opened, False) if quoted else (place, True)
        found = shorten(text[opened:].rstrip("\r\n"))
        expected = "a cell that ends on its line"
        cure = "close the quote, or put blanks for line breaks in cells; a row must be one line"
        return MalformedLine(self.path, line, opened + 1, found, expected, cure)

    def _no_text(self) -> DataRejected:
        """Return the error with the first line that is not UTF-8 text; takes another pass over the file."""
        try:
            for _ in read_blocks(self.path, _FIRST_BYTES):
                pass
        except DataRejected as error:
            return error
        return DataRejected(f"{self.path}: not a text file in UTF-8; convert it to UTF-8")


def _columns(block: Block, wanted: Wanted) -> str:
    """Return the cells that DuckDB selects from each line of ``block``.

    These are their number, their texts, and all of them as numbers if some are wanted.
    """
    texts, numbers = [place + 1 for place in wanted.texts.values()], "cells" if len(wanted.numbers) else "[]"
    data, *area = block.data, block.start, block.stop
    others = any(data.find(sign, *area) >= 0 and form.search(data, *area) for sign, form in _SIGNS_OF_OTHERS.items())
    if others or wanted.decimal_comma:
        bad, cell = (f"[.]|{_OTHER_NUMBERS}", "replace(c, ',', '.')") if wanted.decimal_comma else (_OTHER_NUMBERS, "c")
        numbers = f"list_transform({numbers}, lambda c: CASE WHEN NOT regexp_matches(c, '{bad}') THEN {cell} END)"
    return f"len(cells) AS n, list_select(cells, {texts}) AS texts, TRY_CAST({numbers} AS DOUBLE[]) AS numbers"


def _line_starts(text: npt.NDArray[np.uint8]) -> Positions:
    """Return where the lines of ``text`` begin, and where the last one ends."""
    return np.concatenate([[0], np.flatnonzero(text == _NEWLINE) + 1])


def _no_columns(n: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(n)], [""]).select([])


_MEMORY = 1 << 30  # of DuckDB, at most; a query takes a few times the text


def select(columns: str, row: str, lines: pa.Array[Any]) -> pa.RecordBatch:
    """Return the ``columns`` that SQL makes of the ``row`` of each of the ``lines``, in their order; row is SQL, too.

    >>> select("cells[2] AS second", "string_split(line, ',') AS cells", pa.array(["a,b", "c,"])).to_pylist()
    [{'second': 'b'}, {'second': ''}]
    """
    with closing(_database().cursor()) as database:
        database.register("lines", pa.table({"line": lines}))
        found: pa.Table = database.sql(f"SELECT {columns} FROM (SELECT {row} FROM lines)").to_arrow_table()  # noqa: S608
    return next(iter(found.combine_chunks().to_batches()), pa.RecordBatch.from_pylist([], found.schema))


@cache
def _database() -> Any:
    """Return the database of this process that reads text; it holds no table."""
    return open_database(memory=_MEMORY, threads=1, spill=Path(tempfile.gettempdir()))
