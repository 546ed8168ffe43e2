"""Prediction kernels: flat loops without checks.  ``scorer.structure`` has checked every index they follow.

A packed node is four numbers.  A document's code ``b`` of the node's feature is 0 if the value is missing, else 1 plus
the number of the feature's cuts below it.  It goes right iff ``(b - shift) & greatest > bound``, where ``greatest`` is
2^8 - 1 or 2^16 - 1: with ``shift = 1`` a missing value wraps round to ``greatest`` and goes right, with ``shift = 0`` it
stays the least and goes left.  Right children follow their left siblings, so the next node is ``left + went_right``;
a leaf's ``left`` is the leaf itself and its bound the greatest code, so a lane that has arrived stays.
"""

import numpy as np
from numba import njit

LANES = 8


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
