"""Judgments by hash bucket of their query, until the rows of the bucket are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.pipeline.arrow import as_array, schema_of
from rankmill.pipeline.group.bucket_rows import BucketFiles
from rankmill.pipeline.group.query_splits import buckets_of

if TYPE_CHECKING:
    from rankmill.pipeline.judgments.judgment_files import JudgmentBatch

_SPILLED = schema_of(
    [
        ("qid", pa.string(), False),
        ("doc_id", pa.string(), False),
        ("grade", pa.int32(), False),
        ("time", pa.int64(), True),
    ]
)


class JudgmentSpill:
    """The judgments of an ingest.  Memory: a copy of the batch that is being added."""

    def __init__(self, folder: Path, buckets: int) -> None:
        self._files = BucketFiles(folder, buckets, _SPILLED)

    @property
    def judgments(self) -> npt.NDArray[np.int64]:
        """Judgments of each bucket, (buckets,)."""
        return self._files.rows

    def add(self, batch: JudgmentBatch) -> None:
        """Append the judgments of ``batch``."""
        if not len(batch):
            return
        bucket = buckets_of(batch.qid, len(self.judgments))
        time = pa.nulls(len(batch), pa.int64()) if batch.time is None else as_array(batch.time)
        table = pa.record_batch([batch.qid, batch.doc_id, as_array(batch.grade), time], schema=_SPILLED)
        ordered = table.take(as_array(np.argsort(bucket, kind="stable")))
        self._files.add(ordered, np.bincount(bucket, minlength=len(self.judgments)))

    def take(self, bucket: int) -> pa.Table:
        """Return the judgments of ``bucket``, columns qid, doc_id, grade and time, and forget them."""
        table = pa.Table.from_batches(list(self._files.batches(bucket)), _SPILLED)
        self._files.drop(bucket)
        return table
