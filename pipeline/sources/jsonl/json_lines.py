"""JSON lines: each line is an object and one row, with the same keys as columns of tables.

Features are next to the ids, or at the key ``features``: in an object, or in an array whose numbers are called ``f1``, ``f2``, ..
If there is such a key, keys without a role are ignored.  A missing key or ``null`` is a missing value.  So the features of a file
are all keys of any of its objects, sorted by name; several files have the features of all of them.

Arrow reads many lines at once; if it fails, each half is tried separately, so that a line does not depend on the lines around
it.  Ids, grades and times may be text or numbers; Python's json finds the type in a line, and the following lines are first tried
with the same types.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from rankmill.foundation.errors import ColumnProblem, DataRejected, MalformedLine
from rankmill.foundation.options import respelled
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, ReadOptions
from rankmill.pipeline.sources.batch import BATCH_BYTES, Quarantine, ReadTask, RowBatch, shorten
from rankmill.pipeline.sources.blocks import read_blocks, unchecked_blocks
from rankmill.pipeline.sources.column_roles import IDS, PARTS, RESERVED, TRUTHS
from rankmill.pipeline.sources.columnar import ColumnsOf, TableSource
from rankmill.pipeline.sources.columns import TableColumns, of_candidates, table_columns
from rankmill.pipeline.sources.grades import GradeRules
from rankmill.pipeline.sources.jsonl.explain_line import explain, place_of, shown
from rankmill.pipeline.sources.jsonl.json_keys import FEATURES, Keys, as_object, lines_of, naturally_sorted, read_keys
from rankmill.pipeline.sources.table_rows import TableRows
from rankmill.pipeline.sources.times import TIME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from rankmill.pipeline.sources.blocks import Block
    from rankmill.pipeline.sources.jsonl.json_keys import Form, Keys, Lines
    from rankmill.pipeline.sources.table_rows import Problems


class JsonSource(TableSource):
    """A file of JSON lines, plain or compressed; opening it reads its keys."""

    def __init__(
        self,
        path: Path,
        options: ReadOptions,
        quarantine: Quarantine | None = None,
        columns_of: ColumnsOf | None = None,
    ) -> None:
        super().__init__(path, quarantine)
        self._options = options
        self._keys = read_keys(path)
        if not self._keys.top:
            raise self._no_object()
        if columns_of is None:
            self._use(_columns(path, self._keys, options))
        else:
            self._use(columns_of(path, self._keys.top, options, partial(_problems_of_values, self._keys)))

    def add_features(self, names: Iterable[str]) -> None:
        """Add the features ``names``, which other files have; not for arrays."""
        if self._keys.form != "array":
            self._use(_columns(self.path, self._keys, self._options, frozenset(names)))

    def share_categories(self, names: Collection[str]) -> None:
        """Read the features ``names``, which are categories in other files, as categories here, too."""
        super().share_categories(names)
        self._lines = LineReader(self._columns, self._keys)

    def tasks(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[ReadTask]:
        """Yield a task for each block of the file."""
        for block in unchecked_blocks(self.path, block_bytes):
            yield ReadTask(partial(self._rows, block), block.position)

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        for task in self.tasks(block_bytes):
            yield from task.rows()
            self.position = task.position

    def table_rows(self, block_bytes: int = DEFAULT_BLOCK_BYTES, *, again: bool = False) -> Iterator[TableRows]:
        """Yield the columns with a role, in the order of the file; ``place`` is the line number."""
        for block in read_blocks(self.path, block_bytes):
            lines = lines_of(block)
            for batch, numbers in self._read(lines, again=again):
                place = block.first_line + lines.number[numbers]
                yield self._table_rows(batch, place, partial(self._put_aside, lines, numbers))
            self.position = block.position

    def _use(self, columns: TableColumns) -> None:
        self._settle(columns, GradeRules.of(self._options))
        self._lines = LineReader(columns, self._keys)

    def _rows(self, block: Block) -> Iterator[RowBatch]:
        block.check()
        lines = lines_of(block)
        for batch, numbers in self._read(lines):
            rows, problems = self._reader.rows(batch)
            self._put_aside(lines, numbers, problems)
            yield rows

    def _read(self, lines: Lines, *, again: bool = False) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
        """Yield rows and their line numbers among ``lines``; unreadable ones are quarantined unless ``again``."""
        for found in self._lines.read(lines):
            if found.batch is not None:
                yield found.batch, found.lines
            elif not again:
                self._refuse(lines, found)

    def _refuse(self, lines: Lines, found: Found) -> None:
        (k,) = found.lines
        why = explain(lines.text(k), self._columns, self._keys, found.reason)
        self._add(lines, k, why.column, why.found, why.expected, why.cure)

    def _put_aside(self, lines: Lines, numbers: Sequence[int], problems: Problems) -> None:
        for row, part, what, expected, cure in problems.sorted():
            k = numbers[row]
            column = place_of(lines.text(k), self._columns.column_of[part])
            self._add(lines, k, column, "" if what == "nothing" else what.strip("'"), expected, cure)

    def _add(self, lines: Lines, k: int, column: int, found: str, expected: str, cure: str) -> None:
        self._quarantine.add(self._error(lines, k, column, found, expected, cure), column, lines.text(k))

    def _error(self, lines: Lines, k: int, column: int, found: str, expected: str, cure: str = "") -> MalformedLine:
        number = lines.block.first_line + int(lines.number[k])
        return MalformedLine(self.path, number, column, shorten(found), expected, cure)

    def _no_object(self) -> DataRejected:
        """Return the error for a file in which no line is an object."""
        nothing = TableColumns({}, ())
        for block in read_blocks(self.path, DEFAULT_BLOCK_BYTES):
            lines = lines_of(block)
            if len(lines) and as_object(lines.text(0)) is not None:
                return DataRejected(f"{self.path}: no object has a key; a row needs qid, grade and features")
            if len(lines):
                why = explain(lines.text(0), nothing, self._keys, "")
                return self._error(lines, 0, why.column, why.found, why.expected, why.cure)
        return DataRejected(f"{self.path}: contains no rows")


def _columns(path: Path, keys: Keys, options: ReadOptions, others: frozenset[str] = frozenset()) -> TableColumns:
    """Assign roles to the keys; ``others`` are known to be features."""
    if options.grade_required:  # for candidates, the model knows the features
        options = replace(options, known_features=options.known_features | others)
    look = partial(_problems_of_values, keys)
    if keys.form == "flat":
        return table_columns(path, naturally_sorted({*keys.top, *others}), options, look)
    nested = {*keys.features, *others}
    taken = [name for name in keys.features if name in PARTS or name in RESERVED]
    if taken:
        raise DataRejected(f"{path}: {taken[0]!r} in {FEATURES!r} is a reserved name; rename the feature")
    for name in options.goals:
        if name in keys.features and name not in keys.top:
            raise DataRejected(f"{path}: the goal {name!r} is in {FEATURES!r}; write it beside qid and grade")
    beside = [name for name in keys.top if name not in {*nested, *RESERVED, FEATURES}]
    certain = replace(options, known_features=options.known_features | nested)
    columns = table_columns(path, [*beside, *naturally_sorted(nested)], certain, look)
    features = tuple(name for name in columns.features if name in nested)
    if not options.grade_required:
        features = of_candidates(features, options.known_features)
    if not features and not options.judgments_alone:
        raise DataRejected(f"{path}: {FEATURES!r} is empty")
    return replace(columns, features=features)


def _problems_of_values(keys: Keys, columns: TableColumns) -> list[ColumnProblem]:
    """Return the features that are not numbers in the first object; reading the rows reports them too."""
    first = keys.first or {}
    values = first if keys.form == "flat" else first.get(FEATURES)
    if not isinstance(values, dict):
        return []
    problems = []
    for name in columns.features:
        value = None if name in columns.categorical else values.get(name)
        if value is not None and not isinstance(value, (int, float)):
            reason = f"key {name!r} must hold numbers, found {shown(value)} in the first object"
            cure = respelled(columns.cure_of(name, text=isinstance(value, str)))
            problems.append(ColumnProblem(name, reason, cure, columns.ignoring(name), in_rows=True))
    return problems


_MOST_ROWS = 1 << 16


class Found(NamedTuple):
    """The rows of some lines, or one malformed line."""

    batch: pa.RecordBatch | None
    """A column for each role and feature, by the name in the file."""
    lines: list[int]
    """Line numbers within the block: one per row, or that of the malformed line."""
    reason: str = ""
    """Arrow's message about a malformed line."""


class LineReader:
    """Parses lines, given the roles of the keys.  Keeps no state between blocks."""

    def __init__(self, columns: TableColumns, keys: Keys) -> None:
        self._columns = columns
        self._keys = keys
        self._form: Form = keys.form if columns.features else "flat"  # judgments have no features
        self._kinds = self._kinds_of(keys.first or {}, dict.fromkeys(columns.column_of, pa.string()))
        self._types: Mapping[str, pa.DataType] = dict.fromkeys(columns.categorical, pa.string())
        self._types = self._types_of(keys.first or {})
        self._rows = max(1, min(_MOST_ROWS, BATCH_BYTES // (8 * max(1, len(columns.features)))))

    def read(self, lines: Lines) -> Iterator[Found]:
        """Yield the rows and malformed lines among ``lines``, in order."""
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
            batch = self._parse(lines.data(first, after), self._kinds_of(object_, self._kinds), self._types_of(object_))
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
        """Return the type of each role in the object ``found``; that in ``others`` if it has no value."""
        kinds: dict[str, pa.DataType] = {}
        for part, key in self._columns.column_of.items():
            value = found.get(key)
            if part not in {*IDS, *self._columns.graded, TIME}:
                truth = isinstance(value, bool) and part in TRUTHS
                kinds[part] = pa.bool_() if truth else pa.float64()
            elif isinstance(value, str):
                kinds[part] = pa.string()
            elif part in self._columns.graded and isinstance(value, (int, float)):
                kinds[part] = pa.float64()
            elif isinstance(value, int):
                kinds[part] = _of_whole(value)
            else:
                kinds[part] = others[part]
        return kinds

    def _types_of(self, found: Mapping[str, Any]) -> Mapping[str, pa.DataType]:
        """Return the types of booleans and categories in the object ``found`` or, if it has no value, in the first object.

        All other features are numbers.
        """
        features = found if self._form == "flat" else found.get(FEATURES)
        if not isinstance(features, dict):
            return self._types
        types = {name: kind for name, kind in self._types.items() if features.get(name) is None}
        for name, value in features.items():
            if isinstance(value, bool):
                types[name] = pa.bool_()
            elif name in self._columns.categorical and isinstance(value, str):
                types[name] = pa.string()
            elif name in self._columns.categorical and isinstance(value, int):
                types[name] = _of_whole(value)
        return types

    def _parse(self, data: bytes, kinds: Mapping[str, pa.DataType], types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
        numbers = [(name, types.get(name, pa.float64())) for name in self._columns.features]
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
        """Yield the rows with one column per feature, and the rows without features."""
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


def _of_whole(value: int) -> pa.DataType:
    """Return the type of columns with whole numbers like ``value``."""
    return pa.int64() if value < 2**63 else pa.uint64()
