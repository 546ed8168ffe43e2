"""Join a click log to features: a row for each impression, a query for each result list.

The query of a row is ``QID/SESSION``, the session as the 16 hexadecimal digits of its hash, and ``QID/SESSION-2`` for its second list of the
same query.  So each result list is a list to learn from, with its clicks as grades and its ranks as positions.  The lists of one query
belong into one split: `data ingest --split-prefix /` looks at the text before the last slash only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.database import open_database
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import as_json
from rankmill.foundation.storage.publish import publish_file
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.arrow import as_array, schema_of
from rankmill.pipeline.clicks.result_lists import ClickLog, LogBlock
from rankmill.pipeline.clicks.spilled_log import RESIDENT
from rankmill.pipeline.clicks.write_judgments import TableWriter, check_table_path
from rankmill.pipeline.sources.column_roles import PARTS, RESERVED
from rankmill.pipeline.sources.empty_files import with_rows
from rankmill.pipeline.sources.files import check_file, find_files

BYTES_USED = 150  # for an impression of a block: its list, and a share of the texts of list ids
_AT_ONCE = 1 << 17  # impressions with texts of ids
_ROW_GROUP_BYTES = 32 << 20
_LEAST_MEMORY = 128 << 20  # for DuckDB
_TRACKED = 0.6  # of the memory that is left: DuckDB does not count all of its own
_IMPRESSIONS = schema_of(
    [
        ("row", pa.int64(), False),
        ("query", pa.string(), False),
        ("qid", pa.string(), False),
        ("doc_id", pa.string(), False),
        ("grade", pa.int32(), False),
        ("position", pa.int32(), False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReport:
    """The result of :func:`join_features`.

    Attributes
    ----------
    rows, lists, clicks
        Of the file.
    features
        Number of features.
    without_features
        Impressions of documents that the features do not have; they are left out.
    """

    path: Path
    rows: int
    lists: int
    clicks: int
    features: int
    without_features: int

    def render(self) -> str:
        """Return the report as text."""
        text = f"{self.path}: {self.rows:,} impressions with {self.features:,} features in {self.lists:,} result lists, {self.clicks:,} clicks"
        if self.without_features:
            text += f"\nleft out: {self.without_features:,} impressions of documents without features"
        return text

    def to_json(self) -> Any:
        """Return the report as JSON values."""
        return as_json(self)


def join_features(
    log: ClickLog,
    features: Sequence[str | Path],
    out: Path,
    *,
    memory: int = 1_000_000_000,
    overwrite: bool = False,
) -> JoinReport:
    """Write the impressions of ``log`` with their features to the Parquet file ``out``, in the order of the log.

    Columns: qid, doc_id, grade (1: clicked, 0), position, and the features.  The bytes do not depend on the memory.  Disk: the
    impressions, and what DuckDB spills.

    Parameters
    ----------
    features
        Parquet files, folders and patterns, with qid, doc_id and features; other roles, such as grade, are not joined.
    memory
        Of the process, in bytes.

    Raises
    ------
    InputError
        A file is missing or not Parquet, or ``out`` cannot be written.
    DataRejected
        Features lack a column, differ between files, or have a document twice; or no impression has features.
    """
    check_table_path(out, overwrite=overwrite)
    files = with_rows(find_files(features))
    names = _feature_names(files)
    with staging_folder(out) as staging:
        impressions, staged = staging / "impressions.parquet", staging / out.name
        kept = _write_impressions(log, impressions)
        rows = clicks = lists = 0
        with _connected(staging / "spill", memory) as connection:
            source = f"read_parquet({_texts(files)}, union_by_name = false)"
            _check_unique(connection, source, files[0])
            columns = ", ".join(f"f.{_name(name)}" for name in names)
            joined = connection.sql(
                f"SELECT i.qid, i.doc_id, i.grade, i.position, {columns} FROM read_parquet({_texts([impressions])}) i"  # noqa: S608  quoted
                f" JOIN {source} f ON f.qid::VARCHAR = i.query AND f.doc_id::VARCHAR = i.doc_id ORDER BY i.row"
            )
            reader = joined.to_arrow_reader(1 << 14)
            schema = _schema(reader.schema)
            group_rows = 1 << max((_ROW_GROUP_BYTES // (8 * len(schema))).bit_length() - 1, 10)
            last = None
            with TableWriter(staged, schema, group_rows) as writer:
                for batch in reader:
                    qid = batch.column(0)
                    if len(batch):
                        starts = np.flatnonzero(~_same_as_before(qid))
                        lists += 1 + len(starts) - int(qid[0].as_py() == last)
                        last = qid[len(qid) - 1].as_py()
                    rows += len(batch)
                    clicks += int(batch.column(2).to_numpy().sum())
                    writer.write(pa.Table.from_batches([batch]).cast(schema))
        if rows == 0:
            raise DataRejected(
                f"none of the {kept:,} impressions has features in {files[0]}; check that both spell the ids of queries and documents alike"
            )
        publish_file(staged, out)
    return JoinReport(
        path=out,
        rows=rows,
        lists=lists,
        clicks=clicks,
        features=len(names),
        without_features=kept - rows,
    )


def list_ids(block: LogBlock) -> pa.Array[Any]:
    """Return the id of each list, (lists,)."""
    lists = block.lists
    n = len(lists.query)
    again = np.zeros(n, dtype=np.int64)  # number of the list among those of its session and query
    if n:
        same = (np.diff(lists.query) == 0) & (np.diff(lists.session.view(np.int64)) == 0)
        starts = np.flatnonzero(np.concatenate([[True], ~same]))
        again = np.arange(n) - np.repeat(starts, np.diff(np.append(starts, n)))
    qids = block.queries.to_pylist()
    return pa.array(
        [
            f"{qids[query]}/{session:016x}" + (f"-{number + 1}" if number else "")
            for query, session, number in zip(lists.query.tolist(), lists.session.tolist(), again.tolist(), strict=True)
        ],
        pa.string(),
    )


def _write_impressions(log: ClickLog, path: Path) -> int:
    """Write the impressions of all lists; return their number."""
    row = 0
    with pq.ParquetWriter(path, _IMPRESSIONS, compression="zstd") as writer:
        for block in log.blocks():
            lists = block.lists
            of_list = np.repeat(np.arange(len(lists.query)), np.diff(lists.start))
            ids = list_ids(block)
            for first in range(0, len(of_list), _AT_ONCE):
                part = np.arange(first, min(first + _AT_ONCE, len(of_list)))
                columns = [
                    pa.array(np.arange(row, row + len(part))),
                    block.queries.take(as_array(lists.query[of_list[part]])),
                    ids.take(as_array(of_list[part])),
                    block.documents.take(as_array(lists.document[part])),
                    as_array(lists.clicked[part].astype(np.int32)),
                    as_array(lists.rank[part]),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=_IMPRESSIONS))
                row += len(part)
    return row


def _feature_names(files: Sequence[Path]) -> list[str]:
    first: list[str] | None = None
    for path in files:
        check_file(path)
        try:
            names = pq.read_schema(path).names
        except pa.ArrowInvalid:
            raise InputError(f"{path}: features are joined from Parquet; convert the file to .parquet") from None
        for name in ("qid", "doc_id"):
            if name not in names:
                raise DataRejected(f"{path}: no column {name!r}; the columns are: {', '.join(names[:6])}")
        found = [name for name in names if name not in {*PARTS, *RESERVED}]
        if not found:
            raise DataRejected(f"{path}: no column is a feature")
        if first is not None and found != first:
            raise DataRejected(
                f"{path}: its features differ from those of {files[0]}; all files need the same columns in one order"
            )
        first = found
    return first or []


def _check_unique(connection: Any, source: str, path: Path) -> None:
    twice = connection.execute(
        f"SELECT qid::VARCHAR, doc_id::VARCHAR FROM {source} WHERE qid IS NOT NULL AND doc_id IS NOT NULL"  # noqa: S608
        " GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT 1"
    ).fetchone()
    if twice is not None:
        raise DataRejected(
            f"{path}: query {twice[0]!r}, document {twice[1]!r}: expected one row of features, found several; keep one of them"
        )


def _schema(found: pa.Schema) -> pa.Schema:
    narrow = [
        pa.field(name, _IMPRESSIONS.field(name).type, nullable=False) for name in ("qid", "doc_id", "grade", "position")
    ]
    return pa.schema([*narrow, *list(found)[4:]])


def _same_as_before(qid: pa.Array[Any]) -> npt.NDArray[np.bool_]:
    import pyarrow.compute as pc

    same: npt.NDArray[np.bool_] = pc.equal(qid.slice(1), qid.slice(0, len(qid) - 1)).to_numpy(zero_copy_only=False)
    return same


@contextmanager
def _connected(spill: Path, memory: int) -> Iterator[Any]:
    """Yield a DuckDB database with a memory limit."""
    import duckdb

    limit = memory - RESIDENT
    if limit < _LEAST_MEMORY:
        raise InputError(
            f"{spelled('memory')} must be {RESIDENT + _LEAST_MEMORY:,} bytes or more for a join, got {memory:,}"
        )
    with open_database(memory=int(_TRACKED * limit), threads=1, spill=spill) as connection:
        try:
            yield connection
        except duckdb.OutOfMemoryException:
            raise InputError(
                f"the join needs more than {memory:,} bytes; allow more with {spelled('memory')}"
            ) from None


def _texts(files: Sequence[Path]) -> str:
    return "[" + ", ".join("'" + fspath(file).replace("'", "''") + "'" for file in files) + "]"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
