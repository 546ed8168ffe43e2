"""Judgments as tables, of any format that rows may have: the columns ``qid``, ``doc_id``, ``grade`` and perhaps one of times.

Other columns, such as who judged, are passed over.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.judgments.batch import JudgmentBatch
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES, Quarantine, ReadOptions
from rankmill.pipeline.sources.opening import open_source
from rankmill.pipeline.sources.times import TIME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankmill.pipeline.sources.columns import TableColumns


class TableJudgments:
    """One file of a table: rows without features."""

    def __init__(self, path: Path, format: str, options: ReadOptions, quarantine: Quarantine) -> None:  # noqa: A002
        self.path = path
        self._rows = open_source(path, format, replace(options, judgments_alone=True), quarantine)
        self.table: TableColumns | None = self._rows.table

    @property
    def position(self) -> int:
        """Bytes of the file used up so far."""
        return self._rows.position

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[JudgmentBatch]:
        """Yield the judgments in the order of the file."""
        for rows in self._rows.batches(block_bytes):
            if not len(rows):
                continue
            if rows.doc_id is None or rows.doc_id.null_count or rows.grade is None:
                raise DataRejected(f"{self.path}: a judgment needs qid, doc_id and grade; some have no doc_id")
            yield JudgmentBatch(
                qid=cast("pa.Array[pa.StringScalar]", rows.qid),
                doc_id=cast("pa.Array[pa.StringScalar]", rows.doc_id),
                grade=rows.grade,
                time=rows.extras.get(TIME),
            )
