"""Search the best split of all leaves of a level by one feature, with exact gains for few bins only.

    bins         1     2     3     4  ..          estimate: sum over the leaves of G_l^2 / H_l + G_r^2 / H_r, at least
    estimates    7.1   9.9   9.8   3.2             G^2 / H, in whole steps and float32
                       `---------'                 may be the best: these are tried

An estimate is off by a few roundings of float32, relative to a sum in which nothing cancels.  So the bins that may have
the highest gain are known, usually one, and only their gains are computed as `_gain_kernels.gains_of` does, leaf by
leaf: the result has the bits of trying all of them.  For a feature whose best estimate is below the best gain of
another one nothing more is done.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.trainer.growing._gain_kernels import gain_at, sum_to
from rankmill.trainer.growing._state_kernels import LOW, NO

_ROUNDING = 2.0**-24  # of a float32
_MOST_LAMBDA = 2.0**40  # steps: more could overflow in float32
_MOST_UNIT = 2.0**500  # and 1 / that: others could overflow, too


@inner_kernel
def _number(half):
    """Return half a packed sum, less than 2^31, as a float32."""
    return np.float32(np.int32(half))


@inner_kernel
def _add_estimates(prefix, extra, first, end, last, total, parent, needed, lambda_steps, out):
    """out[b] += the estimate of a leaf whose left side is ``prefix[b] + extra``; only first <= b < end is allowed."""
    for b in range(np.uint64(1), np.uint64(first)):
        out[b] += parent
    for b in range(np.uint64(end), np.uint64(last)):
        out[b] += parent
    for b in range(np.uint64(first), np.uint64(end)):
        left = prefix[b] + extra
        right = total - left
        h_left, h_right = _number(left & LOW), _number(right & LOW)
        g_left, g_right = _number(left >> np.int64(32)), _number(right >> np.int64(32))
        allowed = min(h_left, h_right) >= needed
        h_left, h_right = h_left + lambda_steps, h_right + lambda_steps
        found = (g_left * g_left * h_right + g_right * g_right * h_left) / (h_left * h_right)
        out[b] += max(found, parent) if allowed else parent


@inner_kernel
def _sum_of(values, first, last):
    """Return the sum of values[first:last]."""
    total = np.int64(0)
    for i in range(np.uint64(first), np.uint64(last)):  # unsigned: no element is counted from the end
        total += values[i]
    return total


@inner_kernel
def _left_of(values, b, missing_left):
    """Return the sum of bins 1 .. b, and of bin 0 if ``missing_left``."""
    return _sum_of(values, 0 if missing_left else 1, b + 1)


@inner_kernel
def _allowed_bins(counts, last, missing_left, min_rows, least_h):
    """Return the first bin that may end the left side, and one past the last one, by the counts of both sides.

    ``counts`` as in :func:`rankmill.trainer.growing._histogram_kernels.count_sides`.
    """
    first, end = np.int64(1), np.int64(last)
    for k in range(1 if least_h == 0.0 else 2):
        least = np.float64(min_rows) if k == 0 else least_h
        missing, b = counts[k, 0], np.uint64(1)
        left, right = (missing, np.int64(0)) if missing_left else (np.int64(0), missing)
        while b < np.uint64(last) and left + counts[k, b] < least:
            left += counts[k, b]
            b += np.uint64(1)
        first = max(first, np.int64(b))
        b = np.uint64(last)
        while b > np.uint64(1) and right < least:
            b -= np.uint64(1)
            right += counts[k, b]
        end = min(end, np.int64(b))
    return min(first, end), end


@inner_kernel
def _estimate(f, level, last, any_missing, counts, counted, least_h, rules, table, pool, work):
    """Write the estimates of all bins to work[1], missing right, and work[2], missing left, two to a cell.

    Returns the sum of G^2 / H of all leaves, which every estimate has in excess of the gain.
    """
    prefix, right, left = work[0].view(np.int64), work[1].view(np.float32), work[2].view(np.float32)
    lambda_steps, unit = rules.lambda_l2 / rules.unit_h, rules.unit_g * (rules.unit_g / rules.unit_h)
    usable = lambda_steps <= _MOST_LAMBDA and unit <= _MOST_UNIT and 1.0 <= unit * _MOST_UNIT
    right[:last] = 0.0 if usable else np.inf
    left[:last] = 0.0 if usable else np.inf
    needed, parents = np.float32(rules.least_side * (1.0 - 4.0 * _ROUNDING)), 0.0
    for node in range(level[0], level[1] if usable else level[0]):
        total, histogram = table[node].total, pool[table[node].slot, f]
        if total & LOW == 0:
            continue
        g, h = np.float64(total >> np.int64(32)), np.float64(total & LOW)
        parent = g * g / (h + lambda_steps)
        parents += parent
        sum_to(histogram, last, prefix)
        for side in range(2 if any_missing else 1):
            first, end = np.int64(1), np.int64(last)
            if counted:
                first, end = _allowed_bins(counts[node - level[0]], last, side == 1, rules.min_rows, least_h)
            _add_estimates(
                prefix, histogram[0] if side == 1 else np.int64(0), first, end, last, total, np.float32(parent), needed,
                np.float32(lambda_steps), left if side == 1 else right,
            )  # fmt: skip
    return parents


@inner_kernel
def _gain_of(f, b, missing_left, level, last, counts, counted, least_h, rules, table, pool):
    """Return the sum of the gains of all leaves by one split, above ``min_gain``.

    A leaf adds nothing if one of its sides is too small, and 0 or more if rows are not ``counted``.
    """
    found = -rules.min_gain
    for node in range(level[0], level[1]):
        total, histogram = table[node].total, pool[table[node].slot, f]
        if total & LOW == 0:
            continue
        gain = gain_at(_left_of(histogram, b, missing_left), total, rules)
        if counted:
            of_leaf = counts[node - level[0]]
            rows, h = _left_of(of_leaf[0], b, missing_left), _left_of(of_leaf[1], b, missing_left)
            all_rows, all_h = _sum_of(of_leaf[0], 0, last), _sum_of(of_leaf[1], 0, last)
            if min(rows, all_rows - rows) < rules.min_rows or min(h, all_h - h) < least_h:
                gain = -np.inf
        found += max(gain, -np.inf if counted else 0.0) if gain > -np.inf else 0.0
    return found


@inner_kernel
def try_feature(f, level, counts, counted, least_h, best, bins, rules, table, pool, work, split_out):
    """Write the best split by a feature, [feature, bin, missing left], if it beats that of gain ``best`` there.

    Returns the highest gain then, and an upper bound of the gains of this feature.  A leaf counts if its sides may be
    large enough, with a gain of 0 or more; if rows are ``counted``, if they are.  On ties the lower feature is better,
    then the lower bin, then missing right.  ``best`` is 0 or more.
    """
    last, any_missing = np.int64(bins.n_bins[f]), NO
    for node in range(level[0], level[1]):
        any_missing |= pool[table[node].slot, f, 0] != 0
    parents = _estimate(f, level, last, any_missing, counts, counted, least_h, rules, table, pool, work)
    unit = rules.unit_g * (rules.unit_g / rules.unit_h)
    estimates, found = (
        work[1:3].view(np.int32),
        work[3].view(np.float32),
    )  # not negative: bits have the order of numbers
    sides, threshold = 2 if any_missing else 1, np.int32(0)
    for side in range(sides):
        for b in range(np.uint64(1), np.uint64(last)):
            threshold = max(threshold, estimates[side, b])
    found.view(np.int32)[0] = threshold
    scale = 1.0 + (24.0 + 2.0 * (level[1] - level[0])) * _ROUNDING
    upper = (np.float64(found[0]) * scale - parents) * unit - rules.min_gain
    if upper < best or upper <= 0.0:
        return best, upper
    least = -np.inf
    for attempt in range(2):  # those with the highest estimate, then all that may be as good as the best of them
        for b in range(np.uint64(1), np.uint64(last)):
            for side in range(np.uint64(sides)):
                if estimates[side, b] < threshold:
                    continue
                gain = _gain_of(f, np.int64(b), side == 1, level, last, counts, counted, least_h, rules, table, pool)
                if attempt == 0:
                    least = max(least, gain)
                elif gain > best or (gain == best and gain > 0.0 and f < split_out[0]):
                    best = gain
                    split_out[0], split_out[1], split_out[2] = f, np.int64(b), np.int64(side)
        lowest = ((max(least, best) + rules.min_gain) / unit + parents) / scale
        found[0] = np.float32(lowest * (1.0 - 4.0 * _ROUNDING)) if lowest > 0.0 else 0.0
        threshold = found.view(np.int32)[0]
    return best, upper
