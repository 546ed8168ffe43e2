"""Second pass: one bucket at a time becomes a shard in canonical order.

Canonical order inside a bucket: qid, then doc_id (rows without one last), then a 128-bit digest of grade and values, then the
optional columns, ids compared byte by byte.  Rows equal in all of these have the same bytes (but for a chance of 2^-128), so the shard does not depend on
the order of the input.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.arrow import as_array, schema_of
from pipeline.group import _kernels
from pipeline.manifest import SPLITS, Shard
from pipeline.publish import keep_by_digest
from pipeline.sources.optional import TYPES
from pipeline.sources.times import TIME
from pipeline.validate import check_one_split, check_one_weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pipeline.group.spill import Spill, SpilledRows
    from pipeline.group.splits import SplitRule

ROW_GROUP_BYTES = 64 << 20  # decoded; a group has the largest power of two of rows that fits, so 32 to 64 MiB
_ROW_GROUP_ROWS = 1 << 20  # at most

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
_OF_QUERIES = (_QUERY_WEIGHT, TIME)  # columns that are stored for a query, not for its rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What all shards of a dataset have in common.

    Attributes
    ----------
    features
        Names of the columns.
    absent
        Value of the features that a narrower row leaves out.
    rule
        What says which split a query belongs to; None where the files do.
    source_split, source_name
        For each input file its split (index into SPLITS) and its name for messages.
    extras
        Optional columns of the rows.
    labels_are_grades
        Whether the grades are to be taken from the labels, all of which are whole numbers.
    """

    features: tuple[str, ...]
    absent: float
    rule: SplitRule | None
    source_split: Sequence[int]
    source_name: Sequence[str]
    extras: tuple[str, ...] = ()
    labels_are_grades: bool = False

    @property
    def row_extras(self) -> tuple[str, ...]:
        """The optional columns that are a row's own, not its query's."""
        return tuple(name for name in self.extras if name not in _OF_QUERIES)

    @property
    def row_group_rows(self) -> int:
        """Rows of a row group: a function of the number of features alone."""
        fitting = max(1, ROW_GROUP_BYTES // (4 * len(self.features)))
        return int(min(1 << (fitting.bit_length() - 1), _ROW_GROUP_ROWS))


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """A written shard with what the manifest adds up."""

    shard: Shard
    missing_values: int
    grades: Counter[int]
    queries: Counter[str]  # by split
    rows: Counter[str]  # by split


@dataclass(frozen=True, slots=True)
class _Keys:
    """The narrow columns of a bucket in canonical order."""

    order: npt.NDArray[np.int64]  # spilled row number of each place
    qid: pa.Array[Any]
    doc_id: pa.Array[Any]
    grade: npt.NDArray[np.int32]
    source: npt.NDArray[np.int32]
    extras: Mapping[str, npt.NDArray[Any]]
    missing_values: int


def write_shard(spill: Spill, bucket: int, layout: Layout, folder: Path, memory: int) -> ShardSummary:
    """Write ``features/`` and ``queries/`` of ``bucket`` under ``folder``.

    The values are held at once if they fit in ``memory`` bytes; else the spilled rows are read again for every
    ``memory`` bytes of sorted rows.  The shard has the same bytes either way.  Peak memory: ``memory`` (a row group if that is more), one
    row group, and about 100 bytes a row of the bucket for ids and order.
    """
    n = int(spill.rows[bucket])
    width = len(layout.features)
    held = np.empty((n, width), dtype=np.float32) if n * width * 4 <= memory else None
    keys = _sorted_keys(spill, bucket, layout, held)
    staged = folder / f"shard-{bucket:05d}.parquet"
    schema = _features_schema(layout)
    with open_writer(staged, schema) as writer:
        if held is not None:
            for low in range(0, n, layout.row_group_rows):
                _write_group(writer, schema, held, keys.order[low : low + layout.row_group_rows], keys, low)
        else:
            for low, rows in _regathered(spill, bucket, layout, keys.order, memory):
                for start in range(0, len(rows), layout.row_group_rows):
                    places = np.arange(start, min(start + layout.row_group_rows, len(rows)))
                    _write_group(writer, schema, rows, places, keys, low + start)
    size = staged.stat().st_size
    digest = keep_by_digest(staged, folder / "features")

    queries = _queries(bucket, keys, layout)
    with open_writer(staged, queries.schema) as writer:
        writer.write_table(queries)
    queries_size = staged.stat().st_size
    split = np.array(queries.column("split").to_pylist())
    n_docs = queries.column("n_docs").to_numpy()
    grades, counts = np.unique(keys.grade, return_counts=True)
    shard = Shard(
        bucket=bucket,
        rows=n,
        n_queries=len(queries),
        features=digest,
        features_bytes=size,
        queries=keep_by_digest(staged, folder / "queries"),
        queries_bytes=queries_size,
    )
    return ShardSummary(
        shard=shard,
        missing_values=keys.missing_values,
        grades=Counter(dict(zip(grades.tolist(), counts.tolist(), strict=True))),
        queries=Counter({name: int(np.count_nonzero(split == name)) for name in SPLITS}),
        rows=Counter({name: int(n_docs[split == name].sum()) for name in SPLITS}),
    )


def _sorted_keys(spill: Spill, bucket: int, layout: Layout, held: npt.NDArray[np.float32] | None) -> _Keys:
    """Read the bucket once, fill ``held`` (n, width) if there is room for it, and sort the keys."""
    n = int(spill.rows[bucket])
    qids: list[pa.Array[Any]] = []
    doc_ids: list[pa.Array[Any]] = []
    grade = np.empty(n, dtype=np.int32)
    source = np.empty(n, dtype=np.int32)
    digest = np.empty((n, 2), dtype=np.uint64)
    extras = {name: np.empty(n, dtype=TYPES[name].to_pandas_dtype()) for name in layout.extras}
    missing, low = 0, 0
    for rows in spill.batches(bucket):
        high = low + len(rows.grade)
        values = _padded(rows, layout, None if held is None else held[low:high])
        grade[low:high] = rows.extras["label"] if layout.labels_are_grades else rows.grade
        source[low:high] = rows.source
        for name, column in extras.items():
            column[low:high] = rows.extras[name]
        _kernels.digest_rows(values.view(np.uint32), grade[low:high], digest[low:high])
        missing += int(np.count_nonzero(np.isnan(values)))
        copied = as_array(np.arange(len(rows.grade)))  # a slice would keep the values that were read with it
        qids.append(rows.qid.take(copied))
        doc_ids.append(rows.doc_id.take(copied))
        low = high
    qid, doc_id = pa.concat_arrays(qids), pa.concat_arrays(doc_ids)
    columns = {"qid": qid, "doc_id": doc_id, "high": digest[:, 0].copy(), "low": digest[:, 1].copy()}
    columns |= {f"its {name}": as_array(column) for name, column in extras.items()}
    keys = [(name, "ascending") for name in columns]
    order = pc.sort_indices(pa.table(columns), sort_keys=cast("Any", keys)).to_numpy().astype(np.int64)
    places = as_array(order)
    return _Keys(
        order=order,
        qid=qid.take(places),
        doc_id=doc_id.take(places),
        grade=grade[order],
        source=source[order],
        extras={name: column[order] for name, column in extras.items()},
        missing_values=missing,
    )


def _padded(rows: SpilledRows, layout: Layout, out: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float32]:
    """Return the values of ``rows`` at the full width, in ``out`` if given."""
    n, width = rows.values.shape
    if out is None:
        if width == len(layout.features):
            return rows.values
        out = np.empty((n, len(layout.features)), dtype=np.float32)
    out[:, :width] = rows.values
    out[:, width:] = layout.absent
    return out


def _regathered(
    spill: Spill, bucket: int, layout: Layout, order: npt.NDArray[np.int64], memory: int
) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield (first place, rows in canonical order), whole row groups that fit in ``memory``, one pass over the spill each."""
    n, width = len(order), len(layout.features)
    step = layout.row_group_rows * max(1, memory // (layout.row_group_rows * width * 4))
    place_of = np.empty(n, dtype=np.int64)
    place_of[order] = np.arange(n)
    for low in range(0, n, step):
        chunk = np.empty((min(step, n - low), width), dtype=np.float32)
        first = 0
        for rows in spill.batches(bucket):
            place = place_of[first : first + len(rows.grade)] - low
            first += len(rows.grade)
            here = (place >= 0) & (place < len(chunk))
            chunk[place[here]] = _padded(rows, layout, None)[here]
        yield low, chunk


def _features_schema(layout: Layout) -> pa.Schema:
    return schema_of(
        [
            ("qid", pa.string(), False),
            ("doc_id", pa.string(), True),
            ("grade", pa.int32(), False),
            *((name, TYPES[name], False) for name in layout.row_extras),
            *((name, pa.float32(), False) for name in layout.features),
        ]
    )


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a writer whose every setting that shows in the bytes is given: equal rows make equal files."""
    repeated = [name for name in ("qid", "grade", "event", "position", "split", "shard") if name in schema.names]
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


def _write_group(
    writer: pq.ParquetWriter,
    schema: pa.Schema,
    values: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int64],
    keys: _Keys,
    low: int,
) -> None:
    """Write ``values[rows]`` as one row group; they stand at place ``low`` and after."""
    columns = np.empty((values.shape[1], len(rows)), dtype=np.float32)
    _kernels.turn(values, rows, columns)
    ids = [
        keys.qid.slice(low, len(rows)),
        keys.doc_id.slice(low, len(rows)),
        as_array(keys.grade[low : low + len(rows)]),
        *(as_array(column[low : low + len(rows)]) for name, column in keys.extras.items() if name not in _OF_QUERIES),
    ]
    table = pa.Table.from_arrays([*ids, *map(as_array, columns)], schema=schema)
    writer.write_table(table, row_group_size=len(rows))


def _queries(bucket: int, keys: _Keys, layout: Layout) -> pa.Table:
    """Return the queries table of a bucket; DataRejected if a query is in two splits or has two weights."""
    runs = keys.qid.dictionary_encode()  # rows of a query stand together: codes go up by one from query to query
    qid = runs.dictionary
    starts = np.searchsorted(runs.indices.to_numpy(), np.arange(len(qid)))
    ends = np.append(starts[1:], len(keys.qid))
    latest = np.maximum.reduceat(keys.extras[TIME], starts) if TIME in keys.extras else None
    if layout.rule is None:
        split_of_row = np.asarray(layout.source_split, dtype=np.int64)[keys.source]
        split = split_of_row[starts]
        check_one_split(qid, starts, split_of_row, keys.source, layout.source_name)
    else:
        split = layout.rule.splits(qid, latest)
    table = pa.Table.from_arrays(
        [
            qid,
            pa.array([SPLITS[code] for code in split.tolist()], pa.string()),
            as_array(np.full(len(qid), bucket, dtype=np.int32)),
            as_array(starts),
            as_array(ends - starts),
            as_array(np.add.reduceat((keys.grade >= 1).astype(np.int64), starts)),
        ],
        schema=_QUERIES,
    )
    weight = keys.extras.get(_QUERY_WEIGHT)
    if weight is not None:
        check_one_weight(qid, starts, weight, keys.source, layout.source_name)
        table = table.append_column(pa.field(_QUERY_WEIGHT, pa.float64(), nullable=False), as_array(weight[starts]))
    if latest is not None:
        table = table.append_column(pa.field(TIME, _TIME_TYPE, nullable=False), as_array(latest).cast(_TIME_TYPE))
    return table
