"""Kernels of prediction: map raw values to codes, add trees to scores, apply a link.  Flat loops without checks.

``rankmill.scorer.model_file`` has checked every index that they follow.

The code ``b`` of a value is 0 if it is missing, else 1 plus the number of the feature's cuts below it.  A split that sends
missing values left tests ``b > bound``.  One that sends them right tests ``b - 1 > bound``, where b - 1 of a missing value wraps
round to the greatest code: `wrap_codes` writes these codes to slots of their own.

The code of a category is 1 plus its position among the feature's cuts, and 1 plus their number if it is none of them.  A split
by a set is turned into one by a cut: `_look_up_sets` writes, for all sets of a tree, whether each document goes right (1) or
left (0) to slots that the next tree uses again, and the split tests ``b > 0`` there.

``codes`` is (slots, documents), so the codes of a feature are contiguous, and a split is evaluated for all documents of a tile
with the widest vector instructions.  Three algorithms give the same sums:

- `sweep_trees` evaluates every split of a tree, parents first.  ``at`` holds for each document the leftmost leaf below the node
  that it has reached; a split moves the documents at its ``first_leaf`` that go right to its ``right_leaf``, the leftmost leaf
  below its right child.  It does not branch on documents, and takes a fraction of a cycle for each split and document.
- `sweep_levels` does so for oblivious trees: one split per level, one bit of the leaf's number each.
- `walk_trees` descends node by node, ``LANES`` documents together: for trees of very many leaves, and for so few documents
  that they do not fill an instruction.
"""

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import exp_precise

LANES = 8
STRIP = 64  # rows whose values stay in the first-level cache while they are coded feature by feature


@kernel
def bin_rows(values, first, n_rows, columns, absent, cuts, starts, steps, buckets, origin, scale, other, codes):
    """Write ``codes[k, i]``: 0 if ``values[first + i, columns[k]]`` is NaN, else 1 + the number of cuts below it.

    If ``other[k]`` is positive, the feature is categorical, and this is the code of a value that equals no cut.

    The cuts of slot ``k`` are ascending from ``cuts[starts[k]]`` on, followed by NaN, which no value exceeds; if ``columns[k]``
    is negative, every document has the value ``absent``.  A value x is in the bucket ``(x - origin[k]) * scale[k]`` of equal
    width, and ``buckets[k]`` has the number of cuts in the buckets before: a search counts the cuts below x among the next
    ``2 ** steps[k] - 1``.  ``scale`` 0 makes a single bucket.

    The documents of a strip take each step together, without a branch, so that their reads overlap.
    """
    value = np.zeros(STRIP, np.float32)  # the last strip may be shorter
    below = np.empty(STRIP, np.int32)
    last = np.float32(buckets.shape[1] - 1)
    for strip in range(0, n_rows, STRIP):
        n = min(STRIP, n_rows - strip)
        for k in range(columns.shape[0]):
            column = columns[k]
            for i in range(n):
                value[i] = values[first + strip + i, column] if column >= 0 else absent
            table = cuts[starts[k] :]
            if scale[k] > 0:
                before = buckets[k]
                begin = origin[k]
                factor = scale[k]
                for i in range(STRIP):
                    place = (value[i] - begin) * factor
                    place = place if place > 0 else np.float32(0)  # NaN, too
                    below[i] = before[np.int32(place if place < last else last)]
            else:
                for i in range(STRIP):
                    below[i] = 0
            for step in range(steps[k] - 1, -1, -1):
                middle = (1 << step) - 1
                for i in range(STRIP):
                    below[i] += np.int32(table[below[i] + middle] < value[i]) << step
            if other[k] > 0:
                for i in range(STRIP):
                    below[i] = below[i] if table[below[i]] == value[i] else other[k] - 1
            for i in range(n):
                codes[k, strip + i] = 0 if value[i] != value[i] else below[i] + 1


@kernel
def bin_column(values, first, k, cuts, starts, steps, buckets, origin, scale, other, codes):
    """Do what `bin_rows` does, for slot ``k`` alone: ``values`` (m,) are those of its column, from row ``first`` on.

    ``codes[tile, k, i]`` is the code of row ``tile * width + i``, with ``width`` documents per tile.
    """
    width = codes.shape[2]
    below = np.empty(width, np.int32)
    last = np.float32(buckets.shape[1] - 1)
    table = cuts[starts[k] :]
    before = buckets[k]
    begin = origin[k]
    factor = scale[k]
    done = 0
    while done < values.shape[0]:
        at = (first + done) % width
        n = min(width - at, values.shape[0] - done)
        value = values[done : done + n]
        out = codes[(first + done) // width, k, at : at + n]
        for i in range(n):
            place = (value[i] - begin) * factor
            place = place if place > 0 else np.float32(0)  # NaN, too; and where all cuts are in the first bucket
            below[i] = before[np.int32(place if place < last else last)]
        for step in range(steps[k] - 1, 0, -1):
            middle = (1 << step) - 1
            for i in range(n):
                below[i] += np.int32(table[below[i] + middle] < value[i]) << step
        for i in range(n):
            # the last step; beyond the cuts there is NaN, which no value exceeds
            out[i] = 0 if value[i] != value[i] else below[i] + np.int32(table[below[i]] < value[i]) + 1
        if other[k] > 0:
            for i in range(n):
                if out[i] > 0 and table[out[i] - 1] != value[i]:
                    out[i] = other[k]
        done += n


@kernel
def _push(heap, size, score):
    """Push ``score`` to the min-heap ``heap`` of the ``size`` greatest scores so far; return the new size."""
    at = size
    if size < heap.shape[0]:
        while at > 0:
            up = (at - 1) >> 1
            if heap[up] <= score:
                break
            heap[at] = heap[up]
            at = up
        heap[at] = score
        return size + 1
    if score > heap[0]:
        at = 0
        down = 1
        while down < size:
            if down + 1 < size and heap[down + 1] < heap[down]:
                down += 1
            if heap[down] >= score:
                break
            heap[at] = heap[down]
            at = down
            down = 2 * at + 1
        heap[at] = score
    return size


@kernel
def mark_kept(starts, scores, heap, keep):
    """Set ``keep[i]`` to whether fewer than k = ``len(heap)`` rows of row i's run are above it, for runs longer than k.

    Run r is rows ``starts[r]`` to ``starts[r + 1]``.
    """
    for r in range(starts.shape[0] - 1):
        if starts[r + 1] - starts[r] > heap.shape[0]:
            size = 0
            for i in range(starts[r], starts[r + 1]):
                size = _push(heap, size, scores[i])
            for i in range(starts[r], starts[r + 1]):
                keep[i] = scores[i] >= heap[0]


@kernel
def raise_bars(query, scores, heaps, sizes, keep):
    """Add the scores of the rows to ``keep`` to the heaps of their queries, and clear ``keep`` for rows with k greater scores there.

    ``heaps`` (queries, k) holds the greatest scores of each query so far, ``sizes`` (queries,) their number.
    """
    for i in range(query.shape[0]):
        if keep[i]:
            sizes[query[i]] = _push(heaps[query[i]], sizes[query[i]], scores[i])
    for i in range(query.shape[0]):
        if keep[i] and sizes[query[i]] == heaps.shape[1]:
            keep[i] = scores[i] >= heaps[query[i], 0]


@kernel
def pack_trees(
    n_trees, tree_starts, node_slot, node_bound, node_left, node_right, node_value, tree_weights,
    greatest, slot, bound, left, value, depth, queue,
):  # fmt: skip
    """Lay out the first ``n_trees`` for `walk_trees`: breadth first, siblings adjacent; OUT: slot, bound, left, value, depth.

    ``value`` is the node's value times the tree's weight, ``depth`` the greatest depth of each tree.  ``left`` counts from the
    start of the tree, and right children follow their left siblings, so that the next node is ``left + went_right``.  A leaf
    has itself as ``left`` and the ``greatest`` code as bound, so that documents stay there.  A document goes right at a node if
    its code in ``node_slot`` exceeds ``node_bound``; the slot of a leaf is -1.  ``queue`` is scratch for the nodes of the
    largest tree.
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
            if node_slot[node] < 0:
                slot[out] = 0
                bound[out] = greatest
                left[out] = i
            else:
                slot[out] = node_slot[node]
                bound[out] = node_bound[node]
                left[out] = filled
                queue[filled] = node_left[node]
                queue[filled + 1] = node_right[node]
                filled += 2
            i += 1
        depth[t] = levels


@kernel
def number_leaves(
    n_trees, tree_starts, node_slot, node_bound, node_left, node_right, node_value, tree_weights,
    split_starts, leaf_starts, slot, bound, first_leaf, right_leaf, value, stack, place,
):  # fmt: skip
    """Lay out the first ``n_trees`` for `sweep_trees`; OUT: slot, bound, first_leaf, right_leaf of each split, value of each leaf.

    Splits are stored parents first, left before right; leaves from left to right, with the leaf's value times the tree's
    weight.  ``stack`` and ``place`` are scratch for the nodes of the largest tree.
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
                right_leaf[parent] = leaf  # a right child: the leaves to its left have been numbered
            if node_slot[node] < 0:
                value[leaf_starts[t] + leaf] = tree_weights[t] * node_value[node]
                leaf += 1
                continue
            slot[split] = node_slot[node]
            bound[split] = node_bound[node]
            first_leaf[split] = leaf
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
def _look_up_sets(codes, width, n_rows, t, sets):
    """Write for the sets of tree ``t`` whether each document goes right, for the first ``n_rows`` of ``width`` documents.

    ``sets`` is a `rankmill.scorer.tree_layout.SetTables`.  A group is up to 8 sets of one feature: bit j of its table's entry
    for a code is the answer of set j.  So a group takes one read for each document, which cannot be done for several
    documents at once, and its bits are then spread with whole instructions.
    """
    for group in range(sets.starts[t], sets.starts[t + 1]):
        code = codes[sets.source[group]]
        table = sets.tables[sets.table_starts[group] :]
        slot = sets.slot[group]
        bits = codes[slot]
        for i in range(n_rows):  # the documents after them may have any code
            bits[i] = table[code[i]]
        for j in range(sets.size[group] - 1, -1, -1):  # the first slot, which holds all bits, last
            out = codes[slot + j]
            for i in range(width):
                out[i] = (bits[i] >> j) & 1


@kernel
def sweep_trees(
    codes, width, n_rows, trees, sets, split_starts, leaf_starts, slot, bound, first_leaf, right_leaf, value, at, scores, first
):  # fmt: skip
    """``scores[first + i] += value of the leaf of document i`` for each of ``trees``, in order, and the first ``n_rows`` documents.

    ``width``, from ``n_rows`` to the size of ``at`` and ``codes``, is the number of documents evaluated: whole instructions.
    Each tree has an even number of splits, and two are evaluated at once, since a second read of ``at`` would wait for the first.
    """
    for t in trees:
        _look_up_sets(codes, width, n_rows, t, sets)
        for i in range(width):
            at[i] = 0
        for k in range(split_starts[t], split_starts[t + 1], 2):
            code, other_code = codes[slot[k]], codes[slot[k + 1]]
            b, other_b = bound[k], bound[k + 1]
            h, other_h = first_leaf[k], first_leaf[k + 1]
            g, other_g = right_leaf[k], right_leaf[k + 1]
            for i in range(width):
                leaf = at[i]
                leaf = g if (code[i] > b) & (leaf == h) else leaf
                at[i] = other_g if (other_code[i] > other_b) & (leaf == other_h) else leaf
        leaves = value[leaf_starts[t] :]
        for i in range(n_rows):
            scores[first + i] += leaves[at[i]]


@kernel
def sweep_levels(
    codes, width, n_rows, trees, sets, level_starts, leaf_starts, slot, bound, value, at, scores, first
):  # fmt: skip
    """Do what `sweep_trees` does for oblivious trees: split ``k`` of a tree is its level ``k``."""
    for t in trees:
        _look_up_sets(codes, width, n_rows, t, sets)
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
    codes, n_rows, trees, sets, tree_starts, slot, bound, left, value, depth, scores, first
):  # fmt: skip
    """Do what `sweep_trees` does, node by node; ``codes`` has room for whole ``LANES`` of documents (the last may hold anything)."""
    n_lanes = (n_rows + LANES - 1) // LANES * LANES
    at = np.zeros(LANES, np.int32)
    for t in trees:
        _look_up_sets(codes, n_rows, n_rows, t, sets)
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


@kernel
def _softmax_score(values, outputs, i):
    """Sum of values[k] * softmax(outputs[:, i])[k], from the first k to the last."""
    greatest = outputs[0, i]
    for k in range(1, outputs.shape[0]):
        greatest = max(greatest, outputs[k, i])
    total = 0.0
    score = 0.0
    for k in range(outputs.shape[0]):
        mass = exp_precise(outputs[k, i] - greatest)
        total += mass
        score += values[k] * mass
    return score / total


@kernel
def _ordinal_score(values, outputs, i):
    """Sum of values[k] * P(y = k), from the first k to the last, where outputs[k, i] is the logit of P(y <= k).

    Differences of P(y > k) equal those of P(y <= k), and keep their precision near 0, where nearly all documents are.  The
    unclipped differences sum to 1, so the clipped ones to 1 or more: no division by 0.
    """
    n_outputs = outputs.shape[0]
    total = 0.0
    score = 0.0
    before = 1.0
    for k in range(n_outputs + 1):
        above = 0.0
        if k < n_outputs:
            f = outputs[k, i]
            e = exp_precise(-abs(f))
            above = (e if f > 0.0 else 1.0) / (1.0 + e)
        mass = before - above
        if mass < 0.0:
            mass = 0.0
        total += mass
        score += values[k] * mass
        before = above
    return score / total


@kernel
def apply_link(ordinal, values, outputs, first, last, scores):
    """scores[i] = expected value of document i for first <= i < last; ``rankmill.scorer.links`` says how.

    ``outputs`` is (K, n); ``values`` holds the value of each grade: K of them, or K + 1 if ``ordinal``.
    """
    if ordinal:
        for i in range(first, last):
            scores[i] = _ordinal_score(values, outputs, i)
    else:
        for i in range(first, last):
            scores[i] = _softmax_score(values, outputs, i)
