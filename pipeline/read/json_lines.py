"""JSON lines: each line is an object and one row, with the same keys as columns of tables.

Features are next to the ids, or at the key ``features``: in an object, or in an array whose numbers are called ``f1``,
``f2``, .. If there is such a key, keys without a role are ignored.  A missing key or ``null`` is a missing value.  So
the features of a file are all keys of any of its objects, sorted by name; several files have the features of all of
them.

A line does not depend on the lines around it.  Ids, grades and times may be text or numbers.  Usual lines are read by
Arrow, all others by Python's json.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rankmill.foundation.errors import ColumnProblem, DataRejected, MalformedLine
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, ReadOptions
from rankmill.pipeline.read.batch import Quarantine, ReadTask, RowBatch, TableRows, shorten
from rankmill.pipeline.read.blocks import read_blocks, unchecked_blocks
from rankmill.pipeline.read.column_roles import PARTS, RESERVED
from rankmill.pipeline.read.columnar import ColumnsOf, TableSource
from rankmill.pipeline.read.columns import TableColumns, of_candidates, table_columns, without_index
from rankmill.pipeline.read.explain_json import LineExplanation, explain, place_of, shown
from rankmill.pipeline.read.grades import GradeRules
from rankmill.pipeline.read.json_keys import FEATURES, Keys, as_object, lines_of, naturally_sorted, read_keys
from rankmill.pipeline.read.json_rows import LineReader
from rankmill.pipeline.read.pandas_marks import index_columns
from rankmill.pipeline.read.times import are_dates, cure_of_dates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from rankmill.pipeline.read.batch import Problems
    from rankmill.pipeline.read.blocks import Block
    from rankmill.pipeline.read.json_keys import Lines
    from rankmill.pipeline.read.json_rows import Found


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
            self._use(
                self._roles(self._keys.top, options, columns_of, partial(_problems_of_values, self.path, self._keys))
            )

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
            for found in self._lines.read(lines):
                place = block.first_line + lines.number[found.lines]
                yield self._table_rows(found.batch, place, partial(self._reject_rows, lines, found, again=again))
            self.position = block.position

    def _use(self, columns: TableColumns) -> None:
        self._use_columns(columns, GradeRules.of(self._options))
        self._lines = LineReader(columns, self._keys)

    def _rows(self, block: Block) -> Iterator[RowBatch]:
        block.check()
        lines = lines_of(block)
        for found in self._lines.read(lines):
            rows, problems = self._reader.rows(found.batch)
            self._reject_rows(lines, found, problems)
            yield rows

    def _reject_rows(self, lines: Lines, found: Found, problems: Problems, *, again: bool = False) -> None:
        """Quarantine the rows with ``problems`` and, unless ``again``, the malformed lines.

        They are written in the order of the file.
        """
        why = {} if again else dict(found.malformed)
        for row, part, what, expected, cure in problems.sorted():
            k = int(found.lines[row])
            column = place_of(lines.text(k), self._columns.column_of[part])
            why[k] = LineExplanation(column, "" if what == "nothing" else what.strip("'"), expected, cure)
        for k, (column, what, expected, cure) in sorted(why.items()):
            self._quarantine.add(self._error(lines, k, column, what, expected, cure), column, lines.text(k))

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
                why = explain(lines.text(0), nothing, self._keys)
                return self._error(lines, 0, why.column, why.found, why.expected, why.cure)
        return DataRejected(f"{self.path}: contains no rows")


def _columns(path: Path, keys: Keys, options: ReadOptions, others: frozenset[str] = frozenset()) -> TableColumns:
    """Assign roles to the keys; ``others`` are known to be features."""
    if options.grade_required:  # for candidates, the model knows the features
        options = replace(options, known_features=options.known_features | others)
    look = partial(_problems_of_values, path, keys)
    if keys.form == "flat":
        names = naturally_sorted({*keys.top, *others})
        return without_index(
            names, index_columns(names), options, lambda rest: table_columns(path, rest, options, look)
        )
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


def _problems_of_values(path: Path, keys: Keys, columns: TableColumns) -> list[ColumnProblem]:
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
            cure = columns.cure_of(name, text=isinstance(value, str))
            dated = isinstance(value, str) and bool(are_dates(pa.array([value]))[0])
            cure += f"; {cure_of_dates(path, name, of_judgments=columns.of_judgments)}" * dated
            problems.append(ColumnProblem(name, reason, cure, columns.ignoring(name), in_rows=not dated))
    return problems
