"""Count the candidates of queries, to know before the lists are written which queries each shard gets.

A shard ends with the query that reaches a number of rows (`rankmill.scorer.rerank.write`), so it depends on all queries before it.
With the counts of all queries, shards can be written in any order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.scorer.rerank.ranked_file import SCORED_ROW
from rankmill.scorer.rerank.spill import BATCH_ROWS, batches_of, open_sorter

QUERY_COUNT = pa.schema([SCORED_ROW.field("qid"), pa.field("n", pa.int64(), nullable=False)])
"""The number of rows of a query in a part of the input."""

_HELD = 1 << 19  # rows of counts that are added up


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRange:
    """A range of queries whose ranked rows make whole shards: its first query (None: the first of all), shards and their rows."""

    first_qid: str | None
    first_shard: int
    shards: int
    rows: int


def count_queries(files: Sequence[Path]) -> pa.Table:
    """Return the rows of each query in ``files`` of ``SCORED_ROW``, as ``QUERY_COUNT``, ascending by qid."""
    held: list[pa.Table] = [QUERY_COUNT.empty_table()]
    for batch in batches_of(files, [SCORED_ROW.get_field_index("qid")]):
        found: Any = pc.value_counts(batch.column(0))
        held.append(pa.Table.from_arrays([found.field("values"), found.field("counts")], schema=QUERY_COUNT))
        if sum(map(len, held)) > _HELD:
            held = [_added(held)]
    return _added(held).sort_by("qid")


def total_counts(
    files: Sequence[Path], top_k: int | None, folder: Path, *, sort_bytes: int, n_threads: int
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of each query in all ``files`` of ``QUERY_COUNT``, ``top_k`` at most, ascending by qid; it spills to ``folder``."""
    most = np.iinfo(np.int64).max if top_k is None else top_k
    with open_sorter(folder, sort_bytes, n_threads) as database, closing(batches_of(files)) as counts:
        database.register("counts", pa.RecordBatchReader.from_batches(QUERY_COUNT, counts))
        total = "SELECT qid, least(sum(n), $most)::BIGINT AS n FROM counts GROUP BY qid ORDER BY qid"
        yield from database.sql(total, params={"most": most}).to_arrow_reader(BATCH_ROWS)


def ranges_of_queries(counts: Iterable[pa.RecordBatch], shard_rows: int, most: int) -> list[QueryRange]:
    """Divide the queries of ``counts``, ascending by qid, into at most ``most`` ranges of about equally many whole shards.

    >>> counts = pa.record_batch([["a", "b", "c", "d"], [3, 1, 9, 2]], schema=QUERY_COUNT)
    >>> [(each.first_qid, each.first_shard, each.rows) for each in ranges_of_queries([counts], 4, 10)]
    [(None, 0, 4), ('c', 1, 9), ('d', 2, 2)]
    >>> [(each.first_qid, each.shards, each.rows) for each in ranges_of_queries([counts], 4, 2)]
    [(None, 1, 4), ('c', 2, 11)]
    """
    first_qids: list[str] = []
    rows: list[int] = []
    for batch in counts:
        ends, at = np.cumsum(batch.column(1).to_numpy()), 0
        while at < len(ends):
            if not rows or rows[-1] >= shard_rows:
                first_qids.append(batch.column(0)[at].as_py())
                rows.append(0)
            before = int(ends[at - 1]) if at else 0
            last = min(int(np.searchsorted(ends, before + shard_rows - rows[-1])), len(ends) - 1)
            rows[-1] += int(ends[last]) - before
            at = last + 1
    n_ranges = min(most, len(rows))
    begins = [number * len(rows) // n_ranges for number in range(n_ranges + 1)] if rows else []
    return [
        QueryRange(
            first_qid=first_qids[begin] if begin else None,
            first_shard=begin,
            shards=end - begin,
            rows=sum(rows[begin:end]),
        )
        for begin, end in pairwise(begins)
    ]


def _added(tables: Sequence[pa.Table]) -> pa.Table:
    found = pa.concat_tables(tables).group_by("qid").aggregate([("n", "sum")])
    return found.select(["qid", "n_sum"]).rename_columns(["qid", "n"]).cast(QUERY_COUNT)
