"""CSV and TSV: the first line names ``qid``, ``grade``, perhaps ``doc_id`` and optional columns; all others are features.

Arrow cuts the text into cells, and every cell is read as a string; numbers are then read by the kernel that reads LETOR
text, so that a token means the same float32 in either format.  An empty cell, ``nan`` or ``null`` is a missing value.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from pipeline.arrow import as_array, parts_of
from pipeline.errors import DataRejected, MalformedLine
from pipeline.sources import _kernels
from pipeline.sources.batch import (
    DEFAULT_BLOCK_BYTES,
    UNKNOWN_GRADE,
    Quarantine,
    ReadOptions,
    RowBatch,
    shorten,
)
from pipeline.sources.blocks import compression_of
from pipeline.sources.optional import OPTIONAL, read_numbers
from pipeline.sources.tables import GRADE_RULE, feature_columns, given_fields, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEAST_BLOCK = 1 << 20  # a row must fit in a block
_HEADER_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is wrong with a cell."""

    column: int
    expected: str
    if_empty: str = ""


class DelimitedSource:
    """One file of delimited text, plain or compressed."""

    def __init__(self, path: Path, delimiter: str, options: ReadOptions, quarantine: Quarantine | None = None) -> None:
        self.path = path
        self.position = 0
        self._delimiter = delimiter
        self._options = options
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self._header = self._read_header()
        self._features = feature_columns(path, self._header, options)
        self.columns: tuple[str, ...] | None = self._features
        self.fields = given_fields(self._header, options)
        self._ragged = 0
        self._problems: dict[int, _Problem] = {}  # by number of the row among those with the right number of cells

    def names(self, width: int) -> tuple[str, ...]:
        """Return the names of the features."""
        if width != len(self._features):
            raise ValueError(f"{len(self._features)} features, not {width}")
        return self._features

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        self._ragged, self._problems = 0, {}
        first = 0
        for batch in self._cells(max(block_bytes, _LEAST_BLOCK, 64 * len(self._header))):
            rows = self._rows(batch, first)
            first += len(batch)
            if self._ragged + len(self._problems) > self._quarantine.limit - len(self._quarantine.rejects):
                self._report()
            yield rows
        if self._ragged or self._problems:
            self._report()
        self.position = self.path.stat().st_size

    def _text(self) -> io.TextIOWrapper:
        stream = pa.input_stream(str(self.path), compression=cast("Any", compression_of(self.path)))
        return io.TextIOWrapper(cast("Any", stream), encoding="utf-8-sig", newline="")

    def _read_header(self) -> list[str]:
        try:
            with self._text() as file:
                line = file.readline(_HEADER_LIMIT)
        except UnicodeDecodeError as error:
            raise DataRejected(f"{self.path}: not a text file: {error.reason} for UTF-8") from None
        except (OSError, pa.ArrowInvalid) as error:
            if compression_of(self.path) is None:
                raise
            raise DataRejected(f"{self.path}: the compressed data are damaged: {str(error).splitlines()[0]}") from None
        if "\0" in line:
            raise DataRejected(f"{self.path}:1: not a text file: it has a NUL byte")
        cells = next(csv.reader([line], delimiter=self._delimiter), [])
        if not cells:
            raise DataRejected(f"{self.path}: no first line with the names of the columns; the file is empty")
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
                    cast("Any", stream),
                    arrow_csv.ReadOptions(
                        use_threads=False, block_size=block_bytes, skip_rows=1, column_names=self._header
                    ),
                    arrow_csv.ParseOptions(delimiter=self._delimiter, invalid_row_handler=cast("Any", skip)),
                    arrow_csv.ConvertOptions(
                        column_types={name: pa.string() for name in self._header}, strings_can_be_null=False
                    ),
                ) as reader,
            ):
                yield from reader
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            if "Empty CSV file" in reason:
                return
            raise DataRejected(f"{self.path}: {_plainly(reason)}") from None
        except OSError as error:
            if compression is None:
                raise
            raise DataRejected(
                f"{self.path}: the {compression} data are damaged: {str(error).splitlines()[0]}"
            ) from None

    def _rows(self, batch: pa.RecordBatch, first: int) -> RowBatch:
        n = len(batch)
        keep = np.ones(n, dtype=np.bool_)
        qid = batch.column("qid")
        offsets, _ = parts_of(qid)
        self._note(np.diff(offsets) == 0, keep, first, "qid", "an id of the query")
        grade = self._grades(batch.column("grade"), keep, first) if "grade" in self.fields else None
        extras = {name: read_numbers(batch.column(name)) for name in self.fields if name != "grade"}
        for name, column in extras.items():
            rule = OPTIONAL[name]
            self._note(~rule.fits(column), keep, first, name, rule.expected, rule.if_empty)
        values = np.empty((n, len(self._features)), dtype=np.float32)
        for number, name in enumerate(self._features):
            values[:, number], bad = _numbers(batch.column(name))
            self._note(bad, keep, first, name, f"a number in column {name!r}")
        doc_id = None
        if "doc_id" in self._header:
            doc_id = batch.column("doc_id")
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
            extras={name: OPTIONAL[name].stored(column[keep]) for name, column in extras.items()},
        )

    def _grades(self, column: pa.Array[Any], keep: npt.NDArray[np.bool_], first: int) -> npt.NDArray[np.int32]:
        """Return the grades (n,) int32; there are few different tokens, so each is read once."""
        coded = column.dictionary_encode()
        tokens = cast("list[str]", coded.dictionary.to_pylist())
        read = [_grade(token, required=self._options.grade_required) for token in tokens]
        of_token = np.array([UNKNOWN_GRADE if number is None else number for number in read], dtype=np.int64)
        bad_token = np.array([number is None for number in read], dtype=np.bool_)
        codes = coded.indices.to_numpy()
        highest = self._options.highest_grade
        self._note(bad_token[codes], keep, first, "grade", GRADE_RULE)
        self._note(of_token[codes] > highest, keep, first, "grade", f"a grade up to {highest}")
        grades: npt.NDArray[np.int32] = np.minimum(of_token, highest).astype(np.int32)[codes]
        return grades

    def _note(
        self,
        bad: npt.NDArray[np.bool_],
        keep: npt.NDArray[np.bool_],
        first: int,
        name: str,
        expected: str,
        if_empty: str = "",
    ) -> None:
        """Remember the first problem of each row."""
        for row in np.flatnonzero(bad & keep).tolist():
            self._problems[first + row] = _Problem(self._header.index(name), expected, if_empty)
        keep &= ~bad

    def _report(self) -> None:
        """Find the lines of the bad rows and put them aside; the line numbers take another pass over the text."""
        with self._text() as file:
            raw: list[str] = []
            reader = csv.reader(_remembered(file, raw), delimiter=self._delimiter)
            next(reader)
            row = found_rows = 0
            line = reader.line_num + 1
            raw.clear()
            for cells in reader:
                text = "".join(raw).rstrip("\r\n")
                raw.clear()
                if cells and len(cells) != len(self._header):
                    found = f"{len(cells)} cells"
                    error = MalformedLine(self.path, line, 1, found, f"{len(self._header)} cells as in the first line")
                    found_rows += 1
                    self._quarantine.add(error, 1, text)
                elif cells:
                    problem = self._problems.get(row)
                    if problem is not None:
                        column = _start_of_cell(text, problem.column, self._delimiter)
                        found = shorten(cells[problem.column])
                        cure = "" if found.strip() else problem.if_empty
                        error = MalformedLine(self.path, line, column, found, problem.expected, cure)
                        found_rows += 1
                        self._quarantine.add(error, column, text)
                    row += 1
                line = reader.line_num + 1
        if found_rows != self._ragged + len(self._problems):
            # Arrow and the csv module see other rows: a quote that does not close, or that spans lines
            raise DataRejected(f"{self.path}: a quoted cell runs over the end of its line; a row must be one line")


def _grade(token: str, *, required: bool) -> int | None:
    if not required and (not token or token.lower() in {"nan", "null"}):
        return UNKNOWN_GRADE
    number = whole_number(token)
    return None if number is None else min(number, 2**31)


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
    return values, verdicts == _kernels.MALFORMED


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
    if "UTF8" in reason or "UTF-8" in reason:
        return "not a text file: some of it is not UTF-8; convert the file to UTF-8"
    if "straddling" in reason:
        return "a row is longer than a block; give a larger --block-size"
    return f"not a table of delimited text: {reason}"
