"""SQL over a dataset: DuckDB reads its files, and nothing else, through a view for each kind of them.

The database lives in memory.  Before the user's statement runs, access to all files but the dataset's own is shut, no
extension can be loaded and the settings are locked, so a statement can neither write nor look around; only one ``SELECT``
(or ``WITH``, ``FROM``, ``DESCRIBE``, ``SUMMARIZE``) is taken.  What does not fit into memory goes to a folder of its own,
which is removed afterwards.  The settings are those of DuckDB's manual, "Securing DuckDB".
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from pipeline.cores import available_cores
from pipeline.errors import DatasetFormatError, InputError
from pipeline.replace import JUDGMENT_REJECTS_NAME, PAIR_REJECTS_NAME, REJECTS_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pipeline.dataset import Dataset

MIN_MEMORY = 512 * 10**6
_RESIDENT = 220 * 10**6  # the process with its libraries
_TRACKED = 0.75  # of the rest: not all that DuckDB takes counts for its own limit
_MOST_THREADS = 4  # each holds decoded columns
_FETCH_ROWS = 2000
_COUNTED_ROWS = 100_000
_LEAST_WIDTH = 9  # of a column that is shown

Row = tuple[Any, ...]


@dataclass(slots=True)
class Answer:
    """What a statement returned: names and SQL types of its columns, and its rows, which can be gone through once."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: Iterator[Row]


@contextmanager
def query_dataset(dataset: Dataset, sql: str, *, memory: int = 10**9, n_threads: int = 0) -> Iterator[Answer]:
    """Run one SQL statement over the views of ``dataset`` and yield its answer; rows come as they are asked for.

    The views are ``features`` (a missing value is NULL), ``queries``, and where the dataset has them ``bins`` (the newest),
    ``pairs``, ``unjudged``, ``rejects``, ``judgment_rejects`` and ``pair_rejects``.  ``features`` and ``bins`` say where a row
    stands besides: ``shard``, the number that ``queries`` has too, and ``row``, from 0.

    Parameters
    ----------
    sql
        One statement that returns rows and changes nothing.
    memory
        Bound in bytes on the memory of the process, 512 MB or more.
    n_threads
        0: as many as there are cores, four at most.

    Raises
    ------
    InputError
        The statement is wrong, not of the kind that is allowed, or does not fit in ``memory``; options out of range.
    DatasetFormatError
        A file of the dataset cannot be read.
    """
    import duckdb

    if memory < MIN_MEMORY:
        raise InputError(f"--memory must be at least {MIN_MEMORY // 10**6}MB, got {memory:,} bytes")
    if n_threads < 0:
        raise InputError(f"--threads must be 0 or more, got {n_threads}")
    views = dict(_views(dataset))
    with tempfile.TemporaryDirectory(prefix="rankmill-sql-") as spill:
        connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{int((memory - _RESIDENT) * _TRACKED)}B",
                "threads": n_threads or min(_MOST_THREADS, available_cores()),
                "temp_directory": spill,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                "allow_persistent_secrets": False,
                "python_enable_replacements": False,  # names of Python variables are not tables
            },
        )
        try:
            with _explained(memory):
                for name, (select, _) in views.items():
                    connection.execute(f"CREATE VIEW {name} AS {select}")
                allowed = sorted({os.fspath(file) for _, files in views.values() for file in files})
                connection.execute(f"SET allowed_paths = {_list(allowed)}")
                connection.execute("SET enable_external_access = false")
                connection.execute("SET lock_configuration = true")
                connection.execute(_checked(connection, sql))
                description = connection.description
            yield Answer(
                columns=tuple(str(column[0]) for column in description),
                types=tuple(str(column[1]) for column in description),
                rows=_rows(connection, memory),
            )
        finally:
            connection.close()


def json_value(value: Any) -> Any:
    """Return ``value`` as JSON has it: NaN is null, infinite numbers and what JSON has no type for are words."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    if isinstance(value, dict):
        return {str(key): json_value(part) for key, part in value.items()}
    return value.hex() if isinstance(value, bytes) else str(value)


def render_answer(answer: Answer, width: int = 120, shown: int = 40) -> str:
    """Return the first ``shown`` rows as a table ``width`` characters wide, and a line that says how many rows there are."""
    import io

    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = list(islice(answer.rows, shown))
    total = len(rows) + sum(1 for _ in islice(answer.rows, _COUNTED_ROWS))
    fitting = max(2, width // _LEAST_WIDTH)
    names = list(answer.columns)
    left_out = max(0, len(names) - fitting)
    picked = list(range(fitting)) if left_out else list(range(len(names)))
    table = Table(box=box.SIMPLE_HEAD)
    for number in picked:
        numeric = answer.types[number].split("(")[0] in _NUMERIC
        table.add_column(names[number], justify="right" if numeric else "left", overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row[number]) for number in picked))
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, markup=False, emoji=False, highlight=False)
    console.print(table)
    lines = [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
    more = total >= shown + _COUNTED_ROWS
    told = f"{'more than ' * more}{total:,} row{'s' * (total != 1)}"
    if total > len(rows):
        told += f", the first {len(rows)} shown; --json and --csv have all"
    if left_out:
        told += f"; {left_out} of {len(names)} columns not shown"
    return "\n".join([*lines, told])


_NUMERIC = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _views(dataset: Dataset) -> Iterator[tuple[str, tuple[str, Sequence[Path]]]]:
    """Yield for each view its name, its statement and the files that it reads."""
    manifest = dataset.manifest
    features = [dataset.features_path(shard) for shard in manifest.shards]
    place = _place(dataset, features)
    ids = ["qid", "doc_id", "grade", *dataset.optional_columns]
    values = [f"nullif({_name(name)}, 'nan'::FLOAT) AS {_name(name)}" for name in manifest.features]
    yield "features", (_select([*ids, *values, *place], features), features)
    queries = [dataset.queries_path(shard) for shard in manifest.shards]
    yield "queries", (_select(["*"], queries), queries)
    if manifest.bins:
        newest = manifest.bins[-1]
        bins = [dataset.path / "bins" / newest.binspec / f"{digest}.parquet" for digest in newest.shards]
        yield "bins", (_select([*map(_name, manifest.features), *_place(dataset, bins)], bins), bins)
    if manifest.pairs is not None and manifest.pairs.shards:
        pairs = [dataset.pairs_path(shard) for shard in manifest.pairs.shards]
        yield "pairs", (_select(["*"], pairs), pairs)
    if manifest.unjudged:
        unjudged = [dataset.unjudged_path(shard) for shard in manifest.unjudged]
        yield "unjudged", (_select([f"* REPLACE ({', '.join(values)})"], unjudged), unjudged)
    lists = {"rejects": REJECTS_NAME, "judgment_rejects": JUDGMENT_REJECTS_NAME, "pair_rejects": PAIR_REJECTS_NAME}
    for name, file in lists.items():
        if (dataset.path / file).is_file():
            yield name, (_select(["*"], [dataset.path / file]), [dataset.path / file])


def _place(dataset: Dataset, files: Sequence[Path]) -> list[str]:
    """Return what says where a row stands; nothing where features have these names."""
    if {name.lower() for name in dataset.feature_names} & {"shard", "row", "filename", "file_row_number"}:
        return []
    numbers = ", ".join(
        f"{_text(os.fspath(file))}: {shard.bucket}" for file, shard in zip(files, dataset.manifest.shards, strict=True)
    )
    return [f"(MAP {{{numbers}}}[filename])::INTEGER AS shard", "file_row_number AS row"]


def _select(columns: Sequence[str], files: Sequence[Path]) -> str:
    return f"SELECT {', '.join(columns)} FROM read_parquet({_list([os.fspath(file) for file in files])})"  # noqa: S608  quoted


def _checked(connection: Any, sql: str) -> str:
    """Return ``sql`` if it is one statement that only reads."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise InputError(f"SQL: expected one statement, found {len(statements) or 'none'}")
    kind = statements[0].type.name
    if kind != "SELECT":
        cure = "; name its values: PIVOT .. ON column IN (..)" if kind == "MULTI" else ""
        raise InputError(
            f"SQL: expected a SELECT (or WITH, FROM, DESCRIBE, SUMMARIZE), found another kind ({kind}){cure}"
        )
    return sql


def _rows(connection: Any, memory: int) -> Iterator[Row]:
    with _explained(memory):
        yield from chain.from_iterable(iter(lambda: connection.fetchmany(_FETCH_ROWS), []))


@contextmanager
def _explained(memory: int) -> Iterator[None]:
    """Turn what DuckDB raises into one line of ours."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException:
        raise InputError(
            f"SQL: the statement does not fit in {memory:,} bytes; give more with --memory, or try --threads 1"
        ) from None
    except duckdb.IOException as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, "No space left on device", tempfile.gettempdir()) from None
        raise DatasetFormatError(f"{_one_line(error)}; ingest the data again") from None
    except duckdb.Error as error:
        raise InputError(f"SQL: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    """Return the message without the kind of error before it and the excerpt of the statement behind it."""
    message = str(error).split("\n\nLINE ", 1)[0]
    kind, colon, rest = message.partition(" Error: ")
    message = rest if colon and "\n" not in kind else message
    return "; ".join(line.strip().rstrip("!") for line in message.splitlines() if line.strip())


def _list(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
