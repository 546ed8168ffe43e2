"""The scores of a model for all rows of the input, as one table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.scorer.models.model import Predictor
from rankmill.scorer.rerank.ranked_file import scored_schema
from rankmill.scorer.rerank.score import InputPosition, Scored, ScoringLimits, score_in_order


def scored_rows(sources: Sequence[Source], predictor: Predictor, reading: ReadOptions, n_threads: int) -> pa.Table:
    """Score all ``sources``; return a table of `scored_schema` in their order.  Errors: `rankmill.scorer.rerank.score.score_in_order`."""
    rows: list[pa.RecordBatch] = []

    def take(results: list[list[Scored]], _: InputPosition) -> None:
        rows.extend(part.rows for part in results[0])

    score_in_order(sources, [predictor], reading, take, ScoringLimits.unlimited(n_threads))
    return pa.Table.from_batches(rows, scored_schema(reading.goals))
