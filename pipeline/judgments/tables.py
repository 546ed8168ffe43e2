"""Judgments as tables: CSV, TSV and Parquet with the columns ``qid``, ``doc_id``, ``grade`` and perhaps one of times.

Other columns, such as who judged, are passed over.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.arrow import as_array, open_parquet, parts_of
from pipeline.errors import DataRejected, MalformedRow
from pipeline.judgments.batch import JudgmentBatch
from pipeline.sources.batch import DEFAULT_BLOCK_BYTES, Quarantine, shorten
from pipeline.sources.cells import DelimitedCells
from pipeline.sources.columnar import are_ids, are_numbers, as_floats, as_strings
from pipeline.sources.columns import judgment_columns
from pipeline.sources.parquet import schema_of_file
from pipeline.sources.times import NO_TIME, TIME, TIME_RULE, is_timelike, times_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.sources.batch import ReadOptions
    from pipeline.sources.columns import TableColumns

IDS = {"qid": "an id of the query", "doc_id": "an id of the document"}
_BATCH_ROWS = 65536


class DelimitedJudgments:
    """One file of delimited text, plain or compressed."""

    def __init__(self, path: Path, delimiter: str, options: ReadOptions, quarantine: Quarantine) -> None:
        self.path = path
        self.position = 0
        self._rules = options.grade_rules
        self._cells = DelimitedCells(path, delimiter, quarantine)
        found = judgment_columns(path, self._cells.header, options)
        self.table: TableColumns | None = found
        self._column_of = found.column_of

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[JudgmentBatch]:
        """Yield the judgments in the order of the file."""
        for first, cells in self._cells.blocks(block_bytes):
            yield self._judgments(cells, first)
        self.position = self.path.stat().st_size

    def _judgments(self, cells: pa.RecordBatch, first: int) -> JudgmentBatch:
        keep = np.ones(len(cells), dtype=np.bool_)
        for name, expected in IDS.items():
            called = self._column_of[name]
            self._cells.note(_empty(cells.column(called)), keep, first, called, expected)
        name = self._column_of["grade"]
        grade = self._cells.note_grades(self._rules, cells.column(name), keep, first, name)
        time = None
        if TIME in self._column_of:
            time, good = times_of(cells.column(self._column_of[TIME]))
            self._cells.note(~good, keep, first, self._column_of[TIME], TIME_RULE, NO_TIME)
        qid, doc_id = (cells.column(self._column_of[name]) for name in IDS)
        return _kept(qid, doc_id, grade, time, keep)


class ParquetJudgments:
    """One Parquet file; a grade is a number or a word."""

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine) -> None:
        self.path = path
        self.position = 0
        self._rules = options.grade_rules
        self._quarantine = quarantine
        schema = schema_of_file(path)
        found = judgment_columns(path, schema.names, options)
        self.table: TableColumns | None = found
        self._column_of = found.column_of
        for part, name in self._column_of.items():
            kind = schema.field(name).type
            if part in IDS:
                fits, what = are_ids(kind), "strings or whole numbers"
            elif part == "grade":
                fits, what = are_numbers(kind) or are_ids(kind), "numbers or words"
            else:
                fits, what = is_timelike(kind), "times"
            if not fits:
                raise DataRejected(f"{path}: column {name!r} must hold {what}, its type is {kind}")

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[JudgmentBatch]:  # noqa: ARG002  rows are few bytes
        """Yield the judgments in the order of the file."""
        first = 1
        with open_parquet(self.path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(self._column_of.values())):
                yield self._judgments(batch, first)
                first += len(batch)
        self.position = self.path.stat().st_size

    def _judgments(self, batch: pa.RecordBatch, first: int) -> JudgmentBatch:
        n = len(batch)
        ids = {name: as_strings(batch.column(self._column_of[name])).fill_null("") for name in IDS}
        problems: dict[int, tuple[str, str, str, str]] = {}
        for name, expected in IDS.items():
            for row in np.flatnonzero(_empty(ids[name])).tolist():
                problems.setdefault(row, (name, "nothing", expected, ""))
        column = batch.column(self._column_of["grade"])
        grade, bad = self._grades(column)
        for row in np.flatnonzero(bad).tolist():
            cell = column[row].as_py()
            found = cell if cell is None or isinstance(cell, str) else float(cell)
            expected, cure = self._rules.expected(found)
            nothing = found is None or found == "" or found != found  # noqa: PLR0124  NaN
            shown = "nothing" if nothing else repr(found) if isinstance(found, str) else f"{found:g}"
            problems.setdefault(row, ("grade", shown, expected, cure))
        time = None
        if TIME in self._column_of:
            times = batch.column(self._column_of[TIME])
            time, good = times_of(times)
            for row in np.flatnonzero(~good).tolist():
                cell = times[row].as_py()
                problem = ("nothing", TIME_RULE, NO_TIME) if cell is None else (repr(str(cell)), TIME_RULE, "")
                problems.setdefault(row, (TIME, *problem))
        for row, (part, found, expected, cure) in sorted(problems.items()):
            error = MalformedRow(self.path, first + row, self._column_of[part], shorten(found), expected, cure)
            self._quarantine.add(error, [*self._column_of].index(part) + 1, "")
        keep = np.ones(n, dtype=np.bool_)
        keep[list(problems)] = False
        return _kept(ids["qid"], ids["doc_id"], grade, time, keep)

    def _grades(self, column: pa.Array[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        if are_numbers(column.type):
            return self._rules.settle_numbers(as_floats(column).astype(np.float64))
        return self._rules.read_words(as_strings(column))


def _kept(
    qid: pa.Array[Any],
    doc_id: pa.Array[Any],
    grade: npt.NDArray[np.int32],
    time: npt.NDArray[np.int64] | None,
    keep: npt.NDArray[np.bool_],
) -> JudgmentBatch:
    places = as_array(np.flatnonzero(keep))
    return JudgmentBatch(
        qid=qid.take(places), doc_id=doc_id.take(places), grade=grade[keep], time=None if time is None else time[keep]
    )


def _empty(ids: pa.Array[Any]) -> npt.NDArray[np.bool_]:
    offsets, _ = parts_of(ids)
    empty: npt.NDArray[np.bool_] = offsets[1:] == offsets[:-1]
    return empty
