"""The scores of a model for all rows of the input, as one table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.scorer.models.predictor import Predictor
from rankmill.scorer.rerank.ranked_file import SCORED_ROW
from rankmill.scorer.rerank.scoring import InputPosition, Scored, ScoringLimits, score_in_order

BLOCK_BYTES = 16 << 20
COLUMNS_BYTES = 64 << 20  # per thread, for a Parquet row group


def limits_of(n_threads: int) -> ScoringLimits:
    """Return the limits with so many threads."""
    return ScoringLimits(n_threads, BLOCK_BYTES, COLUMNS_BYTES)


def scored_schema(goals: Sequence[str]) -> pa.Schema:
    """Return the schema of scored rows with the grades of ``goals``."""
    schema = SCORED_ROW
    for name in goals:
        schema = schema.append(pa.field(name, pa.int32()))
    return schema


def scored_rows(sources: Sequence[Source], predictor: Predictor, reading: ReadOptions, n_threads: int) -> pa.Table:
    """Score all ``sources``; return a table of `scored_schema` in their order.  Errors: `rankmill.scorer.rerank.scoring.score_in_order`."""
    rows: list[pa.RecordBatch] = []

    def take(results: list[list[Scored]], _: InputPosition) -> None:
        rows.extend(part.rows for part in results[0])

    score_in_order(sources, [predictor], reading, take, limits_of(n_threads))
    return pa.Table.from_batches(rows, scored_schema(reading.goals))
