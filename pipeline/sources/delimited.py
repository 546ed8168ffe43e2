"""CSV and TSV: the first line names ``qid``, ``grade``, perhaps ``doc_id`` and optional columns; all others are features.

Arrow cuts the text into cells, and every cell is read as a string; numbers are then read by the kernel that reads LETOR
text, so that a token means the same float32 in either format.  An empty cell, ``nan`` or ``null`` is a missing value, and so
are the marks that other tools write; ``true`` and ``false`` are 1 and 0, as the booleans of Parquet are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import ColumnProblem
from rankmill.pipeline.arrow import as_array, parts_of
from rankmill.pipeline.sources import _kernels
from rankmill.pipeline.sources.batch import (
    DEFAULT_BLOCK_BYTES,
    Quarantine,
    ReadOptions,
    RowBatch,
    shorten,
)
from rankmill.pipeline.sources.cells import DelimitedCells
from rankmill.pipeline.sources.columns import TableColumns, table_columns
from rankmill.pipeline.sources.optional import OPTIONAL, read_numbers
from rankmill.pipeline.sources.times import NO_TIME, TIME, TIME_RULE, times_of

if TYPE_CHECKING:
    from collections.abc import Iterator

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
