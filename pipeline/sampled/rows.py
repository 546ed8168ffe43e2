"""Which rows are in the sample: those whose keys are the smallest, whatever order or pieces they are read in.

The key of a row is number (place of the row in its query, from 1) of the splitmix64 sequence whose seed is the hash of the
query's id: a function of the data alone.  The k rows of the smallest keys are therefore the same for any memory, batches,
threads or order, the sample of two parts is made of their samples, and for any feature they are drawn without a look at it
(Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.group.hashing import hash_ids
from rankmill.pipeline.sampled import _kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

SAMPLE_SALT = 0xD1B54A32D192ED03
_CHUNK_ROWS = 1 << 20  # keys drawn at a time, or those of one query if these are more

Queries = tuple["pa.Array[Any]", npt.NDArray[np.int64]]


def sampled_places(batches: Callable[[], Iterator[Queries]], k: int) -> npt.NDArray[np.int64]:
    """Return where the rows of the ``k`` smallest keys stand, ascending, (min(k, rows),).

    ``batches`` yields the ids of some queries and how many documents each has, in the order of the rows; it is called
    twice.  Memory: 40 bytes for each of the ``k``, and a few megabytes.
    """
    limit = np.uint64(np.iinfo(np.uint64).max)
    kept = np.empty(0, dtype=np.uint64)
    for hashes, sizes in _chunks(batches()):
        keys = np.empty(int(sizes.sum()), dtype=np.uint64)
        found = int(_kernels.keys_up_to(hashes, sizes, limit, keys))
        kept = np.concatenate((kept, keys[:found]))
        if len(kept) > 2 * k:
            kept.partition(k - 1)
            limit = kept[k - 1]
            kept = kept[:k].copy()
    if len(kept) > k:
        kept.partition(k - 1)
        limit = kept[k - 1]
    places = np.empty(min(k, len(kept)), dtype=np.int64)
    first = found = 0
    for hashes, sizes in _chunks(batches()):
        found = int(_kernels.places_up_to(hashes, sizes, limit, first, places, found))
        first += int(sizes.sum())
    return places[:found]


def _chunks(batches: Iterator[Queries]) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]:
    """Yield the hashes of some queries and their sizes, about a million rows at a time."""
    for qid, sizes in batches:
        hashes = hash_ids(qid, SAMPLE_SALT)
        ends = np.cumsum(sizes)
        low = 0
        while low < len(sizes):
            before = ends[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(ends, before + _CHUNK_ROWS, side="right")))
            yield hashes[low:high], sizes[low:high]
            low = high
