"""CSV and TSV: the first line names ``qid``, ``grade``, perhaps ``doc_id`` and optional columns; all others are features.

Arrow cuts the text into cells, and every cell is read as a string; numbers are then read by the kernel that reads LETOR
text, so that a token means the same float32 in either format.  An empty cell, ``nan`` or ``null`` is a missing value, and so
are the marks that other tools write; ``true`` and ``false`` are 1 and 0, as the booleans of Parquet are.
"""

from __future__ import annotations

import codecs
import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from rankmill.foundation.errors import ColumnProblem, DataRejected, MalformedLine
from rankmill.pipeline.arrow import as_array, parts_of
from rankmill.pipeline.sources import _kernels
from rankmill.pipeline.sources.batch import (
    DEFAULT_BLOCK_BYTES,
    Quarantine,
    ReadOptions,
    RowBatch,
    shorten,
)
from rankmill.pipeline.sources.blocks import compression_of, read_blocks
from rankmill.pipeline.sources.columns import TableColumns, table_columns
from rankmill.pipeline.sources.parts import OPTIONAL, read_numbers
from rankmill.pipeline.sources.times import NO_TIME, TIME, TIME_RULE, times_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

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


_WORDS = {"true": 1.0, "false": 0.0, **dict.fromkeys(("na", "n/a", "#n/a", "<na>", "none"), float("nan"))}
"""What is written in place of a number, in small letters: booleans, and how pandas, R and spreadsheets mark missing values."""
_MOST_WORDS = 20  # for grades
_MOST_ROWS = 1 << 17  # read at a time: where cells are short, what is known of them takes many times their text


class DelimitedSource:
    """One file of delimited text, plain or compressed."""

    def __init__(self, path: Path, delimiter: str, options: ReadOptions, quarantine: Quarantine | None = None) -> None:
        self.path = path
        self.position = 0
        self.delimiter = delimiter
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self._cells = DelimitedCells(path, delimiter, self._quarantine)
        self._rules = options.grade_rules
        self._columns = table_columns(path, self._cells.header, options, self._problems_of_values)
        self.table: TableColumns | None = self._columns
        self._features = self._columns.features
        self.columns: tuple[str, ...] | None = self._features
        self.fields = self._columns.fields

    def names(self, width: int) -> tuple[str, ...]:
        """Return the names of the features."""
        if width != len(self._features):
            raise ValueError(f"{len(self._features)} features, not {width}")
        return self._features

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        for first, batch in self._cells.blocks(block_bytes):
            for low in range(0, len(batch), _MOST_ROWS):
                yield self._rows(batch.slice(low, _MOST_ROWS), first + low)
        self.position = self.path.stat().st_size

    def _problems_of_values(self, columns: TableColumns) -> list[ColumnProblem]:
        """Say which columns hold, in the first rows, something else than their part asks for.

        Single bad cells are no problem of the column: whoever reads the rows reports them.
        """
        batch = self._cells.sample()
        if batch is None:
            return []
        bad_cells = self._bad_cells(batch, columns)
        filled = {name: np.diff(parts_of(batch.column(name))[0]) > 0 for name in bad_cells}
        bad_cells = {name: (what, bad & filled[name]) for name, (what, bad) in bad_cells.items()}
        bad_rows = np.logical_or.reduce([bad for _, bad in bad_cells.values()])
        mostly_bad = any(2 * bad.sum() > filled[name].sum() for name, (_, bad) in bad_cells.items())
        if not mostly_bad or bad_rows.sum() <= self._quarantine.limit:
            return []
        first_row = {name: int(np.argmax(bad)) for name, (_, bad) in bad_cells.items() if bad.any()}
        lines = self._cells.lines_of(set(first_row.values()))
        problems = []
        for name, row in first_row.items():
            what, bad = bad_cells[name]
            cell, share = shorten(batch.column(name)[row].as_py()), f"{int(bad.sum()):,} of {len(bad):,} rows"
            reason = f"column {name!r} must hold {what}, found {cell!r} in line {lines[row]} ({share} like it)"
            if name == columns.column_of.get("grade"):
                cure, options = self._cure_of_grades(batch.column(name).filter(as_array(bad)), columns)
            else:
                cure, options = columns.cure_of(name), columns.ignoring(name)
                if options and times_of(batch.column(name))[1][bad].all():
                    cure += f", --time-column {name} takes it as the time of the row"
            problems.append(ColumnProblem(name, reason, cure, options, in_rows=True))
        return problems

    def _bad_cells(self, batch: pa.RecordBatch, columns: TableColumns) -> dict[str, tuple[str, npt.NDArray[np.bool_]]]:
        """Return what each column of grades, of numbers and of features must hold, and which rows (n,) of ``batch`` do not."""
        found = {}
        for part, name in columns.column_of.items():
            if self._cells.header.count(name) == 1:
                if part == "grade":
                    found[name] = "grades", self._rules.read_words(batch.column(name))[1]
                elif part in OPTIONAL:
                    found[name] = "numbers", ~OPTIONAL[part].fits(read_numbers(batch.column(name)))
        for name in columns.features:
            if self._cells.header.count(name) == 1:
                found[name] = "numbers", _numbers(batch.column(name))[1]
        return found

    def _cure_of_grades(self, cells: pa.Array[Any], columns: TableColumns) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return what to do about ``cells`` that are no grades, and the option that does it."""
        if columns.cure_of_grade is not None:
            return columns.cure_of_grade, (("--columns", "grade="),)
        words = cast("list[str]", pc.unique(pc.utf8_trim(cells, characters=" \t")).to_pylist())
        if len(words) <= _MOST_WORDS and all(word[:1].isalpha() and not {*word} & set(",=") for word in words):
            option = ",".join(f"{word}=?" for word in words)
            return f"--grades {option}, with a number for each ?, maps words to grades", (("--grades", option),)
        return self._rules.expected(cells[0].as_py())[1], ()

    def _rows(self, batch: pa.RecordBatch, first: int) -> RowBatch:
        n = len(batch)
        keep = np.ones(n, dtype=np.bool_)
        column_of, note = self._columns.column_of, self._cells.note
        qid = batch.column(column_of["qid"])
        offsets, _ = parts_of(qid)
        note(np.diff(offsets) == 0, keep, first, column_of["qid"], "an id of the query")
        if self._columns.needs_doc_id:
            ids, _ = parts_of(batch.column(column_of["doc_id"]))
            note(np.diff(ids) == 0, keep, first, column_of["doc_id"], "an id of the document")
        grade = None
        if "grade" in column_of:
            words, name = batch.column(column_of["grade"]), column_of["grade"]
            grade = self._cells.note_grades(self._rules, words, keep, first, name, self._columns.cure_of_grade)
        extras = {part: read_numbers(batch.column(column_of[part])) for part in self._columns.extras}
        for part, column in extras.items():
            rule = OPTIONAL[part]
            note(~rule.fits(column), keep, first, column_of[part], rule.expected, rule.if_empty)
        when = None
        if TIME in column_of:
            when, known = times_of(batch.column(column_of[TIME]))
            note(~known, keep, first, column_of[TIME], TIME_RULE, NO_TIME)
        values = np.empty((n, len(self._features)), dtype=np.float32)
        for number, name in enumerate(self._features):
            values[:, number], bad = _numbers(batch.column(name))
            note(bad, keep, first, name, f"a number in column {name!r}", cure=self._columns.cure_of(name))
        doc_id = None
        if "doc_id" in column_of:
            doc_id = batch.column(column_of["doc_id"])
            doc_id = pc.if_else(pc.equal(doc_id, pa.scalar("")), pa.scalar(None, pa.string()), doc_id)
        if not keep.all():
            kept = as_array(np.flatnonzero(keep))
            qid, doc_id = qid.take(kept), None if doc_id is None else doc_id.take(kept)
            grade, values = None if grade is None else grade[keep], values[keep]
        return RowBatch(
            qid=cast("pa.StringArray", qid),
            doc_id=cast("pa.StringArray", doc_id),
            grade=grade,
            values=values,
            extras={name: OPTIONAL[name].stored(column[keep]) for name, column in extras.items()}
            | ({} if when is None else {TIME: when[keep]}),
        )


def _numbers(column: pa.Array[Any]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Read a column of strings as numbers; returns them, NaN where missing, and which cells are no numbers."""
    offsets, data = parts_of(column)
    n = len(column)
    values = np.empty(n, dtype=np.float32)
    verdicts = np.empty(n, dtype=np.int64)
    lines = np.empty(int(offsets[-1] - offsets[0]) + n, dtype=np.uint8)
    _kernels.separate_cells(data, offsets, lines)
    _kernels.parse_cells(lines, values, verdicts, _kernels.POWERS)
    with np.errstate(over="ignore"):
        for row in np.flatnonzero(verdicts == _kernels.DEFERRED).tolist():
            values[row] = np.float32(float(column[row].as_py()))
    bad = verdicts == _kernels.MALFORMED
    if bad.any():
        rows = np.flatnonzero(bad)
        words = pc.ascii_lower(pc.utf8_trim(column.take(as_array(rows)), characters=" \t"))
        known = pc.index_in(words, value_set=pa.array(list(_WORDS))).to_numpy(zero_copy_only=False)
        is_known = ~np.isnan(known.astype(np.float64))
        values[rows[is_known]] = np.array(list(_WORDS.values()), dtype=np.float32)[known[is_known].astype(np.int64)]
        bad[rows[is_known]] = False
    return values, bad
