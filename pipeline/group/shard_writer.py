"""Second pass: write each bucket as a shard in canonical order (see :mod:`rankmill.pipeline.group.bucket`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.storage.publish import keep_by_digest
from rankmill.foundation.threads import in_order
from rankmill.pipeline.arrow import ScratchBuffer, as_array, schema_of
from rankmill.pipeline.dataset.manifest import (
    FEATURES,
    QUERIES,
    SPLITS,
    STATISTICS,
    UNJUDGED,
    Shard,
    ShardStatistics,
    Tally,
    UnjudgedShard,
)
from rankmill.pipeline.group import _kernels
from rankmill.pipeline.group.bucket import Bucket, one_value, read_graded, runs_of, split_by_file
from rankmill.pipeline.group.spill import PLACE, extras_of
from rankmill.pipeline.memory_plans import writing_share
from rankmill.pipeline.read.column_roles import type_of
from rankmill.pipeline.read.times import TIME
from rankmill.pipeline.statistics.feature_statistics import ColumnCollector, query_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rankmill.pipeline.bins.vocabulary import Vocabulary
    from rankmill.pipeline.group.bucket import Layout
    from rankmill.pipeline.group.spill import SpilledRows


_QUERIES = schema_of(
    [
        ("qid", pa.string(), False),
        ("split", pa.string(), False),
        ("shard", pa.int32(), False),
        ("row_start", pa.int64(), False),
        ("n_docs", pa.int64(), False),
        ("n_relevant", pa.int64(), False),
    ]
)
_TIME_TYPE = pa.timestamp("us", "UTC")
_QUERY_WEIGHT = "query_weight"
_OF_QUERIES = (_QUERY_WEIGHT, TIME)  # columns stored per query, not per row


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSummary:
    """The written shard of a bucket, with counts for the manifest."""

    bucket: int
    rows_tally: Tally
    judgments_tally: Tally
    unjudged: UnjudgedShard | None = None
    shard: Shard | None = None  # None: all rows are unjudged
    missing_values: int = 0
    grades: Counter[int] = field(default_factory=Counter)
    goals: Mapping[str, Counter[int]] = field(default_factory=dict)  # grades of each goal
    queries: Counter[str] = field(default_factory=Counter)  # by split
    rows: Counter[str] = field(default_factory=Counter)  # by split


def write_shards(
    spilled: SpilledRows,
    layout: Layout,
    folder: Path,
    buckets: Sequence[int],
    vocabulary: Vocabulary,
    *,
    threads: int,
    memory: int,
    done: Callable[[int], None],
) -> list[ShardSummary]:
    """Write ``buckets`` to ``folder``; return their summaries in order.

    As many of ``threads`` as fit in ``memory`` bytes write buckets in parallel; InputError if the largest bucket does
    not fit.  Calls ``done`` with the number of rows written after each, and counts the categories in ``vocabulary``.
    """
    rows = spilled.rows[[*buckets]]
    share = writing_share(
        memory,
        threads,
        row_group_bytes=4 * len(layout.features) * layout.row_group_rows,
        bucket_rows=int(rows.max()),
        row_bytes=4 * len(layout.features),
        id_bytes=spilled.id_bytes[:, [*buckets]],
        grading_bytes=0 if layout.grading is None else layout.grading.bytes_held(spilled.rows),
    )
    summaries: dict[int, ShardSummary] = {}
    idle: list[Scratch] = []

    def write(bucket: int) -> None:
        try:
            scratch = idle.pop()
        except IndexError:  # checking first would be a race with other threads
            scratch = Scratch()
        summaries[bucket] = write_shard(spilled, bucket, layout, folder, vocabulary, share.values, scratch)
        idle.append(scratch)
        done(int(spilled.rows[bucket]))

    failures = in_order(buckets, write, share.threads)
    if failures:
        raise failures[0].error
    return [summaries[bucket] for bucket in sorted(summaries)]


@dataclass(frozen=True, slots=True)
class Scratch:
    """Large buffers of one thread, reused for its next shard."""

    values: ScratchBuffer = field(default_factory=ScratchBuffer)  # rows of the bucket
    columns: ScratchBuffer = field(default_factory=ScratchBuffer)  # a row group, as columns


def write_shard(
    spilled: SpilledRows,
    number: int,
    layout: Layout,
    folder: Path,
    vocabulary: Vocabulary,
    memory: int,
    scratch: Scratch,
) -> ShardSummary:
    """Write the rows, queries, statistics and unjudged rows of bucket ``number`` to ``folder``.

    If the values do not fit in ``memory`` bytes, the spilled rows are read again for every ``memory`` bytes of sorted
    rows. The bytes of the shard are the same.  Peak memory: ``memory`` (at least a row group), one row group, and about
    :data:`rankmill.pipeline.memory_plans.BYTES_A_ROW` bytes per row of the bucket for ids and order.
    """
    n, width = int(spilled.rows[number]), len(layout.features)
    values = scratch.values.array(n, width) if n * width * 4 <= memory else None
    bucket = Bucket(spilled, number, layout, values)
    rows, unjudged_rows, of_rows, of_judgments = read_graded(bucket)
    summary = ShardSummary(bucket=number, rows_tally=of_rows, judgments_tally=of_judgments)
    if len(unjudged_rows):
        staged = _write_rows(unjudged_rows, bucket, folder, memory, scratch)
        digest, size = _kept(staged, folder / UNJUDGED)
        unjudged = UnjudgedShard(bucket=number, rows=len(unjudged_rows), digest=digest, size=size)
        summary = replace(summary, unjudged=unjudged)
    if not len(rows):
        return summary
    qid, starts = runs_of(rows.column("qid"))
    collector = ColumnCollector(width, starts, bucket.layout.categorical)
    staged = _write_rows(rows, bucket, folder, memory, scratch, collector)
    digest, size = _kept(staged, folder / FEATURES)
    queries = _queries(number, qid, starts, rows, layout)
    queries_digest, queries_size = keep_table(queries, staged, folder / QUERIES)
    statistics_digest, statistics_size = keep_table(collector.table(layout.features), staged, folder / STATISTICS)
    vocabulary.count(collector.tallies)
    grade = rows.column("grade").to_numpy()
    one_document, one_grade = query_counts(grade, starts)
    split = np.array(queries.column("split").to_pylist())
    n_docs = queries.column("n_docs").to_numpy()
    shard = Shard(
        bucket=number,
        rows=len(rows),
        n_queries=len(queries),
        features=digest,
        features_bytes=size,
        queries=queries_digest,
        queries_bytes=queries_size,
        statistics=ShardStatistics(
            digest=statistics_digest,
            size=statistics_size,
            one_document=one_document,
            one_grade=one_grade,
        ),
    )
    return replace(
        summary,
        shard=shard,
        missing_values=collector.missing,
        grades=_counted(grade),
        goals={name: _counted(rows.column(name).to_numpy()) for name in layout.goals},
        queries=Counter({name: int(np.count_nonzero(split == name)) for name in SPLITS}),
        rows=Counter({name: int(n_docs[split == name].sum()) for name in SPLITS}),
    )


def _counted(grades: npt.NDArray[np.int32]) -> Counter[int]:
    """Return how often each of ``grades`` (n,) occurs."""
    values, counts = np.unique(grades, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def _write_rows(
    rows: pa.RecordBatch,
    bucket: Bucket,
    folder: Path,
    memory: int,
    scratch: Scratch,
    collector: ColumnCollector | None = None,
) -> Path:
    """Write ``rows`` of ``bucket`` with their values; return the file.

    ``collector`` computes statistics of judged rows; None for unjudged rows.
    """
    staged = folder / f"shard-{bucket.number:05d}.parquet"
    schema = _rows_schema(bucket.layout, rows, judged=collector is not None)
    with open_writer(staged, schema, bucket.layout.goals) as writer:
        for low, values, places in _row_groups(bucket, rows.column(PLACE).to_numpy(), memory, scratch.values):
            columns = scratch.columns.array(values.shape[1], len(places))
            _kernels.turn(values, places, columns)
            if collector is not None:
                collector.add(columns)
            narrow = [rows.column(name).slice(low, len(places)) for name in schema.names[: -len(columns)]]
            table = pa.Table.from_arrays([*narrow, *map(as_array, columns)], schema=schema)
            writer.write_table(table, row_group_size=len(places))
    return staged


def _row_groups(
    bucket: Bucket, order: npt.NDArray[np.int64], memory: int, scratch: ScratchBuffer
) -> Iterator[tuple[int, npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
    """Yield the first position of each row group, values, and which rows of them it has, in canonical order.

    ``order`` (m,) is the spilled row at each position.  If not all values are held, there is a pass over the spill for
    as many whole row groups as fit in ``memory``.
    """
    m, width, group_rows = len(order), len(bucket.layout.features), bucket.layout.row_group_rows
    if bucket.values is not None:
        for low in range(0, m, group_rows):
            yield low, bucket.values, order[low : low + group_rows]
        return
    step = group_rows * max(1, memory // (group_rows * width * 4))
    place_of = np.full(int(bucket.spilled.rows[bucket.number]), -1, dtype=np.int64)
    place_of[order] = np.arange(m)
    for low in range(0, m, step):
        chunk = scratch.array(min(step, m - low), width)
        first = 0
        for values in bucket.batches():
            at = place_of[first : first + len(values)] - low
            here = (at >= 0) & (at < len(chunk))
            chunk[at[here]] = values[here]
            first += len(values)
        for start in range(0, len(chunk), group_rows):
            yield low + start, chunk, np.arange(start, min(start + group_rows, len(chunk)))


def _rows_schema(layout: Layout, rows: pa.RecordBatch, *, judged: bool) -> pa.Schema:
    return schema_of(
        [
            ("qid", pa.string(), False),
            ("doc_id", pa.string(), True),
            *([("grade", pa.int32(), False)] if judged else []),
            *((name, type_of(name), False) for name in extras_of(rows) if name not in _OF_QUERIES),
            *((name, pa.float32(), False) for name in layout.features),
        ]
    )


def open_writer(path: Path, schema: pa.Schema, goals: Sequence[str] = ()) -> pq.ParquetWriter:
    """Open a writer with explicit values for all settings that affect the bytes. So equal rows give equal files."""
    repeated = [
        name for name in ("qid", "grade", "event", "position", "split", "shard", *goals) if name in schema.names
    ]
    return pq.ParquetWriter(
        path,
        schema,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=1,
        use_dictionary=cast("Any", repeated),
        write_statistics=repeated,
        data_page_size=1 << 20,
        write_batch_size=1024,
        store_schema=False,
    )


def keep_table(table: pa.Table, staged: Path, folder: Path) -> tuple[str, int]:
    """Write a small table to ``folder``, via the file ``staged``; return digest and size."""
    with open_writer(staged, table.schema) as writer:
        writer.write_table(table)
    return _kept(staged, folder)


def _kept(staged: Path, folder: Path) -> tuple[str, int]:
    """Move a file to ``folder``, named by its digest; return digest and size."""
    size = staged.stat().st_size
    return keep_by_digest(staged, folder), size


def _queries(
    bucket: int, qid: pa.Array[Any], starts: npt.NDArray[np.int64], rows: pa.RecordBatch, layout: Layout
) -> pa.Table:
    """Return the queries table of a bucket; DataRejected if a query has two splits or two weights."""
    ends, extras = np.append(starts[1:], len(rows)), extras_of(rows)
    latest = np.maximum.reduceat(rows.column(TIME).to_numpy(), starts) if TIME in extras else None
    split = split_by_file(rows, starts, layout) if layout.rule is None else layout.rule.splits(qid, latest)
    relevant = rows.column("grade").to_numpy() >= 1
    table = pa.Table.from_arrays(
        [
            qid,
            pa.array([SPLITS[code] for code in split.tolist()], pa.string()),
            as_array(np.full(len(qid), bucket, dtype=np.int32)),
            as_array(starts),
            as_array(ends - starts),
            as_array(np.add.reduceat(relevant.astype(np.int64), starts)),
        ],
        schema=_QUERIES,
    )
    if _QUERY_WEIGHT in extras:
        weight = one_value(rows, starts, rows.column(_QUERY_WEIGHT).to_numpy(), layout, lambda low, high, files: (
            f"has query_weight {low:g} ({files[0]}) and {high:g} ({files[1]}): it must be the same in all rows of a "
            "query; weights of documents go into the column weight"
        ))  # fmt: skip
        table = table.append_column(pa.field(_QUERY_WEIGHT, pa.float64(), nullable=False), as_array(weight))
    if latest is not None:
        table = table.append_column(pa.field(TIME, _TIME_TYPE, nullable=False), as_array(latest).cast(_TIME_TYPE))
    return table
