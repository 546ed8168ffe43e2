"""Tables whose columns have types: from record batches to rows, whatever file they come from."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from rankmill.foundation.errors import ColumnProblem, MalformedRow
from rankmill.pipeline.arrow import as_array, parts_of
from rankmill.pipeline.sources.batch import (
    DEFAULT_BLOCK_BYTES,
    ColumnBatch,
    ColumnTask,
    FeaturePart,
    Quarantine,
    ReadOptions,
    ReadTask,
    RowBatch,
    shorten,
    without_values,
)
from rankmill.pipeline.sources.columns import TableColumns, table_columns
from rankmill.pipeline.sources.parts import OPTIONAL, PARTS
from rankmill.pipeline.sources.times import NO_TIME, TIME, TIME_RULE, is_timelike, times_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from rankmill.pipeline.sources.grades import GradeRules

ROWS = (256, 65536)  # least and most rows of a batch
STRIP = 1024  # rows that are filled together
PART_NUMBER = {part: number for number, part in enumerate([*PARTS, TIME], start=1)}

Mask = npt.NDArray[np.bool_]


class Problem(NamedTuple):
    """What is wrong with a row of a batch, counted from 0."""

    row: int
    part: str
    found: str
    expected: str
    cure: str = ""


class ColumnarSource:
    """One file of a table whose columns have types; a subclass says how it is read."""

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine | None = None) -> None:
        self.path = path
        self.position = 0
        self._quarantine = Quarantine() if quarantine is None else quarantine
        schema = self.schema()
        columns = table_columns(path, schema.names, options, partial(problems_of_types, schema))
        self.table: TableColumns | None = columns
        self.columns: tuple[str, ...] | None = columns.features
        self.fields = columns.fields
        self._columns = columns
        self._rules = options.grade_rules
        self._reader = RecordReader(columns, self._rules)

    def schema(self) -> pa.Schema:
        """Return names and types of the columns."""
        raise NotImplementedError

    def record_batches(self, rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield (at most ``rows`` rows of the columns that are read, the share of the file used up with them), in order."""
        raise NotImplementedError

    def record_batches_from(self, rows: int, first: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Do what ``record_batches`` does, without the first ``first`` rows of the file."""
        done = 0
        for batch, share in self.record_batches(rows):
            skipped = min(max(first - done, 0), len(batch))
            done += len(batch)
            if skipped < len(batch):
                yield batch.slice(skipped), share

    def id_bytes(self) -> int:
        """Return how many bytes the ids of a row have on average; 0 where that is not known beforehand."""
        return 0

    def leave_out_features(self, wanted: Collection[str]) -> None:
        """Read no features but those that are ``wanted``, before anything is read."""
        features = tuple(name for name in self._columns.features if name in wanted)
        self._columns = replace(self._columns, features=features)
        self.table, self.columns = self._columns, features
        self._reader = RecordReader(self._columns, self._rules)

    def names(self, width: int) -> tuple[str, ...]:
        """Return the names of the features."""
        if width != len(self._columns.features):
            raise ValueError(f"{len(self._columns.features)} features, not {width}")
        return self._columns.features

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        for task in self.tasks_from(block_bytes):
            yield from task.rows()
            self.position = task.position
        self.position = self.path.stat().st_size

    def tasks_from(self, block_bytes: int = DEFAULT_BLOCK_BYTES, first: int = 0) -> Iterator[ReadTask]:
        """Yield what makes rows of each batch of the file, without its first ``first`` rows."""
        bytes_of_file = self.path.stat().st_size
        for batch, share in self.record_batches_from(self._rows_within(block_bytes), first):
            yield ReadTask(partial(self._rows_of, batch, first + 1), int(bytes_of_file * share))
            first += len(batch)

    def column_tasks(
        self,
        block_bytes: int,
        most_rows: int,  # noqa: ARG002
        first: int = 0,
        n_threads: int = 1,  # noqa: ARG002
    ) -> Iterator[ColumnTask]:
        """Yield what makes rows of each part of the file, without its first ``first`` rows, whose features come by column.

        ``block_bytes`` bounds a part; where columns are read one at a time, in each of ``n_threads``, it is ``most_rows``.
        """
        bytes_of_file = self.path.stat().st_size
        for batch, share in self.record_batches_from(self._rows_within(block_bytes), first):
            yield ColumnTask(partial(self._columns_of, batch, first + 1), int(bytes_of_file * share))
            first += len(batch)

    def _rows_within(self, block_bytes: int) -> int:
        least, most = ROWS
        row_bytes = 4 * len(self._columns.features) + self.id_bytes()
        return min(max(block_bytes // max(1, row_bytes), least), most)

    def _rows_of(self, batch: pa.RecordBatch, first: int) -> tuple[RowBatch]:
        rows, problems = self._reader.rows(batch)
        self._put_aside(first, problems)
        return (rows,)

    def _columns_of(self, batch: pa.RecordBatch, first: int) -> ColumnBatch:
        columns = (batch.column(name) for name in self._columns.features)
        return self._by_column(batch, ([column] for column in columns), first)

    def _by_column(self, batch: pa.RecordBatch, features: Iterable[Sequence[pa.Array[Any]]], first: int) -> ColumnBatch:
        """Return the good rows of ``batch``, which begins at row ``first``; ``features`` has the chunks of each."""
        rows, keep, problems = self._reader.narrow(batch)
        self._put_aside(first, problems)
        return ColumnBatch(rows, _parts_of(features, keep))

    def _put_aside(self, first: int, problems: Iterable[Problem]) -> None:
        for problem in problems:
            column = self._columns.column_of[problem.part]
            found = shorten(problem.found)
            error = MalformedRow(self.path, first + problem.row, column, found, problem.expected, problem.cure)
            self._quarantine.add(error, PART_NUMBER[problem.part], "")


class RecordReader:
    """Makes rows of record batches, by what their columns are for.  It keeps nothing from one batch to the next."""

    def __init__(self, columns: TableColumns, rules: GradeRules) -> None:
        self._columns = columns
        self._rules = rules

    def rows(self, batch: pa.RecordBatch) -> tuple[RowBatch, list[Problem]]:
        """Return the good rows of ``batch``, and the first problem of each of the others in their order."""
        values = np.empty((len(batch), len(self._columns.features)), dtype=np.float32)
        with np.errstate(over="ignore"):
            # one bit pattern for NaN where it is stored; it makes no difference to a score
            _fill(values, [batch.column(name) for name in self._columns.features], one_nan=self._columns.of_judgments)
        narrow, keep, problems = self.narrow(batch)
        return replace(narrow, values=values if keep.all() else values[keep]), problems

    def narrow(self, batch: pa.RecordBatch) -> tuple[RowBatch, Mask, list[Problem]]:
        """Do what ``rows`` does, but for the features, and say which rows (n,) are good; ``batch`` need not have features."""
        column_of = self._columns.column_of
        qid = as_strings(batch.column(column_of["qid"]))
        doc_id = as_strings(batch.column(column_of["doc_id"])) if "doc_id" in column_of else None
        found = _Problems(len(batch))
        self._check_id("qid", qid, found, "an id of the query")
        if doc_id is not None and self._columns.needs_doc_id:
            self._check_id("doc_id", doc_id, found, "an id of the document")
        grade = self._grades(batch.column(column_of["grade"]), found) if "grade" in column_of else None
        extras = {part: self._extra(part, batch.column(column_of[part]), found) for part in self._columns.extras}
        when = self._when(batch.column(column_of[TIME]), found) if TIME in column_of else None
        keep = found.keep
        stored = {part: OPTIONAL[part].stored(column[keep]) for part, column in extras.items()}
        stored |= {} if when is None else {TIME: when[keep]}
        if not keep.all():
            kept = as_array(np.flatnonzero(keep))
            qid, doc_id = qid.take(kept), None if doc_id is None else doc_id.take(kept)
            grade = None if grade is None else grade[keep]
        if doc_id is not None and (np.diff(parts_of(doc_id)[0]) == 0).any():
            doc_id = pc.if_else(pc.equal(doc_id, pa.scalar("")), pa.scalar(None, pa.string()), doc_id)
        rows = RowBatch(
            qid=cast("pa.StringArray", qid),
            doc_id=cast("pa.StringArray", doc_id),
            grade=grade,
            values=without_values(len(qid)),
            extras=stored,
        )
        return rows, keep, found.sorted()

    def _check_id(self, part: str, ids: pa.Array[Any], problems: _Problems, expected: str) -> None:
        offsets, _ = parts_of(ids)
        good: Mask = ids.is_valid().to_numpy(zero_copy_only=False) & (np.diff(offsets) > 0)
        for row in problems.new(~good):
            problems.add(row, part, "nothing", expected)

    def _grades(self, column: pa.Array[Any], problems: _Problems) -> npt.NDArray[np.int32]:
        """Return the grades (n,) int32."""
        cells: list[Any] | npt.NDArray[np.float64]
        if are_numbers(column.type):
            cells = as_floats(column).astype(np.float64)
            grades, bad = self._rules.settle_numbers(cells)
        else:
            words = as_strings(column)
            grades, bad = self._rules.read_words(words)
            cells = words.to_pylist() if bad.any() else []
        for row in problems.new(bad):
            cell = cells[row]
            nothing = cell is None or cell == "" or cell != cell  # noqa: PLR0124  NaN
            found = "nothing" if nothing else repr(cell) if isinstance(cell, str) else _shown(cell)
            expected, cure = self._rules.expected(cell)
            of_table = self._columns.cure_of_grade
            problems.add(row, "grade", found, expected, cure if of_table is None else of_table)
        return grades

    def _extra(self, part: str, column: pa.Array[Any], problems: _Problems) -> npt.NDArray[np.float64]:
        """Return an optional column (n,) as read."""
        numbers = as_floats(column).astype(np.float64)
        rule = OPTIONAL[part]
        for row in problems.new(~rule.fits(numbers)):
            empty = bool(np.isnan(numbers[row]))
            found, cure = ("nothing", rule.if_empty) if empty else (f"{numbers[row]:g}", "")
            problems.add(row, part, found, rule.expected, cure)
        return numbers

    def _when(self, column: pa.Array[Any], problems: _Problems) -> npt.NDArray[np.int64]:
        """Return the times (n,)."""
        when, good = times_of(column)
        for row in problems.new(~good):
            cell = column[row].as_py()
            found, cure = ("nothing", NO_TIME) if cell is None else (str(cell), "")
            problems.add(row, TIME, found, TIME_RULE, cure)
        return when


def _fill(values: npt.NDArray[np.float32], columns: list[pa.Array[Any]], *, one_nan: bool) -> None:
    """Put ``columns`` into those of ``values``, NaN for null, with one bit pattern for all NaN where ``one_nan``.

    Columns that need no other form go a strip of rows at a time, which stays in the cache until its rows are full.
    """
    ready: list[tuple[int, npt.NDArray[Any]]] = []
    for number, column in enumerate(columns):
        numbers = as_floats(column)
        if column.null_count == 0 and kinds.is_floating(column.type):
            ready.append((number, numbers))
        else:
            values[:, number] = numbers
    for first in range(0, len(values), STRIP):
        strip = values[first : first + STRIP]
        for number, numbers in ready:
            strip[:, number] = numbers[first : first + STRIP]
        if one_nan:
            strip[np.isnan(strip)] = np.nan


def _parts_of(features: Iterable[Sequence[pa.Array[Any]]], keep: Mask) -> Iterator[FeaturePart]:
    """Yield the values of the rows to ``keep`` (n,) of ``features``, each of them in chunks."""
    every = bool(keep.all())
    for number, chunks in enumerate(features):
        at = done = 0
        for chunk in chunks:
            with np.errstate(over="ignore"):
                values = np.ascontiguousarray(as_floats(chunk), dtype=np.float32)
            if not every:
                values = values[keep[at : at + len(chunk)]]
            at += len(chunk)
            values = values.view()
            values.flags.writeable = False  # as Arrow's own are: whoever takes them need not know two kinds
            yield FeaturePart(number, done, values)
            done += len(values)


class _Problems:
    """The first problem of each row that has one."""

    def __init__(self, rows: int) -> None:
        self.keep: Mask = np.ones(rows, dtype=np.bool_)
        self._found: list[Problem] = []

    def new(self, bad: Mask) -> Iterable[int]:
        """Return the ``bad`` (n,) rows that had no problem so far; they have one now."""
        rows: list[int] = np.flatnonzero(bad & self.keep).tolist()
        self.keep &= ~bad
        return rows

    def add(self, row: int, part: str, found: str, expected: str, cure: str = "") -> None:
        """Say what the problem of a new one is."""
        self._found.append(Problem(row, part, found, expected, cure))

    def sorted(self) -> list[Problem]:
        """Return all of them in the order of the rows."""
        return sorted(self._found)


def problems_of_types(schema: pa.Schema, columns: TableColumns) -> list[ColumnProblem]:
    """Say which columns cannot play their part, or are no features, by their type."""
    parts = {name: part for part, name in columns.column_of.items()}
    problems = []
    for name in (*columns.column_of.values(), *columns.features):
        if schema.get_field_index(name) < 0:  # it is there twice, which is a problem of its own
            continue
        part, kind = parts.get(name, ""), schema.field(name).type
        if part in {"qid", "doc_id"}:
            fits, what = are_ids(kind), "strings or whole numbers"
        elif part == TIME:
            fits, what = is_timelike(kind), "timestamps, dates, ISO text or whole seconds since 1970"
        elif part == "grade":
            fits, what = (are_numbers(kind) and not kinds.is_boolean(kind)) or are_ids(kind), "numbers or words"
        else:
            fits, what = are_numbers(kind), "numbers"
        if not fits:
            cure = f"it is taken for a feature: {columns.cure_of(name)}".rstrip(": ") if not part else ""
            reason = f"column {name!r} must hold {what}, its type is {kind}"
            problems.append(ColumnProblem(name, reason, cure, columns.ignoring(name) if not part else ()))
    return problems


def check_text(path: Path, name: str, column: pa.Array[Any], first: int) -> None:
    """Raise MalformedRow if text in ``column``, whose first cell is in row ``first``, is not UTF-8."""
    kind = column.type.value_type if isinstance(column.type, pa.DictionaryType) else column.type
    if not (kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)):
        return
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for row in range(len(column)):
            try:
                column[row].as_py()
            except UnicodeDecodeError as error:
                found = shorten(repr(error.object))
                raise MalformedRow(path, first + row, name, found, "text in UTF-8") from None
        raise


def _shown(number: float) -> str:
    """Return ``number`` as a message shows it: whole ones to the last digit."""
    return f"{number:.0f}" if number == np.floor(number) and abs(number) < 1e15 else f"{number:g}"


def are_ids(kind: pa.DataType) -> bool:
    """Say whether a column of type ``kind`` can hold ids: strings or whole numbers."""
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    strings = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
    return kinds.is_integer(kind) or strings


def are_numbers(kind: pa.DataType) -> bool:
    """Say whether a column of type ``kind`` can hold numbers, or nothing but nulls."""
    exact = kinds.is_integer(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind)
    return exact or kinds.is_floating(kind) or kinds.is_null(kind)


def as_floats(column: pa.Array[Any]) -> npt.NDArray[Any]:
    """Return ``column`` as floats, NaN for null."""
    if not kinds.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def as_strings(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return ``column`` of ids as strings, not coded."""
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    return column.cast(pa.string())
