"""Partition the rows and pairs of a node: those of the left child come first.

    before:  rows = [a b c d e f]      after:  rows = [a c f | b d e]   (a, c, f go left)

Both sides keep their order.  Several workers do it in two steps, with a barrier between them:

    deal_out, each worker its share:    rows = [a b c | d e f]    spare = [a c b | f e d]   right ones back to front
    collect, behind the workers before: rows = [a c f | b d e]
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.foundation.kernels.instructions import prefetch
from rankmill.trainer._kernels import LANE, goes_left, is_in
from rankmill.trainer.growing._histogram_kernels import FAR, column_of
from rankmill.trainer.growing._state_kernels import (
    LINE,
    LOW,
    meet,
)


@inner_kernel
def write_sides(node, bins, table, sides):
    """Set sides[code] to 1 if the split sends rows with that code to the left, else to 0.

    The code is in the lane of the split's feature.
    """
    threshold, digits = table[node].threshold, bins.digits[table[node].feature]
    missing_left = table[node].missing_left != 0
    for code in range(256):
        b = digits[code]
        if threshold > 0:
            sides[code] = b <= threshold and (b != 0 or missing_left)
        else:
            sides[code] = is_in(table[node].set, b)


@kernel(inline="always")
def sides_of(node, bins, table, sides):
    """Return ``sides`` (256,), written by :func:`write_sides`."""
    write_sides(node, bins, table, sides)
    return sides


@kernel
def partition(column, stride, sides, rows, packed, first, last, spare_rows, spare_packed):
    """Reorder rows[first:last] (and packed with them) so that the left child comes first; both keep their order.

    ``column[row * stride]`` is the code of the split feature's lane, ``sides[code]`` 1 if it goes left.  Returns the
    number of rows on the left.
    """
    left, right = np.uint64(first), np.uint64(0)  # unsigned: no index is counted from the end, which takes time
    for i in range(np.uint64(first), np.uint64(last)):
        row, value = rows[i], packed[i]
        prefetch(column, rows[i + np.uint64(FAR)] * stride)
        left_side = np.uint64(sides[column[np.uint64(row) * np.uint64(stride)]])
        rows[left] = row
        packed[left] = value
        spare_rows[right] = row
        spare_packed[right] = value
        left += left_side
        right += np.uint64(1) - left_side
    for i in range(right):
        rows[left + i] = spare_rows[i]
        packed[left + i] = spare_packed[i]
    return np.int64(left) - first


@inner_kernel
def deal_out(column, stride, sides, rows, packed, first, last, spare_rows, spare_packed):
    """First half of a partition by several workers: one worker's rows[first:last] into spare[first:last].

    Returns the number of rows on the left.
    """
    left, right = np.uint64(first), np.uint64(last) - np.uint64(1)
    for i in range(np.uint64(first), np.uint64(last)):
        row = rows[i]
        prefetch(column, rows[i + np.uint64(FAR)] * stride)
        left_side = np.uint64(sides[column[np.uint64(row) * np.uint64(stride)]])
        to = left if left_side else right
        spare_rows[to] = row
        spare_packed[to] = packed[i]
        left += left_side
        right -= np.uint64(1) - left_side
    return np.int64(left) - first


@inner_kernel
def collect(spare_rows, spare_packed, first, last, n_left, left_to, right_to, rows, packed):
    """Second step: copy the rows that one worker dealt out behind those of the workers before it, on either side."""
    first, last = np.uint64(first), np.uint64(last)
    left_to, right_to, n_left = np.uint64(left_to), np.uint64(right_to), np.uint64(n_left)
    for i in range(n_left):
        rows[left_to + i] = spare_rows[first + i]
        packed[left_to + i] = spare_packed[first + i]
    for i in range(last - first - n_left):
        rows[right_to + i] = spare_rows[last - np.uint64(1) - i]
        packed[right_to + i] = spare_packed[last - np.uint64(1) - i]


@inner_kernel
def part_pairs(column, stride, sides, pairs, first, last, spare, out):
    """Reorder pairs[first:last].

    First pairs inside the left child, then pairs inside the right one, then pairs that the split separates.

    ``out`` gets how many are left and right, and the sums of their hessians; cut ones are gone.
    """
    left, right = first, 0
    sum_left, sum_right = np.int64(0), np.int64(0)
    for k in range(first, last):
        both, c = pairs[k, 0], pairs[k, 1]
        a, b = column[(both >> np.int64(32)) * stride], column[(both & LOW) * stride]
        a_left, b_left = sides[a] != 0, sides[b] != 0
        if a_left & b_left:
            pairs[left, 0] = both
            pairs[left, 1] = c
            left += 1
            sum_left += c
        elif not (a_left | b_left):
            spare[right, 0] = both
            spare[right, 1] = c
            right += 1
            sum_right += c
    for k in range(right):
        pairs[left + k, 0] = spare[k, 0]
        pairs[left + k, 1] = spare[k, 1]
    out[0] = left - first
    out[1] = right
    out[2] = sum_left
    out[3] = sum_right


@inner_kernel
def partition_node(crew, node, bins, rows, table):
    """Partition a node by its split, the share of one worker; another barrier must follow.  False: stop.

    The numbers of rows that go left are in ``rows.lefts``, see :func:`rows_left`.
    """
    column, stride = column_of(bins, table[node].feature), bins.words.shape[2] * 8
    first, n, worker, size = table[node].first, table[node].last - table[node].first, crew.worker, crew.size
    begin, end = first + worker * n // size, first + (worker + 1) * n // size
    lefts = rows.lefts
    lefts[worker * LINE] = deal_out(
        column,
        stride,
        sides_of(node, bins, table, rows.sides[worker]),
        rows.rows,
        rows.packed,
        begin,
        end,
        rows.spare_rows,
        rows.spare_packed,
    )
    if not meet(crew.barrier):
        return False
    before = np.int64(0)
    for other in range(worker):
        before += lefts[other * LINE]
    collect(
        rows.spare_rows, rows.spare_packed, begin, end, lefts[worker * LINE], first + before,
        begin + rows_left(crew, rows) - before, rows.rows, rows.packed,
    )  # fmt: skip
    return True


@inner_kernel
def rows_left(crew, rows):
    """Return the number of left rows of the node that was partitioned last."""
    total = np.int64(0)
    for worker in range(crew.size):
        total += rows.lefts[worker * LINE]
    return total


@inner_kernel
def partition_alone(crew, node, bins, rows, table):
    """Partition a node by its split; returns the number of rows on the left."""
    first = table[node].first
    return partition(
        column_of(bins, table[node].feature), bins.words.shape[2] * 8,
        sides_of(node, bins, table, rows.sides[crew.worker]),
        rows.rows, rows.packed, first, table[node].last, rows.spare_rows[first:], rows.spare_packed[first:],
    )  # fmt: skip


@inner_kernel
def divide_pairs(node, bins, rows, table, pairs, out):
    """Assign the pairs of a split node to its children, by worker 0."""
    left, first = table[node].left, table[node].pairs_first
    part_pairs(
        column_of(bins, table[node].feature), bins.words.shape[2] * 8, sides_of(node, bins, table, rows.sides[0]),
        pairs.pairs, first, table[node].pairs_last, pairs.spare, out,
    )  # fmt: skip
    table[left].pairs_first = first
    table[left].pairs_last = first + out[0]
    table[left].inside = out[2]
    table[left + 1].pairs_first = first + out[0]
    table[left + 1].pairs_last = first + out[0] + out[1]
    table[left + 1].inside = out[3]


@kernel
def add_tree_blocked(
    words, lanes, digits, feature, threshold, missing_left, sets, left, right, value, rows, first, last, scores
):
    """scores[row] += value of the leaf that the bins of the row lead to, for rows[first:last]."""
    codes, width = words.view(np.uint8), words.shape[2] * 8
    for i in range(first, last):
        row, node = np.int64(rows[i]), 0
        while feature[node] >= 0:
            f = feature[node]
            lane = lanes[f, LANE]
            b = np.int64(digits[f, codes[lane // width, row, lane % width]])
            node = left[node] if goes_left(b, threshold[node], missing_left[node], sets[node]) else right[node]
        scores[row] += value[node]
