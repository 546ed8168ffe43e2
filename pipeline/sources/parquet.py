"""Parquet files: columns ``qid``, ``grade``, perhaps ``doc_id`` and optional ones, and numbers, each of them a feature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from pipeline.arrow import as_array, open_parquet, parts_of
from pipeline.errors import DataRejected, MalformedRow
from pipeline.sources.batch import (
    DEFAULT_BLOCK_BYTES,
    Quarantine,
    ReadOptions,
    RowBatch,
    shorten,
)
from pipeline.sources.columns import TableColumns, table_columns
from pipeline.sources.optional import OPTIONAL
from pipeline.sources.parts import PARTS
from pipeline.sources.times import NO_TIME, TIME, TIME_RULE, is_timelike, times_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROWS = (256, 65536)  # least and most rows of a batch


class ParquetSource:
    """One Parquet file."""

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine | None = None) -> None:
        self.path = path
        self.position = 0
        self._quarantine = Quarantine() if quarantine is None else quarantine
        schema = schema_of_file(path)
        self._columns = table_columns(path, schema.names, options)
        self.table: TableColumns | None = self._columns
        self._features = self._columns.features
        self.columns: tuple[str, ...] | None = self._features
        self.fields = self._columns.fields
        self._rules = options.grade_rules
        for part, name in self._columns.column_of.items():
            self._check_type(part, name, schema.field(name).type)
        for name in self._features:
            self._check_type("", name, schema.field(name).type)

    def names(self, width: int) -> tuple[str, ...]:
        """Return the names of the features."""
        if width != len(self._features):
            raise ValueError(f"{len(self._features)} features, not {width}")
        return self._features

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        least, most = _ROWS
        size = min(max(block_bytes // (4 * len(self._features)), least), most)
        first = 1
        bytes_of_file = self.path.stat().st_size
        with open_parquet(self.path) as file:
            for batch in read_batches(file, self.path, size, self._columns.read):
                yield self._rows(batch, first)
                first += len(batch)
                self.position = bytes_of_file * (first - 1) // file.metadata.num_rows
        self.position = bytes_of_file

    def _check_type(self, part: str, name: str, kind: pa.DataType) -> None:
        """Raise DataRejected if a column of type ``kind`` cannot play ``part`` (none: be a feature)."""
        if part in {"qid", "doc_id"}:
            fits, what = are_ids(kind), "strings or whole numbers"
        elif part == TIME:
            fits, what = is_timelike(kind), "timestamps, dates, ISO text or whole seconds since 1970"
        elif part == "grade":
            fits, what = (are_numbers(kind) and not kinds.is_boolean(kind)) or are_ids(kind), "numbers or words"
        else:
            fits, what = are_numbers(kind), "numbers"
        if not fits:
            feature = f"; it is taken for a feature: {self._columns.cure_of(name)}" if not part else ""
            raise DataRejected(
                f"{self.path}: column {name!r} must hold {what}, its type is {kind}{feature.rstrip(': ')}"
            )

    def _rows(self, batch: pa.RecordBatch, first: int) -> RowBatch:
        values = np.empty((len(batch), len(self._features)), dtype=np.float32)
        with np.errstate(over="ignore"):
            for number, name in enumerate(self._features):
                values[:, number] = as_floats(batch.column(name))
        values[np.isnan(values)] = np.nan  # one bit pattern for all of them
        column_of = self._columns.column_of
        qid = as_strings(batch.column(column_of["qid"]))
        doc_id = as_strings(batch.column(column_of["doc_id"])) if "doc_id" in column_of else None
        keep = self._check_qid(qid, first)
        grade = self._grades(batch.column(column_of["grade"]), keep, first) if "grade" in column_of else None
        extras = {part: self._extra(part, batch.column(column_of[part]), keep, first) for part in self._columns.extras}
        when = self._when(batch.column(column_of[TIME]), keep, first) if TIME in column_of else None
        stored = {part: OPTIONAL[part].stored(column[keep]) for part, column in extras.items()}
        stored |= {} if when is None else {TIME: when[keep]}
        if not keep.all():
            kept = as_array(np.flatnonzero(keep))
            qid, doc_id = qid.take(kept), None if doc_id is None else doc_id.take(kept)
            grade, values = None if grade is None else grade[keep], values[keep]
        if doc_id is not None:
            doc_id = pc.if_else(pc.equal(doc_id, pa.scalar("")), pa.scalar(None, pa.string()), doc_id)
        return RowBatch(
            qid=cast("pa.StringArray", qid),
            doc_id=cast("pa.StringArray", doc_id),
            grade=grade,
            values=values,
            extras=stored,
        )

    def _check_qid(self, qid: pa.Array[Any], first: int) -> npt.NDArray[np.bool_]:
        offsets, _ = parts_of(qid)
        keep: npt.NDArray[np.bool_] = qid.is_valid().to_numpy(zero_copy_only=False) & (np.diff(offsets) > 0)
        for row in np.flatnonzero(~keep).tolist():
            self._reject(first + row, "qid", "nothing", "an id of the query")
        return keep

    def _grades(self, column: pa.Array[Any], keep: npt.NDArray[np.bool_], first: int) -> npt.NDArray[np.int32]:
        """Return the grades (n,) int32; clears ``keep`` for bad ones."""
        cells: list[Any] | npt.NDArray[np.float64]
        if are_numbers(column.type):
            cells = as_floats(column).astype(np.float64)
            grades, bad = self._rules.settle_numbers(cells)
        else:
            words = as_strings(column)
            grades, bad = self._rules.read_words(words)
            cells = words.to_pylist() if bad.any() else []
        for row in np.flatnonzero(bad & keep).tolist():
            cell = cells[row]
            nothing = cell is None or cell == "" or cell != cell  # noqa: PLR0124  NaN
            found = "nothing" if nothing else repr(cell) if isinstance(cell, str) else _shown(cell)
            expected, cure = self._rules.expected(cell)
            self._reject(first + row, "grade", found, expected, cure if self._columns.of_judgments else "")
        keep &= ~bad
        return grades

    def _extra(
        self, part: str, column: pa.Array[Any], keep: npt.NDArray[np.bool_], first: int
    ) -> npt.NDArray[np.float64]:
        """Return an optional column (n,) as read; clears ``keep`` for bad cells."""
        numbers = as_floats(column).astype(np.float64)
        fine = OPTIONAL[part].fits(numbers)
        for row in np.flatnonzero(~fine & keep).tolist():
            empty = bool(np.isnan(numbers[row]))
            found, cure = ("nothing", OPTIONAL[part].if_empty) if empty else (f"{numbers[row]:g}", "")
            self._reject(first + row, part, found, OPTIONAL[part].expected, cure)
        keep &= fine
        return numbers

    def _when(self, column: pa.Array[Any], keep: npt.NDArray[np.bool_], first: int) -> npt.NDArray[np.int64]:
        """Return the times (n,); clears ``keep`` for cells without one."""
        when, good = times_of(column)
        for row in np.flatnonzero(~good & keep).tolist():
            cell = column[row].as_py()
            found, cure = ("nothing", NO_TIME) if cell is None else (str(cell), "")
            self._reject(first + row, TIME, found, TIME_RULE, cure)
        keep &= good
        return when

    def _reject(self, row: int, part: str, found: str, expected: str, cure: str = "") -> None:
        error = MalformedRow(self.path, row, self._columns.column_of[part], shorten(found), expected, cure)
        self._quarantine.add(error, [*PARTS, TIME].index(part) + 1, "")


def schema_of_file(path: Path) -> pa.Schema:
    """Return the schema of the Parquet file ``path``; DataRejected if it is none."""
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise DataRejected(f"{path}: not a Parquet file, or one that is cut off: {_first_line(error)}") from None


def read_batches(
    file: pq.ParquetFile, path: Path, rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield ``columns`` of the Parquet file ``path``, open as ``file``, at most ``rows`` at a time.

    Raises
    ------
    DataRejected
        The data are damaged, or text in them is not UTF-8: Parquet does not see to that.
    """
    batches = file.iter_batches(batch_size=rows, columns=None if columns is None else list(columns))
    first = 1
    while True:
        try:
            batch = next(batches, None)
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise DataRejected(f"{path}: the Parquet data are damaged: {_first_line(error)}") from None
        if batch is None:
            return
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _check_text(path, name, column, first)
        first += len(batch)
        yield batch


def _check_text(path: Path, name: str, column: pa.Array[Any], first: int) -> None:
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


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].rstrip(" .")


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
