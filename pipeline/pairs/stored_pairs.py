"""Stored pairs: on disk as positions within their query, in memory as row numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.pipeline.arrow import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STORED = schema_of(
    [
        ("qid", pa.string(), False),
        ("better", pa.int32(), False),
        ("worse", pa.int32(), False),
        ("weight", pa.float64(), False),
        ("probability", pa.float64(), False),
    ]
)
_DTYPES: Mapping[str, npt.DTypeLike] = {
    "better": np.int32,
    "worse": np.int32,
    "weight": np.float64,
    "probability": np.float64,
}


@dataclass(frozen=True, slots=True)
class PreferencePairs:
    """The preference pairs of some rows, such as those of a split, sorted by query; they may contradict each other.

    Attributes
    ----------
    better, worse
        (n_pairs,) int32 row numbers from 0, in the order of ``Dataset.rows``.  A pair may occur several times, also
        reversed.
    weight, probability
        (n_pairs,) float64: weight of 0 or more, and the probability that ``better`` is better.
    starts
        (n_queries + 1,) int64: pairs ``starts[q]`` to ``starts[q + 1]`` are of query q.
    """

    better: npt.NDArray[np.int32]
    worse: npt.NDArray[np.int32]
    weight: npt.NDArray[np.float64]
    probability: npt.NDArray[np.float64]
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.better)

    def contradicted(self) -> int:
        """Return the number of pairs whose reverse occurs too."""
        low, high = np.minimum(self.better, self.worse), np.maximum(self.better, self.worse)
        _, of_pair = np.unique(low.astype(np.int64) << 32 | high, return_inverse=True)
        upwards = np.bincount(of_pair, self.better < self.worse, minlength=1)
        both = (upwards > 0) & (upwards < np.bincount(of_pair, minlength=1))
        return int(np.count_nonzero(both[of_pair]))


def by_rows(parts: Iterable[tuple[pa.Table | None, pa.Array[Any], npt.NDArray[np.int64]]]) -> PreferencePairs:
    """Return the pairs of some queries as row numbers.

    Parameters
    ----------
    parts
        For each shard: its pairs as stored (None: no pairs), the ids of the selected queries and their numbers of rows.
        The rows of all selected queries are numbered from 0.
    """
    columns: dict[str, list[npt.NDArray[Any]]] = {name: [np.empty(0, dtype)] for name, dtype in _DTYPES.items()}
    counts = [np.zeros(1, dtype=np.int64)]
    row = 0
    for stored, qid, n_docs in parts:
        count = np.zeros(len(qid), dtype=np.int64)
        if stored is not None and len(qid):
            query = pc.index_in(stored.column("qid").combine_chunks(), value_set=qid)
            found = stored.filter(query.is_valid())
            number = query.drop_null().to_numpy()
            count = np.bincount(number, minlength=len(qid))
            first = (row + np.cumsum(n_docs) - n_docs)[number]
            for name in ("better", "worse"):
                columns[name].append((first + found.column(name).to_numpy()).astype(np.int32))
            for name in ("weight", "probability"):
                columns[name].append(found.column(name).to_numpy())
        counts.append(count)
        row += int(n_docs.sum())
    whole = {name: np.concatenate(pieces) for name, pieces in columns.items()}
    return PreferencePairs(**whole, starts=np.cumsum(np.concatenate(counts)))
