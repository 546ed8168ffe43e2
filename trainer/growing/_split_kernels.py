"""Search the best split of a node, or of all leaves of a level, over the packed sums of its histogram.

    histogram[feature]    bin 0 (missing) | 1   2   3 | 4   5 ..      after bin 3: left = 1 .. 3, right = the rest;
                                           prefix[3] = their sum      missing is tried on both sides

    work[0] prefix | work[1] gains, missing right | work[2] gains, missing left | work[3] gains of one leaf (levels)

The first search ignores the number of rows and takes a side for large enough if its hessian may be.  If a side then has too
few rows, the node is searched again with counted sides, in descending order of the gains of the first search.  Bounds of
the rounding errors decide whether a gain is real.  Ties go to the lowest feature, then the lowest bin, then missing right;
missing values without weight go to the heavier side.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import MAGIC, normal
from rankmill.foundation.kernels.instructions import bits_of, float_of
from rankmill.foundation.kernels.randoms import random_bits, uniform
from rankmill.trainer.growing._histogram_kernels import column_of, count_sides
from rankmill.trainer.growing._partition_kernels import goes_left
from rankmill.trainer.growing._state_kernels import (
    EPSILON,
    FEATURE,
    FIRST,
    LAST,
    LEFT_SUM,
    LOW,
    MISSING_LEFT,
    NO,
    SLOT,
    THRESHOLD,
    TOTAL,
    YES,
)

# -- gains of one feature --------------------------------------------------------------------------------------------


@kernel
def _gains(prefix, extra, last, total_g, total_h, needed, rules, parent, out):
    """out[b] = gain of the split after bin b, 1 <= b < last, with ``prefix[b] + extra`` on the left; -inf where not allowed.

    Each side needs ``needed`` steps of hessian.  The gain G_l^2 / H_l + G_r^2 / H_r - parent is one division of whole
    steps, lambda included.  The loop over unsigned b has no branches, so that it is vectorised; integers are converted to
    floats through their bits.
    """
    lambda_steps, unit = rules.lambda_l2 / rules.unit_h, rules.unit_g * (rules.unit_g / rules.unit_h)
    magic = bits_of(MAGIC)
    for b in range(np.uint64(1), np.uint64(last)):
        left = prefix[b] + extra
        h_left = float_of((left & LOW) + magic) - MAGIC
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
def value_of(packed, rules, low, high):
    g, h = np.float64(packed >> np.int64(32)) * rules.unit_g, np.float64(packed & LOW) * rules.unit_h
    return _value(g, h + rules.lambda_l2, low, high)


@kernel
def _gain_of(g, h, value):
    """Return the gain of the step ``value``: -(2 g v + h v^2), which is g^2 / h at the Newton step."""
    return -(2.0 * g + h * value) * value


@kernel
def _gains_bounded(prefix, extra, last, total_g, total_h, needed, rules, direction, low, high, out):
    """As ``_gains``, but the values of the children must be in low .. high and rise (1) or fall (-1) with the feature."""
    unit_g, unit_h, lambda_l2 = rules.unit_g, rules.unit_h, rules.lambda_l2
    whole_g, whole_h = total_g * unit_g, total_h * unit_h + lambda_l2
    parent = _gain_of(whole_g, whole_h, _value(whole_g, whole_h, low, high)) + rules.min_gain
    for b in range(1, last):
        left = prefix[b] + extra
        h_left, g_left = np.float64(left & LOW), np.float64(left >> np.int64(32))
        out[b] = -np.inf
        if min(h_left, total_h - h_left) >= needed:
            g, h = g_left * unit_g, h_left * unit_h + lambda_l2
            g_right, h_right = (total_g - g_left) * unit_g, (total_h - h_left) * unit_h + lambda_l2
            value, value_right = _value(g, h, low, high), _value(g_right, h_right, low, high)
            if direction * (value_right - value) >= 0.0:
                out[b] = _gain_of(g, h, value) + _gain_of(g_right, h_right, value_right) - parent


@kernel
def left_is_heavier(left, total_h):
    """Return whether the left side, a packed sum, has at least half of the hessian."""
    return 2.0 * np.float64(left & LOW) >= total_h


@kernel
def _forbid_small_sides(counts, prefix, total_h, weightless, missing_left, last, min_rows, least_h, out):
    """out[b] = -inf where the split after bin b leaves a side with too few rows or too little hessian.

    Bin b has counts[0, b] rows and counts[1, b] fine steps of hessian.  Missing values go left if ``missing_left``, or, if
    ``weightless``, to the heavier side.
    """
    all_rows, all_h = counts[0, :last].sum(), counts[1, :last].sum()
    rows, h = np.int64(0), np.int64(0)
    for b in range(1, last):
        rows += counts[0, b]
        h += counts[1, b]
        with_missing = left_is_heavier(prefix[b], total_h) if weightless else missing_left
        rows_left = rows + counts[0, 0] if with_missing else rows
        h_left = h + counts[1, 0] if with_missing else h
        if min(rows_left, all_rows - rows_left) < min_rows or min(h_left, all_h - h_left) < least_h:
            out[b] = -np.inf


@kernel
def highest_of(values, last):
    """Return the highest of values[1:last], -inf if empty; four maxima in parallel, which do not depend on each other."""
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
def _sum_to(histogram, last, prefix):
    """prefix[b] = sum of bins 1 .. b."""
    present = np.int64(0)
    for b in range(1, last):
        present += histogram[b]
        prefix[b] = present


@kernel
def _first_of(value, missing_right, missing_left, any_missing, last):
    """Return the lowest bin with that gain, and 1 if it needs missing values on the left."""
    for b in range(1, last):
        if missing_right[b] == value:
            return b, 0
        if any_missing and missing_left[b] == value:
            return b, 1
    return -1, 0


@kernel
def _best_of_feature(missing_right, missing_left, any_missing, last):
    """Return the highest gain of the feature."""
    highest = highest_of(missing_right, last)
    if any_missing:
        highest = max(highest, highest_of(missing_left, last))
    return highest


@kernel
def _feature_gains(histogram, last, total, needed, direction, low, high, rules, work):
    """Write the gains of all bins of a feature of one node to ``work``: work[1] missing right, work[2] missing left."""
    prefix = work[0].view(np.int64)
    total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & LOW)
    whole_g = total_g * rules.unit_g
    parent = whole_g * whole_g / (total_h * rules.unit_h + rules.lambda_l2) + rules.min_gain
    _sum_to(histogram, last, prefix)
    for side in range(1 if histogram[0] == 0 else 2):
        extra, out = (np.int64(0), work[1]) if side == 0 else (histogram[0], work[2])
        if rules.constrained:
            _gains_bounded(prefix, extra, last, total_g, total_h, needed, rules, direction, low, high, out)
        else:
            _gains(prefix, extra, last, total_g, total_h, needed, rules, parent, out)


@kernel
def _write_split(f, highest, histogram, last, total, work, split_out):
    """Write the split of the feature whose gain is ``highest``."""
    prefix, missing = work[0].view(np.int64), histogram[0]
    b, left = _first_of(highest, work[1], work[2], missing != 0, last)
    split_out[0] = f
    split_out[1] = b
    split_out[2] = left
    split_out[3] = prefix[b] + (missing if left == 1 else np.int64(0))
    if missing == 0 and left_is_heavier(prefix[b], np.float64(total & LOW)):
        split_out[2] = 1


# -- noise -----------------------------------------------------------------------------------------------------------


@kernel
def score_of(total, rules):
    """Return G^2 / (H + lambda) of a packed sum; 0 if it has no hessian, or without noise, when it is not needed."""
    if rules.noise == 0.0 or total & LOW == 0:
        return 0.0
    g = np.float64(total >> np.int64(32)) * rules.unit_g
    return g * g / (np.float64(total & LOW) * rules.unit_h + rules.lambda_l2)


@kernel
def compared_by(gain, score, node, f, rules):
    """Return the key by which features are compared: the gain of their best split, or that with noise.

    With noise the key is sqrt(score + gain) plus a normal number of (tree, node, feature), where ``score`` is that of the
    node.  It increases with the gain, so an upper bound of the gain gives an upper bound of the key.
    """
    if rules.noise == 0.0:
        return gain
    if gain <= 0.0:
        return -np.inf
    bits = random_bits(random_bits(rules.noise_key, node), f)
    return np.sqrt(score + gain) + rules.noise * normal(uniform(bits))


# -- one node --------------------------------------------------------------------------------------------------------


@kernel
def best_split(
    histogram, total, needed, node, bins, first_feature, last_feature, rules, low, high, work, gain_out, key_out, split_out,
    of_feature,
):  # fmt: skip
    """Find the best (feature, bin, side of missing values) of one node over a range of features, without counting rows.

    ``histogram`` (n_features, 256) int64 sums to ``total``; each side needs ``needed`` packed steps of hessian.  ``gain_out[0]`` gets the gain above ``min_gain`` (0: no split), ``key_out[0]`` its key, ``split_out``
    [feature, bin, missing left, packed sum of the left side], ``of_feature`` (n_features,) the key of each feature.  With
    ``rules.constrained`` the children's values lie in ``low`` .. ``high`` and obey ``bins.monotone``.  ``work`` (4, 256)
    float64 is scratch space.
    """
    best = -np.inf
    split_out[0] = -1
    gain_out[0] = 0.0
    key_out[0] = best
    of_feature[first_feature:last_feature] = -np.inf
    if total & LOW == 0:
        return
    score = score_of(total, rules)
    for f in range(first_feature, last_feature):
        if not bins.enabled[f]:
            continue
        last = bins.n_bins[f]  # one past the last bin that may end the left side
        _feature_gains(histogram[f], last, total, needed, bins.monotone[f], low, high, rules, work)
        highest = _best_of_feature(work[1], work[2], histogram[f, 0] != 0, last)
        key = compared_by(highest, score, node, f, rules)
        of_feature[f] = key
        if highest > 0.0 and key > best:
            best = key
            gain_out[0] = highest
            _write_split(f, highest, histogram[f], last, total, work, split_out)
    key_out[0] = best


@kernel
def search_node(crew, child, node, first_feature, last_feature, bins, rules, nodes, histograms, search):
    """Search one worker's features: ``search.gains[child, worker]`` and ``search.splits[child, worker]`` get the best split."""
    table, worker, slot = nodes.table, crew.worker, nodes.table[node, SLOT]
    needed = rules.least_side
    if rules.paired:  # only a screen, rows are counted later: estimate them from hessians
        total_h = np.float64(table[node, TOTAL] & LOW)
        needed = max(needed, (rules.min_rows - 0.5) * total_h / (table[node, LAST] - table[node, FIRST]))
    best_split(
        histograms.pool[slot], table[node, TOTAL], needed, node, bins, first_feature, last_feature, rules,
        nodes.ranges[node, 0], nodes.ranges[node, 1], search.work[worker], search.gains[child, worker:],
        search.keys[child, worker:], search.splits[child, worker], search.uppers[slot],
    )  # fmt: skip


@kernel
def _least_key(rules):
    """Return the lower bound of keys: a gain is positive, a key with noise may be any number."""
    return 0.0 if rules.noise == 0.0 else -np.inf


@kernel
def _next_to_count(uppers, enabled, first_feature, last_feature, least, best, of_feature):
    """Return the feature whose bound is highest, of equals the lowest.

    -1 where none is above ``least`` and could beat ``best``, which ``of_feature`` has.
    """
    f = np.int64(-1)
    for other in range(first_feature, last_feature):
        if enabled[other] and (f < 0 or uppers[other] > uppers[f]):
            f = other
    if f < 0 or uppers[f] <= least or uppers[f] < best or (uppers[f] == best and f > of_feature):
        return np.int64(-1)
    return f


@kernel
def search_counted(
    crew, node, with_hessians, first_feature, last_feature, bins, rows, hessians, rules, nodes, histograms, search
):
    """As :func:`search_node` for child 0, with the rows of each side counted.

    ``search.uppers``, by which the search without rows compared features, are upper bounds.  Features are counted in
    descending order until none can beat the best split; those counted become -inf.
    """
    table, worker, slot = nodes.table, crew.worker, nodes.table[node, SLOT]
    total, histogram, uppers = table[node, TOTAL], histograms.pool[slot], search.uppers[slot]
    total_h = np.float64(total & LOW)
    least_h = rules.fine_least_h if with_hessians else 0.0
    counts, work, split = search.counts[worker], search.work[worker], search.splits[0, worker]
    least = best = _least_key(rules)
    score = score_of(total, rules)
    split[0] = -1
    search.gains[0, worker] = 0.0
    counts[1] = 0
    while True:
        f = _next_to_count(uppers, bins.enabled, first_feature, last_feature, least, best, split[0])
        if f < 0:
            break
        uppers[f] = -np.inf
        last, missing = bins.n_bins[f], histogram[f, 0]
        count_sides(
            f,
            bins.words,
            rows,
            table[node, FIRST],
            table[node, LAST],
            hessians,
            rules.fine_h,
            with_hessians,
            counts,
        )
        if total_h == 0.0:
            continue
        _feature_gains(
            histogram[f], last, total, rules.least_side, bins.monotone[f], nodes.ranges[node, 0], nodes.ranges[node, 1],
            rules, work,
        )  # fmt: skip
        prefix, weightless = work[0].view(np.int64), missing == 0
        _forbid_small_sides(counts, prefix, total_h, weightless, NO, last, rules.min_rows, least_h, work[1])
        if not weightless:
            _forbid_small_sides(counts, prefix, total_h, NO, YES, last, rules.min_rows, least_h, work[2])
        highest = _best_of_feature(work[1], work[2], missing != 0, last)
        key = compared_by(highest, score, node, f, rules)
        if highest > 0.0 and (key > best or (key == best and f < split[0])):
            best = key
            search.gains[0, worker] = highest
            _write_split(f, highest, histogram[f], last, total, work, split)
    search.keys[0, worker] = best


# -- all leaves of a level -------------------------------------------------------------------------------------------


@kernel
def _add_allowed(gains, last, least, out):
    """out[b] += max(gains[b], least) where the split is allowed."""
    for b in range(np.uint64(1), np.uint64(last)):
        out[b] += max(gains[b], least) if gains[b] > -np.inf else 0.0


@kernel
def _level_gains(f, level, counts, counted, least_h, bins, rules, table, pool, work):
    """Add up the gains of all leaves of a level by one feature, as :func:`_feature_gains`; return whether any value is missing.

    A leaf adds nothing if the split makes one of its sides too small.  If rows are not ``counted``, a leaf counts if its
    sides may be large enough, with a gain of 0 or more, so that the sum is an upper bound.
    """
    first_node, last_node = level
    last, floor = bins.n_bins[f], -np.inf if counted else 0.0
    prefix, of_leaf = work[0].view(np.int64), work[3]
    work[1, :last] = 0.0
    work[2, :last] = 0.0
    any_missing = False
    for node in range(first_node, last_node):
        any_missing |= pool[table[node, SLOT], f, 0] != 0
    for node in range(first_node, last_node):
        total = table[node, TOTAL]
        total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & LOW)
        if total_h == 0.0:
            continue
        histogram = pool[table[node, SLOT], f]
        _sum_to(histogram, last, prefix)
        whole_g = total_g * rules.unit_g
        parent = whole_g * whole_g / (total_h * rules.unit_h + rules.lambda_l2)
        for side in range(2 if any_missing else 1):
            extra = histogram[0] if side == 1 else np.int64(0)
            _gains(prefix, extra, last, total_g, total_h, rules.least_side, rules, parent, of_leaf)
            if counted:
                _forbid_small_sides(
                    counts[node - first_node], prefix, total_h, NO, side == 1, last, rules.min_rows, least_h, of_leaf
                )
            _add_allowed(of_leaf, last, floor, work[2] if side == 1 else work[1])
    for b in range(1, last):
        work[1, b] -= rules.min_gain
        work[2, b] -= rules.min_gain
    return any_missing


@kernel
def level_score(level, rules, table):
    """Return the sum of :func:`score_of` over the leaves of a level."""
    score = 0.0
    for node in range(level[0], level[1]):
        score += score_of(table[node, TOTAL], rules)
    return score


@kernel
def _write_level_choice(f, highest, any_missing, last, work, split_out):
    b, left = _first_of(highest, work[1], work[2], any_missing, last)
    split_out[0] = f
    split_out[1] = b
    split_out[2] = left


@kernel
def search_level(crew, level, first_feature, last_feature, bins, rules, table, histograms, search):
    """Search one worker's features for the split with the highest sum of gains over all leaves, without counting rows.

    ``level`` is (first node, last node).  ``search.splits[0, worker]`` gets [feature, bin, missing left].
    """
    work, split, best = search.work[crew.worker], search.splits[0, crew.worker], -np.inf
    score = level_score(level, rules, table)
    split[0] = -1
    search.gains[0, crew.worker] = 0.0
    for f in range(first_feature, last_feature):
        if not bins.enabled[f]:
            continue
        last = bins.n_bins[f]
        any_missing = _level_gains(
            f, level, search.counts[crew.worker], NO, 0.0, bins, rules, table, histograms.pool, work
        )
        highest = _best_of_feature(work[1], work[2], any_missing, last)
        key = compared_by(highest, score, level[0], f, rules)
        search.uppers[0, f] = key
        if highest > 0.0 and key > best:
            best = key
            search.gains[0, crew.worker] = highest
            _write_level_choice(f, highest, any_missing, last, work, split)
    search.keys[0, crew.worker] = best


@kernel
def search_level_counted(
    crew, level, first_feature, last_feature, bins, rows, hessians, rules, table, histograms, search
):
    """As :func:`search_level`, with the rows of each side counted, as in :func:`search_counted`."""
    with_hessians = not rules.by_h
    least_h = rules.fine_least_h if with_hessians else 0.0
    counts, uppers = search.counts[crew.worker], search.uppers[0]
    work, split = search.work[crew.worker], search.splits[0, crew.worker]
    least = best = _least_key(rules)
    score = level_score(level, rules, table)
    first_node, last_node = level
    split[0] = -1
    search.gains[0, crew.worker] = 0.0
    counts[: last_node - first_node, 1] = 0
    while True:
        f = _next_to_count(uppers, bins.enabled, first_feature, last_feature, least, best, split[0])
        if f < 0:
            break
        uppers[f] = -np.inf
        last = bins.n_bins[f]
        for node in range(first_node, last_node):
            count_sides(
                f, bins.words, rows, table[node, FIRST], table[node, LAST], hessians, rules.fine_h, with_hessians,
                counts[node - first_node],
            )  # fmt: skip
        any_missing = _level_gains(f, level, counts, YES, least_h, bins, rules, table, histograms.pool, work)
        highest = _best_of_feature(work[1], work[2], any_missing, last)
        key = compared_by(highest, score, first_node, f, rules)
        if highest > 0.0 and (key > best or (key == best and f < split[0])):
            best = key
            search.gains[0, crew.worker] = highest
            _write_level_choice(f, highest, any_missing, last, work, split)
    search.keys[0, crew.worker] = best


# -- is a split valid? -----------------------------------------------------------------------------------------------


@kernel
def _reaches(values, scale, rows, first, last, least):
    """Return whether the sum of round(value * scale) over rows[first:last], values of 0 or more, is at least ``least``."""
    total = np.int64(0)
    for i in range(first, last):
        if total >= least:
            return True
        total += np.int64(np.rint(values[rows[i]] * scale))
    return total >= least


@kernel
def means_differ(g_left, h_left, off_g_left, off_h_left, g_right, h_right, off_g_right, off_h_right):
    """Return whether G/H of two sides differ by more than errors of at most ``off`` in each of the four sums can explain.

    A split gains nothing if G_l/H_l = G_r/H_r, that is, if G_l H_r - G_r H_l = 0.  The errors change this difference by ``off_g_l (H_r + off_h_r) + off_h_r |G_l| + ..`` at most, and its own rounding by a few epsilon.
    """
    left, right = g_left * h_right, g_right * h_left
    off = off_g_left * (h_right + off_h_right) + off_h_right * abs(g_left)
    off += off_g_right * (h_left + off_h_left) + off_h_left * abs(g_right)
    return abs(left - right) > off + 2.0 * EPSILON * (abs(left) + abs(right))


@kernel
def _packed_means_differ(left, total, n_left, n_right):
    """Return whether packed sums of two sides, whose rows are each rounded by up to half a step, show that G/H differ."""
    right = total - left
    off_left, off_right = 0.5 * n_left, 0.5 * n_right
    return means_differ(
        np.float64(left >> np.int64(32)), np.float64(left & LOW), off_left, off_left,
        np.float64(right >> np.int64(32)), np.float64(right & LOW), off_right, off_right,
    )  # fmt: skip


@kernel
def fine_means_differ(column, stride, threshold, missing_left, rows, first, last, gradients, weights, scale_g, scale_w):
    """As ``_packed_means_differ``, with sums of fine steps, in one pass over rows[first:last].

    A gradient is off by up to half a step, plus half an epsilon of itself as a float64.
    """
    n, g, size, w = np.zeros(2), np.zeros(2, np.int64), np.zeros(2), np.zeros(2, np.int64)
    for i in range(first, last):
        row = np.int64(rows[i])
        b = column[row * stride]
        side = 0 if goes_left(b, threshold, missing_left) else 1
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
def gains_something(node, n_left, n_right, words, rows, derivatives, rules, table):
    """Return whether the gain of the node's split is more than rounding; fine steps decide if packed ones cannot."""
    if _packed_means_differ(table[node, LEFT_SUM], table[node, TOTAL], n_left, n_right):
        return True
    f = table[node, FEATURE]
    return fine_means_differ(
        column_of(words, f), words.shape[2] * 8, table[node, THRESHOLD], table[node, MISSING_LEFT], rows,
        table[node, FIRST], table[node, LAST], derivatives.gradients, derivatives.weights, rules.fine_g, rules.fine_w,
    )  # fmt: skip


@kernel
def _enough_hessian(packed_h, first, last, rows, hessians, rules):
    """Return whether rows[first:last], one side of a split, reach the minimum sum of hessians."""
    if rules.by_h and np.float64(packed_h) - 0.5 * (last - first) >= rules.least_h:
        return True
    return _reaches(hessians, rules.fine_h, rows, first, last, rules.fine_least_h)


@kernel
def sides_have_hessian(node, middle, rows, hessians, rules, table):
    """Return whether both sides of a node partitioned at ``middle`` reach the minimum sum of hessians."""
    left_h = table[node, LEFT_SUM] & LOW
    right_h = (table[node, TOTAL] & LOW) - left_h
    return _enough_hessian(left_h, table[node, FIRST], middle, rows, hessians, rules) and _enough_hessian(
        right_h, middle, table[node, LAST], rows, hessians, rules
    )
