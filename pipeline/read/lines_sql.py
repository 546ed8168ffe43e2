"""Lines of text to columns of Arrow, by DuckDB."""

from __future__ import annotations

import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from rankmill.foundation.database import open_database

_MEMORY = 1 << 30  # of DuckDB, at most; a query takes a few times the text


def select(columns: str, row: str, lines: pa.Array[Any]) -> pa.RecordBatch:
    """Return the ``columns`` that SQL makes of the ``row`` of each of the ``lines``, in their order; row is SQL, too.

    >>> select("cells[2] AS second", "string_split(line, ',') AS cells", pa.array(["a,b", "c,"])).to_pylist()
    [{'second': 'b'}, {'second': ''}]
    """
    with closing(_database().cursor()) as database:
        database.register("lines", pa.table({"line": lines}))
        found: pa.Table = database.sql(f"SELECT {columns} FROM (SELECT {row} FROM lines)").to_arrow_table()  # noqa: S608
    return next(iter(found.combine_chunks().to_batches()), pa.RecordBatch.from_pylist([], found.schema))


@cache
def _database() -> Any:
    """Return the database of this process that reads text; it holds no table."""
    return open_database(memory=_MEMORY, threads=1, spill=Path(tempfile.gettempdir()))
