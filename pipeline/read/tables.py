"""Lines of delimited text to columns of Arrow, by DuckDB.

All cells are read as text, so that numbers are parsed by the same rules as everywhere: DuckDB's own would take ``1_000`` for a number,
and ``true`` and ``NA`` for none.
"""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rankmill.foundation.database import open_database
from rankmill.pipeline.read.csv_lines import split_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rankmill.pipeline.read.csv_lines import CsvLines

_MEMORY = 1 << 30  # of DuckDB, at most; a thread takes a few times the text, and 64 kB for each column that it reads
_MOST_COLUMNS = 1024  # of a table that DuckDB reads: planning takes the square of their number


def cells_of(lines: CsvLines, delimiter: str, width: int, wanted: Mapping[str, int]) -> pa.RecordBatch:
    """Return the columns ``wanted``, by name, of ``lines`` of ``width`` cells.  An empty cell is null."""
    n = len(lines.line)
    if not wanted:
        return pa.RecordBatch.from_arrays([pa.nulls(n)], [""]).select([])
    columns: list[pa.Array[Any]] = [pa.nulls(0, pa.string())] * len(wanted)
    if n and width > _MOST_COLUMNS:
        rows = [split_line(line, delimiter.encode()) or [] for line in lines.text.split(b"\n")[:n]]
        columns = [pa.array([row[place].decode() or None for row in rows], pa.string()) for place in wanted.values()]
    elif n:
        columns = _columns(lines.text, n, delimiter, width, wanted.values())
    return pa.RecordBatch.from_arrays(columns, list(wanted))


def _columns(text: bytes, n: int, delimiter: str, width: int, places: Iterable[int]) -> list[pa.Array[Any]]:
    """Return the cells at ``places`` of the ``n`` lines of ``text``."""
    kinds = ", ".join(f"c{place}: 'VARCHAR'" for place in range(width))
    room = len(text) + 2  # one buffer, whatever the length of a line
    with _piped(text) as name, closing(_database().cursor()) as database:
        read = (
            f"SELECT {', '.join(f'c{place}' for place in places)} FROM read_csv('{name}', columns = {{{kinds}}},"  # noqa: S608
            f" delim = '{delimiter.replace(chr(39), 2 * chr(39))}', quote = '\"', escape = '\"', new_line = '\\n', nullstr = '',"
            " header = false, auto_detect = false, strict_mode = true,"
            f" max_line_size = {room - 1}, buffer_size = {room})"
        )
        table = database.sql(read).to_arrow_table().combine_chunks()
    if len(table) != n:  # each line was checked: this would be a mistake of ours or of DuckDB's
        raise RuntimeError(f"{len(table)} rows read of {n}")
    return [column.chunk(0) for column in table.columns]


@cache
def _database() -> Any:
    """Return the database of this process that reads text; it holds none."""
    return open_database(memory=_MEMORY, threads=1, spill=Path(tempfile.gettempdir()))


@contextmanager
def _piped(text: bytes) -> Iterator[str]:
    """Yield the name of a pipe from which ``text`` can be read once."""
    reading, writing = os.pipe()

    def write() -> None:
        rest = memoryview(text)
        with suppress(BrokenPipeError):
            while rest:
                rest = rest[os.write(writing, rest) :]
        os.close(writing)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
        writer.join()
