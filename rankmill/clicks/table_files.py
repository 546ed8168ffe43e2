"""New Parquet files of judgments, pairs and lists: their bytes do not depend on how the rows arrive."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from rankmill.pipeline.arrow import schema_of
from rankmill.pipeline.group.shard_writer import open_writer

ROW_GROUP_ROWS = 1 << 18


def columns_of(**kinds: pa.DataType) -> pa.Schema:
    """Return the schema of columns without missing values."""
    return schema_of([(name, kind, False) for name, kind in kinds.items()])


class TableWriter:
    """Writes tables to a Parquet file in row groups of a fixed size."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer = open_writer(path, schema)
        self._waiting = schema.empty_table()

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None and len(self._waiting):
            self._writer.write_table(self._waiting)
        self._writer.close()

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        rows = pa.concat_tables([self._waiting, table])
        full = len(rows) // ROW_GROUP_ROWS * ROW_GROUP_ROWS
        for first in range(0, full, ROW_GROUP_ROWS):
            self._writer.write_table(rows.slice(first, ROW_GROUP_ROWS).combine_chunks())
        self._waiting = rows.slice(full).combine_chunks()
