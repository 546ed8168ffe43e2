"""Tables with typed columns: convert record batches of any file format to rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from rankmill.foundation.errors import ColumnProblem, DataRejected, MalformedRow
from rankmill.pipeline.arrow import as_array, parts_of
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, ReadOptions
from rankmill.pipeline.read.batch import (
    ColumnBatch,
    ColumnTask,
    FeaturePart,
    Mask,
    Problems,
    Quarantine,
    ReadTask,
    RowBatch,
    TableRows,
    shorten,
    without_values,
)
from rankmill.pipeline.read.column_roles import IDS, OPTIONAL
from rankmill.pipeline.read.columns import TableColumns, table_columns, without_index
from rankmill.pipeline.read.grades import GradeRules
from rankmill.pipeline.read.made_columns import MadeColumns, made_columns
from rankmill.pipeline.read.pandas_marks import index_columns, with_categories
from rankmill.pipeline.read.role_columns import (
    are_categories,
    are_ids,
    are_numbers,
    as_floats,
    category_numbers,
    read_parts,
)
from rankmill.pipeline.read.times import TIME, cure_of_dates, is_timelike

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

ROWS = (256, 65536)  # minimum and maximum rows of a batch
STRIP = 1024  # rows filled together


ColumnsOf = Callable[[Path, Sequence[str], ReadOptions, Callable[[TableColumns], list[ColumnProblem]]], TableColumns]
"""Assigns roles to the columns of a table from their names and the problems of their values."""


class TableSource(ABC):
    """A file with a table; subclasses read a format."""

    def __init__(self, path: Path, quarantine: Quarantine | None) -> None:
        self.path = path
        self.position = 0
        self._quarantine = Quarantine() if quarantine is None else quarantine

    def share_categories(self, names: Collection[str]) -> None:
        """Read the features ``names``, which are categories in other files, as categories here, too."""
        self._use_columns(
            replace(self._columns, categorical=frozenset(names).intersection(self._columns.features)), self._rules
        )

    @property
    def roles(self) -> TableColumns:
        """The roles of its columns."""
        return self._columns

    def _use_columns(self, columns: TableColumns, rules: GradeRules) -> None:
        """Set the roles of the columns."""
        self._rules = rules
        self._columns = columns
        self.table: TableColumns | None = columns
        self.columns: tuple[str, ...] | None = columns.features
        self.fields = columns.fields
        self._reader = RecordReader(columns, rules)

    def _roles(
        self,
        names: Sequence[str],
        options: ReadOptions,
        columns_of: ColumnsOf | None,
        look: Callable[[TableColumns], list[ColumnProblem]],
        index: Collection[str] | None = None,
    ) -> TableColumns:
        """Assign roles to the columns ``names``.

        The columns ``index`` are the index of a pandas frame; None: find them by name.
        """
        assign = columns_of or table_columns
        index = index_columns(names) if index is None else index
        return without_index(names, index, options, lambda rest: assign(self.path, rest, options, look))

    def names(self, width: int) -> tuple[str, ...]:
        """Return the names of the features."""
        if width != len(self._columns.features):
            raise ValueError(f"{len(self._columns.features)} features, not {width}")
        return self._columns.features

    @abstractmethod
    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""

    @abstractmethod
    def table_rows(self, block_bytes: int = DEFAULT_BLOCK_BYTES, *, again: bool = False) -> Iterator[TableRows]:
        """Yield the columns with a role, in the order of the file.

        ``again``: unreadable rows were quarantined before.
        """

    def _table_rows(
        self, batch: pa.RecordBatch, place: npt.NDArray[np.int64], reject: Callable[[Problems], None]
    ) -> TableRows:
        columns = {part: batch.column(name) for part, name in self._columns.column_of.items()}
        return TableRows(columns, place, Problems(len(batch)), reject)


class ColumnarSource(TableSource):
    """A file with a table of typed columns; subclasses read a format."""

    _begin = 0  # rows of the file that are left out at its beginning

    def __init__(
        self,
        path: Path,
        options: ReadOptions,
        quarantine: Quarantine | None = None,
        columns_of: ColumnsOf | None = None,
    ) -> None:
        super().__init__(path, quarantine)
        schema = with_categories(self.schema())
        self._made = MadeColumns() if columns_of else made_columns(path, schema, options, self.stored_batches)
        schema = self._made.schema(schema)
        look = partial(problems_of_types, schema, path=path)
        columns = self._roles(schema.names, options, columns_of, look, index_columns(schema.names, schema))
        if columns.of_judgments:
            encoded = {name for name in columns.features if isinstance(schema.field(name).type, pa.DictionaryType)}
            columns = replace(columns, categorical=columns.categorical | encoded)
        self._use_columns(columns, GradeRules.of(options))

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return names and types of the columns."""

    @abstractmethod
    def stored_batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some rows at a time of the columns ``names``, in order, without derived columns."""

    @abstractmethod
    def record_batches(self, rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield (at most ``rows`` rows of the columns to read, the share of the file read so far), in order."""

    def record_batches_from(self, rows: int, first: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Do as ``record_batches``, without the first ``first`` rows of the file."""
        done = 0
        for batch, share in self.record_batches(rows):
            skipped = min(max(first - done, 0), len(batch))
            done += len(batch)
            if skipped < len(batch):
                yield batch.slice(skipped), share

    def id_bytes(self) -> int:
        """Return the average number of bytes of the ids of a row; 0 if unknown."""
        return 0

    def leave_out_features(self, wanted: Collection[str]) -> None:
        """Read only the features ``wanted``; call it before reading."""
        features = tuple(name for name in self._columns.features if name in wanted)
        self._use_columns(replace(self._columns, features=features), self._rules)

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        for task in self.tasks_from(block_bytes, self._begin):
            yield from task.rows()
            self.position = task.position
        self.position = self.path.stat().st_size

    def table_rows(
        self,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        *,
        again: bool = False,  # noqa: ARG002  all rows have all columns
    ) -> Iterator[TableRows]:
        """Yield the columns with a role, in the order of the file."""
        first = 1
        for batch, share in self.record_batches(self._rows_within(block_bytes)):
            yield self._table_rows(batch, np.arange(first, first + len(batch)), partial(self._reject_rows, first))
            first += len(batch)
            self.position = int(self.path.stat().st_size * share)

    def tasks_from(self, block_bytes: int = DEFAULT_BLOCK_BYTES, first: int = 0) -> Iterator[ReadTask]:
        """Yield tasks that read the batches of the file, without its first ``first`` rows."""
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
        """Yield tasks that read the parts of the file column by column, without its first ``first`` rows.

        ``block_bytes`` limits a part; if each of ``n_threads`` reads one column at a time, ``most_rows`` does.
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
        self._reject_rows(first, problems)
        return (rows,)

    def _columns_of(self, batch: pa.RecordBatch, first: int) -> ColumnBatch:
        columns = (batch.column(name) for name in self._columns.features)
        return self._by_column(batch, ([column] for column in columns), first)

    def _by_column(self, batch: pa.RecordBatch, features: Iterable[Sequence[pa.Array[Any]]], first: int) -> ColumnBatch:
        """Return the valid rows of ``batch``, which begins at row ``first``; ``features`` has the chunks of each."""
        rows, problems = self._reader.narrow(batch)
        self._reject_rows(first, problems)
        return ColumnBatch(rows, self._reader.chunks(features, problems.keep))

    def _reject_rows(self, first: int, problems: Problems) -> None:
        for problem in problems.sorted():
            column = self._columns.column_of[problem.part]
            found = shorten(problem.found)
            error = MalformedRow(self.path, first + problem.row, column, found, problem.expected, problem.cure)
            self._quarantine.add(error, self._columns.parts.index(problem.part) + 1, "")


class ParsedNumbers(NamedTuple):
    """The features of some rows, read from text."""

    values: npt.NDArray[np.float32]
    """(n, n_features) NaN if missing; undefined for categories."""
    bad: Iterable[tuple[str, Mask]]
    """Names of features, and in which rows (n,) they are no numbers."""


class RecordReader:
    """Converts record batches to rows, given the roles of the columns.  Keeps no state between batches."""

    def __init__(self, columns: TableColumns, rules: GradeRules) -> None:
        self._columns = columns
        self._needed = ("qid", "doc_id") if columns.needs_doc_id else ("qid",)
        self._rules = rules

    def rows(self, batch: pa.RecordBatch, parsed: ParsedNumbers | None = None) -> tuple[RowBatch, Problems]:
        """Return the valid rows of ``batch``, and the problems of the others. ``parsed`` are its numeric features."""
        features = self._columns.features
        values = np.empty((len(batch), len(features)), dtype=np.float32) if parsed is None else parsed.values
        narrow, problems = self._parts(batch)
        numbers: list[tuple[int, pa.Array[Any]]] = []
        categories: dict[str, dict[str, float]] = {}
        for number, name in enumerate(features):
            if name in self._columns.categorical:
                values[:, number], categories[name] = category_numbers(batch.column(name))
            elif parsed is None:
                numbers.append((number, batch.column(name)))
        for name, bad in () if parsed is None else parsed.bad:
            problems.refuse(bad, name, f"a number in column {name!r}", self._columns.cure_of_cell(name))
        if parsed is None:
            with np.errstate(over="ignore"):
                # stored NaN have a single bit pattern; scores do not depend on it
                _fill(values, numbers, one_nan=self._columns.of_judgments)
        rows = self._kept(narrow, values, problems.keep)
        if len(rows) < len(batch):  # the names of the rows that are left
            for name, names in categories.items():
                used = set(rows.values[:, features.index(name)].tolist())
                categories[name] = {text: code for text, code in names.items() if code in used}
        return replace(rows, categories=categories) if categories else rows, problems

    def narrow(self, batch: pa.RecordBatch) -> tuple[RowBatch, Problems]:
        """Do as ``rows``, without features, which ``batch`` need not have."""
        parts, problems = self._parts(batch)
        return self._kept(parts, without_values(len(batch)), problems.keep), problems

    def chunks(self, features: Iterable[Sequence[pa.Array[Any]]], keep: Mask) -> Iterator[FeaturePart]:
        """Yield the values of ``features`` in the rows to ``keep`` (n,), in chunks."""
        every = bool(keep.all())
        for number, chunks in enumerate(features):
            categorical = self._columns.features[number] in self._columns.categorical
            at = done = 0
            for chunk in chunks:
                with np.errstate(over="ignore"):
                    numbers = category_numbers(chunk)[0] if categorical else as_floats(chunk)
                    values = np.ascontiguousarray(numbers, dtype=np.float32)
                if not every:
                    values = values[keep[at : at + len(chunk)]]
                at += len(chunk)
                values = values.view()
                values.flags.writeable = False  # like arrays of Arrow
                yield FeaturePart(number, done, values)
                done += len(values)

    def _parts(self, batch: pa.RecordBatch) -> tuple[dict[str, Any], Problems]:
        problems = Problems(len(batch))
        columns = {part: batch.column(name) for part, name in self._columns.column_of.items()}
        cure = self._columns.cure_of_grade
        parts = read_parts(
            columns, problems, needed=self._needed, rules=self._rules, cure_of_grade=cure, goals=self._columns.goals
        )
        return parts, problems

    def _kept(self, parts: Mapping[str, Any], values: npt.NDArray[np.float32], keep: Mask) -> RowBatch:
        """Return the rows to ``keep`` (n,); an empty document id becomes null."""
        doc_id = parts.get("doc_id")
        if doc_id is not None and (np.diff(parts_of(doc_id)[0]) == 0).any():
            doc_id = pc.if_else(pc.equal(doc_id, pa.scalar("")), pa.scalar(None, pa.string()), doc_id)
        extras = {part: OPTIONAL[part].stored(parts[part][keep]) for part in self._columns.extras}
        if TIME in parts:
            extras[TIME] = parts[TIME][keep]
        extras |= {name: parts[name][keep] for name in self._columns.goals}
        rows = RowBatch(parts["qid"], doc_id, parts.get("grade"), values, extras)
        if keep.all():
            return rows
        kept = as_array(np.flatnonzero(keep))
        return replace(
            rows,
            qid=rows.qid.take(kept),
            doc_id=None if doc_id is None else doc_id.take(kept),
            grade=None if rows.grade is None else rows.grade[keep],
            values=values[keep],
        )


def _fill(values: npt.NDArray[np.float32], columns: list[tuple[int, pa.Array[Any]]], *, one_nan: bool) -> None:
    """Copy ``columns``, with their numbers, into those of ``values``, with NaN for null.

    ``one_nan`` gives all NaN the same bit pattern.

    Columns without conversion are copied one strip of rows at a time, which stays in cache until it is complete.
    """
    ready: list[tuple[int, npt.NDArray[Any]]] = []
    for number, column in columns:
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


def problems_of_types(schema: pa.Schema, columns: TableColumns, *, path: Path) -> list[ColumnProblem]:
    """Return the columns of ``path`` whose type does not match their role or is not that of a feature."""
    parts = {name: part for part, name in columns.column_of.items()}
    problems = []
    for name in (*columns.column_of.values(), *columns.features):
        if schema.get_field_index(name) < 0:  # duplicate name, which is reported separately
            continue
        part, kind = parts.get(name, ""), schema.field(name).type
        encoded = columns.of_judgments and isinstance(kind, pa.DictionaryType)
        if part in IDS:
            fits, what = are_ids(kind), "strings or whole numbers"
        elif part == TIME:
            fits, what = is_timelike(kind), "timestamps, dates, ISO text or whole seconds since 1970"
        elif part in columns.graded:
            fits, what = are_numbers(kind) or are_ids(kind), "numbers or words"
        elif name in columns.categorical or encoded:
            fits, what = are_categories(kind), "categories: text or whole numbers"
        else:
            fits, what = are_numbers(kind), "numbers"
        if not fits:
            cure = f"it is read as a feature; {columns.cure_of(name, text=are_categories(kind))}" if not part else ""
            if cure and (kinds.is_date(kind) or kinds.is_timestamp(kind)):
                cure += f"; {cure_of_dates(path, name, of_judgments=columns.of_judgments)}"
            reason = f"column {name!r} must hold {what}, its type is {kind}"
            problems.append(ColumnProblem(name, reason, cure.rstrip("; "), columns.ignoring(name) if not part else ()))
    return problems


def check_text(path: Path, name: str, column: pa.Array[Any], first: int) -> None:
    """Check ``column``, whose first cell is in row ``first``.

    Raises
    ------
    MalformedRow
        Text in it is not UTF-8.
    DataRejected
        It is a dictionary, and a cell refers to none of its values.
    """
    if isinstance(column, pa.DictionaryArray):
        indices = column.indices.drop_null()
        if len(indices) and not 0 <= pc.min(indices).as_py() <= pc.max(indices).as_py() < len(column.dictionary):
            raise DataRejected(
                f"{path}: the data are damaged: a cell of column {name!r} is none of its {len(column.dictionary):,} "
                "values"
            )
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
