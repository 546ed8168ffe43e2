"""How a value finds its place among the cuts of a feature: a bucket of equal width first, a short search in it then."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.scorer.forest import Forest

BUCKETS = 512  # of a feature: 2 kB, so that those of some hundred features stay in the second-level cache
WORTH = 2  # steps that buckets must save
GREATEST = float(np.finfo(np.float32).max)


class CutSearch(NamedTuple):
    """What `rankmill.scorer._kernels.bin_rows` takes, in its order, for each of the features asked for."""

    cuts: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    buckets: npt.NDArray[np.int32]
    origin: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]


def search_of(forest: Forest, used: npt.ArrayLike) -> CutSearch:
    """Lay out the cuts of the features ``used`` of ``forest``.

    The place of a value is rounded, but never falls while the value rises: cuts in buckets before that of x are below it
    and cuts in buckets behind are above, whatever the rounding.  Buckets are left out where they save no steps, as where
    nearly all cuts lie close together.
    """
    features = np.asarray(used, dtype=np.int64)
    n = len(features)
    starts, steps = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    buckets = np.zeros((n, BUCKETS), dtype=np.int32)
    origin, scale = np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    pieces, length = [], 0
    for k, feature in enumerate(features):
        cuts = forest.cuts[forest.cut_starts[feature] : forest.cut_starts[feature + 1]]
        whole = len(cuts).bit_length()
        starts[k], steps[k] = length, whole
        finite = cuts[np.isfinite(cuts)]
        width = float(finite[-1]) - float(finite[0]) if len(finite) > 1 else 0.0
        if 0.0 < width < GREATEST and (BUCKETS - 1) / width < GREATEST:
            begin, factor = finite[0], np.float32((BUCKETS - 1) / width)
            place = _buckets_of(cuts, begin, factor)
            within = int(np.bincount(place).max()).bit_length()
            if within + WORTH <= whole:
                steps[k], origin[k], scale[k] = within, begin, factor
                buckets[k] = np.searchsorted(place, np.arange(BUCKETS))
        # a search may look as far behind the last cut as it is long
        pieces.append(np.concatenate([cuts, np.full(2**whole, np.nan, dtype=np.float32)]))
        length += len(pieces[-1])
    all_cuts = np.concatenate([np.empty(0, dtype=np.float32), *pieces])
    return CutSearch(all_cuts, starts, steps, buckets, origin, scale)


def _buckets_of(cuts: npt.NDArray[np.float32], origin: np.float32, scale: np.float32) -> npt.NDArray[np.int64]:
    """Return the bucket of each cut, as the kernel finds that of a value."""
    with np.errstate(over="ignore", invalid="ignore"):
        place = (cuts - origin) * scale
    found: npt.NDArray[np.int64] = np.clip(place, np.float32(0), np.float32(BUCKETS - 1)).astype(np.int64)
    return found
