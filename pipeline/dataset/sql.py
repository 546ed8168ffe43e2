"""Query a dataset with SQL: DuckDB in memory, opened on a view of each table of the dataset; it reads no other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from rankmill.foundation.cores import available_cores
from rankmill.foundation.database import open_database
from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.staging import scratch_folder
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import (
    JUDGMENT_REJECTS_NAME,
    PAIR_REJECTS_NAME,
    REJECTS_NAME,
    read_even_if_replaced,
)
from rankmill.pipeline.options import QueryOptions

DEFAULTS = QueryOptions()
_LISTS = {"rejects": REJECTS_NAME, "judgment_rejects": JUDGMENT_REJECTS_NAME, "pair_rejects": PAIR_REJECTS_NAME}
_PLACE = {"shard", "row", "filename", "file_row_number"}


def query_dataset(dataset: Dataset, sql: str, options: QueryOptions = DEFAULTS) -> pa.Table:
    """Return the answer of one ``SELECT``.

    The views are ``features``, ``queries``, and where they exist ``pairs``, ``unjudged`` ..

    Missing values are NULL; ``shard`` and ``row`` say where a row of ``features`` is.  InputError if the statement is
    invalid, does not only read, or needs more memory.
    """
    views = dict(_views(dataset))
    with scratch_folder("sql") as spill, _database(options, spill) as database:
        for name, (select, _) in views.items():
            database.execute(f"CREATE VIEW {name} AS {select}")
        database.execute(f"SET allowed_paths = {_list([file for _, files in views.values() for file in files])}")
        database.execute("SET enable_external_access = false; SET TimeZone = 'UTC'; SET lock_configuration = true")
        kinds = [statement.type.name for statement in database.extract_statements(sql)]
        if kinds != ["SELECT"]:
            raise InputError(f"SQL: expected one SELECT (or WITH, FROM), found {', '.join(kinds) or 'nothing'}")
        return database.sql(sql).to_arrow_table()  # type: ignore[no-any-return]


@contextmanager
def _database(options: QueryOptions, spill: Path) -> Iterator[Any]:
    """Yield an empty database; its errors become an InputError of one line."""
    import duckdb

    memory = int((options.memory - 220 * 10**6) * 0.75)  # DuckDB and the process use more than that
    threads = options.threads or min(4, available_cores())  # each thread holds decoded columns
    try:
        with open_database(memory=memory, threads=threads, spill=spill) as database:
            yield database
    except duckdb.Error as error:
        raise InputError(f"SQL: {'; '.join(str(error).partition('LINE ')[0].split(chr(10))).strip('; ')}") from None


def _views(dataset: Dataset) -> Iterator[tuple[str, tuple[str, list[Path]]]]:
    """Yield the name, the statement and the files of each view."""
    manifest, shards = dataset.manifest, dataset.manifest.shards
    whole = partial(Path.resolve, strict=True)
    tables = {"features": [read_even_if_replaced(dataset.features_path(shard), whole) for shard in shards]}
    tables["queries"] = [dataset.queries_path(shard) for shard in shards]
    tables["pairs"] = [] if manifest.pairs is None else [dataset.pairs_path(shard) for shard in manifest.pairs.shards]
    tables["unjudged"] = [dataset.unjudged_path(shard) for shard in manifest.unjudged]
    tables["categories"] = [path for path in [dataset.vocabulary_path] if path is not None]
    tables |= {name: [dataset.path / file] for name, file in _LISTS.items()}
    quoted = [_quoted(name, '"') for name in manifest.features]
    values = ", ".join(f"nullif({name}, 'nan'::FLOAT) AS {name}" for name in quoted)
    for name, files in tables.items():
        if not files or (name in _LISTS and not files[0].is_file()):
            continue
        columns, more = ["*"], ""
        if name == "features" and not {feature.lower() for feature in manifest.features} & _PLACE:
            numbers = ", ".join(f"{_quoted(str(f))}: {shard.bucket}" for f, shard in zip(files, shards, strict=True))
            columns = ["* EXCLUDE (filename, file_row_number)", f"(MAP {{{numbers}}}[filename])::INTEGER AS shard"]
            columns, more = [*columns, "file_row_number AS row"], ", filename = true, file_row_number = true"
        if name in {"features", "unjudged"}:
            columns[0] += f" REPLACE ({values})"
        yield name, (f"SELECT {', '.join(columns)} FROM read_parquet({_list(files)}{more})", files)  # noqa: S608  quoted


def _list(paths: Sequence[Path]) -> str:
    return f"[{', '.join(_quoted(str(path)) for path in paths)}]"


def _quoted(text: str, sign: str = "'") -> str:
    return sign + text.replace(sign, 2 * sign) + sign
