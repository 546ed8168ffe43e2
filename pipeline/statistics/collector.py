"""What a shard's columns hold, counted while they are written.

The digest of a column is the sum over its rows of (number of the row's place in a sequence of random words) times (bits of the
value), modulo 2^64: multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast", 2014).  Columns of
different values have the same one with a probability of at most 2^-33.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.pipeline.arrow import as_array, schema_of
from rankmill.pipeline.statistics import _kernels

SCHEMA = schema_of(
    [
        ("feature", pa.string(), False),
        ("minimum", pa.float32(), True),
        ("maximum", pa.float32(), True),
        ("missing", pa.int64(), False),
        ("zeros", pa.int64(), False),
        ("varied_queries", pa.int64(), False),
        ("digest", pa.uint64(), False),
    ]
)


class ColumnCollector:
    """Statistics of the features of one shard, whose rows come in order, some at a time.

    ``query_starts`` (q,) are the first rows of all queries of the shard.
    """

    def __init__(self, features: int, query_starts: npt.NDArray[np.int64]) -> None:
        self._starts = query_starts
        self._counts = np.zeros((features, 3), dtype=np.int64)
        self._digests = np.zeros(features, dtype=np.uint64)
        self._keys = np.tile(np.array([2**31 - 1, -(2**31)], dtype=np.int32), (features, 1))
        self._before = np.zeros(features, dtype=np.int32)
        self._varied = np.zeros(features, dtype=np.bool_)
        self._rows = 0

    def add(self, columns: npt.NDArray[np.float32]) -> None:
        """Take in the next rows of all features, (F, m)."""
        rows = columns.shape[1]
        if not rows:
            return
        low, high = self._rows, self._rows + rows
        first, last = np.searchsorted(self._starts, (low, high))
        inside = self._starts[first:last] - low
        goes_on = not len(inside) or inside[0] > 0
        starts = np.concatenate(([0] if goes_on else [], inside, [rows])).astype(np.int64)
        weights, scratch = np.empty(rows, dtype=np.uint64), np.empty(rows, dtype=np.int32)
        _kernels.weigh(low, weights)
        _kernels.add_columns(
            columns, columns.view(np.int32), starts, goes_on, weights, scratch,
            self._counts, self._digests, self._keys, self._before, self._varied,
        )  # fmt: skip
        self._rows = high

    @property
    def missing(self) -> int:
        """Missing values of all features."""
        return int(self._counts[:, 0].sum())

    def table(self, features: tuple[str, ...]) -> pa.Table:
        """Return one row a feature."""
        some = self._counts[:, 0] < self._rows
        low, high = (pa.array(np.where(some, _floats(self._keys[:, k]), np.float32(0)), mask=~some) for k in range(2))
        return pa.Table.from_arrays(
            [
                pa.array(features, pa.string()),
                low,
                high,
                *(as_array(self._counts[:, k].copy()) for k in range(3)),
                as_array(self._digests),
            ],
            schema=SCHEMA,
        )


def _floats(keys: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Return the numbers whose order is that of ``keys``."""
    words: npt.NDArray[np.int32] = keys ^ ((keys >> 31) & np.int32(0x7FFFFFFF))
    return words.view(np.float32)


@dataclass(frozen=True, slots=True)
class QueryCounts:
    """Queries of a shard that can teach little."""

    one_document: int
    one_grade: int
    """Of two or more documents that all have the same grade."""

    @classmethod
    def of(cls, grade: npt.NDArray[Any], starts: npt.NDArray[np.int64]) -> QueryCounts:
        """Count them among the queries that begin at ``starts`` (q,) of the rows of ``grade`` (n,)."""
        if not len(starts):
            return cls(0, 0)
        sizes = np.diff(np.append(starts, len(grade)))
        same = np.minimum.reduceat(grade, starts) == np.maximum.reduceat(grade, starts)
        return cls(int(np.count_nonzero(sizes == 1)), int(np.count_nonzero(same & (sizes > 1))))
