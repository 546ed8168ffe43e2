"""Join pairs to the rows of their documents: spill them by query, then join one hash bucket at a time.

Pairs are stored as positions within their query: position k is the k-th row of the query in canonical order.  So they stay
valid for any split or selection of queries.  Canonical order of pairs: query, better, worse, weight, probability.  Duplicates
are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.storage.publish import keep_by_digest
from rankmill.pipeline.arrow import schema_of
from rankmill.pipeline.dataset.manifest import PAIRS, PairShard
from rankmill.pipeline.group.shard_writer import open_writer
from rankmill.pipeline.pairs.pair_files import Mismatch
from rankmill.pipeline.pairs.stored_pairs import STORED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rankmill.pipeline.group.spill import Spilled
    from rankmill.pipeline.pairs.pair_files import PairFile
    from rankmill.pipeline.read.batch import Quarantine

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
STORED_IDS = schema_of([("qid", pa.string(), False), ("doc_id", pa.string(), True)])
_ROW_GROUP_ROWS = 1 << 20


def join_pairs(
    spilled: Spilled,
    ids_of: Callable[[int], pa.Table | None],
    sources: Sequence[PairFile],
    quarantine: Quarantine,
    folder: Path,
) -> list[PairShard]:
    """Write the pairs to ``folder/_pairs/<digest>.parquet``, one file per bucket with pairs, in the order of the buckets.

    Peak memory: the pairs and the ids of one bucket.

    Parameters
    ----------
    spilled
        The pairs, of the schema `SPILLED`.
    ids_of
        Returns ``qid`` and ``doc_id`` of the rows of a bucket, in canonical order; None if it has no rows.
    sources
        The files, by their number in the spill.
    quarantine
        Receives the pairs whose query or document does not exist, or whose document occurs twice, in the order of the files.

    Raises
    ------
    DataRejected
        There are more such pairs than allowed.
    """
    shards = []
    refused = _Refused(most=quarantine.limit + 1 - len(quarantine.rejects))
    for bucket in np.flatnonzero(spilled.rows).tolist():
        pairs = spilled.take(bucket)
        joined, mismatch = _joined(pairs, ids_of(bucket))
        refused.add(pairs, mismatch)
        if len(joined):
            shards.append(_write(joined, bucket, folder))
    refused.report(sources)
    return shards


class _Refused:
    """Pairs without rows: the first ``most`` of them in the order of files and positions."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found = np.empty((3, 0), dtype=np.int64)  # source, place, why

    def add(self, pairs: pa.Table, mismatch: npt.NDArray[np.int64]) -> None:
        bad = np.flatnonzero(mismatch)
        keys = (pairs.column(name).to_numpy()[bad] for name in ("source", "place"))
        found = np.concatenate([self._found, [*keys, mismatch[bad]]], axis=1)
        self._found = found[:, np.lexsort((found[1], found[0]))[: self._most]]

    def report(self, sources: Sequence[PairFile]) -> None:
        for number, source in enumerate(sources):
            _, place, why = self._found[:, self._found[0] == number]
            if len(place):
                source.refuse({int(p): Mismatch(int(w)) for p, w in zip(place, why, strict=True)})


def _joined(pairs: pa.Table, ids: pa.Table | None) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the pairs with two rows, as stored, and for each of ``pairs`` the reason why it has none (0: it has)."""
    import polars as pl  # imported only if there are pairs: takes 0.2 s and 34 MB

    rows = pl.DataFrame(STORED_IDS.empty_table() if ids is None else ids).with_row_index("row")
    queries = rows.group_by("qid").agg(
        pl.col("row").min().alias("start"), pl.col("doc_id").is_not_null().any().alias("named")
    )
    documents = rows.drop_nulls("doc_id").group_by("qid", "doc_id").agg(pl.col("row").first(), pl.len().alias("rows"))
    found = pl.DataFrame(pairs).join(queries, on="qid", how="left", maintain_order="left")
    for name in ("better", "worse"):
        of_name = documents.rename({"doc_id": name, "row": f"row of {name}", "rows": f"rows of {name}"})
        found = found.join(of_name, on=("qid", name), how="left", maintain_order="left")
    reasons = {
        Mismatch.NO_QUERY: pl.col("start").is_null(),
        Mismatch.NO_IDS: ~pl.col("named"),
        Mismatch.NO_BETTER: pl.col("rows of better").is_null(),
        Mismatch.MANY_BETTER: pl.col("rows of better") > 1,
        Mismatch.NO_WORSE: pl.col("rows of worse").is_null(),
        Mismatch.MANY_WORSE: pl.col("rows of worse") > 1,
    }
    why = pl.coalesce(*(pl.when(bad).then(int(reason)) for reason, bad in reasons.items()), 0).cast(pl.Int64)
    mismatch = found.select(why=why)["why"].to_numpy()
    good = found.filter(pl.Series(mismatch == 0)).sort(
        "start", "row of better", "row of worse", "weight", "probability"
    )
    places = ((pl.col(f"row of {name}") - pl.col("start")).cast(pl.Int32).alias(name) for name in ("better", "worse"))
    return good.select("qid", *places, "weight", "probability").to_arrow().cast(STORED), mismatch


def _write(pairs: pa.Table, bucket: int, folder: Path) -> PairShard:
    staged = folder / f"pairs-{bucket:05d}.parquet"
    with open_writer(staged, STORED) as writer:
        writer.write_table(pairs, row_group_size=_ROW_GROUP_ROWS)
    size = staged.stat().st_size
    return PairShard(bucket=bucket, pairs=len(pairs), digest=keep_by_digest(staged, folder / PAIRS), size=size)
