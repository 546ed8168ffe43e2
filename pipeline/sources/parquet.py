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
from pipeline.sources.grades import UNKNOWN_GRADE
from pipeline.sources.optional import OPTIONAL
from pipeline.sources.tables import GRADE_RULE, ID_COLUMNS, feature_columns, given_fields
from pipeline.sources.times import NO_TIME, TIME, TIME_RULE, is_timelike, times_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROWS = (256, 65536)  # least and most rows of a batch


class ParquetSource:
    """One Parquet file."""

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine | None = None) -> None:
        self.path = path
        self.position = 0
        self._options = options
        self._quarantine = Quarantine() if quarantine is None else quarantine
        schema = schema_of_file(path)
        self.columns: tuple[str, ...] | None = feature_columns(path, schema.names, options)
        self._features = self.columns
        self._has_doc_id = "doc_id" in schema.names
        self.fields = given_fields(schema.names, options)
        self._has_grade = "grade" in self.fields
        self._extras = tuple(name for name in self.fields if name in OPTIONAL)
        self._time = options.time_column if TIME in self.fields else None
        read = {*self._features, "qid", "doc_id", "grade", *self._extras, self._time}
        for name in schema.names:
            if name in read:
                self._check_type(name, schema.field(name).type)

    def names(self, width: int) -> tuple[str, ...]:
        """Return the names of the features."""
        if width != len(self._features):
            raise ValueError(f"{len(self._features)} features, not {width}")
        return self._features

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        least, most = _ROWS
        size = min(max(block_bytes // (4 * len(self._features)), least), most)
        wanted = [*self._features, "qid", *(["doc_id"] * self._has_doc_id), *(["grade"] * self._has_grade)]
        wanted += [*self._extras, *([] if self._time is None else [self._time])]
        first = 1
        bytes_of_file = self.path.stat().st_size
        with open_parquet(self.path) as file:
            for batch in file.iter_batches(batch_size=size, columns=wanted):
                yield self._rows(batch, first)
                first += len(batch)
                self.position = bytes_of_file * (first - 1) // file.metadata.num_rows
        self.position = bytes_of_file

    def _check_type(self, name: str, kind: pa.DataType) -> None:
        if name in {"qid", "doc_id"}:
            fits, what = are_ids(kind), "strings or whole numbers"
        elif name == self._time:
            fits, what = is_timelike(kind), "timestamps, dates, ISO text or whole seconds since 1970"
        elif name == "grade":
            fits, what = kinds.is_integer(kind) or kinds.is_floating(kind), "numbers"
        else:
            fits, what = are_numbers(kind), "numbers"
        if not fits:
            named = {*ID_COLUMNS, *OPTIONAL, self._time}
            cure = (
                ""
                if name in named
                else f"; it is taken for a feature, as all columns but {', '.join([*ID_COLUMNS, *OPTIONAL])}"
            )
            raise DataRejected(f"{self.path}: column {name!r} must hold {what}, its type is {kind}{cure}")

    def _rows(self, batch: pa.RecordBatch, first: int) -> RowBatch:
        values = np.empty((len(batch), len(self._features)), dtype=np.float32)
        with np.errstate(over="ignore"):
            for number, name in enumerate(self._features):
                values[:, number] = as_floats(batch.column(name))
        values[np.isnan(values)] = np.nan  # one bit pattern for all of them
        qid = as_strings(batch.column("qid"))
        doc_id = as_strings(batch.column("doc_id")) if self._has_doc_id else None
        keep = self._check_qid(qid, first)
        grade = self._grades(batch.column("grade"), keep, first) if self._has_grade else None
        extras = {name: self._extra(name, batch.column(name), keep, first) for name in self._extras}
        when = None if self._time is None else self._when(batch.column(self._time), keep, first)
        stored = {name: OPTIONAL[name].stored(column[keep]) for name, column in extras.items()}
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
        """Return the grades (n,) int32, :data:`UNKNOWN_GRADE` where there is none; clears ``keep`` for bad ones."""
        numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        known = ~np.isnan(numbers)
        highest = self._options.highest_grade
        with np.errstate(invalid="ignore"):
            fine = known & (numbers >= 0) & (numbers <= highest) & (numbers == np.floor(numbers))
        fine |= ~known & (not self._options.grade_required)
        for row in np.flatnonzero(~fine & keep).tolist():
            whole = numbers[row] > highest and np.isfinite(numbers[row])
            expected = f"a grade up to {highest}" if whole else GRADE_RULE
            self._reject(first + row, "grade", f"{numbers[row]:g}" if known[row] else "nothing", expected)
        keep &= fine
        return np.where(known & fine, numbers, UNKNOWN_GRADE).astype(np.int32)

    def _extra(
        self, name: str, column: pa.Array[Any], keep: npt.NDArray[np.bool_], first: int
    ) -> npt.NDArray[np.float64]:
        """Return an optional column (n,) as read; clears ``keep`` for bad cells."""
        numbers = as_floats(column).astype(np.float64)
        fine = OPTIONAL[name].fits(numbers)
        for row in np.flatnonzero(~fine & keep).tolist():
            empty = bool(np.isnan(numbers[row]))
            found, cure = ("nothing", OPTIONAL[name].if_empty) if empty else (f"{numbers[row]:g}", "")
            self._reject(first + row, name, found, OPTIONAL[name].expected, cure)
        keep &= fine
        return numbers

    def _when(self, column: pa.Array[Any], keep: npt.NDArray[np.bool_], first: int) -> npt.NDArray[np.int64]:
        """Return the times (n,); clears ``keep`` for cells without one."""
        when, good = times_of(column)
        for row in np.flatnonzero(~good & keep).tolist():
            cell = column[row].as_py()
            found, cure = ("nothing", NO_TIME) if cell is None else (str(cell), "")
            self._reject(first + row, cast("str", self._time), found, TIME_RULE, cure)
        keep &= good
        return when

    def _reject(self, row: int, column: str, found: str, expected: str, cure: str = "") -> None:
        error = MalformedRow(self.path, row, column, shorten(found), expected, cure)
        self._quarantine.add(error, [*ID_COLUMNS, *OPTIONAL, self._time].index(column) + 1, "")


def schema_of_file(path: Path) -> pa.Schema:
    """Return the schema of the Parquet file ``path``; DataRejected if it is none."""
    try:
        return pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise DataRejected(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None


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
