"""Delimited text as cells: the first line names the columns, and a bad row is found again with its line and column."""

from __future__ import annotations

import codecs
import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as arrow_csv

from rankmill.foundation.errors import DataRejected, MalformedLine
from rankmill.pipeline.arrow import parts_of
from rankmill.pipeline.sources.batch import Quarantine, shorten
from rankmill.pipeline.sources.blocks import compression_of, read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from rankmill.pipeline.sources.grades import GradeRules

_LEAST_BLOCK = 1 << 20  # a row must fit in a block
_READ_AHEAD = 4  # blocks that Arrow holds, as text and as cells, beside the one it hands over
_HEADER_LIMIT = 16 << 20
_RUNS_ON = "a cell in quotes does not end in its line; a row must be one line"


@dataclass(frozen=True, slots=True)
class CellProblem:
    """What is wrong with a cell."""

    column: int
    expected: str
    if_empty: str = ""
    """What to do about an empty one."""
    cure: str = ""


class DelimitedCells:
    """One file of delimited text, plain or compressed, as blocks of cells that are strings.

    Attributes
    ----------
    header
        Names of the columns.
    """

    def __init__(self, path: Path, delimiter: str, quarantine: Quarantine) -> None:
        self.path = path
        self._delimiter = delimiter
        self._quarantine = quarantine
        self.header = self._read_header()
        self._ragged = 0
        self._problems: dict[int, CellProblem] = {}  # by number of the row among those with the right number of cells

    def blocks(self, block_bytes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (number of the first row, rows), every cell a string; what `note` was told of the last ones is reported then.

        Rows are numbered from 0, but for those with a wrong number of cells, which are left out and reported.
        """
        self._ragged, self._problems = 0, {}
        first = 0
        for batch in self._cells(max(block_bytes // _READ_AHEAD, _LEAST_BLOCK, 64 * len(self.header))):
            yield first, batch
            first += len(batch)
            if self._ragged + len(self._problems) > self._quarantine.room:  # reporting them is the end
                self._report_all()
        if self._ragged or self._problems:
            self._report_all()

    def sample(self) -> pa.RecordBatch | None:
        """Return the first rows, every cell a string; None where there are none, or they break the format."""
        try:
            alone = DelimitedCells(self.path, self._delimiter, Quarantine())  # what is wrong is reported later
            return next(alone._cells(max(_LEAST_BLOCK, 64 * len(self.header))), None)
        except DataRejected:
            return None

    def lines_of(self, rows: Collection[int]) -> dict[int, int]:
        """Return the number of the line, from 1, of each of ``rows``, which are counted as in `sample`."""
        lines: dict[int, int] = {}
        with self._text() as file:
            raw: list[str] = []
            reader = csv.reader(_remembered(file, raw), delimiter=self._delimiter)
            next(reader)
            row, line = 0, reader.line_num + 1
            raw.clear()
            while len(lines) < len(rows) and (cells := self._next_row(reader, raw, line)) is not None:
                if len(cells) == len(self.header):
                    if row in rows:
                        lines[row] = line
                    row += 1
                raw.clear()
                line = reader.line_num + 1
        return lines

    def note(
        self,
        bad: npt.NDArray[np.bool_],
        keep: npt.NDArray[np.bool_],
        first: int,
        name: str,
        expected: str,
        if_empty: str = "",
        cure: str = "",
    ) -> None:
        """Remember the first problem of each row: ``bad`` (n,) ones among rows ``first``.. are in column ``name``; clears ``keep``."""
        for row in np.flatnonzero(bad & keep).tolist():
            self._problems[first + row] = CellProblem(self.header.index(name), expected, if_empty, cure)
        keep &= ~bad

    def note_grades(
        self,
        rules: GradeRules,
        words: pa.Array[Any],
        keep: npt.NDArray[np.bool_],
        first: int,
        name: str,
        cure: str | None = None,
    ) -> npt.NDArray[np.int32]:
        """Read ``words`` (n,) of column ``name`` as grades (n,), and remember those that are none; clears ``keep`` for them.

        ``cure`` is what to do about them where that of the rules does not help.
        """
        grades, bad = rules.read_words(words)
        complaints: dict[tuple[str, str], list[int]] = {}
        for row in np.flatnonzero(bad & keep).tolist():
            complaints.setdefault(rules.expected(words[row].as_py()), []).append(row)
        for (expected, of_rules), rows in complaints.items():
            here = np.zeros_like(bad)
            here[rows] = True
            told = of_rules if cure is None else cure
            self.note(here, keep, first, name, expected, told, told)
        return grades

    def report(
        self, problem_of: Callable[[int, list[str]], CellProblem | None], expected: int, *, ragged: bool = False
    ) -> None:
        """Put aside the rows for whose number and cells ``problem_of`` finds a problem, and ``ragged`` ones if told to.

        Takes another pass over the text, for the numbers of the lines.

        Raises
        ------
        DataRejected
            There are not as many as ``expected``, or a row does not end in its line: what follows is anyone's guess.
        """
        with self._text() as file:
            raw: list[str] = []
            reader = csv.reader(_remembered(file, raw), delimiter=self._delimiter)
            next(reader)
            row = found_rows = 0
            line = reader.line_num + 1
            raw.clear()
            while (cells := self._next_row(reader, raw, line)) is not None:
                text = "".join(raw).rstrip("\r\n")
                raw.clear()
                if cells and len(cells) != len(self.header):
                    if ragged:
                        found = f"{len(cells)} cells"
                        wanted = f"{len(self.header)} cells as in the first line"
                        found_rows += 1
                        self._quarantine.add(MalformedLine(self.path, line, 1, found, wanted), 1, text)
                elif cells:
                    problem = problem_of(row, cells)
                    if problem is not None:
                        column = _start_of_cell(text, problem.column, self._delimiter)
                        found = shorten(cells[problem.column])
                        cure = problem.cure if found.strip() else problem.if_empty
                        error = MalformedLine(self.path, line, column, found, problem.expected, cure)
                        found_rows += 1
                        self._quarantine.add(error, column, text)
                    row += 1
                line = reader.line_num + 1
        if found_rows != expected:
            # Arrow and the csv module see other rows
            raise DataRejected(f"{self.path}: {_RUNS_ON}")

    def _report_all(self) -> None:
        problems: Mapping[int, CellProblem] = self._problems
        self.report(lambda row, _: problems.get(row), self._ragged + len(problems), ragged=True)

    def _text(self) -> io.TextIOWrapper:
        stream = pa.input_stream(str(self.path), compression=cast("Any", compression_of(self.path)))
        return io.TextIOWrapper(cast("Any", stream), encoding="utf-8-sig", newline="")

    def _read_header(self) -> list[str]:
        try:
            with self._text() as file:
                line = file.readline(_HEADER_LIMIT)
        except UnicodeDecodeError:
            raise self._no_text() from None
        except (OSError, pa.ArrowInvalid) as error:
            if compression_of(self.path) is None:
                raise
            raise self._damaged(error) from None
        if line.startswith("\ufeff"):  # utf-8-sig has taken the first one away
            raise DataRejected(f"{self.path}:1: begins with two byte-order marks; leave one")
        if "\0" in line:
            raise DataRejected(f"{self.path}:1: not a text file: it has a NUL byte")
        cells = next(csv.reader([line], delimiter=self._delimiter), [])
        if cells and cells[-1].endswith(("\n", "\r")):
            raise self._runs_on(1, line)
        if not cells:
            found = "an empty line" if line else "an empty file"
            raise DataRejected(f"{self.path}:1: expected the names of the columns, found {found}")
        return cells

    def _cells(self, block_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield blocks of rows, every cell a string; rows with a wrong number of cells are left out and counted."""

        def skip(_: object) -> str:
            self._ragged += 1
            return "skip"

        compression = compression_of(self.path)
        try:
            with (
                pa.input_stream(str(self.path), compression=cast("Any", compression)) as stream,
                arrow_csv.open_csv(
                    cast("Any", _CheckedStream(stream)),
                    arrow_csv.ReadOptions(
                        use_threads=False, block_size=block_bytes, skip_rows=1, column_names=self.header
                    ),
                    arrow_csv.ParseOptions(delimiter=self._delimiter, invalid_row_handler=cast("Any", skip)),
                    arrow_csv.ConvertOptions(
                        column_types={name: pa.string() for name in self.header}, strings_can_be_null=False
                    ),
                ) as reader,
            ):
                for batch in reader:
                    if any(map(_has_line_end, batch.columns)):
                        self._report_all()
                    yield batch
        except UnicodeError:
            raise self._no_text() from None
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            if "Empty CSV file" in reason:
                return
            if "out of sync" in reason or "straddling" in reason:
                self._report_all()
            raise DataRejected(f"{self.path}: {_plainly(reason)}") from None
        except OSError as error:
            if compression is None:
                raise
            raise self._damaged(error) from None

    def _next_row(self, reader: Iterator[list[str]], raw: list[str], line: int) -> list[str] | None:
        """Return the next cells of ``reader``, which begin in ``line``, or None; their lines are in ``raw`` then."""
        try:
            cells = next(reader, None)
        except csv.Error:  # a cell of more than 128 KiB: most often a quote that does not close
            if len(raw) > 1:
                raise self._runs_on(line, raw[0]) from None
            limit = csv.field_size_limit()
            raise DataRejected(f"{self.path}:{line}: a cell has more than {limit:,} characters") from None
        if len(raw) > 1 or (cells and cells[-1].endswith("\n")):
            raise self._runs_on(line, raw[0])
        return cells

    def _runs_on(self, line: int, text: str) -> DataRejected:
        """Say that a quote of ``line``, which is ``text``, does not close there."""
        opened, quoted = 0, False
        for place, letter in enumerate(text):
            if letter == '"':
                opened, quoted = (opened, False) if quoted else (place, True)
        found = shorten(text[opened:].rstrip("\r\n"))
        expected = "a cell that ends in its line"
        return MalformedLine(self.path, line, opened + 1, found, expected, "close the quote; a row must be one line")

    def _no_text(self) -> DataRejected:
        """Say in which line the file stops being text; takes another pass over it."""
        try:
            for _ in read_blocks(self.path, _LEAST_BLOCK):
                pass
        except DataRejected as error:
            return error
        return DataRejected(f"{self.path}: not a text file in UTF-8; convert it to UTF-8")

    def _damaged(self, error: Exception) -> DataRejected:
        reason = str(error).split("\n", 1)[0]
        return DataRejected(f"{self.path}: the {compression_of(self.path)} data are damaged or cut off: {reason}")


class _CheckedStream:
    """The bytes of ``stream`` on their way to Arrow, which would check only the cells of rows that it keeps; UnicodeError if they are no text."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        data = self._stream.read(size)
        if b"\0" in data:
            raise UnicodeError("NUL")
        if self._decoder.getstate()[0] or not data.isascii():
            self._decoder.decode(data, final=not data)
        return data

    def close(self) -> None:
        """Leave the stream to its owner."""


def _has_line_end(column: pa.Array[Any]) -> bool:
    """Say whether a cell of ``column`` runs over the end of a line: Arrow lets a quote do that, up to the end of the block."""
    offsets, data = parts_of(column)
    return bool((data[offsets[0] : offsets[-1]] == ord("\n")).any())


def _remembered(lines: Iterator[str], raw: list[str]) -> Iterator[str]:
    """Pass on ``lines`` and keep them in ``raw``."""
    for line in lines:
        raw.append(line)
        yield line


def _start_of_cell(text: str, cell: int, delimiter: str) -> int:
    """Return the column, from 1, where cell number ``cell`` of a line begins.

    >>> _start_of_cell('a,"b,c",d', 2, ",")
    9
    """
    quoted = False
    for place, letter in enumerate(text):
        if cell == 0:
            return place + 1
        if letter == '"':
            quoted = not quoted
        elif letter == delimiter and not quoted:
            cell -= 1
    return len(text) + 1


def _plainly(reason: str) -> str:
    if "straddling" in reason:
        return "a row is longer than a block; give a larger --block-size"
    if "out of sync" in reason:
        return _RUNS_ON
    return f"not a table of delimited text: {reason}"
