"""Pairs join the rows of their documents: spilled by query, then one hash bucket after the other.

A bucket's pairs are stored by places within their query: the k-th of its rows in canonical order is place k.  That stays
right whatever split or selection of queries the rows are read with.  Canonical order of pairs: query, then better, worse,
weight, probability; pairs equal in all of these are kept, and have the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.storage.publish import keep_by_digest
from rankmill.pipeline.arrow import as_array, schema_of
from rankmill.pipeline.dataset_manifest import PAIRS, PairShard
from rankmill.pipeline.group.bucket_rows import BucketFiles
from rankmill.pipeline.group.query_splits import buckets_of
from rankmill.pipeline.group.shard_writer import open_writer
from rankmill.pipeline.pairs.pair_files import Mismatch
from rankmill.pipeline.pairs.stored_pairs import STORED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rankmill.pipeline.pairs.pair_files import PairBatch, PairSource
    from rankmill.pipeline.sources.batch import Quarantine

_SPILLED = schema_of(
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
_ROW_GROUP_ROWS = 1 << 20


class PairSpill:
    """The pairs of an ingest by hash bucket of their query.  Memory: a copy of the batch that is being added."""

    def __init__(self, folder: Path, buckets: int) -> None:
        self._files = BucketFiles(folder, buckets, _SPILLED)

    @property
    def pairs(self) -> npt.NDArray[np.int64]:
        """Pairs of each bucket, (buckets,)."""
        return self._files.rows

    def add(self, batch: PairBatch, source: int) -> None:
        """Append the pairs of ``batch``, which came from file number ``source``."""
        if not len(batch):
            return
        bucket = buckets_of(batch.qid, len(self.pairs))
        table = pa.record_batch(
            [
                batch.qid,
                batch.better,
                batch.worse,
                as_array(batch.weight),
                as_array(batch.probability),
                as_array(np.full(len(batch), source, dtype=np.int32)),
                as_array(batch.place),
            ],
            schema=_SPILLED,
        )
        ordered = table.take(as_array(np.argsort(bucket, kind="stable")))
        self._files.add(ordered, np.bincount(bucket, minlength=len(self.pairs)))

    def take(self, bucket: int) -> pa.Table:
        """Return the pairs of ``bucket`` and forget them."""
        table = pa.Table.from_batches(list(self._files.batches(bucket)), _SPILLED).combine_chunks()
        self._files.drop(bucket)
        return table


def join_pairs(
    spill: PairSpill,
    ids_of: Callable[[int], pa.Table | None],
    sources: Sequence[PairSource],
    quarantine: Quarantine,
    folder: Path,
) -> list[PairShard]:
    """Write the pairs as ``folder/_pairs/<digest>.parquet``, one file a bucket that has any, in the order of the buckets.

    Peak memory: the pairs and the ids of one bucket.

    Parameters
    ----------
    spill
        The pairs.  They are gone afterwards.
    ids_of
        Returns ``qid`` and ``doc_id`` of the rows of a bucket, in canonical order; None where it has no rows.
    sources
        The files, by the numbers that the spill knows.
    quarantine
        Takes the pairs that name no query, or no document that their query has once, in the order of the files.

    Raises
    ------
    DataRejected
        There are more of these than allowed.
    """
    shards = []
    refused = _Refused(most=quarantine.limit + 1 - len(quarantine.rejects))
    for bucket in np.flatnonzero(spill.pairs).tolist():
        pairs = spill.take(bucket)
        joined, mismatch = _joined(pairs, ids_of(bucket))
        refused.add(pairs, mismatch)
        if len(joined):
            shards.append(_write(joined, bucket, folder))
    refused.report(sources)
    return shards


class _Refused:
    """Pairs without rows: the first ``most`` of them in the order of files and places."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found = np.empty((3, 0), dtype=np.int64)  # source, place, why

    def add(self, pairs: pa.Table, mismatch: npt.NDArray[np.int64]) -> None:
        bad = np.flatnonzero(mismatch)
        keys = (pairs.column(name).to_numpy()[bad] for name in ("source", "place"))
        found = np.concatenate([self._found, [*keys, mismatch[bad]]], axis=1)
        self._found = found[:, np.lexsort((found[1], found[0]))[: self._most]]

    def report(self, sources: Sequence[PairSource]) -> None:
        for number, source in enumerate(sources):
            _, place, why = self._found[:, self._found[0] == number]
            if len(place):
                source.refuse({int(p): Mismatch(int(w)) for p, w in zip(place, why, strict=True)})


def _joined(pairs: pa.Table, ids: pa.Table | None) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the pairs that have two rows, as they are stored, and for each of ``pairs`` why it has none (0: it has)."""
    n = len(pairs)
    if ids is None or not len(ids):
        return STORED.empty_table(), np.full(n, Mismatch.NO_QUERY, dtype=np.int64)
    runs = _one(
        ids, "qid"
    ).dictionary_encode()  # rows of a query stand together: codes go up by one from query to query
    query_of_row = runs.indices.to_numpy().astype(np.int64)
    starts = np.searchsorted(query_of_row, np.arange(len(runs.dictionary)))
    documents = _one(ids, "doc_id").dictionary_encode()
    named = documents.indices.is_valid().to_numpy(zero_copy_only=False)
    has_ids = np.zeros(len(starts), dtype=np.bool_)
    has_ids[query_of_row[named]] = True

    query = _codes(_one(pairs, "qid"), runs.dictionary)
    keys = query_of_row[named] * (len(documents.dictionary) + 1) + documents.indices.drop_null().to_numpy()
    order = np.argsort(keys, kind="stable")
    rows, keys = np.flatnonzero(named)[order], keys[order]
    mismatch = np.where(query < 0, Mismatch.NO_QUERY, 0).astype(np.int64)
    mismatch[(mismatch == 0) & ~has_ids[query]] = Mismatch.NO_IDS
    place = {}
    for name, missing, many in (
        ("better", Mismatch.NO_BETTER, Mismatch.MANY_BETTER),
        ("worse", Mismatch.NO_WORSE, Mismatch.MANY_WORSE),
    ):
        code = _codes(_one(pairs, name), documents.dictionary)
        wanted = np.where((query >= 0) & (code >= 0), query * (len(documents.dictionary) + 1) + code, -1)
        low, high = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
        mismatch[(mismatch == 0) & (low == high)] = missing
        mismatch[(mismatch == 0) & (high - low > 1)] = many
        place[name] = rows[np.minimum(low, max(len(rows) - 1, 0))] if len(rows) else np.zeros(n, dtype=np.int64)
    good = np.flatnonzero(mismatch == 0)
    query = query[good]
    better, worse = ((place[name][good] - starts[query]).astype(np.int32) for name in ("better", "worse"))
    weight, probability = (pairs.column(name).to_numpy()[good] for name in ("weight", "probability"))
    order = np.lexsort((probability, weight, worse, better, query))
    columns = [as_array(column[order]) for column in (better, worse, weight, probability)]
    return pa.Table.from_arrays([runs.dictionary.take(as_array(query[order])), *columns], schema=STORED), mismatch


def _one(table: pa.Table, name: str) -> pa.Array[Any]:
    column: pa.Array[Any] = table.column(name).combine_chunks()
    return column


def _codes(ids: pa.Array[Any], known: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """Return the number of each id among ``known``, -1 where it is none of them."""
    found: npt.NDArray[np.int64] = pc.index_in(ids, value_set=known).fill_null(-1).to_numpy().astype(np.int64)
    return found


def _write(pairs: pa.Table, bucket: int, folder: Path) -> PairShard:
    staged = folder / f"pairs-{bucket:05d}.parquet"
    with open_writer(staged, STORED) as writer:
        writer.write_table(pairs, row_group_size=_ROW_GROUP_ROWS)
    size = staged.stat().st_size
    return PairShard(bucket=bucket, pairs=len(pairs), digest=keep_by_digest(staged, folder / PAIRS), size=size)
