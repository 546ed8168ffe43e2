"""Columns of the tables that re-ranking passes on: scored rows, ranked rows, grade counts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def _table(*columns: pa.Field[Any]) -> pa.Schema:
    return pa.schema(list(columns))


SCORED_ROW = _table(
    pa.field("qid", pa.string(), nullable=False),
    pa.field("doc_id", pa.string(), nullable=False),
    pa.field("score", pa.float64(), nullable=False),
    pa.field("grade", pa.int32()),
    pa.field("row", pa.int64(), nullable=False),
)
"""One candidate after scoring: ``row`` counts the rows of the whole input from 1."""

RANKED = _table(
    pa.field("qid", pa.string(), nullable=False),
    pa.field("doc_id", pa.string(), nullable=False),
    pa.field("score", pa.float64(), nullable=False),
    pa.field("rank", pa.int32(), nullable=False),
    pa.field("grade", pa.int32()),
)
"""One candidate after ranking: ``rank`` 1 is the best of its query; ``grade`` is null where it is not known."""

GRADE_COUNTS = _table(
    pa.field("qid", pa.string(), nullable=False),
    pa.field("grade", pa.int32(), nullable=False),
    pa.field("count", pa.int64(), nullable=False),
)
"""How often each known grade occurs in the whole list of a query."""
