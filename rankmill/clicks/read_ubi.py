"""Read logs of User Behavior Insights (UBI 1.3.0, of OpenSearch).

Files ``ubi_queries*`` and ``ubi_events*`` are JSON lines, Parquet or CSV.

A query (``query_id``) is a result list: its documents are ``query_response_hit_ids``, the first at position 1; without
them, the documents of its events that have ``event_attributes.position.ordinal``.  ``user_query`` is the query,
``client_id`` the session; without one, each list is a session of its own.  An event ``click`` on a document
(``event_attributes.object.object_id``) of the list is a click, and an event ``purchase``, ``add_to_cart`` or
``conversion`` is both a click and a conversion.  Other events say nothing.

Queries without text or documents, and events of unknown queries or documents, are left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rankmill.clicks.sorted_log import log_rows
from rankmill.foundation.database import open_database
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import parts_of
from rankmill.pipeline.group.query_splits import hash_ids
from rankmill.pipeline.read.files import format_of
from rankmill.pipeline.read.parquet import schema_of_file

QUERIES, EVENTS = "ubi_queries", "ubi_events"
_RESIDENT = 350 * 10**6  # bytes of the process and of what is spilled at once
_TRACKED = 0.6  # of the rest: DuckDB's limit does not cover all that it allocates
_ROWS_AT_ONCE = 1 << 17
_SESSION_SALT = 0x3C6EF372FE94F82B
_HITS = '["VARCHAR"]'
_ATTRIBUTES = '{"object":{"object_id":"VARCHAR"},"position":{"ordinal":"BIGINT"}}'
_COLUMNS = {
    QUERIES: {"query_id": "", "client_id": "", "user_query": "", "query_response_hit_ids": _HITS},
    EVENTS: {"query_id": "", "action_name": "", "event_attributes": _ATTRIBUTES},
}

_LISTS = """
CREATE TABLE lists AS
SELECT query_id, min(client_id) AS session, min(user_query) AS qid, min(query_response_hit_ids) AS hits
FROM ubi_queries WHERE query_id <> '' GROUP BY query_id
"""
_ACTIONS = """
CREATE TABLE actions AS
SELECT query_id, event_attributes.object.object_id AS doc_id, min(event_attributes.position.ordinal) AS ordinal,
       max(action_name IN ('click', 'purchase', 'add_to_cart', 'conversion')) AS clicked,
       max(action_name IN ('purchase', 'add_to_cart', 'conversion')) AS converted
FROM ubi_events WHERE query_id <> '' AND doc_id <> '' GROUP BY ALL
"""
_ROWS = """
SELECT query_id, coalesce(session, '') AS session, qid, doc_id, position::INTEGER AS position,
       coalesce(clicked, false)::UTINYINT AS clicked, coalesce(converted, false)::DOUBLE AS converted
FROM (
    SELECT query_id, session, qid, unnest(hits) AS doc_id, generate_subscripts(hits, 1) AS position FROM lists
    UNION ALL
    SELECT query_id, session, qid, doc_id, ordinal AS position FROM lists JOIN actions USING (query_id)
    WHERE coalesce(len(hits), 0) = 0 AND ordinal >= 1
) LEFT JOIN actions USING (query_id, doc_id)
WHERE qid <> '' AND doc_id <> ''
"""
_LEFT_OUT = """
SELECT (SELECT count(*) FROM lists WHERE coalesce(qid, '') = ''),
       (SELECT count(*) FROM actions ANTI JOIN lists USING (query_id)),
       (SELECT count(*) FROM actions JOIN lists USING (query_id)
        WHERE len(hits) > 0 AND clicked AND NOT list_contains(hits, doc_id))
"""


def is_ubi(files: Sequence[Path]) -> bool:
    """Whether ``files`` are of UBI, by their names.

    Raises
    ------
    InputError
        Some are and others are not, or there are no queries, or no events.
    """
    of_kind = {kind: [path for path in files if path.name.startswith(kind)] for kind in (QUERIES, EVENTS)}
    found = [path for paths in of_kind.values() for path in paths]
    if not found:
        return False
    for path in files:
        if path not in found:
            raise InputError(
                f"{path}: expected only files named {QUERIES}* and {EVENTS}*, as {found[0]} is; read others separately"
            )
    for kind, paths in of_kind.items():
        if not paths:
            raise InputError(f"{found[0]}: a log of UBI needs files named {kind}*, too; give both")
    return True


def ubi_rows(
    files: Sequence[Path], memory: int, folder: Path, say: Callable[[str], None] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the documents that were shown, with ``converted``.

    DuckDB joins queries and events, in ``folder`` if they are large.

    Raises
    ------
    DataRejected
        A file cannot be read, or a column is missing.
    """
    with open_database(
        memory=int((memory - _RESIDENT) * _TRACKED), threads=1, spill=folder / "join", file=folder / "ubi.duckdb",
        preserve_insertion_order=False,
    ) as connection:  # fmt: skip
        for kind, columns in _COLUMNS.items():
            parts = [_select(connection, path, columns) for path in files if path.name.startswith(kind)]
            connection.execute(f"CREATE VIEW {kind} AS {' UNION ALL '.join(parts)}")
        with _explained(files[0].parent):
            connection.execute(_LISTS)
            connection.execute(_ACTIONS)
        no_text, unknown, elsewhere = connection.execute(_LEFT_OUT).fetchall()[0]
        if say is not None and (no_text or unknown or elsewhere):
            say(
                f"left out: {no_text:,} queries without text, {unknown:,} documents with events of unknown queries, "
                f"{elsewhere:,} clicked documents that their query did not return"
            )
        for batch in connection.sql(_ROWS).to_arrow_reader(_ROWS_AT_ONCE):
            cells: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
            of_list = hash_ids(cells["query_id"])
            client = hash_ids(cells["session"], _SESSION_SALT)
            unnamed = np.diff(parts_of(cells["session"])[0]) == 0
            yield log_rows(
                ("converted",),
                qid=cells["qid"],
                doc_id=cells["doc_id"],
                session=np.where(unnamed, of_list, client),
                within=of_list.view(np.int64),
                policy=np.zeros(len(batch), dtype=np.int32),
                position=cells["position"],
                clicked=cells["clicked"],
                converted=cells["converted"],
            )


def _select(connection: Any, path: Path, columns: dict[str, str]) -> str:
    """Return the statement that selects ``columns``, of which nested ones may be JSON text, from ``path``."""
    chosen = format_of(path)
    name = "'" + str(path).replace("'", "''") + "'"
    types = {column: "VARCHAR" if not form else "JSON" for column, form in columns.items()}
    if chosen == "jsonl":
        source = f"read_json({name}, format = 'newline_delimited', columns = {types!r})"
    elif chosen in {"csv", "tsv"}:
        source = f"read_csv({name}, all_varchar = true, header = true)"
    elif chosen == "parquet":
        schema_of_file(path)
        source = f"read_parquet({name})"
    else:
        raise InputError(f"{path}: logs of UBI are read from JSON lines (.jsonl), Parquet or CSV; choose one of these")
    with _explained(path):
        found = dict(row[:2] for row in connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall())  # noqa: S608  quoted
    missing = [column for column in columns if column not in found]
    if missing:
        raise DataRejected(f"{path}: no column {missing[0]!r}; UBI has {', '.join(columns)}")
    cells = []
    for column, form in columns.items():
        text = found[column] in {"VARCHAR", "JSON"}
        cell = f"from_json({column}, '{form}')" if text else f"from_json(to_json({column}), '{form}')"
        cells.append(f"{cell} AS {column}" if form else f"{column}::VARCHAR AS {column}")
    return f"SELECT {', '.join(cells)} FROM {source}"  # noqa: S608  columns of ours


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException:
        raise InputError(
            f"{path}: joining queries and events needs more memory; give a larger {spelled('memory')}"
        ) from None
    except duckdb.Error as error:
        raise DataRejected(f"{path}: cannot be read as a log of UBI: {str(error).splitlines()[0]}") from None
