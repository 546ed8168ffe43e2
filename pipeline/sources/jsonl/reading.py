"""From lines of JSON to record batches: Arrow reads many lines at once, and where it refuses them, each half by itself.

What a line means does not depend on the lines around it.  Ids, grades and times may be text or numbers; of which kind they
are in a line is seen by Python's own reader, and lines after one with text are first tried as text, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.sources.batch import BATCH_BYTES
from rankmill.pipeline.sources.jsonl.keys import FEATURES, as_object
from rankmill.pipeline.sources.parts import IDS
from rankmill.pipeline.sources.times import TIME

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from rankmill.pipeline.sources.columns import TableColumns
    from rankmill.pipeline.sources.jsonl.keys import Form, Keys, Lines

_MOST_ROWS = 1 << 16


class Found(NamedTuple):
    """Rows of some lines, or one line that is bad."""

    batch: pa.RecordBatch | None
    """One column a part and a feature, by the names in the file."""
    lines: list[int]
    """Numbers of the lines, among those of the block: one a row, or that of the bad one."""
    reason: str = ""
    """What Arrow says of the bad one, if it refuses it."""


class LineReader:
    """Reads lines, by what the keys are for.  It keeps nothing from one block to the next."""

    def __init__(self, columns: TableColumns, keys: Keys) -> None:
        self._columns = columns
        self._keys = keys
        self._form: Form = keys.form if columns.features else "flat"  # judgments have none
        self._kinds = self._kinds_of(keys.first or {}, dict.fromkeys(columns.column_of, pa.string()))
        self._booleans: frozenset[str] = frozenset()
        self._booleans = self._booleans_of(keys.first or {})
        self._rows = max(1, min(_MOST_ROWS, BATCH_BYTES // (8 * max(1, len(columns.features)))))

    def read(self, lines: Lines) -> Iterator[Found]:
        """Yield the rows of ``lines`` and the bad ones, in their order."""
        first = 0
        for bad in [*np.flatnonzero(lines.wrong >= 0).tolist(), len(lines)]:
            for at in range(first, bad, self._rows):
                yield from self._read(lines, at, min(at + self._rows, bad))
            if bad < len(lines):
                yield Found(None, [bad])
            first = bad + 1

    def _read(self, lines: Lines, first: int, after: int) -> Iterator[Found]:
        object_ = as_object(lines.text(first)) or {}
        try:
            batch = self._parse(
                lines.data(first, after), self._kinds_of(object_, self._kinds), self._booleans_of(object_)
            )
            if len(batch) != after - first:
                raise pa.ArrowInvalid("a line is not one object")
        except pa.ArrowException as error:
            if after - first == 1:
                yield Found(None, [first], str(error).split("\n", 1)[0])
                return
            middle = (first + after) // 2
            yield from self._read(lines, first, middle)
            yield from self._read(lines, middle, after)
            return
        yield from self._flat(batch, first)

    def _kinds_of(self, found: Mapping[str, Any], others: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Return the type of each part in the object ``found``; that in ``others`` where it says nothing."""
        kinds: dict[str, pa.DataType] = {}
        for part, key in self._columns.column_of.items():
            value = found.get(key)
            if part not in {*IDS, "grade", TIME}:
                kinds[part] = pa.float64()
            elif isinstance(value, str):
                kinds[part] = pa.string()
            elif part == "grade" and isinstance(value, (int, float)):
                kinds[part] = pa.float64()
            elif isinstance(value, int):
                kinds[part] = pa.int64() if value < 2**63 else pa.uint64()
            else:
                kinds[part] = others[part]
        return kinds

    def _booleans_of(self, found: Mapping[str, Any]) -> frozenset[str]:
        """Return which features are booleans in the object ``found``; where it says nothing, those of the first object."""
        features = found if self._form == "flat" else found.get(FEATURES)
        if not isinstance(features, dict):
            return frozenset()
        unknown = self._booleans - {name for name, value in features.items() if value is not None}
        return unknown | {name for name, value in features.items() if isinstance(value, bool)}

    def _parse(self, data: bytes, kinds: Mapping[str, pa.DataType], booleans: Container[str]) -> pa.RecordBatch:
        numbers = [(name, pa.bool_() if name in booleans else pa.float64()) for name in self._columns.features]
        fields = [(key, kinds[part]) for part, key in self._columns.column_of.items()]
        if self._form == "flat":
            fields += numbers
        else:
            fields.append((FEATURES, pa.struct(numbers) if self._form == "object" else pa.list_(pa.float64())))
        table = arrow_json.read_json(
            cast("Any", pa.BufferReader(data)),
            arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            arrow_json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
        )
        return table.combine_chunks().to_batches()[0]

    def _flat(self, batch: pa.RecordBatch, first: int) -> Iterator[Found]:
        """Yield the rows with their features in columns of their own, and those whose features are not there."""
        if self._form == "flat":
            yield Found(batch, list(range(first, first + len(batch))))
            return
        nested = batch.column(FEATURES)
        good = nested.is_valid().to_numpy(zero_copy_only=False)
        if self._form == "array":
            good &= pc.list_value_length(nested).fill_null(-1).to_numpy() == len(self._keys.features)
        start = 0
        for bad in [*np.flatnonzero(~good).tolist(), len(batch)]:
            if bad > start:
                yield Found(self._unnested(batch.slice(start, bad - start)), list(range(first + start, first + bad)))
            if bad < len(batch):
                yield Found(None, [first + bad])
            start = bad + 1

    def _unnested(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        nested: Any = batch.column(FEATURES)
        if self._form == "object":
            features = nested.flatten()
        else:
            numbers = nested.flatten().to_numpy(zero_copy_only=False).reshape(len(batch), -1)
            places = [self._keys.features.index(name) for name in self._columns.features]
            features = [as_array(column) for column in np.ascontiguousarray(numbers.T[places])]
        parts = [(key, batch.column(key)) for key in self._columns.column_of.values()]
        return pa.RecordBatch.from_arrays(
            [*(column for _, column in parts), *features], [*(key for key, _ in parts), *self._columns.features]
        )
