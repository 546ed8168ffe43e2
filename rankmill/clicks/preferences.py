"""Preference pairs from clicks: a clicked document is better than the documents of the same list that were not clicked.

A click at rank k weighs ``1 / max(alpha_k, tau)`` (Joachims et al.  2017).  So clicks at ranks that are seldom examined
count as often as they would happen if all ranks were examined.  Weights are added over the sessions.  Two documents i
and j of a query with the sums W_ij (i clicked, j not) and W_ji are one pair.  The better one has the larger sum, the
weight is ``W_ij + W_ji``, and the probability that the better one is better is its share of it.  The cross-entropy of
this pair is the sum of those of all single pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankmill.clicks.options import JudgeOptions
from rankmill.clicks.result_lists import LogBlock
from rankmill.clicks.weighted_clicks import Counts, Floats, weighted_clicks
from rankmill.pipeline.judgments.propensities import Propensities

_PAIRS_AT_ONCE = 1 << 21  # 48 bytes each
_STEPS = 2.0**20  # a unit of weight: whole numbers have the same sum in any order


class DocumentPairs(NamedTuple):
    """Pairs of documents of a block, ascending by (better, worse)."""

    better: Counts
    worse: Counts
    weight: Floats
    probability: Floats


def block_pairs(block: LogBlock, options: JudgeOptions, propensities: Propensities | None) -> DocumentPairs:
    """Return the pairs of all lists of ``block``; numbers of documents within it.

    Memory: its pairs, 24 bytes each, and a constant.
    """
    lists = block.lists
    step = np.rint(1.0 / weighted_clicks(block, options.clip, propensities).divisor * _STEPS).astype(np.int64)
    clicked = np.flatnonzero(lists.clicked)
    of_list = np.searchsorted(lists.start, clicked, side="right") - 1
    sizes = np.diff(lists.start)[of_list]
    kept = np.empty(0, np.int64), np.empty(0, np.int64)  # key, weight in steps
    ends = np.cumsum(sizes)
    at = 0
    while at < len(clicked):
        stop = max(int(np.searchsorted(ends, (ends[at - 1] if at else 0) + _PAIRS_AT_ONCE, side="right")), at + 1)
        here = slice(at, stop)
        n = sizes[here]
        better = np.repeat(clicked[here], n)
        place = np.arange(int(n.sum())) - np.repeat(np.cumsum(n) - n, n)
        worse = np.repeat(lists.start[of_list[here]], n) + place
        good = lists.clicked[worse] == 0
        better, worse = better[good], worse[good]
        key = lists.document[better] * len(block.documents) + lists.document[worse]
        kept = _added(np.concatenate([kept[0], key]), np.concatenate([kept[1], step[better]]))
        at = stop
    return _both_ways(*kept, len(block.documents))


def _added(key: Counts, weight: Counts) -> tuple[Counts, Counts]:
    """Return the distinct keys in ascending order, and the sum of their weights."""
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.concatenate([[True], np.diff(key) != 0])) if len(key) else order
    return key[first], np.add.reduceat(weight[order], first) if len(first) else weight


def _both_ways(key: Counts, weight: Counts, n: int) -> DocumentPairs:
    """Merge each pair with its reverse."""
    i, j = key // max(n, 1), key % max(n, 1)
    reverse = np.searchsorted(key, j * n + i)
    found = (reverse < len(key)) & (key[np.minimum(reverse, len(key) - 1)] == j * n + i) if len(key) else reverse > 0
    against = np.where(found, weight[np.minimum(reverse, len(key) - 1)], 0) if len(key) else weight
    best = (weight > against) | ((weight == against) & (i < j))
    i, j, weight, against = i[best], j[best], weight[best], against[best]
    whole = weight + against
    return DocumentPairs(i, j, whole / _STEPS, weight / np.maximum(whole, 1))
