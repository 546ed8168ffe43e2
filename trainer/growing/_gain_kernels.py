"""The gains of all splits of one feature, from prefix sums of its packed histogram.

work[0] prefix | work[1] gains, missing right | work[2] gains, missing left     each (256,), by bin
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.elementary import MAGIC
from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.foundation.kernels.instructions import bits_of, float_of, highest_in_blocks, running_sums
from rankmill.trainer.growing._state_kernels import LOW


@inner_kernel
def _gain(g_left, h_left, total_g, total_h, needed, lambda_steps, unit, parent):
    """Return the gain of a split whose left side has these whole steps; -inf where not allowed."""
    h_right = total_h - h_left
    g_right = total_g - g_left
    allowed = min(h_left, h_right) >= needed
    h_left, h_right = h_left + lambda_steps, h_right + lambda_steps
    gain = (g_left * g_left * h_right + g_right * g_right * h_left) / (h_left * h_right) * unit - parent
    return gain if allowed else -np.inf


@inner_kernel
def gain_at(left, total, rules):
    """Return what :func:`gains_of` finds for one split with the packed sum ``left`` on the left, without min_gain."""
    g, h = np.float64(left >> np.int64(32)), np.float64(left & LOW)
    total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & LOW)
    unit = rules.unit_g * (rules.unit_g / rules.unit_h)
    lambda_steps, parent = rules.lambda_l2 / rules.unit_h, parent_of(total, rules)
    return _gain(g, h, total_g, total_h, rules.least_side, lambda_steps, unit, parent)


@inner_kernel
def gains_of(prefix, extra, last, total_g, total_h, needed, lambda_l2, rules, parent, out):
    """Set out[b] to the gain of the split after bin b, 1 <= b < last; -inf where not allowed.

    ``prefix[b] + extra`` is on the left.

    Each side needs ``needed`` steps of hessian.  The gain G_l^2 / H_l + G_r^2 / H_r - parent is one division of whole
    steps, lambda included.  The loop over unsigned b has no branches, so that it is vectorised; integers are converted
    to floats through their bits.
    """
    lambda_steps, unit = lambda_l2 / rules.unit_h, rules.unit_g * (rules.unit_g / rules.unit_h)
    magic = bits_of(MAGIC)
    for b in range(np.uint64(1), np.uint64(last)):
        left = prefix[b] + extra
        h_left = float_of((left & LOW) + magic) - MAGIC
        g_left = float_of((left >> np.int64(32)) + magic) - MAGIC
        out[b] = _gain(g_left, h_left, total_g, total_h, needed, lambda_steps, unit, parent)


@inner_kernel
def _shrunk(g, rules):
    """Return g drawn towards 0 by lambda_l1."""
    return g if rules.lambda_l1 == 0.0 else np.sign(g) * max(abs(g) - rules.lambda_l1, 0.0)


@inner_kernel
def _value(g, h, n_rows, above, low, high, rules):
    """Return the value of a node, within its range.

    It is a step (g shrunk, h with lambda), averaged with that of the node ``above`` it.
    """
    value = -g / h if h > 0.0 else 0.0
    if rules.max_step > 0.0:
        value = min(max(value, -rules.max_step), rules.max_step)
    if rules.smooth > 0.0:
        value = (value * n_rows + above * rules.smooth) / (n_rows + rules.smooth)
    elif h <= 0.0:
        return 0.0
    return min(max(value, low), high)


@inner_kernel
def value_of(packed, n_rows, above, rules, low, high):
    """Return the value of a node of ``n_rows`` rows, whose parent has the value ``above``."""
    g, h = np.float64(packed >> np.int64(32)) * rules.unit_g, np.float64(packed & LOW) * rules.unit_h
    return _value(_shrunk(g, rules), h + rules.lambda_l2, n_rows, above, low, high, rules)


@inner_kernel
def gain_of(g, h, value):
    """Return the gain of the step ``value`` (g shrunk): -(2 g v + h v^2), which is g^2 / h at the Newton step."""
    return -(2.0 * g + h * value) * value


@inner_kernel
def gains_bounded(prefix, extra, last, total_g, total_h, needed, lambda_l2, min_gain, rules, direction, limits, out):
    """As ``gains_of``, but with the values that nodes get.

    Those of the children must rise (1) or fall (-1) with the feature.

    ``limits`` (4,) are the range of values, the own value and the number of rows of the node.  Rows of sides are
    estimated by their hessian.
    """
    low, high, own, rows = limits[0], limits[1], limits[2], limits[3] / total_h
    unit_g, unit_h = rules.unit_g, rules.unit_h
    whole_g, whole_h = total_g * unit_g, total_h * unit_h + rules.lambda_l2
    if rules.smooth == 0.0:
        own = _value(_shrunk(whole_g, rules), whole_h, 0.0, 0.0, low, high, rules)
    parent = gain_of(_shrunk(whole_g, rules), whole_h, own) + min_gain
    for b in range(1, last):
        left = prefix[b] + extra
        h_left, g_left = np.float64(left & LOW), np.float64(left >> np.int64(32))
        out[b] = -np.inf
        if min(h_left, total_h - h_left) >= needed:
            g, h = _shrunk(g_left * unit_g, rules), h_left * unit_h + lambda_l2
            g_right, h_right = _shrunk((total_g - g_left) * unit_g, rules), (total_h - h_left) * unit_h + lambda_l2
            value = _value(g, h, h_left * rows, own, low, high, rules)
            value_right = _value(g_right, h_right, (total_h - h_left) * rows, own, low, high, rules)
            if direction * (value_right - value) >= 0.0:
                out[b] = gain_of(g, h, value) + gain_of(g_right, h_right, value_right) - parent


@inner_kernel(allocates=True)
def bounded_gain_of(left, total, direction, limits, rules):
    """Return the gain of one split as :func:`gains_bounded`, without ``min_gain``; -inf where not allowed."""
    total_h = np.float64(total & LOW)
    prefix, out = np.full(2, left), np.empty(2)
    gains_bounded(
        prefix,
        np.int64(0),
        np.int64(2),
        np.float64(total >> np.int64(32)),
        total_h,
        0.0,
        rules.lambda_l2,
        0.0,
        rules,
        direction,
        limits,
        out,
    )
    return out[1]


@inner_kernel
def left_is_heavier(left, total_h):
    """Return whether the left side, a packed sum, has at least half of the hessian."""
    return 2.0 * np.float64(left & LOW) >= total_h


@inner_kernel
def forbid_small_sides(counts, prefix, total_h, weightless, missing_left, alone, last, min_rows, least_h, out):
    """out[b] = -inf where the split after bin b leaves a side with too few rows or too little hessian.

    Bin b has counts[0, b] rows and counts[1, b] fine steps of hessian.  Missing values go left if ``missing_left``, or,
    if ``weightless``, to the heavier side.  If ``alone``, bin b is the whole left side.
    """
    all_rows, all_h = counts[0, :last].sum(), counts[1, :last].sum()
    rows, h = np.int64(0), np.int64(0)
    for b in range(1, last):
        rows = counts[0, b] if alone else rows + counts[0, b]
        h = counts[1, b] if alone else h + counts[1, b]
        with_missing = left_is_heavier(prefix[b], total_h) if weightless else missing_left
        rows_left = rows + counts[0, 0] if with_missing else rows
        h_left = h + counts[1, 0] if with_missing else h
        if min(rows_left, all_rows - rows_left) < min_rows or min(h_left, all_h - h_left) < least_h:
            out[b] = -np.inf


@inner_kernel
def highest_of(values, last):
    """Return the highest of values[1:last], -inf if ``last`` is 1.

    It uses blocks of vectors, and four independent maxima.
    """
    blocks = (last - 1) // 32
    a = highest_in_blocks(values[1:], blocks)
    b = c = d = -np.inf
    i = 1 + 32 * blocks
    while i + 4 <= last:
        a, b = max(a, values[i]), max(b, values[i + 1])
        c, d = max(c, values[i + 2]), max(d, values[i + 3])
        i += 4
    while i < last:
        a = max(a, values[i])
        i += 1
    return max(a, b, c, d)


@inner_kernel
def sum_to(histogram, last, prefix):
    """prefix[b] = sum of bins 1 .. b for b < ``last``; both have 256 cells, and more of them are read and written."""
    running_sums(histogram, (last + 7) // 8, prefix)


@inner_kernel
def first_of(value, missing_right, missing_left, any_missing, last):
    """Return the lowest bin with that gain, and 1 if it needs missing values on the left."""
    for b in range(1, last):
        if missing_right[b] == value:
            return b, 0
        if any_missing and missing_left[b] == value:
            return b, 1
    return -1, 0


@inner_kernel
def best_of_feature(missing_right, missing_left, any_missing, last):
    """Return the highest gain of the feature."""
    highest = highest_of(missing_right, last)
    if any_missing:
        highest = max(highest, highest_of(missing_left, last))
    return highest


@inner_kernel
def parent_of(total, rules):
    """Return G^2 / (H + lambda) of a packed sum."""
    g = np.float64(total >> np.int64(32)) * rules.unit_g
    return g * g / (np.float64(total & LOW) * rules.unit_h + rules.lambda_l2)


@inner_kernel
def feature_gains(histogram, last, total, needed, direction, limits, rules, work, extras):
    """Write the gains of all bins of a feature of one node to ``work``: work[1] missing right, work[2] missing left."""
    prefix = work[0].view(np.int64)
    total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & LOW)
    parent = parent_of(total, rules) + rules.min_gain
    sum_to(histogram, last, prefix)
    for side in range(1 if histogram[0] == 0 else 2):
        extra, out = (np.int64(0), work[1]) if side == 0 else (histogram[0], work[2])
        if extras is not None and rules.constrained:
            gains_bounded(
                prefix, extra, last, total_g, total_h, needed, rules.lambda_l2, rules.min_gain, rules, direction,
                limits, out
            )  # fmt: skip
        else:
            gains_of(prefix, extra, last, total_g, total_h, needed, rules.lambda_l2, rules, parent, out)


@inner_kernel
def write_split(f, highest, histogram, last, total, work, split_out):
    """Write the split of the feature whose gain is ``highest``."""
    prefix, missing = work[0].view(np.int64), histogram[0]
    b, left = first_of(highest, work[1], work[2], missing != 0, last)
    split_out[0] = f
    split_out[1] = b
    split_out[2] = left
    split_out[3] = prefix[b] + (missing if left == 1 else np.int64(0))
    if missing == 0 and left_is_heavier(prefix[b], np.float64(total & LOW)):
        split_out[2] = 1
