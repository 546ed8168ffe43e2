"""Search the best split of a node, or of all leaves of a level, over the packed sums of its histogram.

    histogram[feature]    bin 0 (missing) | 1   2   3 | 4   5 ..      after bin 3: left = 1 .. 3, right = the rest;
                                           prefix[3] = their sum      missing is tried on both sides

    work[0 .. 2] gains of a feature,
    see `_gain_kernels` | work[3] gains of one leaf (levels) | work[4 ..] `_category_kernels`

The first search ignores the number of rows and takes a side for large enough if its hessian may be.  If a side then has
too few rows, the node is searched again with counted sides, in descending order of the gains of the first search.
Bounds of the rounding errors decide whether a gain is real.  Ties go to the lowest feature, then the lowest bin, then
missing right; missing values without weight go to the heavier side.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.arrays import copy_to
from rankmill.foundation.kernels.elementary import normal
from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.foundation.kernels.randoms import random_bits, uniform
from rankmill.trainer.growing._category_kernels import (
    categories_of_node,
    category_gains,
    limit_sets,
    order_categories,
    order_counts,
    prefer_sides,
    put_in_order,
    sort_by,
    sum_ordered,
    tried_alone,
    write_set,
)
from rankmill.trainer.growing._control_kernels import bins_in_use, keep_drawn_split, usable_features, worth_of
from rankmill.trainer.growing._gain_kernels import (
    best_of_feature,
    feature_gains,
    first_of,
    forbid_small_sides,
    gains_bounded,
    gains_of,
    parent_of,
    sum_to,
    write_split,
)
from rankmill.trainer.growing._histogram_kernels import column_of, count_sides
from rankmill.trainer.growing._level_kernels import try_feature
from rankmill.trainer.growing._partition_kernels import sides_of
from rankmill.trainer.growing._state_kernels import (
    EPSILON,
    LOW,
    NO,
    SUMS,
    YES,
    add_up,
    everywhere,
)

_REFINEMENTS = 3  # times that the categories of a level are ordered anew

# -- noise -----------------------------------------------------------------------------------------------------------


@inner_kernel
def score_of(total, rules):
    """Return G^2 / (H + lambda) of a packed sum; 0 if it has no hessian, or without noise, when it is not needed."""
    if rules.noise == 0.0 or total & LOW == 0:
        return 0.0
    return parent_of(total, rules)


@inner_kernel
def compared_by(gain, score, node, f, rules, extras):
    """Return the key by which features are compared: what the gain of their best split is worth, or that with noise.

    With noise the key is sqrt(score + gain) plus a normal number of (tree, node, feature), where ``score`` is that of
    the node.  It increases with the gain, so an upper bound of the gain gives an upper bound of the key.
    """
    if extras is None or rules.noise == 0.0:
        return gain
    if gain <= 0.0:
        return -np.inf
    bits = random_bits(random_bits(rules.noise_key, node), f)
    return np.sqrt(score + gain) + rules.noise * normal(uniform(bits))


# -- random thresholds ------------------------------------------------------------------------------------------------


@inner_kernel
def _keep_one(f, node, last, histogram, bins, rules, work):
    """Forbid all splits of a feature of one node except a random one.

    It is random in the order of categories, or between bins in use.
    """
    first, end = np.int64(1), np.int64(last)
    if not bins.categorical[f]:
        first, end = bins_in_use(histogram, last)
        end += np.int64(histogram[0] != 0)  # all others left, the missing right
    keep_drawn_split(f, node, first, end, rules, work)


@inner_kernel
def _write_best(f, highest, histogram, last, total, bins, rules, work, split_out, extras):
    """Write the split of feature ``f`` whose gain is ``highest``: by a set of its categories, or by a threshold."""
    if extras is not None and bins.categorical[f]:
        write_set(f, highest, bins.n_bins[f], last, rules, work, split_out)
    else:
        write_split(f, highest, histogram, last, total, work, split_out)


# -- one node --------------------------------------------------------------------------------------------------------


@inner_kernel
def best_split(
    histogram, total, n_rows, needed, node, bins, usable, first_feature, last_feature, rules, nodes, work, gain_out,
    key_out,
    split_out, of_feature, extras,
):  # fmt: skip
    """Find the best (feature, bin, side of missing values) of one node over a range of features, without counting rows.

    ``histogram`` (n_features, 256) int64 sums to ``total`` over ``n_rows``; each side needs ``needed`` packed steps of
    hessian.  ``gain_out[0]`` gets the gain above ``min_gain`` (0: no split), ``key_out[0]`` its key, ``split_out``
    [feature, bin, missing left, packed sum of the left side, set of bins (4 words)], ``of_feature`` (n_features,) the
    key of each feature.  With ``rules.constrained`` the children's values lie in the range of the node and obey
    ``bins.monotone``.  ``work`` (12, 256) float64 is scratch space.
    """
    best = -np.inf
    split_out[0] = -1
    gain_out[0] = 0.0
    key_out[0] = best
    of_feature[first_feature:last_feature] = -np.inf
    if total & LOW == 0:
        return
    score, limits = score_of(total, rules), nodes.ranges[node]
    for f in range(first_feature, last_feature):
        if not usable[f]:
            continue
        last = bins.n_bins[f]  # one past the last bin that may end the left side
        both_sides = histogram[f, 0] != 0
        if extras is not None and bins.categorical[f]:
            both_sides = True
            last = categories_of_node(histogram[f], last, total, n_rows, needed, limits, rules, work)
        else:
            feature_gains(histogram[f], last, total, needed, bins.monotone[f], limits, rules, work, extras)
        if extras is not None and rules.random_splits:
            _keep_one(f, node, last, histogram[f], bins, rules, work)
        highest = best_of_feature(work[1], work[2], both_sides, last)
        worth = worth_of(highest, f, bins, rules)
        key = compared_by(worth, score, node, f, rules, extras)
        of_feature[f] = key
        if worth > 0.0 and key > best:
            best = key
            gain_out[0] = highest
            _write_best(f, highest, histogram[f], last, total, bins, rules, work, split_out, extras)
    key_out[0] = best


@inner_kernel
def search_node(crew, child, node, first_feature, last_feature, bins, rules, nodes, histograms, search, extras):
    """Search one worker's features for the best split.

    It goes to ``search.gains[child, worker]`` and ``search.splits[child, worker]``.
    """
    table, worker, slot = nodes.table, crew.worker, nodes.table[node].slot
    needed = rules.least_side
    n_rows = table[node].rows
    if rules.paired:  # only a screen, rows are counted later: estimate them from hessians
        needed = max(needed, (rules.min_rows - 0.5) * np.float64(table[node].total & LOW) / n_rows)
    best_split(
        histograms.pool[slot], table[node].total, n_rows, needed, node, bins,
        usable_features(crew, node, bins, rules, nodes, search, extras), first_feature, last_feature, rules,
        nodes, search.work[worker], search.gains[child, worker:],
        search.keys[child, worker:], search.splits[child, worker], search.uppers[slot], extras,
    )  # fmt: skip


@inner_kernel
def _least_key(rules):
    """Return the lower bound of keys: a gain is positive, a key with noise may be any number."""
    return 0.0 if rules.noise == 0.0 else -np.inf


@inner_kernel
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


@inner_kernel
def search_counted(
    crew, node, with_hessians, first_feature, last_feature, bins, rows, hessians, rules, nodes, histograms, search,
    extras
):  # fmt: skip
    """As :func:`search_node` for child 0, with the rows of each side counted.

    ``search.uppers``, by which the search without rows compared features, are upper bounds.  Features are counted in
    descending order until none can beat the best split; those counted become -inf.
    """
    table, worker, slot = nodes.table, crew.worker, nodes.table[node].slot
    total, histogram, uppers = table[node].total, histograms.pool[slot], search.uppers[slot]
    total_h = np.float64(total & LOW)
    least_h = rules.fine_least_h if with_hessians else 0.0
    counts, work, split = search.counts[worker], search.work[worker], search.splits[0, worker]
    least = best = _least_key(rules)
    score = score_of(total, rules)
    split[0] = -1
    search.gains[0, worker] = 0.0
    counts[1] = 0
    usable = usable_features(crew, node, bins, rules, nodes, search, extras)
    while True:
        f = _next_to_count(uppers, usable, first_feature, last_feature, least, best, split[0])
        if f < 0:
            break
        uppers[f] = -np.inf
        last, missing = bins.n_bins[f], histogram[f, 0]
        count_sides(
            crew, f, bins, rows, table[node].first, table[node].last, hessians, rules.fine_h, with_hessians, counts
        )  # fmt: skip
        if total_h == 0.0:
            continue
        limits = nodes.ranges[node]
        both_sides, weightless, alone, n_rows = missing != 0, missing == 0, NO, table[node].rows
        sides = counts
        if extras is not None and bins.categorical[f]:
            both_sides, weightless, alone = True, False, tried_alone(last, rules)
            last = order_categories(histogram[f], last, total, n_rows, rules, work)
            parent = parent_of(total, rules) + rules.min_gain
            category_gains(histogram[f], bins.n_bins[f], last, total, rules.least_side, limits, rules, parent, work)
            sides = order_counts(bins.n_bins[f], last, counts, work)
        else:
            feature_gains(histogram[f], last, total, rules.least_side, bins.monotone[f], limits, rules, work, extras)
        prefix = work[0].view(np.int64)
        forbid_small_sides(
            sides, prefix, total_h, weightless, NO, alone, last, rules.min_rows, least_h, work[1]
        )  # fmt: skip
        if both_sides:
            forbid_small_sides(sides, prefix, total_h, NO, YES, alone, last, rules.min_rows, least_h, work[2])
        if extras is not None and bins.categorical[f]:
            limit_sets(bins.n_bins[f], last, total, n_rows, rules, work)
        if extras is not None and rules.random_splits:
            _keep_one(f, node, last, histogram[f], bins, rules, work)
        highest = best_of_feature(work[1], work[2], both_sides, last)
        worth = worth_of(highest, f, bins, rules)
        key = compared_by(worth, score, node, f, rules, extras)
        if worth > 0.0 and (key > best or (key == best and f < split[0])):
            best = key
            search.gains[0, worker] = highest
            _write_best(f, highest, histogram[f], last, total, bins, rules, work, split, extras)
    search.keys[0, worker] = best


# -- all leaves of a level -------------------------------------------------------------------------------------------


@inner_kernel
def _add_allowed(gains, last, least, out):
    """out[b] += max(gains[b], least) where the split is allowed."""
    for b in range(np.uint64(1), np.uint64(last)):
        out[b] += max(gains[b], least) if gains[b] > -np.inf else 0.0


@inner_kernel
def _sum_level(f, level, n_bins, table, pool, out):
    """out[b] = packed sum of bin b of a feature over all leaves of a level; returns their total and number of rows."""
    out[:n_bins] = 0
    total, n_rows = np.int64(0), np.int64(0)
    for node in range(level[0], level[1]):
        total += table[node].total
        n_rows += table[node].rows
        for b in range(n_bins):
            out[b] += pool[table[node].slot, f, b]
    return total, n_rows


@inner_kernel
def _add_level_gains(f, level, last, both_sides, counts, counted, least_h, bins, rules, nodes, pool, work, extras):
    """Add up the gains of all leaves of a level in work[1] and work[2]; categories are in the order of work[5]."""
    table, n_bins, floor, by_set, alone = nodes.table, bins.n_bins[f], -np.inf if counted else 0.0, NO, NO
    prefix, of_leaf, ordered = work[0].view(np.int64), work[3], work[4].view(np.int64)
    if extras is not None and bins.categorical[f]:
        by_set, alone = True, tried_alone(n_bins, rules)
    work[1, :last] = -rules.min_gain
    work[2, :last] = -np.inf if alone else -rules.min_gain
    for node in range(level[0], level[1]):
        total = table[node].total
        total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & LOW)
        if total_h == 0.0:
            continue
        histogram, lambda_l2 = pool[table[node].slot, f], rules.lambda_l2
        rest, sides = histogram[0], counts[node - level[0]]
        if extras is not None and by_set:
            lambda_l2 = sum_ordered(histogram, n_bins, last, total, rules, work)
            rest = ordered[0]
            if counted:
                sides = order_counts(n_bins, last, sides, work)
        else:
            sum_to(histogram, last, prefix)
        parent = parent_of(total, rules)
        for side in range(2 if both_sides and not alone else 1):
            extra = rest if side == 1 else np.int64(0)
            if extras is not None and rules.constrained:
                gains_bounded(
                    prefix, extra, last, total_g, total_h, rules.least_side, lambda_l2, 0.0, rules, bins.monotone[f],
                    nodes.ranges[node], of_leaf,
                )  # fmt: skip
            else:
                gains_of(prefix, extra, last, total_g, total_h, rules.least_side, lambda_l2, rules, parent, of_leaf)
            if counted:
                forbid_small_sides(
                    sides, prefix, total_h, NO, side == 1, alone, last, rules.min_rows, least_h, of_leaf
                )  # fmt: skip
            _add_allowed(of_leaf, last, floor, work[2] if side == 1 else work[1])


@inner_kernel
def _order_for_level(f, level, last, highest, summed, bins, rules, table, pool, work):
    """Order categories again by how much more all leaves gain if one goes left.

    The values of the sides stay as they are.

    They are those of the set whose gain is ``highest``; ``summed`` are the sums of all leaves.
    """
    order, keys, n_bins = work[5].view(np.int64), work[6], bins.n_bins[f]
    b, from_end = first_of(highest, work[1], work[2], YES, last)
    keys[:n_bins] = 0.0
    for node in range(level[0], level[1]):
        if table[node].total & LOW != 0:
            prefer_sides(pool[table[node].slot, f], table[node].total, b, from_end, last, rules, order, keys)
    for i in range(1, last):
        h = np.float64(summed[order[i]] & LOW) * rules.unit_h + rules.category_smoothing
        keys[order[i]] = -keys[order[i]] / h
    sort_by(last - 1, keys, order, work[7].view(np.int64))


@inner_kernel
def _level_gains_in_order(
    f, level, last, whole, n_rows, summed, counts, counted, least_h, bins, rules, nodes, pool, work
):  # fmt: skip
    """Write the gains of all sets of the categories in the order of work[5], as far as the limits allow them.

    ``summed`` are the sums of all leaves of the level, ``whole`` their total over ``n_rows`` rows.
    """
    _add_level_gains(f, level, last, YES, counts, counted, least_h, bins, rules, nodes, pool, work, YES)
    put_in_order(summed, whole, last, work, work[4].view(np.int64))
    limit_sets(bins.n_bins[f], last, whole, n_rows, rules, work)


@inner_kernel
def _level_gains_of_sets(f, level, counts, counted, least_h, bins, rules, nodes, pool, work):
    """Do as :func:`_level_gains` for a feature of categories.

    They are first ordered by their sums over all leaves, and then, as long as a set gains more, by the sides that the
    leaves of the best set so far prefer.
    """
    table, n_bins = nodes.table, bins.n_bins[f]
    order, summed, before = work[5].view(np.int64), work[8].view(np.int64), work[9].view(np.int64)
    whole, n_rows = _sum_level(f, level, n_bins, table, pool, summed)
    if whole & LOW == 0:
        return np.int64(1), True
    last = order_categories(summed, n_bins, whole, n_rows, rules, work)
    best, refinements = -np.inf, 0 if rules.random_splits else _REFINEMENTS
    for attempt in range(1 + refinements):
        _level_gains_in_order(
            f, level, last, whole, n_rows, summed, counts, counted, least_h, bins, rules, nodes, pool, work
        )
        highest = best_of_feature(work[1], work[2], YES, last)
        if highest <= best and attempt > 0:  # the order before was better
            copy_to(order[:last], before)
            _level_gains_in_order(
                f, level, last, whole, n_rows, summed, counts, counted, least_h, bins, rules, nodes, pool, work
            )
            break
        if highest <= 0.0 or level[1] - level[0] == 1 or tried_alone(n_bins, rules) or attempt == refinements:
            break
        best = highest
        copy_to(before[:last], order)
        _order_for_level(f, level, last, highest, summed, bins, rules, table, pool, work)
    if rules.random_splits:
        keep_drawn_split(f, level[0], np.int64(1), np.int64(last), rules, work)
    return last, True


@inner_kernel
def _level_gains(f, level, counts, counted, least_h, bins, rules, nodes, pool, work, extras):
    """Add up the gains of all leaves of a level by one feature, as :func:`feature_gains`.

    Returns one past the last bin, or the last category in order, and whether missing values may go left.  A leaf adds
    nothing if the split makes one of its sides too small, or goes against a monotone constraint.  If rows are not
    ``counted``, a leaf counts if its sides may be large enough, with a gain of 0 or more, so that the sum is an upper
    bound.
    """
    if extras is not None and bins.categorical[f]:
        return _level_gains_of_sets(f, level, counts, counted, least_h, bins, rules, nodes, pool, work)
    table, n_bins, any_missing = nodes.table, bins.n_bins[f], NO
    for node in range(level[0], level[1]):
        any_missing |= pool[table[node].slot, f, 0] != 0
    _add_level_gains(f, level, n_bins, any_missing, counts, counted, least_h, bins, rules, nodes, pool, work, extras)
    if extras is not None and rules.random_splits:
        first, final = np.int64(n_bins), np.int64(0)
        for node in range(level[0], level[1]):
            lowest, highest = bins_in_use(pool[table[node].slot, f], n_bins)
            first, final = min(first, lowest), max(final, highest)
        keep_drawn_split(f, level[0], first, final + np.int64(any_missing), rules, work)
    return n_bins, any_missing


@inner_kernel
def level_score(level, rules, table):
    """Return the sum of :func:`score_of` over the leaves of a level."""
    score = 0.0
    for node in range(level[0], level[1]):
        score += score_of(table[node].total, rules)
    return score


@inner_kernel
def _write_level_choice(f, highest, both_sides, last, bins, rules, work, split_out, extras):
    if extras is not None and bins.categorical[f]:
        write_set(f, highest, bins.n_bins[f], last, rules, work, split_out)
    else:
        split_out[0] = f
        split_out[1], split_out[2] = first_of(highest, work[1], work[2], both_sides, last)


@inner_kernel
def search_level(crew, level, first_feature, last_feature, bins, rules, nodes, histograms, search, extras):
    """Search one worker's features for the split with the highest sum of gains over all leaves, without counting rows.

    ``level`` is (first node, last node).  ``search.splits[0, worker]`` gets [feature, bin, missing left].
    """
    table, work, split, best = nodes.table, search.work[crew.worker], search.splits[0, crew.worker], -np.inf
    usable = usable_features(crew, level[0], bins, rules, nodes, search, extras)
    score = level_score(level, rules, table)
    split[0] = -1
    search.gains[0, crew.worker] = 0.0
    for f in range(first_feature, last_feature):
        if not usable[f]:
            continue
        if extras is None:
            search.gains[0, crew.worker], search.uppers[0, f] = try_feature(
                f, level, search.counts[crew.worker], NO, 0.0, search.gains[0, crew.worker], bins, rules, table,
                histograms.pool, work, split,
            )  # fmt: skip
            continue
        last, both_sides = _level_gains(
            f, level, search.counts[crew.worker], NO, 0.0, bins, rules, nodes, histograms.pool, work, extras
        )
        highest = best_of_feature(work[1], work[2], both_sides, last)
        worth = worth_of(highest, f, bins, rules)
        key = compared_by(worth, score, level[0], f, rules, extras)
        search.uppers[0, f] = key
        if worth > 0.0 and key > best:
            best = key
            search.gains[0, crew.worker] = highest
            _write_level_choice(f, highest, both_sides, last, bins, rules, work, split, extras)
    search.keys[0, crew.worker] = best


@inner_kernel
def search_level_counted(
    crew, level, first_feature, last_feature, bins, rows, hessians, rules, nodes, histograms, search, extras
):
    """As :func:`search_level`, with the rows of each side counted, as in :func:`search_counted`."""
    table, with_hessians = nodes.table, not rules.by_h
    usable = usable_features(crew, level[0], bins, rules, nodes, search, extras)
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
        f = _next_to_count(uppers, usable, first_feature, last_feature, least, best, split[0])
        if f < 0:
            break
        uppers[f] = -np.inf
        for node in range(first_node, last_node):
            count_sides(
                crew, f, bins, rows, table[node].first, table[node].last, hessians, rules.fine_h, with_hessians,
                counts[node - first_node],
            )  # fmt: skip
        if extras is None:
            best, _ = try_feature(
                f, level, counts, YES, least_h, best, bins, rules, table, histograms.pool, work, split
            )  # fmt: skip
            search.gains[0, crew.worker] = best
            continue
        last, both_sides = _level_gains(
            f, level, counts, YES, least_h, bins, rules, nodes, histograms.pool, work, extras
        )
        highest = best_of_feature(work[1], work[2], both_sides, last)
        worth = worth_of(highest, f, bins, rules)
        key = compared_by(worth, score, first_node, f, rules, extras)
        if worth > 0.0 and (key > best or (key == best and f < split[0])):
            best = key
            search.gains[0, crew.worker] = highest
            _write_level_choice(f, highest, both_sides, last, bins, rules, work, split, extras)
    search.keys[0, crew.worker] = best


# -- is a split valid? -----------------------------------------------------------------------------------------------


@inner_kernel
def _reaches(crew, values, scale, rows, first, last, least):
    """Return whether the sum of round(value * scale) over rows[first:last] is at least ``least``; values >= 0.

    The sum is over all processes.
    """
    total = np.int64(0)
    for i in range(first, last):
        if total >= least:
            break
        total += np.int64(np.rint(values[rows[i]] * scale))
    return everywhere(crew, total) >= least


@inner_kernel
def means_differ(g_left, h_left, off_g_left, off_h_left, g_right, h_right, off_g_right, off_h_right):
    """Return whether G/H of two sides differ by more than rounding errors explain.

    Each of the four sums has an error of at most ``off``.

    A split gains nothing if G_l/H_l = G_r/H_r, that is, if G_l H_r - G_r H_l = 0.  The errors change this difference by
    ``off_g_l (H_r + off_h_r) + off_h_r |G_l| + ..`` at most, and its own rounding by a few epsilon.
    """
    left, right = g_left * h_right, g_right * h_left
    off = off_g_left * (h_right + off_h_right) + off_h_right * abs(g_left)
    off += off_g_right * (h_left + off_h_left) + off_h_left * abs(g_right)
    return abs(left - right) > off + 2.0 * EPSILON * (abs(left) + abs(right))


@inner_kernel
def _packed_means_differ(left, total, n_left, n_right):
    """Return whether packed sums of two sides show that G/H differ.

    Each row is rounded by up to half a step.
    """
    right = total - left
    off_left, off_right = 0.5 * n_left, 0.5 * n_right
    return means_differ(
        np.float64(left >> np.int64(32)), np.float64(left & LOW), off_left, off_left,
        np.float64(right >> np.int64(32)), np.float64(right & LOW), off_right, off_right,
    )  # fmt: skip


@inner_kernel(allocates=True)
def fine_means_differ(crew, column, stride, sides, rows, first, last, gradients, weights, scale_g, scale_w):
    """As ``_packed_means_differ``, with sums of fine steps, in one pass over rows[first:last] of all processes.

    A gradient is off by up to half a step, plus half an epsilon of itself as a float64.
    """
    sums = np.zeros((4, 2), np.int64)
    n, g, size, w = sums[0], sums[1], sums[2], sums[3]
    for i in range(first, last):
        row = np.int64(rows[i])
        side = 1 - np.int64(sides[column[row * stride]])
        steps = np.int64(np.rint(gradients[row] * scale_g))
        n[side] += 1
        g[side] += steps
        size[side] += abs(steps)
        w[side] += np.int64(np.rint(weights[row] * scale_w))
    if crew.peers != 0:
        copy_to(crew.sums[:8], sums.reshape(-1))
        add_up(crew, SUMS, np.int64(8))
        copy_to(sums.reshape(-1), crew.sums)
    off_g = 0.5 * n + 0.5 * EPSILON * (size + 0.5 * n)
    off_w = 0.5 * n + 0.5 * EPSILON * w
    return means_differ(
        np.float64(g[0]), np.float64(w[0]), off_g[0], off_w[0], np.float64(g[1]), np.float64(w[1]), off_g[1], off_w[1]
    )


@inner_kernel
def gains_something(crew, node, n_left, n_right, bins, rows, derivatives, rules, table):
    """Return whether the gain of the node's split is more than rounding; fine steps decide if packed ones cannot.

    By worker 0.
    """
    if _packed_means_differ(table[node].left_sum, table[node].total, n_left, n_right):
        return True
    f = table[node].feature
    return fine_means_differ(
        crew, column_of(bins, f), bins.words.shape[2] * 8, sides_of(node, bins, table, rows.sides[0]), rows.rows,
        table[node].first, table[node].last, derivatives.gradients, derivatives.weights, rules.fine_g, rules.fine_w,
    )  # fmt: skip


@inner_kernel
def _enough_hessian(crew, packed_h, n_rows, first, last, rows, hessians, rules):
    """Return whether one side of a split, in this process rows[first:last], reaches the minimum sum of hessians."""
    if rules.by_h and np.float64(packed_h) - 0.5 * n_rows >= rules.least_h:
        return True
    return _reaches(crew, hessians, rules.fine_h, rows, first, last, rules.fine_least_h)


@inner_kernel
def sides_have_hessian(crew, node, middle, n_left, rows, hessians, rules, table):
    """Return whether both sides of a node partitioned at ``middle`` reach the minimum sum of hessians.

    ``n_left`` counts rows in all processes.
    """
    left_h = table[node].left_sum & LOW
    right_h = (table[node].total & LOW) - left_h
    return _enough_hessian(crew, left_h, n_left, table[node].first, middle, rows, hessians, rules) and _enough_hessian(
        crew, right_h, table[node].rows - n_left, middle, table[node].last, rows, hessians, rules
    )
