"""Query a dataset with SQL: DuckDB reads only the files of the dataset, through one view per table.

The database is in memory.  Before the user's statement runs, access to all files except the dataset's is disabled, extensions
are disabled and the settings are locked, so that a statement can neither write nor read other files.  Only one ``SELECT`` (or
``WITH``, ``FROM``, ``DESCRIBE``, ``SUMMARIZE``) is accepted.  Data that do not fit into memory are spilled to a temporary folder.
The settings follow DuckDB's manual, "Securing DuckDB".
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import DatasetFormatError, InputError, name_hint
from rankmill.foundation.options import spelled
from rankmill.pipeline.dataset_manifest import (
    JUDGMENT_REJECTS_NAME,
    PAIR_REJECTS_NAME,
    REJECTS_NAME,
    path_in,
    read_even_if_replaced,
)
from rankmill.pipeline.options import QueryOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from rankmill.pipeline.dataset import Dataset

DEFAULTS = QueryOptions()
_RESIDENT = 220 * 10**6  # bytes of the process with its libraries
_TRACKED = 0.75  # of the rest: DuckDB's limit does not cover all that it allocates
_MOST_THREADS = 4  # each thread holds decoded columns
_FETCH_ROWS = 2000
_ZONED = " WITH TIME ZONE"
_MOMENT = "TIMESTAMP" + _ZONED
_CURES = {  # for tables that not every dataset has
    "bins": "has no bins yet; run: rankmill data bin {path}",
    "pairs": "has no pairs; add them with rankmill data ingest --pairs FILE",
    "unjudged": "has no unjudged rows; rankmill data ingest keeps them with --unjudged keep or --qrels FILE",
    "categories": "has no categorical features; rankmill data ingest reads them with --categorical NAME",
    "rejects": "has no rejects: every row was valid",
    "judgment_rejects": "has no rejected judgments: all were valid, or --qrels FILE was not used",
    "pair_rejects": "has no rejected pairs: all were valid, or --pairs FILE was not used",
}

Row = tuple[Any, ...]


@dataclass(slots=True)
class Answer:
    """The result of a statement: names and SQL types of its columns, and its rows, which can be iterated once.

    A ``TIMESTAMP WITH TIME ZONE`` is a datetime in UTC.  ``folder`` is a temporary folder that exists as long as the answer.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: Iterator[Row]
    folder: str | None = None


@contextmanager
def query_dataset(dataset: Dataset, sql: str, options: QueryOptions = DEFAULTS) -> Iterator[Answer]:
    """Run one SQL statement over the views of ``dataset`` and yield its answer; rows are computed lazily.

    The views are ``features`` (missing values are NULL), ``queries`` and, if the dataset has them, ``bins`` (the newest),
    ``pairs``, ``unjudged``, ``categories``, ``rejects``, ``judgment_rejects`` and ``pair_rejects``.  ``features`` and ``bins`` also
    have the columns ``shard``, as in ``queries``, and ``row``, from 0.  Categories of text are shown as text, not as codes.

    Parameters
    ----------
    sql
        One read-only statement.
    options
        Limits of memory and threads.

    Raises
    ------
    InputError
        The statement is invalid, not allowed, or needs more memory.
    DatasetFormatError
        A file of the dataset cannot be read.
    """
    memory = options.memory
    views = dict(_views(dataset))
    with (
        tempfile.TemporaryDirectory(prefix="rankmill-sql-") as spill,
        _connection(memory, options.threads, spill) as connection,
    ):
        with _explained(memory, dataset, views):
            _restrict(connection, views)
            relation = connection.sql(_checked(connection, sql))  # only names and types; it does not run yet
            columns, types = tuple(map(str, relation.columns)), tuple(relation.types)
            connection.execute(_without_zones(connection, sql, types))
        moments = [_add_utc(kind) for kind in types]
        rows = _rows(connection, memory, moments if any(moments) else None)
        yield Answer(columns=columns, types=tuple(map(str, types)), rows=rows, folder=spill)


def _connection(memory: int, n_threads: int, spill: str) -> Any:
    """Return an empty database without extensions; data that do not fit into ``memory`` are spilled to the folder ``spill``."""
    import duckdb

    return duckdb.connect(
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


def _restrict(connection: Any, views: Mapping[str, tuple[str, Sequence[Path]]]) -> None:
    """Create the ``views`` and restrict ``connection`` permanently to their files."""
    for name, (select, _) in views.items():
        connection.execute(f"CREATE VIEW {name} AS {select}")
    allowed = sorted({os.fspath(file) for _, files in views.values() for file in files})
    connection.execute(f"SET allowed_paths = {_list(allowed)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET TimeZone = 'UTC'")  # the same answer on every machine
    connection.execute("SET lock_configuration = true")


def _views(dataset: Dataset) -> Iterator[tuple[str, tuple[str, Sequence[Path]]]]:
    """Yield the name, the statement and the files of each view."""
    manifest = dataset.manifest
    features = [read_even_if_replaced(dataset.features_path(shard), _existing) for shard in manifest.shards]
    place = _place(dataset, features)
    ids = ["qid", "doc_id", "grade", *map(_name, dataset.optional_columns)]
    values = [f"nullif({_name(name)}, 'nan'::FLOAT) AS {_name(name)}" for name in manifest.features]
    named = [name for name in manifest.categorical if dataset.vocabulary.texts.get(name)]
    vocabulary = [dataset.vocabulary_path] if dataset.vocabulary_path is not None else []
    yield "features", (_named(_select([*ids, *values, *place], features), named, vocabulary), [*features, *vocabulary])
    queries = [dataset.queries_path(shard) for shard in manifest.shards]
    yield "queries", (_select(["*"], queries), queries)
    if manifest.bins:
        newest = manifest.bins[-1]
        bins = [dataset.bins_folder(newest.binspec) / f"{digest}.parquet" for digest in newest.shards]
        yield "bins", (_select([*map(_name, manifest.features), *_place(dataset, bins)], bins), bins)
    if manifest.pairs is not None and manifest.pairs.shards:
        pairs = [dataset.pairs_path(shard) for shard in manifest.pairs.shards]
        yield "pairs", (_select(["*"], pairs), pairs)
    if manifest.unjudged:
        unjudged = [dataset.unjudged_path(shard) for shard in manifest.unjudged]
        select = _select([f"* REPLACE ({', '.join(values)})"], unjudged)
        yield "unjudged", (_named(select, named, vocabulary), [*unjudged, *vocabulary])
    if vocabulary:
        yield "categories", (_select(["*"], vocabulary), vocabulary)
    lists = {"rejects": REJECTS_NAME, "judgment_rejects": JUDGMENT_REJECTS_NAME, "pair_rejects": PAIR_REJECTS_NAME}
    for name, file in lists.items():
        if (path := path_in(dataset.path, file)).is_file():
            yield name, (_select(["*"], [path]), [path])


def _existing(path: Path) -> Path:
    """Return ``path``; FileNotFoundError if it does not exist."""
    path.stat()
    return path


def _place(dataset: Dataset, files: Sequence[Path]) -> list[str]:
    """Return the columns ``shard`` and ``row``, without those that are names of features."""
    if {name.lower() for name in dataset.feature_names} & {"shard", "row", "filename", "file_row_number"}:
        return []
    numbers = ", ".join(
        f"{_text(os.fspath(file))}: {shard.bucket}" for file, shard in zip(files, dataset.manifest.shards, strict=True)
    )
    return [f"(MAP {{{numbers}}}[filename])::INTEGER AS shard", "file_row_number AS row"]


def _select(columns: Sequence[str], files: Sequence[Path]) -> str:
    return f"SELECT {', '.join(columns)} FROM read_parquet({_list([os.fspath(file) for file in files])})"  # noqa: S608  quoted


def _named(select: str, features: Sequence[str], vocabulary: Sequence[Path]) -> str:
    """Return ``select`` with the texts of the ``vocabulary`` instead of the codes of ``features``."""
    if not features:
        return select
    texts, joins = [], []
    for number, feature in enumerate(features):
        names, code = f"rankmill_names_{number}", f"rankmill_rows.{_name(feature)}"
        texts.append(f"coalesce({names}.text, format('{{:.9g}}', {code})) AS {_name(feature)}")
        of_feature = (
            f"{_select(['code', 'min(text) AS text'], vocabulary)} WHERE feature = {_text(feature)} GROUP BY code"
        )
        joins.append(f"LEFT JOIN ({of_feature}) {names} ON {names}.code = {code}")
    return f"SELECT rankmill_rows.* REPLACE ({', '.join(texts)}) FROM ({select}) rankmill_rows {' '.join(joins)}"  # noqa: S608  quoted


def _checked(connection: Any, sql: str) -> str:
    """Return ``sql`` if it is one statement that only reads."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise InputError(f"SQL: expected one statement, found {len(statements) or 'none'}")
    kind = statements[0].type.name
    if kind != "SELECT":
        cure = "; list the values: PIVOT .. ON column IN (..)" if kind == "MULTI" else ""
        raise InputError(
            f"SQL: expected a SELECT (or WITH, FROM, DESCRIBE, SUMMARIZE) statement, found another kind ({kind}){cure}"
        )
    return sql


def _without_zones(connection: Any, sql: str, types: Sequence[Any]) -> str:
    """Return ``sql`` with times cast to TIMESTAMP in UTC: for other times, DuckDB needs pytz."""
    if not any(_MOMENT in str(kind) for kind in types):
        return sql
    connection.execute(f"CREATE TEMP VIEW rankmill_answer AS {sql}")
    casts = (_cast(f"#{number}", kind) for number, kind in enumerate(types, start=1))  # names may repeat
    return f"SELECT {', '.join(casts)} FROM rankmill_answer"  # noqa: S608  numbers and types


def _cast(column: str, kind: Any) -> str:
    if _MOMENT not in str(kind):
        return column
    return f"{column}::{str(kind).replace(_MOMENT, 'TIMESTAMP') if _add_utc(kind) else 'VARCHAR'}"


def _add_utc(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function that adds UTC to the times in a value of SQL type ``kind``; None if it has no times."""
    if str(kind) == _MOMENT:  # years outside Python's range are returned as text
        return lambda value: value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
    if _MOMENT not in str(kind) or kind.id not in {"list", "array", "struct", "map"}:
        return None
    parts = {name: _add_utc(part) or _same for name, part in kind.children}
    if kind.id == "struct":
        return lambda value: value and {name: parts[name](part) for name, part in value.items()}
    if kind.id == "map":
        key, held = parts["key"], parts["value"]
        return lambda value: value and {key(name): held(part) for name, part in value.items()}
    return lambda value: value and type(value)(map(parts["child"], value))


def _same(value: Any) -> Any:
    return value


def _rows(connection: Any, memory: int, moments: Sequence[Callable[[Any], Any] | None] | None) -> Iterator[Row]:
    with _explained(memory):
        rows = chain.from_iterable(iter(lambda: connection.fetchmany(_FETCH_ROWS), []))
        if moments is None:
            yield from rows
        else:
            readers = [reader or _same for reader in moments]
            yield from (tuple(reader(value) for reader, value in zip(readers, row, strict=True)) for row in rows)


def _no_table(error: Exception, dataset: Dataset | None, views: Collection[str]) -> str | None:
    """Return the message about a missing table; None for any other ``error``."""
    found = re.match(r"Catalog Error: Table with name (.+) does not exist!", str(error))
    if found is None or dataset is None:
        return None
    name = found[1].strip('"')
    if name.lower() in _CURES and name.lower() not in views:
        return f"{dataset.path} {_CURES[name.lower()].format(path=dataset.path)}"
    return f"there is no table {name!r}; " + name_hint(name.lower(), views, f"known: {', '.join(views)}")


@contextmanager
def _explained(memory: int, dataset: Dataset | None = None, views: Collection[str] = ()) -> Iterator[None]:
    """Turn an error of DuckDB into an error with a one-line message."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException:
        raise InputError(
            f"SQL: the statement needs more than {memory:,} bytes; allow more with"
            f" {spelled('memory')}, or try {spelled('threads')} 1"
        ) from None
    except duckdb.IOException as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, "No space left on device", tempfile.gettempdir()) from None
        raise DatasetFormatError(f"{_one_line(error)}; ingest the data again") from None
    except duckdb.Error as error:
        raise InputError(f"SQL: {_no_table(error, dataset, views) or _one_line(error)}") from None


def _one_line(error: Exception) -> str:
    """Return the message without the prefix of its kind and without the excerpt of the statement."""
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
