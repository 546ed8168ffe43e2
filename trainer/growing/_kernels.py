"""Grow one tree over bins, all workers together.  No checks: the wrappers next door have done them.

Words.  A *block* holds ``width`` features; ``words[block, row, w]`` holds bins of features ``8 w .. 8 w + 7`` of that
block, the first in the lowest byte.  A *packed* value holds a gradient in its high and a curvature in its low 32 bits;
the curvature is never negative and its sum over all rows fits 32 bits, so sums never carry between the two.  All sums
are sums of integers: their order does not matter, so neither do threads, blocks or the order of rows.

``grow_by_node`` and ``grow_by_level`` are called by every worker of a team at once.  They do their share of each step
and meet before the next; worker 0 alone writes what the others read after a meeting.
"""

from __future__ import annotations

import numpy as np
from numba import types

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import MAGIC
from rankmill.foundation.kernels.instructions import bits_of, float_of, load_acquire, prefetch, store_release

LOOK_AHEAD = 64  # rows between the prefetch and the use; so many are read past the end of a node's rows
_FAR = np.int64(LOOK_AHEAD)
_LOW = np.int64(0xFFFFFFFF)
_BYTE = np.uint64(255)
_U8 = np.uint64(8)
_U256 = np.uint64(256)

# What a row of ``nodes`` holds: rows[FIRST:LAST] are the node's; TOTAL is their packed sum; SLOT its histogram in the
# pool, -1 for none; LEFT its first child, -1 for none (the other child is LEFT + 1); the rest is its best split.
# Where pairs count (criterion ole), pairs[PAIRS_FIRST:PAIRS_LAST] have both their rows in the node, INSIDE is their sum.
FIRST, LAST, DEPTH, TOTAL, SLOT, LEFT, FEATURE, THRESHOLD, MISSING_LEFT, LEFT_SUM, PAIRS_FIRST, PAIRS_LAST, INSIDE = (
    range(13)
)
NODE_FIELDS = 13
# What ``state`` holds, written by worker 0 between meetings: counts of nodes, leaves, waiting nodes and free slots;
# the node to divide (-1: the tree is done); the children to count and to search (-1: none); whether the larger one
# has to be counted too, because its parent's histogram is gone; the node whose best split was refused (-1: none) and
# which has to be searched with counted sides, whether curvatures have to be summed for that, and whether the gains of
# its features have to be found anew
N_NODES, N_LEAVES, N_WAITING, N_FREE, NODE, SMALL, LARGE, COUNT_BOTH, REFUSED, SUM_CURVATURES, SEARCH_ANEW = range(11)
STATE_FIELDS = 11
# What ``limits`` holds; BY_H: splits are searched by curvatures, not by weights
MAX_LEAVES, MAX_DEPTH, MIN_ROWS, POLICY, CONSTRAINED, SHARED_ROWS, LOOKS, CLOCK, PAIRED, SCREENED, BY_H = range(11)
LIMIT_FIELDS = 11
BEST_FIRST, BREADTH_FIRST, DEPTH_FIRST = range(3)
# What ``bounds`` holds: units of packed gradient and curvature, lambda, min gain; packed steps of curvature that a side
# needs at least (LEAST_H), also because of its rows (LEAST_SIDE); fine steps per unit of gradient, of what splits are
# searched by, and of curvature; and the least sum of curvatures of a side in fine steps
UNIT_G, UNIT_H, LAMBDA, MIN_GAIN, LEAST_H, LEAST_SIDE, FINE_G, FINE_W, FINE_H, FINE_LEAST_H = range(10)
BOUND_FIELDS = 10
EPSILON = 2.0**-52
# Phases that ``ticks`` counts nanoseconds of, as worker 0 sees them
COUNTING, SEARCHING, DECIDING, PARTING = range(4)
PAIR_STEPS = 1048576.0  # steps of a pair's curvature to one of packed curvature: sums of 2 ** 31 of these fit a double
KEYS = 257  # bins as pairs see them: 0 the missing that go left, 1 .. 255, 256 the missing that go right
LINE = 8  # int64 a cache line: every flag has one to itself

_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


# -- meeting ---------------------------------------------------------------------------------------------------------


@kernel
def _wait(flags, index, number, stop, looks):
    """Look at flags[index] until it reaches ``number``; False if flags[stop] is set meanwhile."""
    while True:
        for _ in range(looks):
            if load_acquire(flags, index) >= number:
                return True
        if load_acquire(flags, stop) != 0:
            return False
        _sched_yield()


@kernel
def meet(flags, worker, size, number, looks):
    """Wait until all workers have called this with ``number`` (1, 2, ..); False: one has failed, all must leave.

    flags[w * LINE] is worker w's, flags[size * LINE] is set by who fails.  What any worker wrote before a meeting,
    every worker can read after it.
    """
    if size == 1:
        return True
    stop = size * LINE
    if worker != 0:
        store_release(flags, worker * LINE, number)
        return _wait(flags, 0, number, stop, looks)
    for other in range(1, size):
        if not _wait(flags, other * LINE, number, stop, looks):
            return False
    store_release(flags, 0, number)
    return True


@kernel
def _tick(clock, phase, stamp, ticks):
    """Add the time since the last call to ``phase``; ``clock`` < 0: keep no time."""
    if clock >= 0:
        _clock_gettime(np.int32(clock), stamp.ctypes.data)
        now = stamp[0] * 1_000_000_000 + stamp[1]
        if stamp[2] != 0:
            ticks[phase] += now - stamp[2]
        stamp[2] = now


# -- histograms ------------------------------------------------------------------------------------------------------


@kernel
def _accumulate(words, used, rows, packed, first, last, out):
    """out[256 * lane + bin of lane] += packed[i] for the rows[i] of one block, i in first .. last."""
    lanes = words.shape[1]
    flat = words.reshape(-1)
    for i in range(first, last):
        row = np.int64(rows[i])
        prefetch(flat, rows[i + _FAR] * lanes)
        value = packed[i]
        for w in range(used):
            word = words[row, w]
            base = np.uint64(w) * np.uint64(2048)
            out[base + (word & _BYTE)] += value
            out[base + _U256 + ((word >> _U8) & _BYTE)] += value
            out[base + np.uint64(512) + ((word >> np.uint64(16)) & _BYTE)] += value
            out[base + np.uint64(768) + ((word >> np.uint64(24)) & _BYTE)] += value
            out[base + np.uint64(1024) + ((word >> np.uint64(32)) & _BYTE)] += value
            out[base + np.uint64(1280) + ((word >> np.uint64(40)) & _BYTE)] += value
            out[base + np.uint64(1536) + ((word >> np.uint64(48)) & _BYTE)] += value
            out[base + np.uint64(1792) + (word >> np.uint64(56))] += value


@kernel
def count_share(words, used_words, blocks, rows, packed, first, last, n_bins, share, shares, histogram, edge):
    """Add one worker's share of (row, word) visits of rows[first:last] to ``histogram`` (n_features, 256).

    The blocks asked for are laid end to end, ``n`` rows of ``used_words[block]`` words each, and the line is cut into
    ``shares`` parts of about equal length.  Where a part begins inside a block, that block's visits go to ``edge``
    (width, 256); returns the number of that block, -1 if there is none.  The part in which a block begins clears it.
    """
    n, width = last - first, words.shape[2] * 8
    whole = np.int64(0)
    for k in range(blocks.shape[0]):
        whole += used_words[blocks[k]]
    start, stop = n * whole * share // shares, n * whole * (share + 1) // shares
    partial, offset = np.int64(-1), np.int64(0)
    for k in range(blocks.shape[0]):
        block = blocks[k]
        used = used_words[block]
        begin = max(start - offset, 0) // used
        end = min(max(stop - offset, 0) // used, n)
        offset += n * used
        if begin >= end:
            continue
        if begin == 0:
            for f in range(block * width, (block + 1) * width):
                for b in range(n_bins[f]):
                    histogram[f, b] = 0
            target = histogram[block * width : (block + 1) * width]
        else:
            partial = block
            edge[:] = 0
            target = edge
        _accumulate(words[block], used, rows, packed, first + begin, first + end, target.reshape(-1))
    return partial


@kernel
def add_edge(edge, n_bins, block, first_feature, last_feature, histogram):
    """Add a block's histogram ``edge`` (width, 256) to those features of ``histogram`` that lie in the range."""
    width = edge.shape[0]
    for f in range(max(first_feature, block * width), min(last_feature, (block + 1) * width)):
        for b in range(n_bins[f]):
            histogram[f, b] += edge[f - block * width, b]


@kernel
def subtract(from_parent, child, n_bins, first_feature, last_feature):
    """Turn the parent's histogram into that of the other child: ``from_parent[feature, bin] -= child[feature, bin]``."""
    for f in range(first_feature, last_feature):
        for b in range(n_bins[f]):
            from_parent[f, b] -= child[f, b]


@kernel
def count_bins(column, stride, rows, first, last, counts):
    """counts[bin] = rows[first:last] with that bin of one feature."""
    counts[:] = 0
    for i in range(first, last):
        prefetch(column, rows[i + _FAR] * stride)
        counts[column[rows[i] * stride]] += 1


@kernel
def sum_curvatures(column, stride, rows, first, last, curvatures, scale, sums):
    """sums[bin] = sum of round(curvature * scale) over rows[first:last] with that bin of one feature."""
    sums[:] = 0
    for i in range(first, last):
        sums[column[rows[i] * stride]] += np.int64(np.rint(curvatures[rows[i]] * scale))


@kernel
def total_and_least(packed):
    """Return the sum of packed values, and the least curvature among them in steps (0 for no values)."""
    total, least = np.int64(0), _LOW
    for i in range(packed.shape[0]):
        total += packed[i]
        least = min(least, packed[i] & _LOW)
    return total, least if packed.shape[0] > 0 else np.int64(0)


# -- splits ----------------------------------------------------------------------------------------------------------


@kernel
def _gains(prefix, extra, last, total_g, total_h, needed, bounds, parent, out):
    """out[b] = gain of the split after bin b, 1 <= b < last, with ``prefix[b] + extra`` on the left; -inf where not allowed.

    Allowed are sides with ``needed`` steps of curvature.  G_l^2 / H_l + G_r^2 / H_r - parent, as one division of whole steps, lambda among them.  Straight-line code over
    unsigned b, so that it becomes vector code: integers turn into floats through the bits.
    """
    lambda_steps, unit = bounds[LAMBDA] / bounds[UNIT_H], bounds[UNIT_G] * (bounds[UNIT_G] / bounds[UNIT_H])
    magic = bits_of(MAGIC)
    for b in range(np.uint64(1), np.uint64(last)):
        left = prefix[b] + extra
        h_left = float_of((left & _LOW) + magic) - MAGIC
        g_left = float_of((left >> np.int64(32)) + magic) - MAGIC
        h_right = total_h - h_left
        g_right = total_g - g_left
        allowed = min(h_left, h_right) >= needed
        h_left, h_right = h_left + lambda_steps, h_right + lambda_steps
        gain = (g_left * g_left * h_right + g_right * g_right * h_left) / (h_left * h_right) * unit - parent
        out[b] = gain if allowed else -np.inf


@kernel
def _value(g, h, low, high):
    """Return the Newton step (h with lambda), kept within the range of the node."""
    return min(max(-g / h, low), high) if h > 0.0 else 0.0


@kernel
def _value_of(packed, bounds, low, high):
    g, h = np.float64(packed >> np.int64(32)) * bounds[UNIT_G], np.float64(packed & _LOW) * bounds[UNIT_H]
    return _value(g, h + bounds[LAMBDA], low, high)


@kernel
def _gain_of(g, h, value):
    """Return what the step ``value`` gains: -(2 g v + h v^2), which is g^2 / h at the Newton step."""
    return -(2.0 * g + h * value) * value


@kernel
def _gains_bounded(prefix, extra, last, total_g, total_h, needed, bounds, direction, low, high, out):
    """As ``_gains``, where the values of the children must lie in low .. high and rise (1) or fall (-1) with the feature."""
    unit_g, unit_h, lambda_l2 = bounds[UNIT_G], bounds[UNIT_H], bounds[LAMBDA]
    whole_g, whole_h = total_g * unit_g, total_h * unit_h + lambda_l2
    parent = _gain_of(whole_g, whole_h, _value(whole_g, whole_h, low, high)) + bounds[MIN_GAIN]
    for b in range(1, last):
        left = prefix[b] + extra
        h_left, g_left = np.float64(left & _LOW), np.float64(left >> np.int64(32))
        out[b] = -np.inf
        if min(h_left, total_h - h_left) >= needed:
            g, h = g_left * unit_g, h_left * unit_h + lambda_l2
            g_right, h_right = (total_g - g_left) * unit_g, (total_h - h_left) * unit_h + lambda_l2
            value, value_right = _value(g, h, low, high), _value(g_right, h_right, low, high)
            if direction * (value_right - value) >= 0.0:
                out[b] = _gain_of(g, h, value) + _gain_of(g_right, h_right, value_right) - parent


@kernel
def _left_is_heavier(left, total_h):
    """Whether the left side, a packed sum, has at least half of the curvature."""
    return 2.0 * np.float64(left & _LOW) >= total_h


@kernel
def _forbid_small_sides(counts, prefix, total_h, weightless, missing_left, last, min_rows, least_h, out):
    """out[b] = -inf where the split after bin b leaves a side with too few rows or too little curvature.

    counts[0, b] rows and counts[1, b] fine steps of curvature have bin b.  The missing go left if ``missing_left``,
    or, where they are ``weightless``, to the heavier side.
    """
    all_rows, all_h = counts[0, :last].sum(), counts[1, :last].sum()
    rows, h = np.int64(0), np.int64(0)
    for b in range(1, last):
        rows += counts[0, b]
        h += counts[1, b]
        with_missing = _left_is_heavier(prefix[b], total_h) if weightless else missing_left
        rows_left = rows + counts[0, 0] if with_missing else rows
        h_left = h + counts[1, 0] if with_missing else h
        if min(rows_left, all_rows - rows_left) < min_rows or min(h_left, all_h - h_left) < least_h:
            out[b] = -np.inf


@kernel
def _highest(values, last):
    """Return the highest of values[1:last], -inf where there is none: four at a time, since each waits for the one before."""
    a = b = c = d = -np.inf
    i = 1
    while i + 4 <= last:
        a, b = max(a, values[i]), max(b, values[i + 1])
        c, d = max(c, values[i + 2]), max(d, values[i + 3])
        i += 4
    while i < last:
        a = max(a, values[i])
        i += 1
    return max(a, b, c, d)


@kernel
def best_split(
    hist, counts, n_bins, enabled, monotone, first_feature, last_feature, total, needed, least_h, limits, bounds, low,
    high, work, gain_out, split_out, of_feature,
):  # fmt: skip
    """Best (feature, bin, side of the missing) of one node over a range of features.

    A side has ``needed`` packed steps of curvature at least.  If ``counts`` (2, 256) has cells, it holds the rows and the
    fine steps of curvature of each bin of the one feature asked for, and a side has ``limits[MIN_ROWS]`` and ``least_h``
    of them.  ``gain_out[0]`` gets the gain (0: no split), ``split_out`` gets [feature, bin, missing left, packed sum of
    the left side].  Equal gains go to the lowest feature, then the lowest bin, then missing right; missing values that
    weigh nothing in this node follow the heavier side.  With ``limits[CONSTRAINED]`` the children's values lie in
    ``low`` .. ``high`` and obey ``monotone[feature]``.  ``work`` (3, 256) float64 is scratch space.  ``of_feature``
    (n_features,), where it has cells, gets the gain of each feature's best split.
    """
    counted = counts.shape[0] > 0
    prefix = work[0].view(np.int64)
    missing_right, missing_left = work[1], work[2]
    total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & _LOW)
    best = 0.0
    split_out[0] = -1
    gain_out[0] = 0.0
    denominator = total_h * bounds[UNIT_H] + bounds[LAMBDA]
    by_feature = of_feature.shape[0] > 0
    if by_feature:
        of_feature[first_feature:last_feature] = -np.inf
    if total_h == 0.0:
        return
    constrained = limits[CONSTRAINED] != 0
    whole_g = total_g * bounds[UNIT_G]
    parent = whole_g * whole_g / denominator + bounds[MIN_GAIN]
    for f in range(first_feature, last_feature):
        if not enabled[f]:
            continue
        missing = hist[f, 0]
        last = n_bins[f]  # one past the last bin that may end the left side
        present = np.int64(0)
        for b in range(1, last):
            present += hist[f, b]
            prefix[b] = present
        for side in range(1 if missing == 0 else 2):
            extra, out = (np.int64(0), missing_right) if side == 0 else (missing, missing_left)
            if constrained:
                _gains_bounded(prefix, extra, last, total_g, total_h, needed, bounds, monotone[f],
                               low, high, out)  # fmt: skip
            else:
                _gains(prefix, extra, last, total_g, total_h, needed, bounds, parent, out)
        if counted:
            min_rows = limits[MIN_ROWS]
            _forbid_small_sides(counts, prefix, total_h, missing == 0, False, last, min_rows, least_h, missing_right)
            _forbid_small_sides(counts, prefix, total_h, False, True, last, min_rows, least_h, missing_left)
        highest = _highest(missing_right, last)
        if missing != 0:
            highest = max(highest, _highest(missing_left, last))
        if by_feature:
            of_feature[f] = highest
        if not highest > best:
            continue
        for b in range(1, last):
            if missing_right[b] > best:
                best = missing_right[b]
                split_out[0] = f
                split_out[1] = b
                split_out[2] = 1 if missing == 0 and _left_is_heavier(prefix[b], total_h) else 0
                split_out[3] = prefix[b]
            if missing != 0 and missing_left[b] > best:
                best = missing_left[b]
                split_out[0] = f
                split_out[1] = b
                split_out[2] = 1
                split_out[3] = prefix[b] + missing
    gain_out[0] = best


# -- splits by the loss itself (criterion ole) -----------------------------------------------------------------------


@kernel
def pack_pairs(first, second, curvature, scale, drawn, pairs):
    """pairs[k] = (first << 32 | second, round(curvature * scale)) of the pairs with both rows drawn; returns how many.

    ``drawn`` (n_rows,) tells the rows that the tree is grown from; empty: all.
    """
    every, n = drawn.shape[0] == 0, 0
    for k in range(first.shape[0]):
        if every or (drawn[first[k]] and drawn[second[k]]):
            pairs[n, 0] = (np.int64(first[k]) << np.int64(32)) | np.int64(second[k])
            pairs[n, 1] = np.int64(np.rint(curvature[k] * scale))
            n += 1
    return n


@kernel
def _count_pairs(column, stride, pairs, first, last, highest, lowest):
    """Add the curvature of pairs[first:last] to highest[the greater bin of its two rows] and to lowest[the lesser]."""
    highest[:] = 0
    lowest[:] = 0
    for k in range(first, last):
        both = pairs[k, 0]
        a, b = column[(both >> np.int64(32)) * stride], column[(both & _LOW) * stride]
        c = pairs[k, 1]
        highest[max(a, b)] += c
        lowest[min(a, b)] += c


@kernel
def _move_missing(column, stride, pairs, first, last, highest, lowest):
    """Turn what ``_count_pairs`` has counted, the missing below all bins, into what they count for above all bins."""
    for k in range(first, last):
        both = pairs[k, 0]
        a, b = column[(both >> np.int64(32)) * stride], column[(both & _LOW) * stride]
        if min(a, b) == 0:
            c, other = pairs[k, 1], max(a, b)
            highest[other] -= c
            lowest[0] -= c
            highest[KEYS - 1] += c
            lowest[other if other > 0 else KEYS - 1] += c


@kernel
def _insides(highest, lowest, inside, last, inside_left, inside_right):
    """Curvature of the pairs inside the left and inside the right of every bin, of ``inside`` in the whole node."""
    left, right = highest[0], inside - lowest[0]
    for b in range(1, last):
        left += highest[b]
        right -= lowest[b]
        inside_left[b] = left
        inside_right[b] = right


@kernel
def _paired_gains(prefix, extra, inside_left, inside_right, last, total_g, total_h, least, bounds, parent, out):
    """As ``_gains``, with L'' = h - 2 (curvature of the pairs inside) for h, no less than ``least`` steps of it."""
    lambda_steps, unit = bounds[LAMBDA] / bounds[UNIT_H], bounds[UNIT_G] * (bounds[UNIT_G] / bounds[UNIT_H])
    magic, twice = bits_of(MAGIC), 2.0 / PAIR_STEPS
    for b in range(np.uint64(1), np.uint64(last)):
        left = prefix[b] + extra
        h_left = float_of((left & _LOW) + magic) - MAGIC
        g_left = float_of((left >> np.int64(32)) + magic) - MAGIC
        curvature_left = h_left - twice * (float_of(inside_left[b] + magic) - MAGIC)
        curvature_right = (total_h - h_left) - twice * (float_of(inside_right[b] + magic) - MAGIC)
        g_right = total_g - g_left
        allowed = min(curvature_left, curvature_right) >= least
        curvature_left, curvature_right = curvature_left + lambda_steps, curvature_right + lambda_steps
        gain = g_left * g_left * curvature_right + g_right * g_right * curvature_left
        gain = gain / (curvature_left * curvature_right) * unit - parent
        out[b] = gain if allowed else -np.inf


@kernel
def _forbid_unsound_sides(
    prefix, extra, inside_left, inside_right, counts, missing_left, weightless, last, n_rows, total_g, total_h, min_rows,
    out,
):  # fmt: skip
    """out[b] = -inf where a side has too few rows, or where rounding may be all of L'' of a side, or of both L'."""
    present = np.int64(0)
    for b in range(1, last):
        present += counts[b]
        left = prefix[b] + extra
        with_missing = _left_is_heavier(left, total_h) if weightless else missing_left
        rows_left = present + counts[0] if with_missing else present
        rows_right = n_rows - rows_left
        h_left = np.float64(left & _LOW)
        curvature_left = h_left - 2.0 / PAIR_STEPS * np.float64(inside_left[b])
        curvature_right = (total_h - h_left) - 2.0 / PAIR_STEPS * np.float64(inside_right[b])
        few = rows_left < min_rows or rows_right < min_rows
        g_left = np.float64(left >> np.int64(32))
        flat = abs(g_left) <= 0.5 * rows_left and abs(total_g - g_left) <= 0.5 * rows_right
        # half a step for every row
        if few or flat or curvature_left < 0.5 * rows_left or curvature_right < 0.5 * rows_right:
            out[b] = -np.inf


@kernel
def search_paired(
    f, column, stride, hist, last, rows, first_row, last_row, pairs, first_pair, last_pair, total, inside, limits,
    bounds, counts, keyed, work, gain_out, split_out,
):  # fmt: skip
    """Best split of one node by one feature, by what all steps of a side together do to the loss.

    ``hist`` (256,) holds the node's packed sums of the feature by bin, below ``last``; pairs[first_pair:last_pair] have
    both their rows in the node.  Inside the left of bin b are the pairs whose greater key is at most b, inside the
    right those whose lesser one is above it.  What is better than ``gain_out[0]``, or as good by a lower feature, is
    written there and to ``split_out``.  Rows are counted, a pass over all of them, only where the feature would win if
    their number did not matter.  ``keyed`` (4, KEYS) int64 and ``work`` (4, 256) float64 are scratch space.
    """
    total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & _LOW)
    n_rows, missing = last_row - first_row, hist[0]
    least = bounds[LEAST_H]
    parent = bounds[MIN_GAIN]
    # of a node of whole queries L' and L'' are 0, up to the rounding of every row: its step gains nothing
    whole = total_h - 2.0 / PAIR_STEPS * np.float64(inside)
    if whole >= max(least, 0.5 * n_rows):
        unit = bounds[UNIT_G] * (bounds[UNIT_G] / bounds[UNIT_H])
        parent += total_g * total_g / (whole + bounds[LAMBDA] / bounds[UNIT_H]) * unit
    highest, lowest, inside_left, inside_right = keyed[0], keyed[1], keyed[2], keyed[3]
    prefix = work[0].view(np.int64)
    present = np.int64(0)
    for b in range(1, last):
        present += hist[b]
        prefix[b] = present
    _count_pairs(column, stride, pairs, first_pair, last_pair, highest, lowest)
    counted = False
    for side in range(1, -1 if missing != 0 else 0, -1):  # 1: the missing left, 0: right
        if side == 0:
            _move_missing(column, stride, pairs, first_pair, last_pair, highest, lowest)
        extra, out = missing if side == 1 else np.int64(0), work[1]
        _insides(highest, lowest, inside, last, inside_left, inside_right)
        _paired_gains(prefix, extra, inside_left, inside_right, last, total_g, total_h, least, bounds, parent, out)
        best = _highest(out, last)
        if best <= 0.0 or best < gain_out[0] or (best == gain_out[0] and f > split_out[0]):
            continue
        if not counted:
            count_bins(column, stride, rows, first_row, last_row, counts)
            counted = True
        _forbid_unsound_sides(
            prefix, extra, inside_left, inside_right, counts, side == 1, missing == 0, last, n_rows, total_g,
            total_h, limits[MIN_ROWS], out,
        )  # fmt: skip
        for b in range(1, last):
            # of equals the lowest feature, then the lowest bin, then missing right, which comes last here
            equal = out[b] == gain_out[0] and out[b] > 0.0
            before = f < split_out[0] or (f == split_out[0] and (b < split_out[1] or (b == split_out[1] and side == 0)))
            if out[b] > gain_out[0] or (equal and before):
                gain_out[0] = out[b]
                split_out[0] = f
                split_out[1] = b
                split_out[2] = side if missing != 0 else np.int64(_left_is_heavier(prefix[b], total_h))
                split_out[3] = prefix[b] + extra


@kernel
def choose_features(screen, enabled, many, chosen):
    """chosen[:n] = the ``many`` enabled features whose ``screen`` is highest, best first, of equals the lowest; returns n.

    0: all that are enabled, ascending.
    """
    n = 0
    for f in range(enabled.shape[0]):
        if not enabled[f]:
            continue
        if many == 0 or n < many:
            place = n
            n += 1
        elif screen[f] > screen[chosen[n - 1]]:
            place = n - 1
        else:
            continue
        while many > 0 and place > 0 and screen[chosen[place - 1]] < screen[f]:
            chosen[place] = chosen[place - 1]
            place -= 1
        chosen[place] = f
    return n


# -- rows ------------------------------------------------------------------------------------------------------------


@kernel
def column_of(words, feature):
    """Return the bins of ``feature``, uint8: that of row r lies at r * width."""
    width = words.shape[2] * 8
    return words[feature // width].view(np.uint8).reshape(-1)[feature % width :]


@kernel
def partition(column, stride, threshold, missing_left, rows, packed, first, last, spare_rows, spare_packed):
    """Reorder rows[first:last] (and packed with them) so that the left child comes first; both keep their order.

    before:  rows = [a b c d e f]      after:  rows = [a c f | b d e]   (a, c, f go left)

    ``column[row * stride]`` is the bin of the split feature.  Returns the number of rows on the left.
    """
    left, right = first, 0
    for i in range(first, last):
        row = rows[i]
        prefetch(column, rows[i + _FAR] * stride)
        b = column[row * stride]
        goes_left = (b <= threshold) & ((b != 0) | (missing_left != 0))
        value = packed[i]
        rows[left] = row
        packed[left] = value
        spare_rows[right] = row
        spare_packed[right] = value
        left += goes_left
        right += 1 - goes_left
    for i in range(right):
        rows[left + i] = spare_rows[i]
        packed[left + i] = spare_packed[i]
    return left - first


@kernel
def deal_out(column, stride, threshold, missing_left, rows, packed, first, last, spare_rows, spare_packed):
    """First half of a partition by several workers: one worker's rows[first:last] into spare[first:last].

    rows = [a b c d e f]      spare = [a c f | e d b]   (a, c, f go left; the others come back to front)

    Returns the number of rows on the left.
    """
    left, right = first, last - 1
    for i in range(first, last):
        row = rows[i]
        prefetch(column, rows[i + _FAR] * stride)
        b = column[row * stride]
        goes_left = (b <= threshold) & ((b != 0) | (missing_left != 0))
        to = left if goes_left else right
        spare_rows[to] = row
        spare_packed[to] = packed[i]
        left += goes_left
        right -= 1 - goes_left
    return left - first


@kernel
def collect(spare_rows, spare_packed, first, last, n_left, left_to, right_to, rows, packed):
    """Second half: put what one worker dealt out where the rows of all workers before it end, on either side."""
    for i in range(n_left):
        rows[left_to + i] = spare_rows[first + i]
        packed[left_to + i] = spare_packed[first + i]
    for i in range(last - first - n_left):
        rows[right_to + i] = spare_rows[last - 1 - i]
        packed[right_to + i] = spare_packed[last - 1 - i]


# -- one tree --------------------------------------------------------------------------------------------------------


@kernel
def _stands_before(priority, a, b):
    return priority[a] > priority[b] or (priority[a] == priority[b] and a < b)


@kernel
def _push(heap, n, priority, node):
    """Add ``node`` to a heap of ``n`` nodes, the highest priority (of equals: the node made first) on top."""
    i = n
    while i > 0:
        above = (i - 1) // 2
        if not _stands_before(priority, node, heap[above]):
            break
        heap[i] = heap[above]
        i = above
    heap[i] = node


@kernel
def _pop(heap, n, priority):
    """Take the top off a heap of ``n`` nodes."""
    top, node = heap[0], heap[n - 1]
    i = 0
    while 2 * i + 1 < n - 1:
        below = 2 * i + 1
        if below + 1 < n - 1 and _stands_before(priority, heap[below + 1], heap[below]):
            below += 1
        if not _stands_before(priority, heap[below], node):
            break
        heap[i] = heap[below]
        i = below
    heap[i] = node
    return top


@kernel
def _may_split(nodes, node, limits):
    enough = nodes[node, LAST] - nodes[node, FIRST] >= 2 * limits[MIN_ROWS]
    return enough and (limits[MAX_DEPTH] == 0 or nodes[node, DEPTH] < limits[MAX_DEPTH])


@kernel
def _release(nodes, node, free, state):
    """Give the node's histogram back to the pool."""
    if nodes[node, SLOT] >= 0:
        free[state[N_FREE]] = nodes[node, SLOT]
        state[N_FREE] += 1
        nodes[node, SLOT] = -1


@kernel
def _take(nodes, heap, priority, free, state):
    """Take a slot of the pool; where none is free, the waiting node whose turn comes last loses its own."""
    if state[N_FREE] == 0:
        victim = np.int64(-1)
        for i in range(state[N_WAITING]):
            node = heap[i]
            if nodes[node, SLOT] >= 0 and (victim < 0 or _stands_before(priority, victim, node)):
                victim = node
        _release(nodes, victim, free, state)
    state[N_FREE] -= 1
    return free[state[N_FREE]]


@kernel
def _wait_for_turn(nodes, node, gain, split, limits, bounds, priority, gains_of_nodes, heap, state):
    """Write the node's best split down and let it wait until it is the turn of its priority."""
    nodes[node, FEATURE] = split[0]
    nodes[node, THRESHOLD] = split[1]
    nodes[node, MISSING_LEFT] = split[2]
    nodes[node, LEFT_SUM] = split[3]
    gains_of_nodes[node] = gain + bounds[MIN_GAIN]  # the search speaks of what is beyond the least one
    if limits[POLICY] == BEST_FIRST:
        priority[node] = gain
    elif limits[POLICY] == BREADTH_FIRST:
        priority[node] = -nodes[node, DEPTH]
    else:
        priority[node] = nodes[node, DEPTH]
    _push(heap, state[N_WAITING], priority, node)
    state[N_WAITING] += 1


@kernel
def _settle(child, node, size, gains, splits, limits, bounds, priority, gains_of_nodes, heap, nodes, free, state):
    """Take the best split of what the workers found; of equals that with the lowest feature."""
    best = 0
    for worker in range(1, size):
        more = gains[child, worker] - gains[child, best]
        if more > 0.0 or (more == 0.0 and splits[child, worker, 0] < splits[child, best, 0]):
            best = worker
    if _may_split(nodes, node, limits) and gains[child, best] > 0.0:
        _wait_for_turn(
            nodes,
            node,
            gains[child, best],
            splits[child, best],
            limits,
            bounds,
            priority,
            gains_of_nodes,
            heap,
            state,
        )
    else:
        _release(nodes, node, free, state)


@kernel
def _next_to_count(uppers, enabled, first_feature, last_feature, best, of_feature):
    """Return the feature whose bound is highest, of equals the lowest; -1 where none can beat ``best`` of ``of_feature``."""
    f = np.int64(-1)
    for other in range(first_feature, last_feature):
        if enabled[other] and (f < 0 or uppers[other] > uppers[f]):
            f = other
    if f < 0 or uppers[f] <= 0.0 or uppers[f] < best or (uppers[f] == best and f > of_feature):
        return np.int64(-1)
    return f


@kernel
def _count_sides(words, f, rows, first, last, curvatures, bounds, with_curvatures, counts):
    """Fill ``counts`` (2, 256) with the rows and, if asked for, the curvatures of each bin of feature ``f``."""
    column, stride = column_of(words, f), words.shape[2] * 8
    count_bins(column, stride, rows, first, last, counts[0])
    if with_curvatures:
        sum_curvatures(column, stride, rows, first, last, curvatures, bounds[FINE_H], counts[1])


@kernel
def _search_counted(
    node, with_curvatures, first_feature, last_feature, words, n_bins, enabled, monotone, rows, curvatures, limits,
    bounds, nodes, ranges, histogram, counts, uppers, work, gain_out, split_out,
):  # fmt: skip
    """Find the node's best split over a range of features with its sides counted row by row; ``gain_out[0]`` 0: none.

    ``uppers`` (n_features,), the gains that the search without rows has found, are upper bounds.  Features are counted
    from the highest down, until none is left that could beat what has been found; those counted become -inf.
    ``counts`` (2, 256) is scratch space.
    """
    first, last, total = nodes[node, FIRST], nodes[node, LAST], nodes[node, TOTAL]
    least_h = bounds[FINE_LEAST_H] if with_curvatures else 0.0
    low, high = ranges[node, 0], ranges[node, 1]
    gain, split, nothing = np.zeros(1), np.zeros(4, dtype=np.int64), np.empty(0)
    gain_out[0] = 0.0
    split_out[0] = -1
    counts[1] = 0
    while True:
        f = _next_to_count(uppers, enabled, first_feature, last_feature, gain_out[0], split_out[0])
        if f < 0:
            return
        uppers[f] = -np.inf
        _count_sides(words, f, rows, first, last, curvatures, bounds, with_curvatures, counts)
        best_split(
            histogram, counts, n_bins, enabled, monotone, f, f + 1, total, bounds[LEAST_SIDE], least_h, limits, bounds,
            low, high, work, gain, split, nothing,
        )  # fmt: skip
        if gain[0] > gain_out[0] or (gain[0] == gain_out[0] and gain[0] > 0.0 and f < split_out[0]):
            gain_out[0] = gain[0]
            split_out[:] = split


# -- admission -------------------------------------------------------------------------------------------------------


@kernel
def _reaches(values, scale, rows, first, last, least):
    """Tell whether the sum of round(value * scale) over rows[first:last], values of 0 or more, is at least ``least``."""
    total = np.int64(0)
    for i in range(first, last):
        if total >= least:
            return True
        total += np.int64(np.rint(values[rows[i]] * scale))
    return total >= least


@kernel
def means_differ(g_left, h_left, off_g_left, off_h_left, g_right, h_right, off_g_right, off_h_right):
    """Tell whether G/H of two sides differ by more than errors of at most ``off`` in each of the four sums explain.

    G_l/H_l = G_r/H_r exactly where G_l H_r - G_r H_l = 0, and that is where a split gains nothing.  The errors move
    this difference by ``off_g_l (H_r + off_h_r) + off_h_r |G_l| + ..`` at most, and its own rounding by a few epsilon.
    """
    left, right = g_left * h_right, g_right * h_left
    off = off_g_left * (h_right + off_h_right) + off_h_right * abs(g_left)
    off += off_g_right * (h_left + off_h_left) + off_h_left * abs(g_right)
    return abs(left - right) > off + 2.0 * EPSILON * (abs(left) + abs(right))


@kernel
def _packed_means_differ(left, total, n_left, n_right):
    """Tell whether the packed sums of two sides of so many rows, each rounded by half a step, show that G/H differ."""
    right = total - left
    off_left, off_right = 0.5 * n_left, 0.5 * n_right
    return means_differ(
        np.float64(left >> np.int64(32)), np.float64(left & _LOW), off_left, off_left,
        np.float64(right >> np.int64(32)), np.float64(right & _LOW), off_right, off_right,
    )  # fmt: skip


@kernel
def fine_means_differ(column, stride, threshold, missing_left, rows, first, last, gradients, weights, scale_g, scale_w):
    """As ``_packed_means_differ``, by sums of fine steps, a pass over all rows[first:last].

    A gradient is off by half a step, and, being a float64, by half an epsilon of itself.
    """
    n, g, size, w = np.zeros(2), np.zeros(2, np.int64), np.zeros(2), np.zeros(2, np.int64)
    for i in range(first, last):
        row = np.int64(rows[i])
        b = column[row * stride]
        side = 0 if (b <= threshold) & ((b != 0) | (missing_left != 0)) else 1
        n[side] += 1.0
        g[side] += np.int64(np.rint(gradients[row] * scale_g))
        size[side] += abs(gradients[row]) * scale_g
        w[side] += np.int64(np.rint(weights[row] * scale_w))
    off_g = 0.5 * n + 0.5 * EPSILON * size
    off_w = 0.5 * n + 0.5 * EPSILON * w
    return means_differ(
        np.float64(g[0]), np.float64(w[0]), off_g[0], off_w[0], np.float64(g[1]), np.float64(w[1]), off_g[1], off_w[1]
    )


@kernel
def _gains_something(node, n_left, n_right, words, rows, gradients, weights, bounds, nodes):
    """Tell whether the gain of the node's split is more than rounding; by fine steps where packed ones cannot tell."""
    if _packed_means_differ(nodes[node, LEFT_SUM], nodes[node, TOTAL], n_left, n_right):
        return True
    f = nodes[node, FEATURE]
    return fine_means_differ(
        column_of(words, f), words.shape[2] * 8, nodes[node, THRESHOLD], nodes[node, MISSING_LEFT], rows,
        nodes[node, FIRST], nodes[node, LAST], gradients, weights, bounds[FINE_G], bounds[FINE_W],
    )  # fmt: skip


@kernel
def _enough_curvature(packed_h, first, last, rows, curvatures, limits, bounds):
    """Tell whether rows[first:last], one side of a split, have the least sum of curvatures."""
    if limits[BY_H] != 0 and np.float64(packed_h) - 0.5 * (last - first) >= bounds[LEAST_H]:
        return True
    return _reaches(curvatures, bounds[FINE_H], rows, first, last, bounds[FINE_LEAST_H])


@kernel
def _bound_children(nodes, node, limits, bounds, monotone, ranges):
    """Children of a monotone split keep to their side of the middle between the two values; all others inherit."""
    left, right = nodes[node, LEFT], nodes[node, LEFT] + 1
    ranges[left] = ranges[node]
    ranges[right] = ranges[node]
    if limits[CONSTRAINED] == 0 or monotone[nodes[node, FEATURE]] == 0:
        return
    low, high = ranges[node, 0], ranges[node, 1]
    middle = 0.5 * (
        _value_of(nodes[left, TOTAL], bounds, low, high) + _value_of(nodes[right, TOTAL], bounds, low, high)
    )
    if monotone[nodes[node, FEATURE]] > 0:
        ranges[left, 1], ranges[right, 0] = middle, middle
    else:
        ranges[left, 0], ranges[right, 1] = middle, middle


@kernel
def _plant(nodes, node, first, last, depth, total):
    nodes[node] = -1
    nodes[node, FIRST] = first
    nodes[node, LAST] = last
    nodes[node, DEPTH] = depth
    nodes[node, TOTAL] = total


@kernel
def _plant_children(nodes, node, left, n_left):
    """Make ``left`` and the node after it from the rows of ``node``, of which the first ``n_left`` go left."""
    middle, depth = nodes[node, FIRST] + n_left, nodes[node, DEPTH] + 1
    _plant(nodes, left, nodes[node, FIRST], middle, depth, nodes[node, LEFT_SUM])
    _plant(nodes, left + 1, middle, nodes[node, LAST], depth, nodes[node, TOTAL] - nodes[node, LEFT_SUM])


@kernel
def _divide(node, n_left, limits, bounds, monotone, nodes, ranges, heap, priority, free, state):
    """Make the children of a node that has been partitioned, and say which of them are to be counted and searched."""
    left = state[N_NODES]
    state[N_NODES] += 2
    state[N_LEAVES] += 1
    state[SMALL] = -1
    state[LARGE] = -1
    nodes[node, LEFT] = left
    _plant_children(nodes, node, left, n_left)
    _bound_children(nodes, node, limits, bounds, monotone, ranges)
    if state[N_LEAVES] == limits[MAX_LEAVES] or not (
        _may_split(nodes, left, limits) or _may_split(nodes, left + 1, limits)
    ):
        _release(nodes, node, free, state)
        return
    small, large = (left, left + 1) if 2 * n_left <= nodes[node, LAST] - nodes[node, FIRST] else (left + 1, left)
    state[SMALL], state[LARGE] = small, large
    state[COUNT_BOTH] = nodes[node, SLOT] < 0
    nodes[large, SLOT] = nodes[node, SLOT]
    nodes[node, SLOT] = -1
    if state[COUNT_BOTH]:
        nodes[large, SLOT] = _take(nodes, heap, priority, free, state)
    nodes[small, SLOT] = _take(nodes, heap, priority, free, state)


@kernel
def _search_child(
    child, worker, node, first_feature, last_feature, n_bins, enabled, monotone, limits, bounds, nodes, ranges, pool,
    work, gains, splits, uppers,
):  # fmt: skip
    """One worker's features of one child: ``gains[child, worker]`` and ``splits[child, worker]`` get the best split.

    Rows are not known here.  ``uppers[SLOT of the node]`` gets the gain of each feature's best split.
    """
    needed = bounds[LEAST_SIDE]
    if limits[PAIRED] != 0:  # a screen, whose features are counted later: here rows are estimated from curvatures
        total_h = np.float64(nodes[node, TOTAL] & _LOW)
        needed = max(needed, (limits[MIN_ROWS] - 0.5) * total_h / (nodes[node, LAST] - nodes[node, FIRST]))
    best_split(
        pool[nodes[node, SLOT]], np.empty((0, 0), dtype=np.int64), n_bins, enabled, monotone, first_feature,
        last_feature, nodes[node, TOTAL], needed, 0.0, limits, bounds, ranges[node, 0], ranges[node, 1], work[worker],
        gains[child, worker:], splits[child, worker], uppers[nodes[node, SLOT]],
    )  # fmt: skip


@kernel
def _search_child_paired(
    child, worker, size, node, words, n_bins, enabled, rows, limits, bounds, nodes, pool, pairs, uppers, counts, chosen,
    keyed, work, gains, splits,
):  # fmt: skip
    """As ``_search_child``, by the loss itself, the features that look best dealt out among the workers."""
    gains[child, worker] = 0.0
    splits[child, worker, 0] = -1
    n_chosen = choose_features(uppers[nodes[node, SLOT]], enabled, limits[SCREENED], chosen)
    for i in range(worker, n_chosen, size):
        f = chosen[i]
        search_paired(
            f, column_of(words, f), words.shape[2] * 8, pool[nodes[node, SLOT], f], n_bins[f], rows,
            nodes[node, FIRST], nodes[node, LAST], pairs, nodes[node, PAIRS_FIRST], nodes[node, PAIRS_LAST],
            nodes[node, TOTAL], nodes[node, INSIDE], limits, bounds, counts[0], keyed, work, gains[child, worker:],
            splits[child, worker],
        )  # fmt: skip


@kernel
def part_pairs(column, stride, threshold, missing_left, pairs, first, last, spare, out):
    """Reorder pairs[first:last]: those inside the left child, those inside the right one, those that are cut apart.

    ``out`` gets how many are left and right, and the sums of their curvatures; cut ones are gone.
    """
    left, right = first, 0
    sum_left, sum_right = np.int64(0), np.int64(0)
    for k in range(first, last):
        both, c = pairs[k, 0], pairs[k, 1]
        a, b = column[(both >> np.int64(32)) * stride], column[(both & _LOW) * stride]
        a_left = (a <= threshold) & ((a != 0) | (missing_left != 0))
        b_left = (b <= threshold) & ((b != 0) | (missing_left != 0))
        if a_left & b_left:
            pairs[left, 0] = both
            pairs[left, 1] = c
            left += 1
            sum_left += c
        elif not (a_left | b_left):
            spare[right, 0] = both
            spare[right, 1] = c
            right += 1
            sum_right += c
    for k in range(right):
        pairs[left + k, 0] = spare[k, 0]
        pairs[left + k, 1] = spare[k, 1]
    out[0] = left - first
    out[1] = right
    out[2] = sum_left
    out[3] = sum_right


@kernel
def _divide_pairs(node, words, nodes, pairs, spare_pairs, out):
    """Hand the pairs of a node that has been divided on to its children."""
    f, left = nodes[node, FEATURE], nodes[node, LEFT]
    first = nodes[node, PAIRS_FIRST]
    part_pairs(
        column_of(words, f), words.shape[2] * 8, nodes[node, THRESHOLD], nodes[node, MISSING_LEFT], pairs, first,
        nodes[node, PAIRS_LAST], spare_pairs, out,
    )  # fmt: skip
    nodes[left, PAIRS_FIRST] = first
    nodes[left, PAIRS_LAST] = first + out[0]
    nodes[left, INSIDE] = out[2]
    nodes[left + 1, PAIRS_FIRST] = first + out[0]
    nodes[left + 1, PAIRS_LAST] = first + out[0] + out[1]
    nodes[left + 1, INSIDE] = out[3]


@kernel
def _part_share(
    worker, size, words, rows, packed, first, last, feature, threshold, missing_left, spare_rows, spare_packed
):
    """One worker's share of rows[first:last], dealt out to the spare arrays; returns how many go left."""
    width, n = words.shape[2] * 8, last - first
    begin, end = first + worker * n // size, first + (worker + 1) * n // size
    return deal_out(
        column_of(words, feature), width, threshold, missing_left, rows, packed, begin, end, spare_rows, spare_packed
    )


@kernel
def _collect_share(worker, size, rows, packed, first, last, lefts, spare_rows, spare_packed):
    """Bring what one worker dealt out behind that of all workers before it."""
    n, before, n_left = last - first, np.int64(0), np.int64(0)
    for other in range(size):
        n_left += lefts[other * LINE]
        if other < worker:
            before += lefts[other * LINE]
    begin, end = first + worker * n // size, first + (worker + 1) * n // size
    collect(
        spare_rows, spare_packed, begin, end, lefts[worker * LINE], first + before,
        begin + n_left - before, rows, packed,
    )  # fmt: skip


@kernel
def _part_alone(words, rows, packed, first, last, feature, threshold, missing_left, spare_rows, spare_packed):
    return partition(
        column_of(words, feature), words.shape[2] * 8, threshold, missing_left, rows, packed, first, last,
        spare_rows[first:], spare_packed[first:],
    )  # fmt: skip


@kernel
def _count_together(
    worker, size, flags, number, looks, words, used_words, blocks, rows, packed, first, last, n_bins, histogram, edges,
    edge_blocks,
):  # fmt: skip
    """Count this worker's share of a node and meet; parts that begin inside a block lie in ``edges`` afterwards."""
    edge_blocks[worker * LINE] = count_share(
        words, used_words, blocks, rows, packed, first, last, n_bins, worker, size, histogram, edges[worker]
    )
    return meet(flags, worker, size, number, looks)


@kernel
def _add_edges(size, edges, edge_blocks, n_bins, first_feature, last_feature, histogram):
    """Add what all workers have counted apart to those features of ``histogram`` that lie in the range."""
    for worker in range(size):
        if edge_blocks[worker * LINE] >= 0:
            add_edge(edges[worker], n_bins, edge_blocks[worker * LINE], first_feature, last_feature, histogram)


@kernel
def _part_together(
    worker, size, flags, number, looks, words, rows, packed, first, last, feature, threshold, missing_left, spare_rows,
    spare_packed, lefts,
):  # fmt: skip
    """Part a node's rows, each worker its share; they meet at ``number`` on the way, and have to once more after it."""
    lefts[worker * LINE] = _part_share(
        worker, size, words, rows, packed, first, last, feature, threshold, missing_left, spare_rows, spare_packed
    )
    if not meet(flags, worker, size, number, looks):
        return False
    _collect_share(worker, size, rows, packed, first, last, lefts, spare_rows, spare_packed)
    return True


@kernel
def _sum_of(lefts, size):
    total = np.int64(0)
    for worker in range(size):
        total += lefts[worker * LINE]
    return total


@kernel
def grow_by_node(
    worker, size, flags, words, used_words, blocks, n_bins, enabled, monotone, rows, packed, spare_rows, spare_packed,
    gradients, weights, curvatures, limits, bounds, nodes, ranges, gains_of_nodes, priority, heap, free, state, pool,
    edges, edge_blocks, lefts, work, gains, splits, counts, uppers, pairs, spare_pairs, chosen, keyed, stamp,
    ticks,
):  # fmt: skip
    """Split one node after another, each worker's part; the root is ``nodes[0]`` and holds a slot of the pool.

    A split is chosen by packed sums and without regard to the rows of its sides.  When it is the node's turn and its
    rows are parted, worker 0 looks whether the split may stand: a side with too few rows or too little curvature has
    the node searched anew with its sides counted (its gain was an upper bound, so the order of nodes stays right), and
    a gain that is nothing but rounding leaves the node a leaf.

    ``state`` begins with one node, one leaf, ``SMALL`` 0, ``LARGE`` and ``REFUSED`` -1.  Afterwards
    nodes[:state[N_NODES]] is the tree.  ``gradients``, ``weights`` (what splits are searched by) and ``curvatures`` are
    (n_rows,).  Arrays as the wrapper makes them: ``nodes`` (2 max_leaves - 1, NODE_FIELDS), ``ranges`` (.., 2) the values
    that monotone constraints allow, ``heap`` and ``free`` as long as nodes and slots, ``pool`` (slots, n_features,
    256), ``edges`` (size, width, 256), ``gains`` (2, size), ``splits`` (2, size, 4), ``counts`` (size, 2, 256),
    ``uppers`` (slots, n_features), ``lefts`` and ``edge_blocks`` a cache line a worker.  With ``limits[PAIRED]`` splits are searched once more by the loss itself, over those
    ``limits[SCREENED]`` features that look best to the first search (0: over all): ``pairs`` and ``spare_pairs``
    (n_pairs, 2), ``chosen`` (size, n_features), ``keyed`` (size, 4, KEYS).
    """
    paired = limits[PAIRED] != 0
    looks, clock = limits[LOOKS], limits[CLOCK]
    n_features = n_bins.shape[0]
    first_feature, last_feature = worker * n_features // size, (worker + 1) * n_features // size
    number = np.int64(0)
    one, other = np.int64(0), np.int64(1)  # of the two children; as literals each would have the kernels compiled anew
    if worker == 0:
        _tick(clock, COUNTING, stamp, ticks)
    while True:
        small, large, both, refused = state[SMALL], state[LARGE], state[COUNT_BOTH], state[REFUSED]
        if refused >= 0:
            if both:
                number += 1
                if not _count_together(
                    worker, size, flags, number, looks, words, used_words, blocks, rows, packed, nodes[refused, FIRST],
                    nodes[refused, LAST], n_bins, pool[nodes[refused, SLOT]], edges, edge_blocks,
                ):  # fmt: skip
                    return
                _add_edges(size, edges, edge_blocks, n_bins, first_feature, last_feature, pool[nodes[refused, SLOT]])
            if state[SEARCH_ANEW]:
                _search_child(
                    one, worker, refused, first_feature, last_feature, n_bins, enabled, monotone, limits, bounds, nodes,
                    ranges, pool, work, gains, splits, uppers,
                )  # fmt: skip
            _search_counted(
                refused, state[SUM_CURVATURES] != 0, first_feature, last_feature, words, n_bins, enabled, monotone, rows,
                curvatures, limits, bounds, nodes, ranges, pool[nodes[refused, SLOT]], counts[worker],
                uppers[nodes[refused, SLOT]], work[worker], gains[0, worker:], splits[0, worker],
            )  # fmt: skip
            number += 1
            if not meet(flags, worker, size, number, looks):
                return
            if worker == 0:
                _tick(clock, SEARCHING, stamp, ticks)
                _settle(
                    one, refused, size, gains, splits, limits, bounds, priority, gains_of_nodes, heap, nodes, free,
                    state,
                )  # fmt: skip
        elif small >= 0:
            if large >= 0 and both:
                number += 1
                if not _count_together(
                    worker, size, flags, number, looks, words, used_words, blocks, rows, packed, nodes[large, FIRST],
                    nodes[large, LAST], n_bins, pool[nodes[large, SLOT]], edges, edge_blocks,
                ):  # fmt: skip
                    return
                _add_edges(size, edges, edge_blocks, n_bins, first_feature, last_feature, pool[nodes[large, SLOT]])
                number += 1
                if not meet(flags, worker, size, number, looks):
                    return
            number += 1
            if not _count_together(
                worker, size, flags, number, looks, words, used_words, blocks, rows, packed, nodes[small, FIRST],
                nodes[small, LAST], n_bins, pool[nodes[small, SLOT]], edges, edge_blocks,
            ):  # fmt: skip
                return
            if worker == 0:
                _tick(clock, COUNTING, stamp, ticks)
            _add_edges(size, edges, edge_blocks, n_bins, first_feature, last_feature, pool[nodes[small, SLOT]])
            if _may_split(nodes, small, limits):
                _search_child(
                    one, worker, small, first_feature, last_feature, n_bins, enabled, monotone, limits, bounds, nodes,
                    ranges, pool, work, gains, splits, uppers,
                )  # fmt: skip
            if large >= 0 and _may_split(nodes, large, limits):
                if not both:
                    subtract(pool[nodes[large, SLOT]], pool[nodes[small, SLOT]], n_bins, first_feature, last_feature)
                _search_child(
                    other, worker, large, first_feature, last_feature, n_bins, enabled, monotone, limits, bounds, nodes,
                    ranges, pool, work, gains, splits, uppers,
                )  # fmt: skip
            number += 1
            if not meet(flags, worker, size, number, looks):
                return
            if paired:
                if _may_split(nodes, small, limits):
                    _search_child_paired(
                        one, worker, size, small, words, n_bins, enabled, rows, limits, bounds, nodes, pool, pairs,
                        uppers, counts[worker], chosen[worker], keyed[worker], work[worker], gains, splits,
                    )  # fmt: skip
                if large >= 0 and _may_split(nodes, large, limits):
                    _search_child_paired(
                        other, worker, size, large, words, n_bins, enabled, rows, limits, bounds, nodes, pool, pairs,
                        uppers, counts[worker], chosen[worker], keyed[worker], work[worker], gains, splits,
                    )  # fmt: skip
                number += 1
                if not meet(flags, worker, size, number, looks):
                    return
            if worker == 0:
                _tick(clock, SEARCHING, stamp, ticks)
        if worker == 0:
            if small >= 0:
                _settle(
                    one, small, size, gains, splits, limits, bounds, priority, gains_of_nodes, heap, nodes, free, state
                )
                if large >= 0:
                    _settle(
                        other, large, size, gains, splits, limits, bounds, priority, gains_of_nodes, heap, nodes, free,
                        state,
                    )  # fmt: skip
            state[NODE] = -1
            if state[N_WAITING] > 0 and state[N_LEAVES] < limits[MAX_LEAVES]:
                state[NODE] = _pop(heap, state[N_WAITING], priority)
                state[N_WAITING] -= 1
            _tick(clock, DECIDING, stamp, ticks)
        number += 1
        if not meet(flags, worker, size, number, looks):
            return
        node = state[NODE]
        if node < 0:
            return
        first, last = nodes[node, FIRST], nodes[node, LAST]
        feature, threshold = nodes[node, FEATURE], nodes[node, THRESHOLD]
        missing_left = nodes[node, MISSING_LEFT]
        if size > 1 and last - first >= limits[SHARED_ROWS]:
            number += 1
            if not _part_together(
                worker, size, flags, number, looks, words, rows, packed, first, last, feature, threshold, missing_left,
                spare_rows, spare_packed, lefts,
            ):  # fmt: skip
                return
            number += 1
            if not meet(flags, worker, size, number, looks):
                return
        elif worker == 0:
            lefts[:] = 0
            lefts[0] = _part_alone(
                words, rows, packed, first, last, feature, threshold, missing_left, spare_rows, spare_packed
            )
        if worker == 0:
            _tick(clock, PARTING, stamp, ticks)
            n_left = _sum_of(lefts, size)
            n_right = last - first - n_left
            left_h, whole_h = nodes[node, LEFT_SUM] & _LOW, nodes[node, TOTAL] & _LOW
            few = min(n_left, n_right) < limits[MIN_ROWS]
            light = not few and not (
                _enough_curvature(left_h, first, first + n_left, rows, curvatures, limits, bounds)
                and _enough_curvature(whole_h - left_h, first + n_left, last, rows, curvatures, limits, bounds)
            )
            worth_it = paired or _gains_something(node, n_left, n_right, words, rows, gradients, weights, bounds, nodes)
            state[SMALL] = -1
            state[REFUSED] = -1
            if (few or light) and not paired:
                state[REFUSED] = node
                state[SUM_CURVATURES] = light or limits[BY_H] == 0
                state[COUNT_BOTH] = nodes[node, SLOT] < 0
                # lacking curvature by rounding alone, it may have been searched by rows before
                state[SEARCH_ANEW] = state[COUNT_BOTH] or (light and limits[BY_H] != 0)
                if state[COUNT_BOTH]:
                    nodes[node, SLOT] = _take(nodes, heap, priority, free, state)
            elif few or light or not worth_it:
                _release(nodes, node, free, state)
            else:
                _divide(node, n_left, limits, bounds, monotone, nodes, ranges, heap, priority, free, state)
                if paired and state[SMALL] >= 0:
                    _divide_pairs(node, words, nodes, pairs, spare_pairs, splits[0, 0])
            _tick(clock, DECIDING, stamp, ticks)
        number += 1
        if not meet(flags, worker, size, number, looks):
            return


# -- oblivious trees -------------------------------------------------------------------------------------------------


@kernel
def _add_allowed(gains, last, least, out):
    """out[b] += gains[b], no less than ``least``, where the split is allowed."""
    for b in range(np.uint64(1), np.uint64(last)):
        out[b] += max(gains[b], least) if gains[b] > -np.inf else 0.0


@kernel
def best_level_split(
    pool, nodes, first_node, last_node, n_bins, enabled, first_feature, last_feature, counts, least_h, limits, bounds,
    work, gain_out, split_out, of_feature,
):  # fmt: skip
    """Best (feature, bin, side of the missing) for all leaves of a level at once: the gains of the leaves are added up.

    A leaf that the split would leave with too small a side adds nothing.  Without cells in ``counts`` rows are not
    known: then a leaf counts if its sides may be large enough, with a gain of 0 or more, so that the sum is an upper
    bound.  Otherwise counts[node - first_node] (2, 256) holds rows and fine steps of curvature of the one feature asked
    for.  Equal gains go to the lowest feature, then the lowest bin, then missing right; ``split_out`` gets [feature,
    bin, missing left], ``gain_out[0]`` the gain beyond the least one, 0 for none.  ``work`` (4, 256) float64 is
    scratch space; ``of_feature`` (n_features,), where it has cells, gets the gain of each feature's best split.
    """
    counted = counts.shape[0] > 0
    floor = -np.inf if counted else 0.0
    prefix = work[0].view(np.int64)
    missing_right, missing_left, of_leaf = work[1], work[2], work[3]
    best = 0.0
    split_out[0] = -1
    for f in range(first_feature, last_feature):
        if not enabled[f]:
            continue
        last = n_bins[f]
        missing_right[:last] = 0.0
        missing_left[:last] = 0.0
        any_missing = False
        for node in range(first_node, last_node):
            any_missing |= pool[nodes[node, SLOT], f, 0] != 0
        for node in range(first_node, last_node):
            total = nodes[node, TOTAL]
            total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & _LOW)
            if total_h == 0.0:
                continue
            histogram = pool[nodes[node, SLOT]]
            present = np.int64(0)
            for b in range(1, last):
                present += histogram[f, b]
                prefix[b] = present
            whole_g = total_g * bounds[UNIT_G]
            parent = whole_g * whole_g / (total_h * bounds[UNIT_H] + bounds[LAMBDA])
            for side in range(2 if any_missing else 1):
                extra = histogram[f, 0] if side == 1 else np.int64(0)
                _gains(prefix, extra, last, total_g, total_h, bounds[LEAST_SIDE], bounds, parent, of_leaf)
                if counted:
                    _forbid_small_sides(
                        counts[node - first_node], prefix, total_h, False, side == 1, last, limits[MIN_ROWS], least_h,
                        of_leaf,
                    )  # fmt: skip
                _add_allowed(of_leaf, last, floor, missing_left if side == 1 else missing_right)
        highest = -np.inf
        for b in range(1, last):
            highest = max(highest, missing_right[b] - bounds[MIN_GAIN])
            if missing_right[b] - bounds[MIN_GAIN] > best:
                best = missing_right[b] - bounds[MIN_GAIN]
                split_out[0] = f
                split_out[1] = b
                split_out[2] = 0
            if any_missing:
                highest = max(highest, missing_left[b] - bounds[MIN_GAIN])
                if missing_left[b] - bounds[MIN_GAIN] > best:
                    best = missing_left[b] - bounds[MIN_GAIN]
                    split_out[0] = f
                    split_out[1] = b
                    split_out[2] = 1
        if of_feature.shape[0] > 0:
            of_feature[f] = highest
    gain_out[0] = best


@kernel
def _search_level_counted(
    pool, nodes, first_node, last_node, words, n_bins, enabled, first_feature, last_feature, rows, curvatures, limits,
    bounds, counts, uppers, work, gain_out, split_out,
):  # fmt: skip
    """As ``_search_counted``, for all leaves of a level at once; ``counts`` (leaves, 2, 256)."""
    nothing, with_curvatures = np.empty(0), limits[BY_H] == 0
    least_h = bounds[FINE_LEAST_H] if with_curvatures else 0.0
    gain, split = np.zeros(1), np.zeros(4, dtype=np.int64)
    gain_out[0] = 0.0
    split_out[0] = -1
    counts[: last_node - first_node, 1] = 0
    while True:
        f = _next_to_count(uppers, enabled, first_feature, last_feature, gain_out[0], split_out[0])
        if f < 0:
            return
        uppers[f] = -np.inf
        for node in range(first_node, last_node):
            _count_sides(
                words, f, rows, nodes[node, FIRST], nodes[node, LAST], curvatures, bounds, with_curvatures,
                counts[node - first_node],
            )  # fmt: skip
        best_level_split(
            pool, nodes, first_node, last_node, n_bins, enabled, f, f + 1, counts, least_h, limits, bounds, work, gain,
            split, nothing,
        )  # fmt: skip
        if gain[0] > gain_out[0] or (gain[0] == gain_out[0] and gain[0] > 0.0 and f < split_out[0]):
            gain_out[0] = gain[0]
            split_out[:] = split


@kernel
def _write_level_split(split, first_node, last_node, pool, nodes):
    """Give every leaf of the level the split and its sum on the left.

    Missing values that weigh nothing in the whole level follow the heavier side.
    """
    f, threshold, missing_left = split[0], split[1], split[2]
    any_missing, left_h, whole_h = False, 0.0, 0.0
    for node in range(first_node, last_node):
        histogram = pool[nodes[node, SLOT]]
        present = np.int64(0)
        for b in range(1, threshold + 1):
            present += histogram[f, b]
        any_missing |= histogram[f, 0] != 0
        left = present + (histogram[f, 0] if missing_left else np.int64(0))
        nodes[node, FEATURE] = f
        nodes[node, THRESHOLD] = threshold
        nodes[node, LEFT_SUM] = left
        left_h += np.float64(left & _LOW)
        whole_h += np.float64(nodes[node, TOTAL] & _LOW)
    side = missing_left if any_missing else np.int64(2.0 * left_h >= whole_h)
    for node in range(first_node, last_node):
        nodes[node, MISSING_LEFT] = side


@kernel
def _write_level_gains(first_node, last_node, rows, curvatures, limits, bounds, nodes, gains_of_nodes):
    """Write the gain of each leaf of a level that has been parted, 0 where a side is too small.

    Returns whether the search has seen the same gains, though it knew no rows.
    """
    seen = True
    for node in range(first_node, last_node):
        total, left = nodes[node, TOTAL], nodes[node, LEFT_SUM]
        g, h = np.float64(total >> np.int64(32)) * bounds[UNIT_G], np.float64(total & _LOW) * bounds[UNIT_H]
        g_left, h_left = np.float64(left >> np.int64(32)) * bounds[UNIT_G], np.float64(left & _LOW) * bounds[UNIT_H]
        gains_of_nodes[node] = 0.0
        if min(left & _LOW, (total - left) & _LOW) < bounds[LEAST_SIDE]:
            continue
        gain = (
            g_left * g_left / (h_left + bounds[LAMBDA])
            + (g - g_left) * (g - g_left) / (h - h_left + bounds[LAMBDA])
            - g * g / (h + bounds[LAMBDA])
        )
        first, middle, last = nodes[node, FIRST], nodes[2 * node + 1, LAST], nodes[node, LAST]
        left_h, right_h = left & _LOW, (total - left) & _LOW
        if (
            min(middle - first, last - middle) >= limits[MIN_ROWS]
            and _enough_curvature(left_h, first, middle, rows, curvatures, limits, bounds)
            and _enough_curvature(right_h, middle, last, rows, curvatures, limits, bounds)
        ):
            gains_of_nodes[node] = gain
            seen &= gain >= 0.0
        else:
            seen = False
    return seen


@kernel
def _level_gains_something(first_node, last_node, words, rows, gradients, weights, bounds, nodes, gains_of_nodes):
    """Tell whether the split of a level that has been parted gains more than rounding in one of its leaves."""
    for node in range(first_node, last_node):
        middle = nodes[2 * node + 1, LAST]
        n_left, n_right = middle - nodes[node, FIRST], nodes[node, LAST] - middle
        if gains_of_nodes[node] > 0.0:
            if _gains_something(node, n_left, n_right, words, rows, gradients, weights, bounds, nodes):
                return True
    return False


@kernel
def grow_by_level(
    worker, size, flags, words, used_words, blocks, n_bins, enabled, rows, packed, spare_rows, spare_packed, gradients,
    weights, curvatures, limits, bounds, nodes, gains_of_nodes, state, pool, edges, edge_blocks, lefts, work, gains,
    splits, counts, uppers, stamp, ticks,
):  # fmt: skip
    """Grow an oblivious tree, each worker's part: one split for all leaves of a depth, ``limits[MAX_DEPTH]`` times.

    Node k has the children 2k + 1 and 2k + 2; arrays as in ``grow_by_node``, with a slot of the pool for every two
    leaves and ``counts`` (size, leaves of the last level that is split, 2, 256).  As there, a split chosen without regard
    to rows is tried first, and if a leaf's side turns out to be too small the level is searched with counted sides.  ``state[N_NODES]`` tells afterwards how many nodes there are.
    """
    looks, clock = limits[LOOKS], limits[CLOCK]
    n_features = n_bins.shape[0]
    first_feature, last_feature = worker * n_features // size, (worker + 1) * n_features // size
    number, depth, unknown = np.int64(0), 0, np.empty((0, 0, 0), dtype=np.int64)
    if worker == 0:
        _tick(clock, COUNTING, stamp, ticks)
    while True:
        first_node, n_nodes = (1 << depth) - 1, 1 << depth
        for pair in range(max(1, n_nodes // 2)):
            node, other = first_node + 2 * pair, first_node + 2 * pair + 1
            small, slot, above = node, np.int64(0), np.int64(0)
            if depth > 0:
                above = nodes[(node - 1) // 2, SLOT]
                if nodes[other, LAST] - nodes[other, FIRST] < nodes[node, LAST] - nodes[node, FIRST]:
                    small, other = other, node
                slot = n_nodes // 2 + pair
            number += 1
            if nodes[small, LAST] > nodes[small, FIRST]:
                if not _count_together(
                    worker, size, flags, number, looks, words, used_words, blocks, rows, packed, nodes[small, FIRST],
                    nodes[small, LAST], n_bins, pool[slot], edges, edge_blocks,
                ):  # fmt: skip
                    return
                _add_edges(size, edges, edge_blocks, n_bins, first_feature, last_feature, pool[slot])
            else:
                pool[slot, first_feature:last_feature] = 0
                if not meet(flags, worker, size, number, looks):  # all read which child is the smaller one
                    return
            if depth > 0:
                subtract(pool[above], pool[slot], n_bins, first_feature, last_feature)
            if worker == 0:
                nodes[small, SLOT] = slot
                if depth > 0:
                    nodes[other, SLOT] = above
            number += 1
            if not meet(flags, worker, size, number, looks):
                return
        if worker == 0:
            _tick(clock, COUNTING, stamp, ticks)
        best_level_split(
            pool, nodes, first_node, first_node + n_nodes, n_bins, enabled, first_feature, last_feature, unknown, 0.0,
            limits, bounds, work[worker], gains[0, worker:], splits[0, worker], uppers[0],
        )  # fmt: skip
        counted = False
        while True:
            number += 1
            if not meet(flags, worker, size, number, looks):
                return
            if worker == 0:
                _tick(clock, SEARCHING, stamp, ticks)
                best = 0
                for w in range(1, size):
                    if gains[0, w] > gains[0, best]:
                        best = w
                state[NODE] = -1
                if gains[0, best] > 0.0:
                    state[NODE] = first_node
                    _write_level_split(splits[0, best], first_node, first_node + n_nodes, pool, nodes)
                _tick(clock, DECIDING, stamp, ticks)
            number += 1
            if not meet(flags, worker, size, number, looks):
                return
            if state[NODE] < 0:
                return
            for node in range(first_node, first_node + n_nodes):
                first, last = nodes[node, FIRST], nodes[node, LAST]
                feature, threshold = nodes[node, FEATURE], nodes[node, THRESHOLD]
                missing_left = nodes[node, MISSING_LEFT]
                if size > 1 and last - first >= limits[SHARED_ROWS]:
                    number += 1
                    if not _part_together(
                        worker, size, flags, number, looks, words, rows, packed, first, last, feature, threshold,
                        missing_left, spare_rows, spare_packed, lefts,
                    ):  # fmt: skip
                        return
                    if worker == 0:
                        _plant_children(nodes, node, 2 * node + 1, _sum_of(lefts, size))
                    number += 1
                    if not meet(flags, worker, size, number, looks):
                        return
                elif node % size == worker:
                    n_left = _part_alone(
                        words, rows, packed, first, last, feature, threshold, missing_left, spare_rows, spare_packed
                    )
                    _plant_children(nodes, node, 2 * node + 1, n_left)
            number += 1
            if not meet(flags, worker, size, number, looks):
                return
            if worker == 0:
                _tick(clock, PARTING, stamp, ticks)
                seen = _write_level_gains(
                    first_node, first_node + n_nodes, rows, curvatures, limits, bounds, nodes, gains_of_nodes
                )
                state[REFUSED] = first_node if not (seen or counted) else -1
                if state[REFUSED] < 0 and not _level_gains_something(
                    first_node, first_node + n_nodes, words, rows, gradients, weights, bounds, nodes, gains_of_nodes
                ):
                    state[NODE] = -1
                _tick(clock, DECIDING, stamp, ticks)
            number += 1
            if not meet(flags, worker, size, number, looks):
                return
            if state[NODE] < 0:
                return
            if state[REFUSED] < 0:
                break
            counted = True
            _search_level_counted(
                pool, nodes, first_node, first_node + n_nodes, words, n_bins, enabled, first_feature, last_feature,
                rows, curvatures, limits, bounds, counts[worker], uppers[0], work[worker], gains[0, worker:],
                splits[0, worker],
            )  # fmt: skip
        if worker == 0:
            for node in range(first_node, first_node + n_nodes):
                nodes[node, LEFT] = 2 * node + 1
            state[N_NODES] = 4 * n_nodes - 1
        depth += 1
        if depth == limits[MAX_DEPTH]:
            break


# -- rows outside the tree -------------------------------------------------------------------------------------------


@kernel
def add_tree_blocked(words, feature, threshold, missing_left, left, right, value, rows, first, last, scores):
    """scores[row] += value of the leaf that the bins of the row lead to, for rows[first:last]."""
    width = words.shape[2] * 8
    for i in range(first, last):
        row, node = np.int64(rows[i]), 0
        while feature[node] >= 0:
            f = np.int64(feature[node])
            block, lane = f // width, np.uint64(f % width)
            word = words[block, row, np.int64(lane >> np.uint64(3))]
            b = np.int64((word >> ((lane & np.uint64(7)) * _U8)) & _BYTE)
            goes_left = (b <= threshold[node]) if b != 0 else (missing_left[node] != 0)
            node = left[node] if goes_left else right[node]
        scores[row] += value[node]
