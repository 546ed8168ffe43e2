"""Criterion ole: search splits by the exact change of the loss when a whole side moves by one step.

    pairs[k] = (first row << 32 | second row, hessian)      a pair counts if both of its rows are on one side:

    bin      1     2     3     4          highest[b]: hessian of the pairs whose greater bin is b
             a-----------a                lowest[b]:  .. whose lesser bin is b
                   c-----------c          inside the left of b: sum of highest up to b
                                          inside the right:     the total minus the sum of lowest up to b

The hessian of a side is the sum of h minus twice the hessian of the pairs inside.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import MAGIC
from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.foundation.kernels.instructions import bits_of, float_of
from rankmill.trainer.growing._control_kernels import usable_features
from rankmill.trainer.growing._gain_kernels import highest_of, left_is_heavier
from rankmill.trainer.growing._histogram_kernels import column_of, count_bins, to_bins
from rankmill.trainer.growing._state_kernels import LOW, YES

PAIR_STEPS = 1048576.0  # steps of a pair's hessian to one of packed hessian: sums of 2 ** 31 of these fit a double
KEYS = 257  # bins as pairs see them: 0 the missing that go left, 1 .. 255, 256 the missing that go right


@kernel
def pack_pairs(first, second, hessian, scale, drawn, pairs):
    """pairs[k] = (first << 32 | second, round(hessian * scale)) of the pairs with both rows drawn; returns how many.

    ``drawn`` (n_rows,) tells the rows that the tree is grown from; empty: all.
    """
    every, n = drawn.shape[0] == 0, 0
    for k in range(first.shape[0]):
        if every or (drawn[first[k]] and drawn[second[k]]):
            pairs[n, 0] = (np.int64(first[k]) << np.int64(32)) | np.int64(second[k])
            pairs[n, 1] = np.int64(np.rint(hessian[k] * scale))
            n += 1
    return n


@inner_kernel
def _count_pairs(column, stride, digits, pairs, first, last, highest, lowest):
    """Add the hessian of pairs[first:last] to highest[the greater bin of its two rows] and to lowest[the lesser]."""
    highest[:] = 0
    lowest[:] = 0
    for k in range(first, last):
        both = pairs[k, 0]
        a, b = digits[column[(both >> np.int64(32)) * stride]], digits[column[(both & LOW) * stride]]
        c = pairs[k, 1]
        highest[max(a, b)] += c
        lowest[min(a, b)] += c


@inner_kernel
def _move_missing(column, stride, digits, pairs, first, last, highest, lowest):
    """Convert the counts of ``_count_pairs``, where missing is the lowest bin, to counts where it is the highest."""
    for k in range(first, last):
        both = pairs[k, 0]
        a, b = digits[column[(both >> np.int64(32)) * stride]], digits[column[(both & LOW) * stride]]
        if min(a, b) == 0:
            c, other = pairs[k, 1], max(a, b)
            highest[other] -= c
            lowest[0] -= c
            highest[KEYS - 1] += c
            lowest[other if other > 0 else KEYS - 1] += c


@inner_kernel
def _insides(highest, lowest, inside, last, inside_left, inside_right):
    """Compute the hessian of the pairs inside the left and the right side of every bin.

    ``inside`` is that of the node.
    """
    left, right = highest[0], inside - lowest[0]
    for b in range(1, last):
        left += highest[b]
        right -= lowest[b]
        inside_left[b] = left
        inside_right[b] = right


@inner_kernel
def _paired_gains(prefix, extra, inside_left, inside_right, last, total_g, total_h, least, rules, parent, out):
    """As ``_gains``, with L'' = h - 2 (hessian of the pairs inside) for h, no less than ``least`` steps of it."""
    lambda_steps, unit = rules.lambda_l2 / rules.unit_h, rules.unit_g * (rules.unit_g / rules.unit_h)
    magic, twice = bits_of(MAGIC), 2.0 / PAIR_STEPS
    for b in range(np.uint64(1), np.uint64(last)):
        left = prefix[b] + extra
        h_left = float_of((left & LOW) + magic) - MAGIC
        g_left = float_of((left >> np.int64(32)) + magic) - MAGIC
        hessian_left = h_left - twice * (float_of(inside_left[b] + magic) - MAGIC)
        hessian_right = (total_h - h_left) - twice * (float_of(inside_right[b] + magic) - MAGIC)
        g_right = total_g - g_left
        allowed = min(hessian_left, hessian_right) >= least
        hessian_left, hessian_right = hessian_left + lambda_steps, hessian_right + lambda_steps
        gain = g_left * g_left * hessian_right + g_right * g_right * hessian_left
        gain = gain / (hessian_left * hessian_right) * unit - parent
        out[b] = gain if allowed else -np.inf


@inner_kernel
def _forbid_unsound_sides(
    prefix, extra, inside_left, inside_right, counts, missing_left, weightless, last, n_rows, total_g, total_h,
    min_rows,
    out,
):  # fmt: skip
    """out[b] = -inf where a side has too few rows, or where rounding can explain L'' of a side or both L'."""
    present = np.int64(0)
    for b in range(1, last):
        present += counts[b]
        left = prefix[b] + extra
        with_missing = left_is_heavier(left, total_h) if weightless else missing_left
        rows_left = present + counts[0] if with_missing else present
        rows_right = n_rows - rows_left
        h_left = np.float64(left & LOW)
        hessian_left = h_left - 2.0 / PAIR_STEPS * np.float64(inside_left[b])
        hessian_right = (total_h - h_left) - 2.0 / PAIR_STEPS * np.float64(inside_right[b])
        few = rows_left < min_rows or rows_right < min_rows
        g_left = np.float64(left >> np.int64(32))
        flat = abs(g_left) <= 0.5 * rows_left and abs(total_g - g_left) <= 0.5 * rows_right
        # half a step for every row
        if few or flat or hessian_left < 0.5 * rows_left or hessian_right < 0.5 * rows_right:
            out[b] = -np.inf


@inner_kernel
def search_paired(
    f, bins, hist, rows, first_row, last_row, pairs, first_pair, last_pair, total, inside, rules, counts, keyed, work,
    gain_out, split_out,
):  # fmt: skip
    """Find the best split of one node by one feature, by the exact change of the loss.

    ``hist`` (256,) holds the node's packed sums of the feature by bin; pairs[first_pair:last_pair] have
    both their rows in the node.  Inside the left of bin b are the pairs whose greater key is at most b, inside the
    right those whose lesser one is above it.  What is better than ``gain_out[0]``, or as good by a lower feature, is
    written there and to ``split_out``.  Rows are counted, a pass over all of them, only where the feature would win if
    their number did not matter.  ``keyed`` (4, KEYS) int64 and ``work`` (4, 256) float64 are scratch space.
    """
    column, stride, digits, last = column_of(bins, f), bins.words.shape[2] * 8, bins.digits[f], bins.n_bins[f]
    total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & LOW)
    n_rows, missing = last_row - first_row, hist[0]
    least = rules.least_h
    parent = rules.min_gain
    # in a node of whole queries L' and L'' are 0, except for rounding: its step gains nothing
    whole = total_h - 2.0 / PAIR_STEPS * np.float64(inside)
    if whole >= max(least, 0.5 * n_rows):
        unit = rules.unit_g * (rules.unit_g / rules.unit_h)
        parent += total_g * total_g / (whole + rules.lambda_l2 / rules.unit_h) * unit
    highest, lowest, inside_left, inside_right = keyed[0], keyed[1], keyed[2], keyed[3]
    prefix = work[0].view(np.int64)
    present = np.int64(0)
    for b in range(1, last):
        present += hist[b]
        prefix[b] = present
    _count_pairs(column, stride, digits, pairs, first_pair, last_pair, highest, lowest)
    counted = False
    for side in range(1, -1 if missing != 0 else 0, -1):  # 1: the missing left, 0: right
        if side == 0:
            _move_missing(column, stride, digits, pairs, first_pair, last_pair, highest, lowest)
        extra, out = missing if side == 1 else np.int64(0), work[1]
        _insides(highest, lowest, inside, last, inside_left, inside_right)
        _paired_gains(prefix, extra, inside_left, inside_right, last, total_g, total_h, least, rules, parent, out)
        best = highest_of(out, last)
        if best <= 0.0 or best < gain_out[0] or (best == gain_out[0] and f > split_out[0]):
            continue
        if not counted:
            count_bins(column, stride, rows, first_row, last_row, counts)
            to_bins(bins, f, counts)
            counted = True
        _forbid_unsound_sides(
            prefix, extra, inside_left, inside_right, counts, side == 1, missing == 0, last, n_rows, total_g,
            total_h, rules.min_rows, out,
        )  # fmt: skip
        for b in range(1, last):
            # ties: the lowest feature, then the lowest bin, then missing right, which comes last here
            equal = out[b] == gain_out[0] and out[b] > 0.0
            before = f < split_out[0] or (f == split_out[0] and (b < split_out[1] or (b == split_out[1] and side == 0)))
            if out[b] > gain_out[0] or (equal and before):
                gain_out[0] = out[b]
                split_out[0] = f
                split_out[1] = b
                split_out[2] = side if missing != 0 else np.int64(left_is_heavier(prefix[b], total_h))
                split_out[3] = prefix[b] + extra


@inner_kernel
def choose_features(screen, enabled, many, chosen):
    """Set chosen[:n] to the ``many`` enabled features with the highest ``screen``, best first; return n.

    Ties go to the lowest feature.

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


@inner_kernel
def search_node_by_pairs(crew, child, node, bins, rows, rules, nodes, histograms, pairs, search):
    """Search this worker's share of the features that are best in the first search, as :func:`search_paired`."""
    table, worker, slot = nodes.table, crew.worker, nodes.table[node].slot
    search.gains[child, worker] = 0.0
    search.splits[child, worker, 0] = -1
    chosen = pairs.chosen[worker]
    usable = usable_features(crew, node, bins, rules, nodes, search, YES)
    n_chosen = choose_features(search.uppers[slot], usable, rules.screened, chosen)
    for i in range(worker, n_chosen, crew.size):
        f = chosen[i]
        search_paired(
            f, bins, histograms.pool[slot, f], rows.rows, table[node].first, table[node].last, pairs.pairs,
            table[node].pairs_first, table[node].pairs_last,
            table[node].total, table[node].inside, rules, search.counts[worker, 0], pairs.keyed[worker],
            search.work[worker], search.gains[child, worker:], search.splits[child, worker],
        )  # fmt: skip
