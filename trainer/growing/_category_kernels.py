"""The gains of sets of categories: put the categories in order, then split them as a threshold splits numbers.

    bins:     0 missing | 1 .. K categories | K + 1 all others          rest: missing, others, categories of few rows

    order  = [ .  | 4   2   7   1 ]       by G / (H + smoothing), on ties the lower bin
    ordered= [rest| .   .   .   . ]       the packed sums in this order
                   `----'   `-----'
                 left, missing right     the prefix: these categories go left, all others right
                          left, "missing left": the rest of the order goes left, the prefix and all others right

The best set is a prefix or a suffix of the order (Fisher, "On grouping for maximum homogeneity", 1958), so the search
of ``_gain_kernels`` finds it with the rest in the place of missing values.  What is in no set, unseen categories too,
goes right. With few categories each is tried alone.  The limits are those of LightGBM
(``FindBestThresholdCategorical``).

    work[4] ordered | work[5] order | work[6] keys | work[7] scratch | work[8] sums of a level | work[9] an earlier
    order work[10], work[11] ordered counts
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.arrays import copy_to
from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.trainer._kernels import is_in
from rankmill.trainer.growing._gain_kernels import first_of, gain_of, gains_bounded, gains_of, parent_of, sum_to
from rankmill.trainer.growing._state_kernels import LOW


@inner_kernel
def sort_by(n, keys, order, spare):
    """Sort order[1 .. n] by ``keys[bin]``, ascending; equal ones keep their order.  ``spare`` is scratch."""
    width = 1
    while width < n:
        for first in range(1, n + 1, 2 * width):
            middle, last = min(first + width, n + 1), min(first + 2 * width, n + 1)
            a, b = first, middle
            for i in range(first, last):
                if a < middle and (b == last or keys[order[a]] <= keys[order[b]]):
                    spare[i] = order[a]
                    a += 1
                else:
                    spare[i] = order[b]
                    b += 1
        for i in range(1, n + 1):
            order[i] = spare[i]
        width *= 2


@inner_kernel
def _rows_of(packed, rows_a_step):
    """Return about how many rows have the hessian of ``packed``, if each has an equal share."""
    return np.rint(np.float64(packed & LOW) * rows_a_step)


@inner_kernel
def order_categories(histogram, n_bins, total, n_rows, rules, work):
    """Write the categories of a node in order to work[5, 1:]; returns 1 + how many there are.

    ``histogram`` (256,) are the packed sums of a feature of ``n_bins`` bins, ``total`` those of the node's ``n_rows``
    rows. Left out are those of less than ``category_rows``.
    """
    order, keys, rows_a_step = work[5].view(np.int64), work[6], n_rows / np.float64(total & LOW)
    used = np.int64(0)
    for b in range(1, n_bins - 1):
        packed = histogram[b]
        if packed & LOW != 0 and _rows_of(packed, rows_a_step) >= rules.category_rows:
            used += 1
            order[used] = b
            h = np.float64(packed & LOW) * rules.unit_h + rules.category_smoothing
            keys[b] = np.float64(packed >> np.int64(32)) * rules.unit_g / h
    sort_by(used, keys, order, work[7].view(np.int64))
    return used + 1


@inner_kernel
def put_in_order(values, whole, last, work, out):
    """out[i] = values[order[i]], and out[0] the rest of ``whole``."""
    order = work[5].view(np.int64)
    rest = whole
    for i in range(1, last):
        out[i] = values[order[i]]
        rest -= out[i]
    out[0] = rest


@inner_kernel
def tried_alone(n_bins, rules):
    """Return whether a feature of ``n_bins`` bins has so few categories that each is tried alone."""
    return n_bins - 2 <= rules.one_vs_rest


@kernel(inline="always")
def order_counts(n_bins, last, counts, work):
    """Return the ``counts`` (2, 256) of rows and hessians by bin in the order of the categories, the rest first."""
    out = work[10:12].view(np.int64)
    for k in range(2):
        put_in_order(counts[k], counts[k, :n_bins].sum(), last, work, out[k])
    return out


@inner_kernel
def sum_ordered(histogram, n_bins, last, total, rules, work):
    """Write the packed sums in the order of the categories, and of each set to work[0].

    Return the lambda of their gains.
    """
    ordered, prefix = work[4].view(np.int64), work[0].view(np.int64)
    put_in_order(histogram, total, last, work, ordered)
    if tried_alone(n_bins, rules):
        copy_to(prefix[1:last], ordered[1:])
        return rules.lambda_l2
    sum_to(ordered, last, prefix)
    return rules.lambda_l2 + rules.category_l2


@inner_kernel
def category_gains(histogram, n_bins, last, total, needed, limits, rules, parent, work):
    """Write the gains of all sets of the ordered categories of a node to work[1] and work[2], as ``feature_gains``.

    ``parent`` is taken off each gain.
    """
    ordered, prefix = work[4].view(np.int64), work[0].view(np.int64)
    lambda_l2 = sum_ordered(histogram, n_bins, last, total, rules, work)
    alone = tried_alone(n_bins, rules)
    total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & LOW)
    work[2, :last] = -np.inf
    for side in range(1 if alone else 2):
        extra, out = (np.int64(0), work[1]) if side == 0 else (ordered[0], work[2])
        if rules.constrained:
            gains_bounded(
                prefix, extra, last, total_g, total_h, needed, lambda_l2, rules.min_gain, rules, 0, limits, out
            )
        else:
            gains_of(prefix, extra, last, total_g, total_h, needed, lambda_l2, rules, parent, out)


@inner_kernel
def limit_sets(n_bins, last, total, n_rows, rules, work):
    """Forbid sets of too many categories, and those that differ by too few rows from the one tried before.

    ``work[4]`` has the ordered sums of ``total``, which ``n_rows`` rows share.
    """
    if tried_alone(n_bins, rules):
        return
    ordered, rows_a_step = work[4].view(np.int64), n_rows / np.float64(total & LOW)
    group, left = 0.0, 0.0
    for b in range(1, last):
        rows = _rows_of(ordered[b], rows_a_step)
        group, left = group + rows, left + rows
        if b > rules.most_categories or group < rules.group_rows or n_rows - left < rules.group_rows:
            work[1, b] = -np.inf
        if group >= rules.group_rows:
            group = 0.0
    group, left = 0.0, 0.0
    for b in range(last - 1, 0, -1):  # the set is b + 1 .. last - 1
        if last - 1 - b > rules.most_categories or group < rules.group_rows or n_rows - left < rules.group_rows:
            work[2, b] = -np.inf
        if group >= rules.group_rows:
            group = 0.0
        rows = _rows_of(ordered[b], rows_a_step)
        group, left = group + rows, left + rows


@inner_kernel
def categories_of_node(histogram, n_bins, total, n_rows, needed, limits, rules, work):
    """Order the categories of a node and write the gains of their sets to ``work``.

    Return 1 + how many are in order.
    """
    last = order_categories(histogram, n_bins, total, n_rows, rules, work)
    parent = parent_of(total, rules) + rules.min_gain
    category_gains(histogram, n_bins, last, total, needed, limits, rules, parent, work)
    limit_sets(n_bins, last, total, n_rows, rules, work)
    return last


@inner_kernel
def prefer_sides(histogram, total, b, from_end, last, rules, order, keys):
    """keys[c] += how much more a leaf gains if category c goes left than if it goes right.

    The values of the sides are those of the set of the first ``b`` categories in order, or, if ``from_end``, of those
    after.
    """
    lambda_l2, left = rules.lambda_l2 + rules.category_l2, np.int64(0)
    for i in range(b + 1 if from_end else 1, last if from_end else b + 1):
        left += histogram[order[i]]
    value_left, value_right = _value_of(left, lambda_l2, rules), _value_of(total - left, lambda_l2, rules)
    for i in range(1, last):
        packed = histogram[order[i]]
        g, h = np.float64(packed >> np.int64(32)) * rules.unit_g, np.float64(packed & LOW) * rules.unit_h
        keys[order[i]] += gain_of(g, h, value_left) - gain_of(g, h, value_right)


@inner_kernel
def _value_of(packed, lambda_l2, rules):
    """Return the Newton step of a packed sum."""
    h = np.float64(packed & LOW) * rules.unit_h + lambda_l2
    return -np.float64(packed >> np.int64(32)) * rules.unit_g / h if h > 0.0 else 0.0


@inner_kernel
def write_set(f, highest, n_bins, last, rules, work, split_out):
    """Write the set of categories of feature ``f`` whose gain is ``highest``.

    The packed sum of its side goes to split_out[3].
    """
    ordered, order = work[4].view(np.int64), work[5].view(np.int64)
    b, from_end = first_of(highest, work[1], work[2], True, last)
    first, end = (b + 1, last) if from_end == 1 else (1, b + 1)
    if tried_alone(n_bins, rules):
        first, end = b, b + 1
    split_out[:] = 0
    split_out[0] = f
    for i in range(first, end):
        split_out[3] += ordered[i]
        word = 4 + (order[i] >> 6)
        split_out[word] = np.int64(np.uint64(split_out[word]) | (np.uint64(1) << np.uint64(order[i] & 63)))


@inner_kernel
def sum_of_set(histogram, n_bins, bits):
    """Return the packed sum of the bins in a set."""
    total = np.int64(0)
    for b in range(1, n_bins):
        if is_in(bits, b):
            total += histogram[b]
    return total
