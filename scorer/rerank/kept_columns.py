"""Columns of candidates that are copied into ranked lists: read beside the scoring, in the order of the input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.options import Format, ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.column_roles import KEPT
from rankmill.pipeline.read.columnar import ColumnarSource, TableSource
from rankmill.pipeline.read.columns import TableColumns
from rankmill.pipeline.read.open_source import open_source
from rankmill.scorer.rerank.ranked_file import RANKED, SCORED_ROW


@dataclass(frozen=True, slots=True)
class KeptColumns:
    """The columns to keep, text unless all files have one type for them, and the files they are in."""

    schema: pa.Schema
    sources: tuple[TableSource, ...]

    @classmethod
    def of(
        cls, keep: Sequence[str], sources: Sequence[Source], input_format: Format, options: ReadOptions
    ) -> KeptColumns:
        """Find the columns ``keep``, each text one name or several with commas, in all ``sources``.

        Raises
        ------
        InputError
            A source has no such column or no columns at all, or lists have another use for the name, or the type cannot
            be kept.
        """
        names: list[str] = []
        tables: list[TableSource] = []
        for source in sources:
            found: list[str] = []
            table = open_source(source.path, input_format, options, columns_of=partial(_kept_columns, keep, found))
            if not isinstance(table, TableSource):
                raise InputError(f"{spelled('keep')} is for tables; {source.path} has no other columns")
            tables.append(table)
            names = found
        types = [_common([_type_in(table, name) for table in tables]) for name in names]
        return cls(pa.schema(list(zip(names, types, strict=True))), tuple(tables))

    def batches(self) -> Iterator[pa.Table]:
        """Yield the columns of all rows, in order."""
        for source in self.sources:
            for rows in source.table_rows():
                rows.reject(rows.problems)
                columns = [_plain(rows.columns[f"{KEPT}{field.name}"]).cast(field.type) for field in self.schema]
                yield pa.Table.from_arrays(columns, schema=self.schema)


class KeptReader:
    """Reads the columns up to one row after the other; it begins after ``first`` rows of the whole input."""

    def __init__(self, kept: KeptColumns, first: int) -> None:
        self._batches = kept.batches()
        self._held, self._first, self._begin = kept.schema.empty_table(), 0, first

    def up_to(self, row: int) -> pa.Table:
        """Return the next rows, up to number ``row`` of the whole input.

        CandidatesRejected if there are not that many left.
        """
        while self._first + self._held.num_rows < row:
            batch = next(self._batches, None)
            if batch is None:
                raise CandidatesRejected(
                    "the candidates have fewer rows than before; did a file change while it was read?"
                )
            self._held = pa.concat_tables([self._held, batch])
            skipped = min(max(self._begin - self._first, 0), self._held.num_rows)
            self._held, self._first = self._held.slice(skipped), self._first + skipped
        found, self._held = self._held.slice(0, row - self._first), self._held.slice(row - self._first)
        self._first = row
        return found


def appended(rows: pa.RecordBatch, values: pa.Table, first: int) -> pa.RecordBatch:
    """Return ``rows`` of `SCORED_ROW` with their ``values``, which begin after ``first`` rows."""
    place = as_array(rows.column("row").to_numpy() - (first + 1))
    for name in values.column_names:
        rows = rows.append_column(values.schema.field(name), _one_chunk(values.column(name).take(place)))
    return rows


def _kept_columns(keep: Sequence[str], found: list[str], path: Path, header: Sequence[str], *_: object) -> TableColumns:
    """Assign roles to the columns ``keep``, which are ``found``: an exact name comes before splitting at commas."""
    for text in keep:
        found += [text] if text in header else [name.strip() for name in text.split(",") if name.strip()]
    for name in found:
        if name not in header:
            raise InputError.unknown(f"{spelled('keep')} column of {path}", name, header)
        if name in RANKED.names or name in SCORED_ROW.names:
            raise InputError(
                f"{spelled('keep')}: a ranked list has its own column {name!r}; rename the one of the candidates"
            )
    if len(set(found)) < len(found):
        raise InputError(f"{spelled('keep')}: {max(found, key=found.count)!r} is named twice; name it once")
    return TableColumns({f"{KEPT}{name}": name for name in found}, ())


def _type_in(table: TableSource, name: str) -> pa.DataType:
    """Return the type of a column, text if the file is text; InputError for nested types and bytes."""
    if not isinstance(table, ColumnarSource):
        return pa.string()
    kind: pa.DataType = table.schema().field(name).type
    kind = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    if kinds.is_large_string(kind) or kinds.is_string_view(kind) or kinds.is_null(kind):
        return pa.string()
    if kinds.is_nested(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind):
        raise InputError(
            f"{spelled('keep')}: column {name!r} of {table.path} has values of type {kind}; text, numbers and dates "
            "are kept"
        )
    return kind


def _common(types: Sequence[pa.DataType]) -> pa.DataType:
    return types[0] if types and all(kind == types[0] for kind in types) else pa.string()


def _plain(column: pa.Array[Any]) -> pa.Array[Any]:
    return column.cast(column.type.value_type) if isinstance(column.type, pa.DictionaryType) else column


def _one_chunk(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    found: Any = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)
