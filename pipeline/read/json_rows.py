"""Read the values of JSON lines, given the roles of the keys.

Arrow reads usual lines; Python's json reads the others one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as arrow_json
import pyarrow.types as kinds

from rankmill.pipeline.read.batch import BATCH_BYTES
from rankmill.pipeline.read.column_roles import IDS, KEPT, TRUTHS
from rankmill.pipeline.read.explain_json import EXACT, LineExplanation, Values, explain, read_line
from rankmill.pipeline.read.json_keys import FEATURES, as_object
from rankmill.pipeline.read.times import TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rankmill.pipeline.read.columns import TableColumns
    from rankmill.pipeline.read.json_keys import Keys, Lines

_MOST_ROWS = 1 << 16
_FEW = 256  # lines that are read one by one if one of them is unusual
_SAMPLED = 16  # lines that show the types of a batch
_TYPES: dict[type, pa.DataType] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


class Found(NamedTuple):
    """The rows of some lines."""

    batch: pa.RecordBatch
    """The columns with a role and the features, by their keys; null if missing."""
    lines: npt.NDArray[np.int64]
    """(n,) which of the lines of the block are these rows."""
    malformed: Mapping[int, LineExplanation]
    """Other lines that were looked at, and are no rows."""


class LineReader:
    """Parses lines, given the roles of the keys.  Keeps no state between blocks.

    Arrow reads a batch of lines if all are objects with values of one type a key.  A batch that it refuses is halved
    until few lines are left, which Python's json reads.  So a line means the same beside any others.
    """

    def __init__(self, columns: TableColumns, keys: Keys) -> None:
        self._columns = columns
        self._keys = keys if columns.features else replace(keys, form="flat")  # judgments have no features
        self._roles = {key: part for part, key in columns.column_of.items()}
        self._names = [*self._roles, *columns.features]
        self._rows = max(1, min(_MOST_ROWS, BATCH_BYTES // (8 * max(1, len(columns.features)))))

    def read(self, lines: Lines) -> Iterator[Found]:
        """Yield the rows among ``lines``, in order, some at a time."""
        for first in range(0, len(lines), self._rows):
            yield from self._read(lines, first, min(first + self._rows, len(lines)))

    def _read(self, lines: Lines, first: int, last: int) -> Iterator[Found]:
        """Yield the rows of lines ``first`` to ``last`` - 1."""
        batch = self._by_arrow(lines, first, last)
        if batch is not None:
            yield Found(batch, np.arange(first, last), {})
        elif last - first <= _FEW:
            yield self._line_by_line(lines, first, last)
        else:
            middle = (first + last) // 2
            yield from self._read(lines, first, middle)
            yield from self._read(lines, middle, last)

    def _by_arrow(self, lines: Lines, first: int, last: int) -> pa.RecordBatch | None:
        """Return the rows of lines ``first`` to ``last`` - 1.

        None if Arrow cannot read one, or would read it differently from Python.
        """
        data, start, stop = lines.block.data, int(lines.start[first]), int(lines.stop[last - 1])
        if lines.wrong[first:last].any() or data.find(b"Inf", start, stop) >= 0:  # Arrow takes Inf for Infinity
            return None
        try:
            table = arrow_json.read_json(
                cast("Any", pa.BufferReader(pa.py_buffer(data)[start:stop])),
                arrow_json.ReadOptions(use_threads=False, block_size=stop - start + 1),
                arrow_json.ParseOptions(
                    explicit_schema=self._schema(lines, first, last), unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid:
            return None
        if len(table) != last - first:  # several objects on a line
            return None
        (stored,) = table.combine_chunks().to_batches()
        found: dict[str, Any] = dict(zip(stored.schema.names, stored.columns, strict=True))
        if self._keys.form != "flat":
            nested: Any = found.pop(FEATURES)
            if nested.null_count:
                return None
            if self._keys.form == "object":
                found |= zip(nested.type.names, nested.flatten(), strict=True)
            elif (nested.value_lengths().to_numpy() == len(self._keys.features)).all():
                numbers = nested.flatten().to_numpy(zero_copy_only=False).reshape(len(nested), -1).T
                every = (pa.array(np.ascontiguousarray(column), from_pandas=True) for column in numbers)
                found |= zip(self._keys.features, every, strict=True)
            else:
                return None
        columns = [column for key in self._names if (column := self._column(key, found[key])) is not None]
        return pa.RecordBatch.from_arrays(columns, self._names) if len(columns) == len(self._names) else None

    def _schema(self, lines: Lines, first: int, last: int) -> pa.Schema:
        """Return the types in which Arrow reads the values, as the first lines show them."""
        sample = [as_object(lines.text(k)) or {} for k in range(first, min(first + _SAMPLED, last))]
        nested = [each.get(FEATURES) for each in sample]
        form = self._keys.form
        top = [*self._roles, *(self._columns.features if form == "flat" else ())]
        fields = [pa.field(key, self._type(key, sample)) for key in top]
        if form == "object":
            inner = [pa.field(key, self._type(key, nested)) for key in self._columns.features]
            fields.append(pa.field(FEATURES, pa.struct(inner)))
        elif form == "array":
            fields.append(pa.field(FEATURES, pa.list_(pa.float64())))
        return pa.schema(fields)

    def _type(self, key: str, objects: list[Any]) -> pa.DataType:
        values = (each.get(key) for each in objects if isinstance(each, dict))
        kind = _TYPES.get(type(next((value for value in values if value is not None), None)))
        part = self._roles.get(key, "")
        if _is_exact(part):
            return pa.string() if kind is None or kinds.is_boolean(kind) else kind
        if part.startswith(KEPT) or key in self._columns.categorical:
            return kind or pa.string()
        if part in self._columns.graded:
            return pa.float64() if kind is None or kinds.is_integer(kind) else kind
        return pa.bool_() if kind == pa.bool_() and (not part or part in TRUTHS) else pa.float64()

    def _column(self, key: str, column: pa.Array[Any]) -> pa.Array[Any] | None:
        """Return the ``column`` of a key as the rows have it; None if Python has to read it."""
        part, kind = self._roles.get(key, ""), column.type
        if part in self._columns.graded:
            return column.cast(pa.string()) if kinds.is_boolean(kind) else column
        if not self._has_texts(key):
            return column
        if not kinds.is_floating(kind):
            return (column.cast(pa.int8()) if kinds.is_boolean(kind) else column).cast(pa.string())
        numbers = column.drop_null().to_numpy()
        fits = np.abs(numbers) < EXACT
        if _is_exact(part):
            fits &= numbers == np.floor(numbers)
        if not fits.all():
            return None
        return pa.array([None if x is None else _as_text(x) for x in column.to_pylist()], pa.string())

    def _has_texts(self, key: str) -> bool:
        """Whether the values of ``key`` are read as text, exactly."""
        part = self._roles.get(key, "")
        return _is_exact(part) or part.startswith(KEPT) or key in self._columns.categorical

    def _line_by_line(self, lines: Lines, first: int, last: int) -> Found:
        """Return the rows of lines ``first`` to ``last`` - 1, whatever their form."""
        rows: dict[int, Values] = {}
        malformed: dict[int, LineExplanation] = {}
        for k in range(first, last):
            read = explain if lines.wrong[k] else read_line
            line = read(lines.text(k), self._columns, self._keys)
            if isinstance(line, Values):
                rows[k] = line
            else:
                malformed[k] = line
        columns = [self._values(key, list(rows.values())) for key in self._names]
        batch = pa.RecordBatch.from_arrays(columns, self._names)
        return Found(batch, np.array(list(rows), dtype=np.int64), malformed)

    def _values(self, key: str, rows: list[Values]) -> pa.Array[Any]:
        values = [(row.top if key in self._roles else row.features).get(key) for row in rows]
        graded = self._roles.get(key, "") in self._columns.graded
        if graded and any(isinstance(value, (str, bool)) for value in values):
            values = [str(value).lower() if isinstance(value, bool) else value for value in values]
        elif not self._has_texts(key):
            return pa.array([None if value is None else _as_float(value) for value in values], pa.float64())
        return pa.array([None if value is None else _as_text(value) for value in values], pa.string())


def _is_exact(part: str) -> bool:
    """Whether a number with this role must be whole: ids and times."""
    return part in IDS or part == TIME


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return float("inf") if value > 0 else float("-inf")


def _as_text(value: str | float) -> str:
    """Return an id, a time, a grade or a category as text."""
    if isinstance(value, bool):
        return str(int(value))  # as in other formats
    if isinstance(value, float):
        return f"{value + 0.0:.0f}" if value.is_integer() else str(value)
    return str(value)
