"""Databases of DuckDB: the same safe settings for all, and a signal ends their statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankmill.foundation.interrupts import interruptible

if TYPE_CHECKING:
    from pathlib import Path


def ran_out_of_memory(error: Exception) -> bool:
    """Whether a statement failed because the memory of the database is too small.

    Readers of its results raise errors of other types.
    """
    return "Out of Memory" in str(error).partition("\n")[0]


def open_database(*, memory: int, threads: int, spill: Path, file: Path | None = None, **more: Any) -> Any:
    """Return a new database in memory, or in ``file``, that holds ``memory`` bytes and spills to the folder ``spill``.

    ``more`` are settings of DuckDB.  Nothing is loaded from elsewhere, Python's variables are no tables, and no
    progress is shown, which would go to stdout, into the middle of JSON.
    """
    import duckdb

    connection = duckdb.connect(
        ":memory:" if file is None else str(file),
        config={
            "memory_limit": f"{memory}B",
            "threads": threads,
            "temp_directory": str(spill),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
            "python_enable_replacements": False,
            **more,
        },
    )
    interruptible(connection)
    if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() != [(False,)]:
        connection.execute("SET enable_progress_bar = false")  # refused where a notebook cannot have one
    return connection
