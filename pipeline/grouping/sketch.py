"""Which queries a model was trained on, in half a megabyte at most: the smallest hashes of their ids.

A hash with a salt of its own spreads the queries evenly, whatever decides their splits.  So the k smallest hashes are
an even sample of the queries, and of any others those with hashes in the same range are one too: to count the queries that
two sets share it is enough to look there (bottom-k sketch; Cohen & Kaplan, PODC 2007).

Bytes, little-endian: the magic ``RMQUERY1``, u64 queries in all, then up to 65,536 u64, the hashes, ascending.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import DatasetFormatError
from rankmill.pipeline.grouping.query_splits import hash_ids

MAGIC = b"RMQUERY1"
TRAIN_QUERIES = "train_queries"  # what the sketch of a registered version is called
MOST_HASHES = 65_536
SALT = 0x9FB21C651E98DF25

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class QuerySketch:
    """A set of queries.

    Attributes
    ----------
    queries
        How many different ones there are; of a `union` of sets of which one is cut off, at least so many.
    hashes
        (h,) ascending: the smallest, all of them if there are not more than ``MOST_HASHES``.

    Raises
    ------
    ValueError
        The hashes do not ascend, or are more than the queries.
    """

    queries: int
    hashes: Hashes

    def __post_init__(self) -> None:
        if len(self.hashes) > min(self.queries, MOST_HASHES) or np.any(self.hashes[1:] <= self.hashes[:-1]):
            raise ValueError(f"expected up to {min(self.queries, MOST_HASHES)} ascending hashes")
        if self.queries and not len(self.hashes):
            raise ValueError(f"there are no hashes of {self.queries} queries")

    @classmethod
    def of(cls, parts: Iterable[pa.Array[Any] | Iterable[str]], most: int = MOST_HASHES) -> QuerySketch:
        """Take in the ids of all queries, a part at a time: the same for any parts and order; none is counted twice.

        Ids that come again in another part are found again only among the hashes kept: ``queries`` is exact where no query
        is in two parts, as in a dataset, or where all hashes are kept.
        """
        kept, seen, whole = np.empty(0, dtype=np.uint64), 0, True
        waiting, n_waiting = [kept], 0
        for part in chain(parts, [None]):
            if part is not None:
                hashes = np.unique(hash_of(part))
                seen += len(hashes)
                waiting.append(hashes if whole else hashes[hashes <= kept[-1]])
                n_waiting += len(waiting[-1])
            if part is None or n_waiting > most:  # seldom: a dataset may have thousands of small parts
                kept = np.unique(np.concatenate(waiting))
                whole = whole and len(kept) <= most
                kept = kept[:most]
                waiting, n_waiting = [kept], 0
        return cls(queries=len(kept) if whole else seen, hashes=kept)

    @property
    def exact(self) -> bool:
        """Whether the hashes of all queries are kept."""
        return len(self.hashes) == self.queries

    def union(self, other: QuerySketch) -> QuerySketch:
        """Return the sketch of the queries of both."""
        both = np.union1d(self.hashes, other.hashes)
        for one in (self, other):
            if not one.exact:  # beyond its last hash it says nothing
                both = both[both <= one.hashes[-1]]
        if self.exact and other.exact:
            return QuerySketch(queries=len(both), hashes=both[:MOST_HASHES])
        hashes = both[:MOST_HASHES]
        return QuerySketch(queries=max(self.queries, other.queries, len(hashes) + 1), hashes=hashes)

    def to_bytes(self) -> bytes:
        """Return the same bytes for the same queries, on every machine."""
        return MAGIC + self.queries.to_bytes(8, "little") + self.hashes.astype("<u8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "sketch of queries") -> QuerySketch:
        """Read what `to_bytes` wrote.

        Raises
        ------
        DatasetFormatError
            The bytes are something else, or damaged.
        """
        if data[:8] != MAGIC or len(data) < 16 or len(data) % 8:
            raise DatasetFormatError(f"{where}: expected a sketch of queries, found {data[:8]!r} and {len(data)} bytes")
        hashes = np.frombuffer(data, dtype="<u8", offset=16).astype(np.uint64)
        try:
            return cls(queries=int.from_bytes(data[8:16], "little"), hashes=hashes)
        except ValueError as error:
            raise DatasetFormatError(f"{where}: the sketch of queries is damaged: {error}") from None


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many of some queries are in a sketch; ``found`` of ``looked_at`` of them that could be looked up."""

    queries: int  # different ones that were asked about
    looked_at: int
    found: int

    @property
    def exact(self) -> bool:
        """Whether all of them could be looked up: ``found`` is then their number, else there are at least so many."""
        return self.looked_at == self.queries

    @property
    def estimate(self) -> float:
        """How many there are, about; NaN where none could be looked up.  Standard error: see `overlap`."""
        if self.exact:
            return float(self.found)
        return self.queries * self.found / self.looked_at if self.looked_at else float("nan")


def overlap(sketch: QuerySketch, qids: pa.Array[Any] | Iterable[str]) -> Overlap:
    """Count the ``qids`` (ids of queries, repeated or not) that are among the queries of ``sketch``.

    Where the sketch holds all its queries (65,536 at most) the count is exact, but for two ids of the same 64-bit hash: the
    expected number of these is queries of the one times queries of the other / 2^64, less than 1e-8 for a million and
    65,536.  Else the ids whose hash is not above the last one kept are looked up, exactly again: an even sample of
    about ``queries * 65,536 / sketch.queries`` ids, of which a share p is found with the standard error
    ``sqrt(p (1 - p) / looked_at)``.  Of a million queries trained on and 10,000 asked about, some 655 are looked at, and a
    share of half a percent goes unnoticed once in 27 times.

    Parameters
    ----------
    sketch
        Of the queries trained on.
    qids
        Those to evaluate on, compared as text.
    """
    hashes = np.unique(hash_of(qids))
    asked = hashes if sketch.exact else hashes[hashes <= sketch.hashes[-1]]
    found = np.isin(asked, sketch.hashes, assume_unique=True)
    return Overlap(found=int(np.count_nonzero(found)), looked_at=len(asked), queries=len(hashes))


def hash_of(qids: pa.Array[Any] | Iterable[str]) -> Hashes:
    """Hash ids for a sketch, (n,)."""
    ids = qids if isinstance(qids, pa.Array) else pa.array(list(qids), pa.string())
    return hash_ids(ids, SALT)
