"""Read files of preference pairs, text or tables.

Malformed pairs are quarantined; the others are joined to the rows of their documents.

In text a pair is a line ``qid better worse [weight [probability]]``; tables have these columns.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import ColumnProblem, DataRejected, UnusableColumns, name_hint
from rankmill.foundation.storage.publish import keep_by_digest
from rankmill.pipeline.arrow import as_array, schema_of
from rankmill.pipeline.dataset.manifest import PAIRS as STORED_PAIRS
from rankmill.pipeline.dataset.manifest import PairShard
from rankmill.pipeline.group.shard_writer import open_writer
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, ReadOptions
from rankmill.pipeline.pairs.stored_pairs import STORED
from rankmill.pipeline.read.batch import Problems, shorten
from rankmill.pipeline.read.column_roles import NUMBERS, PAIR_PARTS
from rankmill.pipeline.read.columns import TableColumns
from rankmill.pipeline.read.open_source import NarrowFile
from rankmill.pipeline.read.role_columns import read_parts
from rankmill.pipeline.read.words import PAIRS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from rankmill.pipeline.group.spill import SpilledRows
    from rankmill.pipeline.read.batch import Quarantine

_IDS, _NUMBERS = PAIR_PARTS[:3], PAIR_PARTS[3:]
_ROW_GROUP_ROWS = 1 << 20
SPILLED = schema_of(
    [
        ("qid", pa.string(), False),
        ("better", pa.string(), False),
        ("worse", pa.string(), False),
        ("weight", pa.float64(), False),
        ("probability", pa.float64(), False),
        ("source", pa.int32(), False),
        ("place", pa.int64(), False),
    ]
)
"""Schema of spilled pairs."""

_NO_IDS = "its rows have no document ids: add a column doc_id (in LETOR text: #docid = X)"
_A_DOCUMENT, _ONE_ROW = "a document of query {qid!r}", "a document with one row in query {qid!r}"
MISMATCHES = (
    ("qid", "a query of the judgments", ""),
    ("better", _A_DOCUMENT, _NO_IDS),
    ("better", _A_DOCUMENT, ""),
    ("better", _ONE_ROW, "it has several rows"),
    ("worse", _A_DOCUMENT, ""),
    ("worse", _ONE_ROW, "it has several rows"),
)
"""Why a pair does not have two rows: the column of the wrong id, what was expected, and the cure."""


class PairFile:
    """A file of pairs."""

    holds = "pairs"

    def __init__(self, path: Path, quarantine: Quarantine) -> None:
        """Open ``path``; InputError if the file does not exist, DataRejected if the header of a table is invalid."""
        self.path = path
        self._file = NarrowFile(path, PAIRS, quarantine, ReadOptions(), _pair_columns)

    @property
    def position(self) -> int:
        """Bytes of the file read so far; may stay 0 if unknown."""
        return self._file.position

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield the pairs in the order of the file.

        Columns are those of a table of pairs, and ``place``, the position for :meth:`refuse`.

        Ids are never null or empty; missing weights and probabilities are 1.
        """
        for rows in self._file.rows(block_bytes):
            columns = dict(rows.columns)
            if self._file.table is None:  # missing words of short lines
                columns |= {name: columns[name].fill_null("1") for name in _NUMBERS}
            found = read_parts({name: columns[name] for name in _IDS}, rows.problems, needed=_IDS)
            ids = {name: column.fill_null("") for name, column in found.items()}
            same = pc.equal(ids["better"], ids["worse"]).to_numpy(zero_copy_only=False)
            for row in rows.problems.new(same):
                shown = repr(ids["worse"][row].as_py())
                rows.problems.add(row, "worse", shown, "a document other than the better one")
            numbers = {name: np.ones(len(rows.place)) for name in _NUMBERS}
            numbers |= read_parts({name: columns[name] for name in _NUMBERS if name in columns}, rows.problems)
            rows.reject(rows.problems)
            keep = rows.problems.keep
            kept = as_array(np.flatnonzero(keep))
            columns = {name: ids[name].take(kept) for name in _IDS}
            columns |= {name: as_array(NUMBERS[name].stored(numbers[name][keep])) for name in _NUMBERS}
            yield pa.RecordBatch.from_pydict(columns | {"place": as_array(rows.place[keep])})

    def refuse(self, mismatches: Mapping[int, int]) -> None:
        """Quarantine the pairs at these positions, for the reasons of these numbers in `MISMATCHES`."""
        places = np.array(sorted(mismatches), dtype=np.int64)
        for rows in self._file.rows(again=True):
            problems = Problems(len(rows.place))
            for row in problems.new(np.isin(rows.place, places)):
                column, expected, cure = MISMATCHES[mismatches[int(rows.place[row])]]
                ids = read_parts({name: rows.columns[name].slice(row, 1) for name in _IDS}, Problems(1))
                found = repr(shorten(ids[column][0].as_py()))
                problems.add(row, column, found, expected.format(qid=ids["qid"][0].as_py()), cure)
            rows.reject(problems)


def _pair_columns(
    path: Path,
    header: Sequence[str],
    options: ReadOptions,  # noqa: ARG001  pairs have none
    look: Callable[[TableColumns], list[ColumnProblem]],
) -> TableColumns:
    """Assign roles to the columns of a table of pairs; DataRejected if one is missing, unknown or of the wrong type."""
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise DataRejected(f"{path}: column {twice[0]!r} occurs twice; every column needs a unique name")
    for name in _IDS:
        if name not in header:
            raise DataRejected(
                f"{path}: no column {name!r}; the columns of a table of pairs are {', '.join(PAIR_PARTS)}"
            )
    for name in header:
        if name not in PAIR_PARTS:
            hint = name_hint(name, PAIR_PARTS, f"the columns of a table of pairs are {', '.join(PAIR_PARTS)}")
            raise DataRejected(f"{path}: unknown column {name!r}; {hint}")
    columns = TableColumns({name: name for name in PAIR_PARTS if name in header}, ())
    problems = [problem for problem in look(columns) if not problem.in_rows]
    if problems:
        raise UnusableColumns(path, tuple(problems))
    return columns


def join_pairs(
    spilled: SpilledRows,
    ids_of: Callable[[int], pa.Table | None],
    sources: Sequence[PairFile],
    quarantine: Quarantine,
    folder: Path,
) -> list[PairShard]:
    """Write the pairs to ``folder/_pairs/<digest>.parquet``.

    There is one file per bucket with pairs, in the order of the buckets.

    Pairs are stored as positions within their query: position k is the k-th row of the query in canonical order.  So
    they stay valid for any split or selection of queries.  Canonical order of pairs: query, better, worse, weight,
    probability.  Duplicates are kept.  Peak memory: the pairs and the ids of one bucket.

    Parameters
    ----------
    spilled
        The pairs, of the schema `SPILLED`.
    ids_of
        Returns ``qid`` and ``doc_id`` of the rows of a bucket, in canonical order; None if it has no rows.
    sources
        The files, by their number in the spill.
    quarantine
        Receives the pairs whose query or document does not exist, or whose document occurs twice, in the order of the
        files.

    Raises
    ------
    DataRejected
        There are more such pairs than allowed.
    """
    import polars as pl  # imported only if there are pairs: takes 0.2 s and 34 MB

    shards = []
    most = quarantine.limit + 1 - len(quarantine.rejects)
    refused = pl.DataFrame(schema={"source": pl.Int32, "place": pl.Int64, "why": pl.Int64})
    for bucket in np.flatnonzero(spilled.rows).tolist():
        found = _with_rows(spilled.take(bucket), ids_of(bucket))
        bad = found.filter(pl.col("why").is_not_null()).select(refused.columns)
        refused = pl.concat([refused, bad]).sort("source", "place").head(most)
        joined = _as_stored(found.filter(pl.col("why").is_null()))
        if len(joined):
            shards.append(_write(joined, bucket, folder))
    for (number,), some in refused.partition_by("source", as_dict=True, maintain_order=True).items():
        sources[number].refuse(dict(some.select("place", "why").iter_rows()))
    return shards


def _with_rows(pairs: pa.Table, ids: pa.Table | None) -> pl.DataFrame:
    """Return ``pairs`` with the rows of their documents and ``why``.

    ``why`` is the number of the mismatch, null if the pair has two rows.
    """
    import polars as pl

    no_ids = schema_of([("qid", pa.string(), False), ("doc_id", pa.string(), True)]).empty_table()
    rows = pl.DataFrame(no_ids if ids is None else ids).with_row_index("row")
    queries = rows.group_by("qid").agg(
        pl.col("row").min().alias("start"), pl.col("doc_id").is_not_null().any().alias("named")
    )
    documents = rows.drop_nulls("doc_id").group_by("qid", "doc_id").agg(pl.col("row").first(), pl.len().alias("rows"))
    found = pl.DataFrame(pairs).join(queries, on="qid", how="left", maintain_order="left")
    for name in ("better", "worse"):
        of_name = documents.rename({"doc_id": name, "row": f"row of {name}", "rows": f"rows of {name}"})
        found = found.join(of_name, on=("qid", name), how="left", maintain_order="left")
    better, worse = pl.col("rows of better"), pl.col("rows of worse")
    wrong = (pl.col("start").is_null(), ~pl.col("named"), better.is_null(), better > 1, worse.is_null(), worse > 1)
    why = pl.coalesce(*(pl.when(bad).then(number) for number, bad in enumerate(wrong)))
    return found.with_columns(why=why.cast(pl.Int64))


def _as_stored(found: pl.DataFrame) -> pa.Table:
    """Return pairs with two rows in canonical order, as positions within their queries."""
    import polars as pl

    ordered = found.sort("start", "row of better", "row of worse", "weight", "probability")
    places = ((pl.col(f"row of {name}") - pl.col("start")).cast(pl.Int32).alias(name) for name in ("better", "worse"))
    return ordered.select("qid", *places, "weight", "probability").to_arrow().cast(STORED)


def _write(pairs: pa.Table, bucket: int, folder: Path) -> PairShard:
    staged = folder / f"pairs-{bucket:05d}.parquet"
    with open_writer(staged, STORED) as writer:
        writer.write_table(pairs, row_group_size=_ROW_GROUP_ROWS)
    size = staged.stat().st_size
    return PairShard(bucket=bucket, pairs=len(pairs), digest=keep_by_digest(staged, folder / STORED_PAIRS), size=size)
