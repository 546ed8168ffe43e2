"""Flat passes over rows, and the flags that synchronise workers.  The callers check the arguments.

A *packed* value holds a gradient in its high and a hessian in its low 32 bits; the hessian is never negative and
its sum over all rows fits 32 bits, so sums never carry between the two.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import MAGIC, exp_clipped, log_positive
from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.foundation.kernels.instructions import bits_of, load_acquire, store_release
from rankmill.foundation.kernels.randoms import uniform

LANE, PLACE, CODES = range(3)  # columns of ``lanes``, see ``layout.lanes_of``
STRIP = 512  # rows that pass a split together: their nodes stay in the first-level cache
MOST_SWEPT = 511  # nodes of a tree


@kernel
def post(flags, index, value):
    """flags[index] = value, visible to the threads that wait for it."""
    store_release(flags, index, value)


@kernel
def watch(flags, index, seen, looks):
    """Return flags[index] as soon as it differs from ``seen``, or ``seen`` after ``looks`` reads."""
    for _ in range(looks):
        value = load_acquire(flags, index)
        if value != seen:
            return value
    return seen


@kernel
def absolute_sums(values, block, first, last, sums):
    """sums[b] = sum of |values| over rows b*block .. (b+1)*block, each in row order, for b in first .. last."""
    n = values.shape[0]
    for b in range(first, last):
        total = 0.0
        for i in range(b * block, min(n, (b + 1) * block)):
            total += abs(values[i])
        sums[b] = total


@kernel
def add_absolute(total, values):
    """Return ``total`` plus every |value|, in order."""
    for i in range(values.shape[0]):
        total += abs(values[i])
    return total


@kernel
def powers_of_exponentials(keys, power, out):
    """out[i] = (-ln u) ** power, u uniform between 0 and 1 from the 64 random bits keys[i]."""
    for i in range(keys.shape[0]):
        out[i] = max(-log_positive(uniform(keys[i])), 1e-12)
    if power != 1.0:
        for i in range(keys.shape[0]):
            out[i] = exp_clipped(power * log_positive(out[i]))


@kernel
def add_squares(values, starts, factor, out):
    """out[q] += sum of (factor * values[i]) ** 2 over rows starts[q] .. starts[q + 1]."""
    for q in range(starts.shape[0] - 1):
        for i in range(starts[q], starts[q + 1]):
            out[q] += (factor * values[i]) * (factor * values[i])


@inner_kernel
def _packed(gradient, hessian, gradient_scale, hessian_scale):
    g = bits_of(gradient * gradient_scale + MAGIC) - bits_of(MAGIC)
    h = bits_of(hessian * hessian_scale + MAGIC) - bits_of(MAGIC)
    return (g << np.int64(32)) + h


@kernel
def pack(gradients, hessians, gradient_scale, hessian_scale, chosen, before, first, last, rows, packed):
    """packed[i] = round(g * gradient_scale) << 32 + round(h * hessian_scale), to nearest, ties to even, of rows[i].

    rows[i] is set to chosen[i], or to ``before`` + i if none are chosen.  Returns the sum of packed[first:last], and
    the smallest hessian in steps.
    """
    if chosen.shape[0] == 0:
        for i in range(first, last):
            rows[i] = before + i
            packed[i] = _packed(gradients[before + i], hessians[before + i], gradient_scale, hessian_scale)
    else:
        for i in range(first, last):
            rows[i] = chosen[i]
            packed[i] = _packed(gradients[chosen[i]], hessians[chosen[i]], gradient_scale, hessian_scale)
    total, least = np.int64(0), np.int64(0xFFFFFFFF)
    for i in range(first, last):
        total += packed[i]
        least = min(least, packed[i] & np.int64(0xFFFFFFFF))
    return total, least


@kernel
def leaf_sums(gradients, hessians, gradient_scale, hessian_scale, rows, starts, leaves, first, last, out):
    """out[leaves[l]] = (sum of round(g * scale), sum of round(h * scale)) over those of rows[first:last] in leaf l.

    63-bit integers; leaf ``l`` holds rows[starts[l]:starts[l + 1]].
    """
    for leaf in range(leaves.shape[0]):
        total_g, total_h = np.int64(0), np.int64(0)
        for i in range(np.uint64(max(starts[leaf], first)), np.uint64(min(starts[leaf + 1], last))):
            row = np.uint64(rows[i])
            total_g += np.int64(np.rint(gradients[row] * gradient_scale))
            total_h += np.int64(np.rint(hessians[row] * hessian_scale))
        out[leaves[leaf], 0] = total_g
        out[leaves[leaf], 1] = total_h


@kernel
def add_leaves(rows, starts, values, first, last, scores):
    """scores[row] += values[leaf] for those of rows[first:last] in a leaf: rows[starts[leaf]:starts[leaf + 1]]."""
    for leaf in range(values.shape[0]):
        for i in range(np.uint64(max(starts[leaf], first)), np.uint64(min(starts[leaf + 1], last))):
            scores[np.uint64(rows[i])] += values[leaf]


@inner_kernel
def is_in(bits, b):
    """Return whether bin ``b`` is in a set of bins, ``bits`` (4,) of 64 each."""
    return (np.uint64(bits[b >> 6]) >> np.uint64(b & 63)) & np.uint64(1) != 0


@inner_kernel
def goes_left(b, threshold, missing_left, bits):
    """Return whether bin ``b`` goes left: by the threshold, or by the set ``bits`` if that is 0."""
    if threshold == 0:
        return is_in(bits, b)
    return (b <= threshold) & ((b != 0) | (missing_left != 0))


@kernel(allocates=True)
def add_tree(bins, feature, threshold, missing_left, sets, left, right, value, first, last, scores):
    """scores[row] += value of the leaf that the bins (n_features, n_rows) of the row lead to, rows first .. last.

    The rows of a strip pass each split together, parents first: those at its node move on, by instructions for several
    rows.  Trees of many nodes are walked row by row.
    """
    n_nodes = feature.shape[0]
    at = np.empty(STRIP, np.int32)
    for begin in range(first, last, STRIP):
        n = min(STRIP, last - begin)
        for i in range(n):
            at[i] = 0
        if n_nodes > MOST_SWEPT:
            for i in range(n):
                node = 0
                while feature[node] >= 0:
                    b = bins[feature[node], begin + i]
                    node = left[node] if goes_left(b, threshold[node], missing_left[node], sets[node]) else right[node]
                at[i] = node
        for node in range(n_nodes if n_nodes <= MOST_SWEPT else 0):
            if feature[node] < 0:
                continue
            codes, to_left, to_right = bins[feature[node], begin : begin + n], left[node], right[node]
            if threshold[node] == 0:
                for i in range(n):
                    if at[i] == node:
                        at[i] = to_left if is_in(sets[node], codes[i]) else to_right
                continue
            wrap = np.uint8(1) if missing_left[node] == 0 else np.uint8(0)  # of a missing value: 255, which goes right
            bound = np.uint8(threshold[node] - wrap)
            for i in range(n):
                onwards = to_left if np.uint8(codes[i] - wrap) <= bound else to_right
                at[i] = onwards if at[i] == node else at[i]
        for i in range(n):
            scores[begin + i] += value[at[i]]


@kernel
def encode_in_order(index, steps, starts, order, scale, prior, smoothing, sums, counts, values):
    """values[row] = mean target of its category in the queries before it in ``order``, drawn towards the ``prior``.

    ``index[row]`` is the number of its category, -1: none.  ``steps`` are targets in steps of 1 / ``scale``; ``sums``
    and ``counts``, by category, are 0 at first and those of all rows at last.
    """
    for q in order:
        for row in range(starts[q], starts[q + 1]):
            c = index[row]
            values[row] = prior
            if c >= 0:
                values[row] = (sums[c] / scale + smoothing * prior) / (counts[c] + smoothing)
        for row in range(starts[q], starts[q + 1]):
            c = index[row]
            if c >= 0:
                sums[c] += steps[row]
                counts[c] += 1


@kernel
def join_lanes(bins, lanes, codes):
    """codes[row, lane] += place value * bin for each feature of ``bins`` (m, n_features); see ``layout.lanes_of``."""
    for i in range(bins.shape[0]):
        for f in range(bins.shape[1]):
            codes[i, lanes[f, LANE]] += np.uint8(lanes[f, PLACE]) * bins[i, f]


@kernel
def part_lanes(codes, lanes, digits, bins):
    """bins[row, feature] = the bin that the code of its lane stands for: the inverse of :func:`join_lanes`."""
    for i in range(bins.shape[0]):
        for f in range(bins.shape[1]):
            bins[i, f] = digits[f, codes[i, lanes[f, LANE]]]
