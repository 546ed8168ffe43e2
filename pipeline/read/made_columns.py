"""Columns that a file of typed columns has in another form.

These are the numbers of a list, and the keys of Hive partitions in its path.

A stored column ``v`` of lists of numbers, all of one length n, is read as the columns ``v_1`` to ``v_n``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from rankmill.foundation.cures import named, spelled_with
from rankmill.foundation.errors import MalformedRow
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.read.columns import ignored_columns
from rankmill.pipeline.read.files import partitions_of
from rankmill.pipeline.read.role_columns import are_numbers, as_floats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rankmill.pipeline.options import ReadOptions


@dataclass(frozen=True)
class MadeColumns:
    """The columns to make of the stored ones of a file."""

    widths: Mapping[str, int] = field(default_factory=dict)
    """Numbers in each list, by the name of the stored column."""
    keys: Mapping[str, str | None] = field(default_factory=dict)
    """The value in all rows, by the key of a partition; None: missing."""

    @cached_property
    def list_of(self) -> Mapping[str, str]:
        """The stored column of lists, by the name of a made one."""
        return {name: stored for stored, width in self.widths.items() for name in _names(stored, width)}

    def any_of(self, names: Iterable[str]) -> bool:
        """Whether one of the columns ``names`` is made."""
        return any(name in self.keys or name in self.list_of for name in names)

    def schema(self, stored: pa.Schema) -> pa.Schema:
        """Return names and types of the columns, given the ``stored`` ones."""
        fields: list[pa.Field[Any]] = []
        for each in stored:
            width = self.widths.get(each.name)
            names = [each.name] if width is None else _names(each.name, width)
            kind = each.type if width is None else each.type.value_type
            fields += [pa.field(name, kind) for name in names]
        made = pa.schema([*fields, *(pa.field(key, pa.string()) for key in self.keys)])
        return made.with_metadata(stored.metadata) if stored.metadata else made

    def stored(self, names: Iterable[str]) -> list[str]:
        """Return the stored columns that are read for the columns ``names``."""
        return list(dict.fromkeys(self.list_of.get(name, name) for name in names if name not in self.keys))

    def batch(self, stored: pa.RecordBatch, path: Path, first: int) -> pa.RecordBatch:
        """Return the columns of ``stored`` rows of ``path``, which begin at row ``first``.

        Raises
        ------
        MalformedRow
            The lists of a column differ in length.
        """
        if not self.widths and not self.keys:
            return stored
        columns: dict[str, pa.Array[Any]] = {}
        for name, column in zip(stored.schema.names, stored.columns, strict=True):
            if name in self.widths:
                columns |= zip(
                    _names(name, self.widths[name]), self._numbers_of(column, name, path, first), strict=True
                )
            else:
                columns[name] = column
        for key, value in self.keys.items():
            columns[key] = pa.repeat(pa.scalar(value, pa.string()), len(stored))
        return pa.record_batch(columns)

    def _numbers_of(self, column: Any, name: str, path: Path, first: int) -> Iterator[pa.Array[Any]]:
        """Yield the k-th numbers (n,) of the lists ``column`` (n,) for each k; all numbers of a null are missing."""
        width = self.widths[name]
        lengths = pc.list_value_length(column).fill_null(width).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(lengths != width)[:1].tolist():
            expected = f"a list of {width:,} numbers, as in the rows before"
            cure = f"write lists of one length, or to leave out the column: {spelled_with('ignore', [name])}"
            raise MalformedRow(path, first + row, name, f"one of {lengths[row]:,}", expected, cure)
        known = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = as_floats(column.drop_null().flatten()).reshape(-1, width)
        if not known.all():
            every = np.full((len(known), width), np.nan, dtype=numbers.dtype)
            every[known] = numbers
            numbers = every
        return map(as_array, np.ascontiguousarray(numbers.T))


def made_columns(
    path: Path,
    stored: pa.Schema,
    options: ReadOptions,
    batches_of: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],
) -> MadeColumns:
    """Return the columns to make for a table of rows with features.

    Lists of numbers become features, unless ``options`` ignore the column or give it a role.  Keys of partitions become
    columns if ``options`` name them.  ``batches_of`` reads stored columns, to see how long a list is.
    """
    given, partitions = {*options.columns.values(), options.time_column, *options.goals}, partitions_of(path)
    asked = given | {*options.known_features, *named(options.categorical, partitions)}
    keys = {key: value for key, value in partitions.items() if key in asked and key not in stored.names}
    widths: dict[str, int] = {}
    if not options.judgments_alone:
        left = given.union(ignored_columns(stored.names, options))
        for each in stored:
            if each.name and stored.names.count(each.name) == 1 and each.name not in left and _holds_lists(each.type):
                fixed = kinds.is_fixed_size_list(each.type)
                width = each.type.list_size if fixed else _first_length(batches_of([each.name]))
                if width:
                    widths[each.name] = width
    return MadeColumns(widths, keys)


def _names(stored: str, width: int) -> list[str]:
    return [f"{stored}_{k}" for k in range(1, width + 1)]


def _holds_lists(kind: Any) -> bool:
    are_lists = kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)
    return are_lists and are_numbers(kind.value_type)


def _first_length(batches: Iterator[pa.RecordBatch]) -> int:
    """Return the length of the first list; 0 if there is none."""
    for batch in batches:
        lengths = pc.list_value_length(batch.column(0)).drop_null()
        if len(lengths):
            return int(lengths[0].as_py())
    return 0
