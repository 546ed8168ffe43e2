"""Prediction kernels: flat loops without checks.  ``scorer.structure`` has checked every index they follow.

A packed node is four numbers.  A document's code ``b`` of the node's feature is 0 if the value is missing, else 1 plus
the number of the feature's cuts below it.  It goes right iff ``(b - shift) & greatest > bound``, where ``greatest`` is
2^8 - 1 or 2^16 - 1: with ``shift = 1`` a missing value wraps round to ``greatest`` and goes right, with ``shift = 0`` it
stays the least and goes left.  Right children follow their left siblings, so the next node is ``left + went_right``;
a leaf's ``left`` is the leaf itself and its bound the greatest code, so a lane that has arrived stays.

``exp`` of a link is a polynomial from + - * / alone, so that the bits are the same on every CPU.
"""

import numpy as np
from numba import njit

LANES = 8
_LEAST_EXPONENT = -708.0  # exp of less is no normal double any more
_HALVINGS = np.ldexp(1.0, -np.arange(1024))  # 2 ** -k, exact
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # 32 significant bits: k * _LN2_HIGH is exact for k < 2 ** 20
_LN2_LOW = 1.9082149292705877e-10


@njit(nogil=True, cache=True)
def pack_trees(
    n_trees, tree_starts, node_feature, node_cut, node_missing_left, node_left, node_right, node_value, tree_weights,
    slot_of, greatest, slot, shift, bound, left, value, depth, queue,
):  # fmt: skip
    """Lay the first ``n_trees`` out breadth first, siblings adjacent; OUT: slot, shift, bound, left, value, depth.

    ``value`` holds the node's value times the tree's weight; ``depth`` the greatest depth of each tree; ``left`` counts
    from the start of the tree.  ``queue`` is room for as many nodes as the largest tree has; ``greatest`` the greatest
    code.
    """
    for t in range(n_trees):
        start = tree_starts[t]
        queue[0] = 0
        filled = 1
        level_end = 1
        levels = 0
        i = 0
        while i < filled:
            if i == level_end:
                levels += 1
                level_end = filled
            node = start + queue[i]
            out = start + i
            value[out] = tree_weights[t] * node_value[node]
            f = node_feature[node]
            if f < 0:
                slot[out] = 0
                shift[out] = 0
                bound[out] = greatest
                left[out] = i
            else:
                slot[out] = slot_of[f]
                shift[out] = 1 - node_missing_left[node]
                bound[out] = node_cut[node] + node_missing_left[node]
                left[out] = filled
                queue[filled] = node_left[node]
                queue[filled + 1] = node_right[node]
                filled += 2
            i += 1
        depth[t] = levels


@njit(nogil=True, cache=True, error_model="numpy")
def bin_rows(values, first, n_rows, columns, absent, cuts, starts, codes):
    """Write ``codes[i, k]``: 0 if ``values[first + i, columns[k]]`` is NaN, else 1 + the number of cuts below it.

    Slot ``k`` has the cuts ``cuts[starts[k]:starts[k + 1]]`` (at least one); where ``columns[k]`` is negative every
    document has the value ``absent``.
    """
    for k in range(columns.shape[0]):
        column = columns[k]
        begin = starts[k]
        size = starts[k + 1] - begin
        for i in range(n_rows):
            x = values[first + i, column] if column >= 0 else absent
            low = begin
            n = size
            while n > 1:
                half = n >> 1
                low += half if cuts[low + half - 1] < x else 0
                n -= half
            low += 1 if cuts[low] < x else 0
            codes[i, k] = 0 if x != x else low - begin + 1


@njit(nogil=True, cache=True, error_model="numpy")
def add_trees(
    codes, n_rows, n_trees, greatest, tree_starts, slot, shift, bound, left, value, depth, scores, first
):  # fmt: skip
    """``scores[first + i] += value of the leaf of document i``, tree after tree, for the ``n_rows`` rows of ``codes``.

    ``LANES`` documents go down a tree together, so that their memory accesses overlap; the rows of ``codes`` must be a
    multiple of ``LANES`` at least as great as ``n_rows`` (the last ones may hold anything).
    """
    n_lanes = (n_rows + LANES - 1) // LANES * LANES
    at = np.zeros(LANES, np.int32)
    for t in range(n_trees):
        root = tree_starts[t]
        for i in range(0, n_lanes, LANES):
            for lane in range(LANES):
                at[lane] = 0
            for _ in range(depth[t]):
                for lane in range(LANES):
                    node = root + at[lane]
                    code = codes[i + lane, slot[node]]
                    at[lane] = left[node] + (((code - shift[node]) & greatest) > bound[node])
            for lane in range(min(LANES, n_rows - i)):
                scores[first + i + lane] += value[root + at[lane]]


@njit(nogil=True, cache=True, error_model="numpy")
def exp_negative(x):
    """exp(x) for x <= 0, relative error <= 1e-15; 0 below -708; NaN for NaN.

    x = r - k ln 2, |r| <= ln 2 / 2 (a little more where rounding decides); a Taylor polynomial of degree 12 in r, whose
    remainder is below 2e-16, times an exact power of two.
    """
    if not x >= _LEAST_EXPONENT:
        return 0.0 if x < _LEAST_EXPONENT else x
    k = np.int64(0.5 - x * _LOG2_E)
    r = (x + k * _LN2_HIGH) + k * _LN2_LOW
    p = 2.08767569878681e-09  # 1 / 12!
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 1.984126984126984e-04
    p = p * r + 1.388888888888889e-03
    p = p * r + 8.333333333333333e-03
    p = p * r + 4.1666666666666664e-02
    p = p * r + 1.6666666666666666e-01
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * _HALVINGS[k]


@njit(nogil=True, cache=True, error_model="numpy")
def _softmax_score(values, outputs, i):
    """Sum of values[k] * softmax(outputs[:, i])[k], from the first k to the last."""
    greatest = outputs[0, i]
    for k in range(1, outputs.shape[0]):
        greatest = max(greatest, outputs[k, i])
    total = 0.0
    score = 0.0
    for k in range(outputs.shape[0]):
        mass = exp_negative(outputs[k, i] - greatest)
        total += mass
        score += values[k] * mass
    return score / total


@njit(nogil=True, cache=True, error_model="numpy")
def _ordinal_score(values, outputs, i):
    """Sum of values[k] * P(y = k), from the first k to the last, where outputs[k, i] is the logit of P(y <= k).

    It takes differences of P(y > k), which are those of P(y <= k) and keep their precision where nearly all documents
    are: near 0.  The unclipped differences add up to 1, so the clipped ones to 1 or more: no division by 0.
    """
    n_outputs = outputs.shape[0]
    total = 0.0
    score = 0.0
    before = 1.0
    for k in range(n_outputs + 1):
        above = 0.0
        if k < n_outputs:
            f = outputs[k, i]
            e = exp_negative(-abs(f))
            above = (e if f > 0.0 else 1.0) / (1.0 + e)
        mass = before - above
        if mass < 0.0:
            mass = 0.0
        total += mass
        score += values[k] * mass
        before = above
    return score / total


@njit(nogil=True, cache=True, error_model="numpy")
def apply_link(ordinal, values, outputs, first, last, scores):
    """scores[i] = expected value of document i for first <= i < last; ``scorer.links`` says how.

    ``outputs`` is (K, n); ``values`` holds what each grade is worth: K of them, or K + 1 where ``ordinal``.
    """
    if ordinal:
        for i in range(first, last):
            scores[i] = _ordinal_score(values, outputs, i)
    else:
        for i in range(first, last):
            scores[i] = _softmax_score(values, outputs, i)
