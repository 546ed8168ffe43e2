"""Kernels that add trees to scores: flat loops without checks.  ``rankmill.scorer.model_file`` has checked every index they follow.

A document's code ``b`` of a feature is 0 if the value is missing, else 1 plus the number of the feature's cuts below it,
and a node that sends missing values left is asked whether ``b > bound``.  One that sends them right is asked the same of
``b - 1``, in which a missing value has wrapped round to the greatest code: those codes have a slot of their own, where
`wrap_codes` puts them.

``codes`` is (slots, documents), so the codes of a feature lie side by side, and a node asks all documents of a tile at
once with the widest instructions there are.  There are three ways down, of the same sums:

- `sweep_trees` asks every node of a tree, parents first.  ``at`` holds for each document the leftmost leaf below the node
  that it has reached; a node moves those that are ``here`` and go right to the leftmost leaf ``beyond``.  It needs no look
  at where a document is, and takes a fraction of a cycle for each node and document.
- `sweep_levels` does so for oblivious trees: one question a level, one bit of the leaf's number each.
- `walk_trees` goes down node by node, ``LANES`` documents together: for trees of very many leaves, and for so few
  documents that they do not fill an instruction.
"""

import numpy as np

from rankmill.foundation.kernels.compiling import kernel

LANES = 8


@kernel
def pack_trees(
    n_trees, tree_starts, node_feature, node_cut, node_missing_left, node_left, node_right, node_value, tree_weights,
    slot_of, greatest, slot, bound, left, value, depth, queue,
):  # fmt: skip
    """Lay the first ``n_trees`` out for `walk_trees`: breadth first, siblings adjacent; OUT: slot, bound, left, value, depth.

    ``value`` holds the node's value times the tree's weight; ``depth`` the greatest depth of each tree; ``left`` counts
    from the start of the tree, and right children follow their left siblings, so that the next node is ``left +
    went_right``; a leaf's ``left`` is the leaf itself and its bound the ``greatest`` code, so a lane that has arrived
    stays.  ``slot_of[f]`` is the slot of feature f for nodes that send missing values right, and left.  ``queue`` is room
    for as many nodes as the largest tree has.
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
                bound[out] = greatest
                left[out] = i
            else:
                slot[out] = slot_of[f, node_missing_left[node]]
                bound[out] = node_cut[node] + node_missing_left[node]
                left[out] = filled
                queue[filled] = node_left[node]
                queue[filled + 1] = node_right[node]
                filled += 2
            i += 1
        depth[t] = levels


@kernel
def number_leaves(
    n_trees, tree_starts, node_feature, node_cut, node_missing_left, node_left, node_right, node_value, tree_weights,
    slot_of, split_starts, leaf_starts, slot, bound, here, beyond, value, stack, place,
):  # fmt: skip
    """Lay the first ``n_trees`` out for `sweep_trees`; OUT: slot, bound, here, beyond of each split, value of each leaf.

    Splits stand parents first, left before right; leaves from left to right, with the leaf's value times the tree's weight.
    ``stack`` and ``place`` are room for as many nodes as the largest tree has.
    """
    for t in range(n_trees):
        start = tree_starts[t]
        split = split_starts[t]
        leaf = 0
        top = 0
        stack[0] = 0
        place[0] = -1
        while top >= 0:
            node = start + stack[top]
            parent = place[top]
            top -= 1
            if parent >= 0:
                beyond[parent] = leaf  # this is a right child: what is left of it has been numbered
            f = node_feature[node]
            if f < 0:
                value[leaf_starts[t] + leaf] = tree_weights[t] * node_value[node]
                leaf += 1
                continue
            slot[split] = slot_of[f, node_missing_left[node]]
            bound[split] = node_cut[node] + node_missing_left[node]
            here[split] = leaf
            top += 1
            stack[top] = node_right[node]
            place[top] = split
            top += 1
            stack[top] = node_left[node]
            place[top] = -1
            split += 1


@kernel
def wrap_codes(codes, width, sources, first_slot):
    """``codes[first_slot + k] = codes[sources[k]] - 1``, where 0 becomes the greatest code, for ``width`` documents."""
    for k in range(sources.shape[0]):
        code = codes[sources[k]]
        wrapped = codes[first_slot + k]
        for i in range(width):
            wrapped[i] = code[i] - 1


@kernel
def sweep_trees(
    codes, width, n_rows, trees, split_starts, leaf_starts, slot, bound, here, beyond, value, at, scores, first
):  # fmt: skip
    """``scores[first + i] += value of the leaf of document i``, tree after tree of ``trees``, for the first ``n_rows`` documents.

    ``width``, at least ``n_rows`` and at most the room in ``at`` and ``codes``, is how many are asked: whole instructions.
    Each tree has an even number of splits, and two are asked at once: one more look at ``at`` would wait for the last.
    """
    for t in trees:
        for i in range(width):
            at[i] = 0
        for k in range(split_starts[t], split_starts[t + 1], 2):
            code, other_code = codes[slot[k]], codes[slot[k + 1]]
            b, other_b = bound[k], bound[k + 1]
            h, other_h = here[k], here[k + 1]
            g, other_g = beyond[k], beyond[k + 1]
            for i in range(width):
                leaf = at[i]
                leaf = g if (code[i] > b) & (leaf == h) else leaf
                at[i] = other_g if (other_code[i] > other_b) & (leaf == other_h) else leaf
        leaves = value[leaf_starts[t] :]
        for i in range(n_rows):
            scores[first + i] += leaves[at[i]]


@kernel
def sweep_levels(
    codes, width, n_rows, trees, level_starts, leaf_starts, slot, bound, value, at, scores, first
):  # fmt: skip
    """Do what `sweep_trees` does for trees that ask the same on a whole level: split ``k`` of a tree is its level ``k``."""
    for t in trees:
        for i in range(width):
            at[i] = 0
        for k in range(level_starts[t], level_starts[t + 1]):
            code = codes[slot[k]]
            b = bound[k]
            for i in range(width):
                at[i] = at[i] + at[i] + (code[i] > b)
        leaves = value[leaf_starts[t] :]
        for i in range(n_rows):
            scores[first + i] += leaves[at[i]]


@kernel
def walk_trees(
    codes, n_rows, trees, tree_starts, slot, bound, left, value, depth, scores, first
):  # fmt: skip
    """Do what `sweep_trees` does, node by node; ``codes`` has room for whole ``LANES`` of documents (the last may be anything)."""
    n_lanes = (n_rows + LANES - 1) // LANES * LANES
    at = np.zeros(LANES, np.int32)
    for t in trees:
        root = tree_starts[t]
        for i in range(0, n_lanes, LANES):
            for lane in range(LANES):
                at[lane] = 0
            for _ in range(depth[t]):
                for lane in range(LANES):
                    node = root + at[lane]
                    code = codes[slot[node], i + lane]
                    at[lane] = left[node] + (code > bound[node])
            for lane in range(min(LANES, n_rows - i)):
                scores[first + i + lane] += value[root + at[lane]]
