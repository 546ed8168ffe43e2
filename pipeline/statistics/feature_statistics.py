"""Statistics of features: computed for each shard while it is written, merged when read.

The digest of a column is the sum over rows r of ``(random word r) * (bits of the value)``, modulo 2^64.  This is
multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast", 2014).  Two different columns have
the same digest with a probability of at most 2^-33.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.pipeline.arrow import as_array, schema_of
from rankmill.pipeline.bins.vocabulary import EMPTY, Tally, summed, tally_of
from rankmill.pipeline.group import _kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankmill.pipeline.dataset.dataset import Dataset


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
    """Computes the statistics of the features of one shard, whose rows are added in order.

    ``query_starts`` (q,) are the first rows of all queries of the shard, ``categorical`` the numbers of categorical
    features.
    """

    def __init__(self, features: int, query_starts: npt.NDArray[np.int64], categorical: Sequence[int] = ()) -> None:
        self._starts = query_starts
        self.tallies: list[Tally] = [tally_of(EMPTY) for _ in categorical]
        """The categories of each categorical feature, with their rows."""
        self._categorical = categorical
        self._counts = np.zeros((features, 3), dtype=np.int64)
        self._digests = np.zeros(features, dtype=np.uint64)
        self._keys = np.tile(np.array([2**31 - 1, -(2**31)], dtype=np.int32), (features, 1))
        self._before = np.zeros(features, dtype=np.int32)
        self._varied = np.zeros(features, dtype=np.bool_)
        self._rows = 0

    def add(self, columns: npt.NDArray[np.float32]) -> None:
        """Add the next rows of all features, (F, m)."""
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
        for place, number in enumerate(self._categorical):
            self.tallies[place] = summed([self.tallies[place], tally_of(columns[number])])
        self._rows = high

    @property
    def missing(self) -> int:
        """Number of missing values of all features."""
        return int(self._counts[:, 0].sum())

    def table(self, features: tuple[str, ...]) -> pa.Table:
        """Return a table with one row per feature."""
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
    """Return the floats of the order-preserving ``keys``."""
    words: npt.NDArray[np.int32] = keys ^ ((keys >> 31) & np.int32(0x7FFFFFFF))
    return words.view(np.float32)


def query_counts(grade: npt.NDArray[Any], starts: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Count the queries of one document, and those of several with the same grade.

    Queries begin at ``starts`` (q,); rows have the grades ``grade`` (n,).
    """
    if not len(starts):
        return 0, 0
    sizes = np.diff(np.append(starts, len(grade)))
    same = np.minimum.reduceat(grade, starts) == np.maximum.reduceat(grade, starts)
    return int(np.count_nonzero(sizes == 1)), int(np.count_nonzero(same & (sizes > 1)))


_NAMED = 5  # features that a remark lists by name


@dataclass(frozen=True, slots=True)
class FeatureFacts:
    """One feature over all rows."""

    name: str
    minimum: float | None
    """None if all values are missing."""
    maximum: float | None
    missing: int
    zeros: int
    varied_queries: int
    """Queries with two or more values of the feature; missing counts as a value."""
    same_as: str | None
    """The first feature with the same value in every row."""

    @property
    def constant(self) -> bool:
        """Whether every row has the same value."""
        return self.minimum is not None and self.minimum == self.maximum and not self.missing

    @property
    def infinite(self) -> bool:
        """Whether it has infinite values."""
        return any(value is not None and math.isinf(value) for value in (self.minimum, self.maximum))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a dataset, known without reading its features."""

    features: tuple[FeatureFacts, ...]
    one_document: int
    """Queries with one document."""
    one_grade: int
    """Queries with two or more documents of the same grade."""

    @property
    def remarks(self) -> list[str]:
        """Remarks for users, one line each: features and queries without a training signal."""
        missing = [feature.name for feature in self.features if feature.minimum is None]
        constant = [feature.name for feature in self.features if feature.constant]
        same = [
            f"{feature.name} as {feature.same_as}"
            for feature in self.features
            if feature.same_as is not None and feature.minimum is not None and not feature.constant
        ]
        infinite = [feature.name for feature in self.features if feature.infinite]
        named = (("all missing", missing), ("constant", constant), ("the same", same), ("infinite values", infinite))
        features = "; ".join(f"{what}: {_few(names)}" for what, names in named if names)
        counts = ((self.one_document, "document"), (self.one_grade, "grade"))
        queries = ", ".join(f"{count:,} of one {what}" for count, what in counts if count)
        return [line for line in (features, f"queries: {queries}" if queries else "") if line]


def _few(names: list[str]) -> str:
    """List some names and count the others.

    >>> _few(["a", "b"]), _few([f"f{i}" for i in range(9)])
    ('a, b', 'f0, f1, f2, f3, f4 and 4 more')
    """
    return (
        ", ".join(names) if len(names) <= _NAMED + 1 else f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    )


def statistics_of(dataset: Dataset) -> Statistics:
    """Read the statistics of ``dataset``.

    Raises
    ------
    DatasetFormatError
        A file is missing or damaged.
    """
    tables, one_document, one_grade = [SCHEMA.empty_table()], 0, 0
    for shard in dataset.manifest.shards:
        tables.append(dataset.statistics_table(shard))
        one_document += shard.statistics.one_document
        one_grade += shard.statistics.one_grade
    of_features = pa.concat_tables(tables).group_by("feature", use_threads=False)  # keeps the order of features
    facts = of_features.aggregate(
        [
            ("minimum", "min"), ("maximum", "max"), ("missing", "sum"), ("zeros", "sum"), ("varied_queries", "sum"),
            ("digest", "list"),
        ]
    )  # fmt: skip
    first_with: dict[tuple[int, ...], str] = {}
    features = []
    for name, low, high, missing, zeros, varied, digests in zip(*(c.to_pylist() for c in facts.columns), strict=True):
        first = first_with.setdefault(tuple(digests), name)
        features.append(FeatureFacts(name, low, high, missing, zeros, varied, None if first == name else first))
    return Statistics(tuple(features), one_document, one_grade)
