"""The splits that nodes must have: the first ones of every tree.

    bins.forced    feature | bin, 0: a set | below, left and right | set        nodes.forced[node]: its row there, -1: none

Each node is searched as usual, too.  If its forced split cannot be taken (it gains nothing, or a side is too small), the
node has the split that was found, and what would be below the forced one is dropped.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.arrays import copy_to
from rankmill.foundation.kernels.compiling import kernel
from rankmill.trainer.growing._category_kernels import sum_of_set, tried_alone
from rankmill.trainer.growing._gain_kernels import gains_bounded, gains_of, left_is_heavier, parent_of
from rankmill.trainer.growing._histogram_kernels import count_sides
from rankmill.trainer.growing._state_kernels import (
    FIRST,
    FORCED_BELOW,
    FORCED_BIN,
    FORCED_FEATURE,
    FORCED_SET,
    LAST,
    LOW,
    ROWS,
    SLOT,
    TOTAL,
)


@kernel
def has_forced(node, bins, nodes):
    """Return whether the node, or the level that begins with it, has a forced split."""
    return bins.forced.shape[0] > 0 and nodes.forced[node] >= 0


@kernel
def forget_forced(node, bins, nodes):
    """Drop the forced split of a node, and with it those below."""
    if bins.forced.shape[0] > 0:
        nodes.forced[node] = -1


@kernel
def pass_forced_on(node, left, n_children, bins, nodes):
    """Give the children ``left`` .. the forced splits below that of ``node``."""
    if bins.forced.shape[0] > 0:
        for side in range(n_children):
            nodes.forced[left + side] = -1
            if nodes.forced[node] >= 0:
                nodes.forced[left + side] = bins.forced[nodes.forced[node], FORCED_BELOW + side]


@kernel
def _gain_of(node, f, left, missing_left, lambda_l2, least, bins, rules, nodes, histogram, work):
    """Return the gain of one split of a node, less ``least``; its left side has the packed sum ``left`` without missing values."""
    prefix, gain, one = work[0].view(np.int64), work[1], np.int64(2)
    total = nodes.table[node, TOTAL]
    total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & LOW)
    extra = histogram[0] if missing_left else np.int64(0)
    prefix[1] = left
    if rules.constrained:
        gains_bounded(
            prefix, extra, one, total_g, total_h, rules.least_side, lambda_l2, least, rules, bins.monotone[f],
            nodes.ranges[node], gain,
        )  # fmt: skip
    else:
        parent = parent_of(total, rules) + least
        gains_of(prefix, extra, one, total_g, total_h, rules.least_side, lambda_l2, rules, parent, gain)
    return gain[1]


@kernel
def _left_of(values, n_bins, threshold, bits):
    """Return the sum of ``values`` (256,) over the bins of a split on the left, without missing ones."""
    if threshold == 0:
        return sum_of_set(values, n_bins, bits)
    left = np.int64(0)
    for b in range(1, threshold + 1):
        left += values[b]
    return left


@kernel
def _large_enough(crew, node, f, threshold, bits, missing_left, bins, rows, hessians, rules, table, counts):
    """Return whether both sides of a split have enough rows and hessian, which are counted."""
    n_bins, with_hessians = bins.n_bins[f], not rules.by_h
    counts[1] = 0
    count_sides(
        crew, f, bins, rows, table[node, FIRST], table[node, LAST], hessians, rules.fine_h, with_hessians, counts
    )  # fmt: skip
    left = _left_of(counts[0], n_bins, threshold, bits) + (counts[0, 0] if missing_left else np.int64(0))
    h = _left_of(counts[1], n_bins, threshold, bits) + (counts[1, 0] if missing_left else np.int64(0))
    least_h = rules.fine_least_h if with_hessians else 0.0
    all_h = counts[1, :n_bins].sum()
    return min(left, table[node, ROWS] - left) >= rules.min_rows and min(h, all_h - h) >= least_h


@kernel
def search_forced(
    crew, child, level, counted, first_feature, last_feature, bins, rows, hessians, rules, nodes, pool, work, counts, search
):  # fmt: skip
    """Write gain and split of what is forced on a node, or on all leaves of a level, by the worker that has its feature.

    ``level`` is (first node, last node).  ``search.forced_gains[child]`` gets the gain above ``min_gain``, summed over leaves
    as in ``search_level`` and ``search_level_counted`` (0: it cannot be taken); ``search.forced[child]`` the split as in
    ``best_split``.  ``counts`` (2, 256) is scratch space for sides that are ``counted``.
    """
    if not has_forced(level[0], bins, nodes):
        return
    forced, table, split = bins.forced[nodes.forced[level[0]]], nodes.table, search.forced[child]
    f, threshold, bits = forced[FORCED_FEATURE], forced[FORCED_BIN], forced[FORCED_SET:]
    if f < first_feature or f >= last_feature:
        return
    by_set, single = threshold == 0, level[1] - level[0] == 1
    lambda_l2, least = rules.lambda_l2, rules.min_gain if single else 0.0
    if by_set and not tried_alone(bins.n_bins[f], rules):
        lambda_l2 += rules.category_l2
    split[:] = 0
    split[0], split[1] = f, threshold
    copy_to(split[4:], bits)
    best = -np.inf
    for side in range(1 if by_set else 2):
        summed, left, missing = 0.0 if single else -rules.min_gain, np.int64(0), np.int64(0)
        for node in range(level[0], level[1]):
            histogram = pool[table[node, SLOT], f]
            if table[node, TOTAL] & LOW == 0:
                continue
            missing |= histogram[0]
            left = _left_of(histogram, bins.n_bins[f], threshold, bits)
            gain = _gain_of(node, f, left, side == 1, lambda_l2, least, bins, rules, nodes, histogram, work)
            if counted and not _large_enough(
                crew, node, f, threshold, bits, side == 1, bins, rows, hessians, rules, table, counts
            ):
                continue
            if gain > -np.inf and (counted or single or gain > 0.0):
                summed += gain
        if summed > best and (side == 0 or missing != 0):
            best = summed
            split[2], split[3] = side, left + (missing if side == 1 else np.int64(0))
            if side == 0 and single and not by_set and missing == 0:
                split[2] = left_is_heavier(left, np.float64(table[level[0], TOTAL] & LOW))
    search.forced_gains[child] = max(best, 0.0)
