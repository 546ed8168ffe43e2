"""Pairs of a dataset that is there, as a source of pairs by document: places in a query change when rows are added to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.pairs.batch import PairBatch
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from rankmill.pipeline.dataset import Dataset
    from rankmill.pipeline.pairs.batch import Mismatch


class StoredPairs:
    """The pairs of some buckets of a dataset.

    Attributes
    ----------
    path
        The dataset.
    """

    def __init__(self, dataset: Dataset, buckets: Collection[int]) -> None:
        self.path: Path = dataset.path
        self.position = 0
        self._dataset = dataset
        self._buckets = frozenset(buckets)

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[PairBatch]:  # noqa: ARG002  a bucket at a time
        """Yield the pairs, those of a bucket together."""
        place = 0
        for pairs in self._tables():
            yield PairBatch(
                qid=pairs.column("qid").combine_chunks(),
                better=pairs.column("better").combine_chunks(),
                worse=pairs.column("worse").combine_chunks(),
                weight=pairs.column("weight").to_numpy(),
                probability=pairs.column("probability").to_numpy(),
                place=np.arange(place, place + len(pairs)),
            )
            place += len(pairs)

    def refuse(self, mismatches: Mapping[int, Mismatch]) -> None:
        """Say which of them fits no longer: a document that it names has come again.

        Raises
        ------
        DataRejected
            Always.
        """
        first, mismatch = min(mismatches.items())
        place = 0
        for pairs in self._tables():
            if first < place + len(pairs):
                qid, *documents = (pairs.column(name)[first - place].as_py() for name in ("qid", "better", "worse"))
                document = documents[mismatch.complaint(qid).column - 1]
                raise DataRejected(
                    f"{self.path}: it has a pair of document {document!r} of query {qid!r}, and the new rows bring that document"
                    " again; a document of a pair must be in one row of its query"
                )
            place += len(pairs)
        raise IndexError(first)

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the pairs of one bucket after the other, better and worse by their ids."""
        manifest = self._dataset.manifest
        stored = {} if manifest.pairs is None else {shard.bucket: shard for shard in manifest.pairs.shards}
        for shard in manifest.shards:
            if shard.bucket not in self._buckets or shard.bucket not in stored:
                continue
            pairs = self._dataset.shard_pairs(stored[shard.bucket])
            doc_id = self._dataset.ids(shard).column("doc_id").combine_chunks()
            queries = self._dataset.shard_queries(shard)
            query = pc.index_in(pairs.column("qid"), value_set=queries.column("qid").combine_chunks()).to_numpy()
            first = queries.column("row_start").to_numpy()[query]
            for number, name in ((1, "better"), (2, "worse")):
                ids = doc_id.take(as_array(first + pairs.column(name).to_numpy()))
                pairs = pairs.set_column(number, pa.field(name, pa.string(), nullable=False), ids)
            yield pairs
