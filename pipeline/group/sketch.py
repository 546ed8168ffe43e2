"""Sketch of the queries that a model was trained on: the smallest hashes of their ids, at most half a megabyte.

A hash with its own salt is uniform and independent of the splits.  So the k smallest hashes are a random sample of the
queries, and the hashes of another set in the same range are a random sample of that set.  To count the queries that two
sets share, it is enough to compare this range (bottom-k sketch; Cohen & Kaplan, PODC 2007).

Bytes, little-endian: the magic ``RMQUERY1``, u64 number of queries, then up to 65,536 u64 hashes, ascending.
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
from rankmill.pipeline.group.query_splits import hash_ids

MAGIC = b"RMQUERY1"
TRAIN_QUERIES = "train_queries"  # name of the sketch as an attachment of a version
MOST_HASHES = 65_536
SALT = 0x9FB21C651E98DF25

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class QuerySketch:
    """A set of queries.

    Attributes
    ----------
    queries
        Number of distinct queries; a lower bound for a `union` with a truncated set.
    hashes
        (h,) the smallest ``MOST_HASHES`` hashes, ascending; all if there are fewer.

    Raises
    ------
    ValueError
        The hashes are not ascending, or more than the queries.
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
        """Build the sketch from the ids of all queries, given in parts; the result does not depend on parts or order.

        Ids repeated in another part are detected only among the hashes kept.  So ``queries`` is exact if no query is in
        two parts, as in a dataset, or if all hashes are kept.
        """
        kept, seen, whole = np.empty(0, dtype=np.uint64), 0, True
        waiting, n_waiting = [kept], 0
        for part in chain(parts, [None]):
            if part is not None:
                hashes = np.unique(hash_of(part))
                seen += len(hashes)
                waiting.append(hashes if whole else hashes[hashes <= kept[-1]])
                n_waiting += len(waiting[-1])
            if part is None or n_waiting > most:  # merge seldom: a dataset may have thousands of small parts
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
            if not one.exact:  # nothing is known beyond its last hash
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
            The bytes are damaged or not a sketch.
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
    """The number of queries that are in a sketch: ``found`` of ``looked_at`` queries that could be looked up."""

    queries: int  # number of distinct queries
    looked_at: int
    found: int

    @property
    def exact(self) -> bool:
        """Whether all could be looked up; otherwise ``found`` is a lower bound."""
        return self.looked_at == self.queries

    @property
    def estimate(self) -> float:
        """Estimated number of shared queries; NaN if none could be looked up.  Standard error: see `overlap`."""
        if self.exact:
            return float(self.found)
        return self.queries * self.found / self.looked_at if self.looked_at else float("nan")


def overlap(sketch: QuerySketch, qids: pa.Array[Any] | Iterable[str]) -> Overlap:
    """Count the ``qids`` (ids of queries, repeated or not) that are among the queries of ``sketch``.

    If the sketch has all its queries (at most 65,536), the count is exact except for collisions of 64-bit hashes. Their
    expected number is the product of the numbers of queries / 2^64: below 1e-8 for a million and 65,536.  Otherwise
    only ids with a hash up to the last one kept are looked up.  These are a random sample of about ``queries * 65,536 /
    sketch.queries`` ids, of which a share p is found with the standard error ``sqrt(p (1 - p) / looked_at)``.  For a
    million training queries and 10,000 ``qids``, about 655 are looked up, and a share of half a percent is missed once
    in 27 times.

    Parameters
    ----------
    sketch
        The sketch of the training queries.
    qids
        The queries of the evaluation, compared as text.
    """
    hashes = np.unique(hash_of(qids))
    hashes_in_range = hashes if sketch.exact else hashes[hashes <= sketch.hashes[-1]]
    found = np.isin(hashes_in_range, sketch.hashes, assume_unique=True)
    return Overlap(found=int(np.count_nonzero(found)), looked_at=len(hashes_in_range), queries=len(hashes))


def hash_of(qids: pa.Array[Any] | Iterable[str]) -> Hashes:
    """Hash ids for a sketch, (n,)."""
    ids = qids if isinstance(qids, pa.Array) else pa.array(list(qids), pa.string())
    return hash_ids(ids, SALT)
