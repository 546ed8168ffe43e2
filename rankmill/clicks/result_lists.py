"""Result lists of a click log: what was shown at which rank, and what was clicked.

One list is what one session saw for one query.  An impression is one document in one list::

    start      0           3              7        (lists + 1,)
    query      0           0              1        (lists,)      ascending
    session    h           h              h        (lists,)      hash of the session's id, ascending within a query
    rank       1  2  3     1  2  4  5     ...      (impressions,) ascending within a list
    document   2  0  5     0  2  1  7     ...      (impressions,) number of the document within the block
    clicked    0  1  0     0  0  0  0     ...      (impressions,)

The order of lists and documents is the same for any order of the rows in the log's files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_IMPRESSIONS_AT_ONCE = 1 << 18


class ResultLists(NamedTuple):
    """Arrays of some result lists, for kernels."""

    start: npt.NDArray[np.int64]
    """(lists + 1,) the first impression of each list."""
    query: npt.NDArray[np.int64]
    """(lists,) number of the query within the block, ascending."""
    session: npt.NDArray[np.uint64]
    """(lists,) hash of the session's id: the key of draws and of shares that are held out."""
    policy: npt.NDArray[np.int32]
    """(lists,) number of the ranking policy, in :attr:`ClickLog.policies`."""
    document: npt.NDArray[np.int64]
    """(impressions,) number of the document within the block; a document of two queries has two numbers."""
    rank: npt.NDArray[np.int32]
    """(impressions,) from 1, ascending within a list; ranks may be missing."""
    clicked: npt.NDArray[np.uint8]
    """(impressions,) 1 or 0."""


@dataclass(frozen=True, slots=True)
class LogBlock:
    """All result lists of some queries."""

    lists: ResultLists
    queries: pa.Array[Any]
    """(queries,) ids."""
    documents: pa.Array[Any]
    """(documents,) ids, ascending (byte by byte) within a query."""
    document_start: npt.NDArray[np.int64]
    """(queries + 1,) the first document of each query."""


class ClickLog(Protocol):
    """A log that can be read several times, in blocks of whole queries that fit in memory."""

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the ranking policies; one empty name if the log does not say."""
        ...

    @property
    def merged(self) -> int:
        """Rows that described an impression that another row described, too."""
        ...

    @property
    def left_out(self) -> int:
        """Contradictory result lists that are left out."""
        ...

    def blocks(self) -> Iterator[LogBlock]:
        """Yield all blocks, in the same order each time."""
        ...


@dataclass(frozen=True, slots=True)
class LogInMemory:
    """A log whose blocks are in memory, such as one that was simulated."""

    in_memory: tuple[LogBlock, ...]
    policies: tuple[str, ...] = ("",)
    merged: int = 0
    left_out: int = 0

    def blocks(self) -> Iterator[LogBlock]:
        """Yield all blocks."""
        return iter(self.in_memory)


def parts_of_lists(start: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first list of each part, and the list after its last, given ``start`` (lists + 1,).

    A part has about 2^18 impressions.
    """
    ends = np.searchsorted(start, np.arange(0, start[-1], _IMPRESSIONS_AT_ONCE))
    yield from pairwise(np.unique(np.append(ends, len(start) - 1)).tolist())
