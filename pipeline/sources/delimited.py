"""CSV and TSV: the first line names ``qid``, ``grade``, perhaps ``doc_id`` and optional columns; all others are features.

Arrow splits the text into cells, all read as strings.  Numbers are parsed with the grammar of LETOR text, so that a token is the
same float32 in both formats.  Missing values are empty cells, ``nan``, ``null`` and the marks of other tools.  ``true`` and ``false``
are 1 and 0, like booleans in Parquet.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from rankmill.foundation.errors import ColumnProblem, DataRejected, MalformedLine
from rankmill.foundation.options import respelled, spelled
from rankmill.foundation.storage.arriving import readable
from rankmill.pipeline.arrow import as_array, parts_of
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, ReadOptions
from rankmill.pipeline.sources.batch import Quarantine, RowBatch, shorten
from rankmill.pipeline.sources.blocks import compression_of, damaged, read_blocks
from rankmill.pipeline.sources.column_roles import OPTIONAL
from rankmill.pipeline.sources.columnar import ColumnsOf, TableSource
from rankmill.pipeline.sources.columns import TableColumns, table_columns
from rankmill.pipeline.sources.grades import GradeRules
from rankmill.pipeline.sources.number_text import read_floats
from rankmill.pipeline.sources.role_columns import feature_numbers
from rankmill.pipeline.sources.table_rows import Problems, TableRows
from rankmill.pipeline.sources.times import times_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path


DELIMITERS = {"csv": ",", "tsv": "\t"}  # by format
_LEAST_BLOCK = 1 << 20  # bytes; a row must fit in a block
_READ_AHEAD = 4  # extra blocks that Arrow holds, as text and as cells
_HEADER_LIMIT = 16 << 20
_UNCLOSED_QUOTE = "a quoted cell does not end on its line; a row must be one line"


class CellProblem(NamedTuple):
    """A problem of a cell."""

    column: int
    expected: str
    cure: str = ""


class DelimitedCells:
    """A file of delimited text, plain or compressed, read as blocks of string cells.

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
        self._again = False
        self._problems: dict[int, CellProblem] = {}  # by row number, not counting rows with a wrong number of cells

    def blocks(self, block_bytes: int, *, again: bool = False) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (number of the first row, rows) with string cells; problems passed to `note` are reported after the last block.

        Rows are numbered from 0.  Rows with a wrong number of cells are skipped, not numbered and, unless ``again``, reported.
        """
        self._ragged, self._problems, self._again = 0, {}, again
        first = 0
        for batch in self._cells(max(block_bytes // _READ_AHEAD, _LEAST_BLOCK, 64 * len(self.header))):
            yield first, batch
            first += len(batch)
            if self._n_bad > self._quarantine.remaining:  # too many: report them now, which raises
                self._report_all()
        if self._n_bad:
            self._report_all()

    @property
    def _n_bad(self) -> int:
        """Number of rows to report."""
        return len(self._problems) + (0 if self._again else self._ragged)

    def sample(self) -> pa.RecordBatch | None:
        """Return the first rows as strings; None if there are none or they are malformed."""
        try:
            alone = DelimitedCells(self.path, self._delimiter, Quarantine())  # problems are reported later
            return next(alone._cells(max(_LEAST_BLOCK, 64 * len(self.header))), None)
        except DataRejected:
            return None

    def lines_of(self, rows: Collection[int]) -> dict[int, int]:
        """Return the line numbers, from 1, of ``rows``, which are numbered as in `sample`."""
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

    def note(self, first: int, problems: Problems, column_of: Mapping[str, str]) -> None:
        """Remember ``problems`` of the rows from number ``first`` on; ``column_of`` is the column of each role."""
        for row, part, _, expected, cure in problems.sorted():
            name = column_of.get(part, part)
            self._problems[first + row] = CellProblem(self.header.index(name), expected, cure)

    def _report_all(self) -> None:
        """Quarantine the rows with a problem, and those with a wrong number of cells.

        Takes another pass over the text to find line numbers.

        Raises
        ------
        DataRejected
            The number of rows differs from the first pass, or a quoted cell spans lines, so that the rest is ambiguous.
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
                if cells and len(cells) != len(self.header) and self._again:
                    pass
                elif cells and len(cells) != len(self.header):
                    found = f"{len(cells)} cells"
                    wanted = f"{len(self.header)} cells as in the first line"
                    found_rows += 1
                    self._quarantine.add(MalformedLine(self.path, line, 1, found, wanted), 1, text)
                elif cells:
                    problem = self._problems.get(row)
                    if problem is not None:
                        column = _start_of_cell(text, problem.column, self._delimiter)
                        found = shorten(cells[problem.column])
                        error = MalformedLine(self.path, line, column, found, problem.expected, problem.cure)
                        found_rows += 1
                        self._quarantine.add(error, column, text)
                    row += 1
                line = reader.line_num + 1
        if found_rows != self._n_bad:
            # Arrow and the csv module disagree about rows
            raise DataRejected(f"{self.path}: {_UNCLOSED_QUOTE}")

    def _text(self) -> io.TextIOWrapper:
        stream = pa.input_stream(readable(self.path), compression=cast("Any", compression_of(self.path)))
        return io.TextIOWrapper(cast("Any", stream), encoding="utf-8-sig", newline="")

    def _read_header(self) -> list[str]:
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
        cells = next(csv.reader([line], delimiter=self._delimiter), [])
        if cells and cells[-1].endswith(("\n", "\r")):
            raise self._unclosed_quote(1, line)
        if not cells:
            found = "an empty line" if line else "an empty file"
            raise DataRejected(f"{self.path}:1: expected the names of the columns, found {found}")
        return cells

    def _cells(self, block_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield blocks of rows as strings; rows with a wrong number of cells are skipped and counted."""

        def skip(_: object) -> str:
            self._ragged += 1
            return "skip"

        compression = compression_of(self.path)
        try:
            with (
                pa.input_stream(readable(self.path), compression=cast("Any", compression)) as stream,
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
            if compression is None or error.errno:
                raise
            raise damaged(self.path, error) from None

    def _next_row(self, reader: Iterator[list[str]], raw: list[str], line: int) -> list[str] | None:
        """Return the next cells of ``reader``, which begin in ``line``, or None at the end; their lines are put into ``raw``."""
        try:
            cells = next(reader, None)
        except csv.Error:  # a cell of more than 128 KiB: usually an unclosed quote
            if len(raw) > 1:
                raise self._unclosed_quote(line, raw[0]) from None
            limit = csv.field_size_limit()
            raise DataRejected(f"{self.path}:{line}: a cell has more than {limit:,} characters") from None
        if len(raw) > 1 or (cells and cells[-1].endswith("\n")):
            raise self._unclosed_quote(line, raw[0])
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
            for _ in read_blocks(self.path, _LEAST_BLOCK):
                pass
        except DataRejected as error:
            return error
        return DataRejected(f"{self.path}: not a text file in UTF-8; convert it to UTF-8")


class _CheckedStream:
    """Passes the bytes of ``stream`` to Arrow and checks all of them, as Arrow checks only cells that it keeps; UnicodeError if invalid."""

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
        """Do nothing: the owner closes the stream."""


def _has_line_end(column: pa.Array[Any]) -> bool:
    """Whether a cell of ``column`` spans lines: Arrow allows it in quotes, up to the end of the block."""
    offsets, data = parts_of(column)
    return bool((data[offsets[0] : offsets[-1]] == ord("\n")).any())


def _remembered(lines: Iterator[str], raw: list[str]) -> Iterator[str]:
    """Yield ``lines`` and also append them to ``raw``."""
    for line in lines:
        raw.append(line)
        yield line


def _start_of_cell(text: str, cell: int, delimiter: str) -> int:
    """Return the character position, from 1, where cell number ``cell`` of a line begins.

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
        return f"a row is longer than a block; increase {spelled('block_size')}"
    if "out of sync" in reason:
        return _UNCLOSED_QUOTE
    return f"not a table of delimited text: {reason}"


_MOST_WORDS = 20  # grades in words that a message lists
_RARE = 0.05  # a smaller share of bad cells are mistakes in a good column
_WITH_COMMA = r"^\s*[+-]?\d*,\d+\s*$"
_THOUSANDS = r"^\s*[+-]?\d{1,3}(,\d{3})+\s*$"
_MOST_ROWS = 1 << 17  # read at a time: short cells take many times the memory of their text


class DelimitedSource(TableSource):
    """A file of delimited text, plain or compressed."""

    def __init__(
        self,
        path: Path,
        delimiter: str,
        options: ReadOptions,
        quarantine: Quarantine | None = None,
        columns_of: ColumnsOf | None = None,
    ) -> None:
        super().__init__(path, quarantine)
        self.delimiter = delimiter
        self._cells = DelimitedCells(path, delimiter, self._quarantine)
        self.header = self._cells.header
        self._rules = GradeRules.of(options)
        self._decimal_comma = options.decimal_comma
        columns_of = columns_of or table_columns
        self._settle(columns_of(path, self._cells.header, options, self._problems_of_values), self._rules)

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        for first, batch in self._cells.blocks(block_bytes):
            for low in range(0, len(batch), _MOST_ROWS):
                part = self._with_points(batch.slice(low, _MOST_ROWS), self._columns)
                rows, problems = self._reader.rows(part)
                self._note(first + low, problems)
                yield rows
        self.position = self.path.stat().st_size

    def table_rows(self, block_bytes: int = DEFAULT_BLOCK_BYTES, *, again: bool = False) -> Iterator[TableRows]:
        """Yield the columns with a role, in the order of the file; problems are reported at its end."""
        for first, batch in self._cells.blocks(block_bytes, again=again):
            yield self._table_rows(batch, np.arange(first, first + len(batch)), partial(self._note, first))
        self.position = self.path.stat().st_size

    def _note(self, first: int, problems: Problems) -> None:
        self._cells.note(first, problems, self._columns.column_of)

    def _problems_of_values(self, columns: TableColumns) -> list[ColumnProblem]:
        """Return the columns whose values in the first rows do not match their role.

        A few bad cells are not a problem of the column: reading the rows reports them.
        """
        batch = self._cells.sample()
        if batch is None:
            return []
        bad_cells = self._bad_cells(self._with_points(batch, columns), columns)
        filled = {name: np.diff(parts_of(batch.column(name))[0]) > 0 for name in bad_cells}
        bad_cells = {name: (what, bad & filled[name]) for name, (what, bad) in bad_cells.items() if bad.any()}
        if not bad_cells:
            return []
        share = {name: bad.sum() / max(1, filled[name].sum()) for name, (_, bad) in bad_cells.items()}
        rare = {name for name in bad_cells if share[name] <= _RARE}
        commas = {name for name in bad_cells.keys() - rare if self._has_commas(batch.column(name), bad_cells[name][1])}
        bad_rows = np.logical_or.reduce([bad for _, bad in bad_cells.values()])
        if (max(share.values()) <= 0.5 and not commas) or bad_rows.sum() <= self._quarantine.limit:
            return []
        n_rare = int(np.logical_or.reduce([bad_cells[name][1] for name in rare]).sum()) if rare else 0
        first_row = {name: int(np.argmax(bad)) for name, (_, bad) in bad_cells.items() if bad.any()}
        lines = self._cells.lines_of(set(first_row.values()))
        problems = []
        grades = {columns.column_of.get(part) for part in columns.graded}
        for name, row in first_row.items():
            what, bad = bad_cells[name]
            cell, like_it = shorten(batch.column(name)[row].as_py()), f"{int(bad.sum()):,} of {len(bad):,} rows"
            reason = f"column {name!r} must hold {what}, found {cell!r} in line {lines[row]} ({like_it} like it)"
            options: tuple[tuple[str, str], ...]
            if name in grades and (name not in rare or not columns.of_judgments):
                cells = batch.column(name).filter(as_array(bad))
                cure, options = self._cure_of_grades(cells, columns, of_goal=name in columns.goals)
            elif name in commas:
                cure, options = "to read 12,50 as 12.5: --decimal-comma", (("--decimal-comma", ""),)
            elif name in rare and columns.of_judgments:
                cure = f"correct such cells or make them empty; to leave these rows out: --max-rejects {n_rare}"
                options = (("--max-rejects", str(n_rare)),)
            else:
                cure, options = columns.cure_of(name), columns.ignoring(name)
                if options and times_of(batch.column(name))[1][bad].all():
                    cure += f", {spelled('time_column')} {name} reads it as the time of the row"
            problems.append(ColumnProblem(name, reason, respelled(cure), options, in_rows=name not in commas))
        return problems

    def _with_points(self, batch: pa.RecordBatch, columns: TableColumns) -> pa.RecordBatch:
        """Return ``batch`` with decimal points in all numbers but grades, where the file has commas."""
        if self._decimal_comma:
            numbers = {*columns.features, *(name for part, name in columns.column_of.items() if part in OPTIONAL)}
            for name in numbers - columns.categorical:
                if self._cells.header.count(name) == 1:
                    cells = pc.replace_substring(batch.column(name), ".", "point")  # which is no number
                    place = self._cells.header.index(name)
                    batch = batch.set_column(place, name, pc.replace_substring(cells, ",", "."))
        return batch

    @staticmethod
    def _has_commas(cells: pa.Array[Any], bad: npt.NDArray[np.bool_]) -> bool:
        """Return whether most of the ``bad`` (n,) ones of ``cells`` are numbers with a decimal comma."""
        cells = cells.filter(as_array(bad))
        commas, thousands = (
            pc.match_substring_regex(cells, form).to_numpy(zero_copy_only=False) for form in (_WITH_COMMA, _THOUSANDS)
        )
        return bool(2 * commas.sum() > len(cells)) and not thousands.all()

    def _bad_cells(self, batch: pa.RecordBatch, columns: TableColumns) -> dict[str, tuple[str, npt.NDArray[np.bool_]]]:
        """Yield what each column of grades, numbers and features must contain, and which rows (n,) of ``batch`` violate it."""
        found = {}
        for part, name in columns.column_of.items():
            if self._cells.header.count(name) == 1:
                if part in columns.graded:
                    rules = self._rules.for_goals if part in columns.goals else self._rules
                    found[name] = "grades", rules.read_words(batch.column(name))[1]
                elif part in OPTIONAL:
                    found[name] = "numbers", ~OPTIONAL[part].fits(read_floats(batch.column(name))[0])
        for name in columns.features:
            if self._cells.header.count(name) == 1 and name not in columns.categorical:
                found[name] = "numbers", feature_numbers(batch.column(name))[1]
        return found

    def _cure_of_grades(
        self, cells: pa.Array[Any], columns: TableColumns, *, of_goal: bool
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return how to fix ``cells`` that are not grades, and the option for it."""
        if columns.cure_of_grade is not None and not of_goal:
            return columns.cure_of_grade, (("--columns", "grade="),)
        counts = Counter(cast("list[str]", pc.utf8_trim(cells, characters=" \t").to_pylist()))
        if len(counts) <= _MOST_WORDS and all(word[:1].isalpha() and not {*word} & set(",=") for word in counts):
            known = [*counts, *(word for word, _ in self._rules.words)]
            like = {word: _misspelt(word, known, counts) for word in counts}
            words = [word for word in counts if not like[word]]
            option = ",".join(f"{word}=?" for word in words)
            cure = f"{spelled('grades')} {option} maps words to grades; put a number for each ?"
            options: tuple[tuple[str, str], ...] = (("--grades", option),)
            for word, right in like.items():
                if right:
                    cure += f"; {word!r} is in {counts[word]:,} row{'s' * (counts[word] > 1)}: correct it if it means {right!r}"
            return cure, options
        return (self._rules.for_goals if of_goal else self._rules).expected(cells[0].as_py())[1], ()


def _misspelt(word: str, words: Collection[str], counts: Mapping[str, int]) -> str:
    """Return the one of ``words`` that the rare ``word`` seems to mean; empty if it is not rare, or like none.

    >>> [_misspelt(word, ["good", "god", "fair"], {"good": 90, "god": 1, "fair": 3}) for word in ("god", "fair")]
    ['good', '']
    """
    if not word.isalpha() or counts[word] > _RARE * sum(counts.values()):
        return ""
    others = [
        other for other in words if abs(len(other) - len(word)) < 2 and counts.get(other, np.inf) > 5 * counts[word]
    ]
    return next(iter(get_close_matches(word, others, n=1, cutoff=0.75)), "")
