"""Judgments as tables: CSV, TSV and Parquet with the columns ``qid``, ``doc_id``, ``grade`` and perhaps one of times.

Other columns, such as who judged, are passed over.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from pipeline.arrow import as_array, open_parquet, parts_of
from pipeline.errors import DataRejected, MalformedRow
from pipeline.judgments.batch import JudgmentBatch
from pipeline.sources.batch import DEFAULT_BLOCK_BYTES, Quarantine, shorten
from pipeline.sources.cells import DelimitedCells
from pipeline.sources.parquet import are_ids, are_numbers, as_floats, as_strings, schema_of_file
from pipeline.sources.times import NO_TIME, TIME_RULE, is_timelike, times_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pipeline.sources.grades import GradeRules

IDS = {"qid": "an id of the query", "doc_id": "an id of the document"}
NEEDED = (*IDS, "grade")
_BATCH_ROWS = 65536


class DelimitedJudgments:
    """One file of delimited text, plain or compressed."""

    def __init__(
        self, path: Path, delimiter: str, rules: GradeRules, time_column: str | None, quarantine: Quarantine
    ) -> None:
        self.path = path
        self.position = 0
        self._rules = rules
        self._time = time_column
        self._cells = DelimitedCells(path, delimiter, quarantine)
        _check_names(path, self._cells.header, time_column)

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[JudgmentBatch]:
        """Yield the judgments in the order of the file."""
        for first, cells in self._cells.blocks(block_bytes):
            yield self._judgments(cells, first)
        self.position = self.path.stat().st_size

    def _judgments(self, cells: pa.RecordBatch, first: int) -> JudgmentBatch:
        keep = np.ones(len(cells), dtype=np.bool_)
        for name, expected in IDS.items():
            self._cells.note(_empty(cells.column(name)), keep, first, name, expected)
        words = cells.column("grade")
        grade, bad = self._rules.read_words(words)
        for row in np.flatnonzero(bad & keep).tolist():
            one = np.zeros(len(cells), dtype=np.bool_)
            one[row] = True
            expected, cure = self._rules.expected(words[row].as_py())
            self._cells.note(one, keep, first, "grade", expected, cure)
        time = None
        if self._time is not None:
            time, good = times_of(cells.column(self._time))
            self._cells.note(~good, keep, first, self._time, TIME_RULE, NO_TIME)
        return _kept(cells.column("qid"), cells.column("doc_id"), grade, time, keep)


class ParquetJudgments:
    """One Parquet file; a grade is a number or a word."""

    def __init__(self, path: Path, rules: GradeRules, time_column: str | None, quarantine: Quarantine) -> None:
        self.path = path
        self.position = 0
        self._rules = rules
        self._time = time_column
        self._quarantine = quarantine
        schema = schema_of_file(path)
        _check_names(path, schema.names, time_column)
        self._columns = [*NEEDED, *([] if time_column is None else [time_column])]
        for name in self._columns:
            kind = schema.field(name).type
            if name in IDS:
                fits, what = are_ids(kind), "strings or whole numbers"
            elif name == "grade":
                fits, what = are_numbers(kind) or are_ids(kind), "numbers or words"
            else:
                fits, what = is_timelike(kind), "times"
            if not fits:
                raise DataRejected(f"{path}: column {name!r} must hold {what}, its type is {kind}")

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[JudgmentBatch]:  # noqa: ARG002  rows are few bytes
        """Yield the judgments in the order of the file."""
        first = 1
        with open_parquet(self.path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=self._columns):
                yield self._judgments(batch, first)
                first += len(batch)
        self.position = self.path.stat().st_size

    def _judgments(self, batch: pa.RecordBatch, first: int) -> JudgmentBatch:
        n = len(batch)
        ids = {name: as_strings(batch.column(name)).fill_null("") for name in IDS}
        problems: dict[int, tuple[str, str, str, str]] = {}
        for name, expected in IDS.items():
            for row in np.flatnonzero(_empty(ids[name])).tolist():
                problems.setdefault(row, (name, "nothing", expected, ""))
        column = batch.column("grade")
        worded = not are_numbers(column.type) or kinds.is_null(column.type)
        words = as_strings(column) if worded else None
        numbers = None if worded else as_floats(column).astype(np.float64)
        grade, bad = (
            self._rules.settle_numbers(numbers) if numbers is not None else self._rules.read_words(as_strings(column))
        )
        for row in np.flatnonzero(bad).tolist():
            found = words[row].as_py() if words is not None else float(column[row].as_py() or np.nan)
            found = float(numbers[row]) if numbers is not None else found
            expected, cure = self._rules.expected(found)
            nothing = found is None or found == "" or found != found  # noqa: PLR0124  NaN
            shown = "nothing" if nothing else repr(found) if isinstance(found, str) else f"{found:g}"
            problems.setdefault(row, ("grade", shown, expected, cure))
        time = None
        if self._time is not None:
            time, good = times_of(batch.column(self._time))
            for row in np.flatnonzero(~good).tolist():
                cell = batch.column(self._time)[row].as_py()
                problem = ("nothing", TIME_RULE, NO_TIME) if cell is None else (repr(str(cell)), TIME_RULE, "")
                problems.setdefault(row, (self._time, *problem))
        for row, (name, found, expected, cure) in sorted(problems.items()):
            error = MalformedRow(self.path, first + row, name, shorten(found), expected, cure)
            self._quarantine.add(error, self._columns.index(name) + 1, "")
        keep = np.ones(n, dtype=np.bool_)
        keep[list(problems)] = False
        return _kept(ids["qid"], ids["doc_id"], grade, time, keep)


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


def _check_names(path: Path, names: Sequence[str], time_column: str | None) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataRejected(f"{path}: column {twice[0]!r} is there twice; every column needs a name of its own")
    for name in NEEDED:
        if name not in names:
            raise DataRejected(f"{path}: no column {name!r}; a table of judgments has the columns {', '.join(NEEDED)}")
    if time_column is not None and time_column not in names:
        raise DataRejected(
            f"{path}: no column {time_column!r}, which --time-column names; its columns are {', '.join(names)}"
        )
