"""Spill judgments or pairs by hash bucket of their query, until the rows of that bucket are complete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.group.bucket_files import BucketFiles
from rankmill.pipeline.group.query_splits import buckets_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class QuerySpill:
    """Spilled rows with the column ``qid`` and others.  Memory: a copy of the batch being added.

    ``keep``: rows stay when they are taken, since another process may take them again.
    """

    def __init__(self, folder: Path, buckets: int, schema: pa.Schema, *, keep: bool = False) -> None:
        self._keep = keep
        self._files = BucketFiles(folder, buckets, schema)
        self.schema = schema

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Rows of each bucket, (buckets,)."""
        return self._files.rows

    def add(self, columns: Sequence[pa.Array[Any]]) -> None:
        """Append rows: a column for each field of the schema, ``qid`` first."""
        batch = pa.record_batch(list(columns), schema=self.schema)
        if not len(batch):
            return
        bucket = buckets_of(batch.column(0), len(self.rows))
        ordered = batch.take(as_array(np.argsort(bucket, kind="stable")))
        self._files.add(ordered, np.bincount(bucket, minlength=len(self.rows)))

    def take(self, bucket: int) -> pa.Table:
        """Return the rows of ``bucket``, and remove them unless they are kept."""
        table = pa.Table.from_batches(list(self._files.batches(bucket)), self.schema).combine_chunks()
        if not self._keep:
            self._files.drop(bucket)
        return table
