"""Flat loops over bins, packed gradients and rows.  No checks: the wrappers next door have done them.

Words.  A *block* holds ``BLOCK_WIDTH`` features; ``words[block, row, w]`` holds bins of features ``8 w .. 8 w + 7`` of
that block, the first in the lowest byte.  A *packed* value holds a gradient in its high and a curvature in its low
32 bits; the curvature is never negative and its sum over all rows fits 32 bits, so sums never carry between the two.
All sums are sums of integers: their order does not matter, so neither do threads, blocks or the order of rows.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LOOK_AHEAD = 64  # rows between the prefetch and the use; so many are read past the end of a node's rows
_FAR = np.int64(LOOK_AHEAD)
_LOW = np.int64(0xFFFFFFFF)
_BYTE = np.uint64(255)
_U8 = np.uint64(8)
_U256 = np.uint64(256)
_MAGIC = 6755399441055744.0  # 1.5 * 2 ** 52: adding it leaves the rounded integer in the low bits of the double


def _address(context, builder, signature, arguments):
    view = context.make_array(signature.args[0])(context, builder, value=arguments[0])
    return builder.gep(view.data, [context.cast(builder, arguments[1], signature.args[1], types.intp)])


@intrinsic
def prefetch(typingctx, array, index):
    """Ask for the cache line of ``array[index]`` (1-d, contiguous); reads nothing, so any index is harmless."""
    signature = types.void(array, index)

    def codegen(context, builder, signature, arguments):
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.bitcast(_address(context, builder, signature, arguments), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def bits_of(typingctx, value):
    """Return the 64 bits of a float64 as an int64."""
    signature = types.int64(types.float64)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return signature, codegen


@intrinsic
def float_of(typingctx, value):
    """Return the float64 whose bits are those of an int64."""
    signature = types.float64(types.int64)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return signature, codegen


@intrinsic
def load_acquire(typingctx, array, index):
    """Return ``array[index]`` (int64); what its writer wrote before storing it can be seen from now on."""
    signature = types.int64(array, index)

    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(_address(context, builder, signature, arguments), "acquire", 8)

    return signature, codegen


@intrinsic
def store_release(typingctx, array, index, value):
    """Store an int64 in ``array[index]`` after everything that was written before."""
    signature = types.void(array, index, types.int64)

    def codegen(context, builder, signature, arguments):
        builder.store_atomic(arguments[2], _address(context, builder, signature, arguments), "release", 8)
        return context.get_dummy_value()

    return signature, codegen


@njit(nogil=True, cache=True)
def post(flags, index, value):
    """flags[index] = value, seen by who waits for it."""
    store_release(flags, index, value)


@njit(nogil=True, cache=True)
def watch(flags, index, seen, looks):
    """Return flags[index] as soon as it differs from ``seen``, and ``seen`` after so many looks."""
    for _ in range(looks):
        value = load_acquire(flags, index)
        if value != seen:
            return value
    return seen


@njit(nogil=True, cache=True, error_model="numpy")
def absolute_sums(values, block, first, last, sums):
    """sums[b] = sum of |values| over rows b*block .. (b+1)*block, each in row order, for b in first .. last."""
    n = values.shape[0]
    for b in range(first, last):
        total = 0.0
        for i in range(b * block, min(n, (b + 1) * block)):
            total += abs(values[i])
        sums[b] = total


@njit(nogil=True, cache=True, error_model="numpy")
def pack(gradients, curvatures, gradient_scale, curvature_scale, first, last, packed):
    """packed[i] = round(g * gradient_scale) << 32 + round(h * curvature_scale), to nearest, ties to even."""
    magic = bits_of(_MAGIC)
    for i in range(first, last):
        g = bits_of(gradients[i] * gradient_scale + _MAGIC) - magic
        h = bits_of(curvatures[i] * curvature_scale + _MAGIC) - magic
        packed[i] = (g << np.int64(32)) + h


@njit(nogil=True, cache=True, error_model="numpy")
def _accumulate(words, rows, packed, first, last, out):
    """out[256 * lane + bin of lane] += packed[i] for the rows[i] of one block, i in first .. last."""
    lanes = words.shape[1]
    flat = words.reshape(-1)
    for i in range(first, last):
        row = rows[i]
        prefetch(flat, rows[i + _FAR] * lanes)
        value = packed[i]
        for w in range(lanes):
            word = words[row, w]
            base = np.uint64(w) * np.uint64(2048)
            out[base + (word & _BYTE)] += value
            out[base + _U256 + ((word >> _U8) & _BYTE)] += value
            out[base + np.uint64(512) + ((word >> np.uint64(16)) & _BYTE)] += value
            out[base + np.uint64(768) + ((word >> np.uint64(24)) & _BYTE)] += value
            out[base + np.uint64(1024) + ((word >> np.uint64(32)) & _BYTE)] += value
            out[base + np.uint64(1280) + ((word >> np.uint64(40)) & _BYTE)] += value
            out[base + np.uint64(1536) + ((word >> np.uint64(48)) & _BYTE)] += value
            out[base + np.uint64(1792) + (word >> np.uint64(56))] += value


@njit(nogil=True, cache=True, error_model="numpy")
def subtract(from_parent, child, n_bins, first_feature, last_feature):
    """Turn the parent's histogram into that of the other child: ``from_parent[feature, bin] -= child[feature, bin]``."""
    for f in range(first_feature, last_feature):
        for b in range(n_bins[f]):
            from_parent[f, b] -= child[f, b]


@njit(nogil=True, cache=True, error_model="numpy")
def _gains(prefix, extra, last, total_g, total_h, n_rows, min_rows, bounds, parent, out):
    """out[b] = gain of the split after bin b, 1 <= b < last, with ``prefix[b] + extra`` on the left; -1 where not allowed.

    Straight-line code over unsigned b, so that it becomes vector code: integers turn into floats through the bits.
    """
    unit_g, unit_h, lambda_l2, min_curvature = bounds[0], bounds[1], bounds[2], bounds[4]
    rows_a_unit = n_rows / total_h
    magic = bits_of(_MAGIC)
    for b in range(np.uint64(1), np.uint64(last)):
        left = prefix[b] + extra
        h_left = float_of((left & _LOW) + magic) - _MAGIC
        g_left = float_of((left >> np.int64(32)) + magic) - _MAGIC
        h_right = total_h - h_left
        g_right = total_g - g_left
        g_left, g_right = g_left * unit_g, g_right * unit_g
        least = min(h_left, h_right)
        allowed = (least > 0.0) & (least * unit_h >= min_curvature) & (least * rows_a_unit + 0.5 >= min_rows)
        gain = (
            g_left * g_left / (h_left * unit_h + lambda_l2)
            + g_right * g_right / (h_right * unit_h + lambda_l2)
            - parent
        )
        out[b] = gain if allowed else -1.0


@njit(nogil=True, cache=True, error_model="numpy")
def _left_is_heavier(left, total_h):
    """Whether the left side, a packed sum, has at least half of the curvature."""
    return 2.0 * np.float64(left & _LOW) >= total_h


@njit(nogil=True, cache=True, error_model="numpy")
def _forbid_small_sides(counts, prefix, total_h, weightless, missing_left, last, n_rows, min_rows, out):
    """out[b] = -1 where the split after bin b leaves a side with too few rows.

    The missing go left if ``missing_left``, or, where they are ``weightless``, to the heavier side.
    """
    present = np.int64(0)
    for b in range(1, last):
        present += counts[b]
        with_missing = _left_is_heavier(prefix[b], total_h) if weightless else missing_left
        rows_left = present + counts[0] if with_missing else present
        if rows_left < min_rows or n_rows - rows_left < min_rows:
            out[b] = -1.0


@njit(nogil=True, cache=True, error_model="numpy")
def best_split(
    hist, counts, n_bins, enabled, first_feature, last_feature, total, n_rows, bounds, work, gain_out, split_out
):
    """Best (feature, bin, side of the missing) of one node over a range of features.

    ``bounds`` holds [1 / gradient scale, 1 / curvature scale, lambda, min gain, min curvature, min rows].  Rows on
    a side are estimated as n_rows * H_side / H (no need to for a bound of one: no side with weight is empty), unless
    ``counts`` (256,) holds the rows of each bin of the one feature asked for; empty: estimate.  ``gain_out[0]`` gets
    the gain (0: no split), ``split_out`` gets [feature, bin, missing left, packed sum of the left side].  Equal gains
    go to the lowest feature, then the lowest bin, then missing right; missing values that weigh nothing in this node
    follow the heavier side.  ``work`` (3, 256) float64 is scratch space.
    """
    counted = counts.shape[0] > 0
    prefix = work[0].view(np.int64)
    missing_right, missing_left = work[1], work[2]
    total_g, total_h = np.float64(total >> np.int64(32)), np.float64(total & _LOW)
    best = 0.0
    split_out[0] = -1
    gain_out[0] = 0.0
    denominator = total_h * bounds[1] + bounds[2]
    if total_h == 0.0:
        return
    estimated_rows = 0.0 if counted or bounds[5] <= 1.0 else bounds[5]
    whole_g = total_g * bounds[0]
    parent = whole_g * whole_g / denominator + bounds[3]
    for f in range(first_feature, last_feature):
        if not enabled[f]:
            continue
        missing = hist[f, 0]
        last = n_bins[f]  # one past the last bin that may end the left side
        present = np.int64(0)
        for b in range(1, last):
            present += hist[f, b]
            prefix[b] = present
        _gains(prefix, np.int64(0), last, total_g, total_h, n_rows, estimated_rows, bounds, parent, missing_right)
        if missing != 0:
            _gains(prefix, missing, last, total_g, total_h, n_rows, estimated_rows, bounds, parent, missing_left)
        if counted:
            _forbid_small_sides(counts, prefix, total_h, missing == 0, False, last, n_rows, bounds[5], missing_right)
            _forbid_small_sides(counts, prefix, total_h, False, True, last, n_rows, bounds[5], missing_left)
        for b in range(1, last):
            if missing_right[b] > best:
                best = missing_right[b]
                split_out[0] = f
                split_out[1] = b
                split_out[2] = 1 if missing == 0 and _left_is_heavier(prefix[b], total_h) else 0
                split_out[3] = prefix[b]
            if missing != 0 and missing_left[b] > best:
                best = missing_left[b]
                split_out[0] = f
                split_out[1] = b
                split_out[2] = 1
                split_out[3] = prefix[b] + missing
    gain_out[0] = best


@njit(nogil=True, cache=True, error_model="numpy")
def count_bins(column, stride, rows, first, last, counts):
    """counts[bin] = rows[first:last] with that bin of one feature."""
    counts[:] = 0
    for i in range(first, last):
        prefetch(column, rows[i + _FAR] * stride)
        counts[column[rows[i] * stride]] += 1


@njit(nogil=True, cache=True, error_model="numpy")
def count_share(words, rows, packed, first, last, n_bins, share, shares, histogram, edge):
    """Add one worker's share of (row, feature) visits of rows[first:last] to ``histogram`` (n_features, 256).

    The blocks are laid end to end, ``n`` rows each, and the line is cut into ``shares`` equal parts.  Where a part
    begins inside a block, that block's visits go to ``edge`` (width, 256); returns the number of that block, -1 if
    there is none.  The part in which a block begins clears it.
    """
    n, n_blocks, width = last - first, words.shape[0], words.shape[2] * 8
    start, stop = n * n_blocks * share // shares, n * n_blocks * (share + 1) // shares
    partial = np.int64(-1)
    for block in range(start // n, n_blocks):
        begin, end = max(start - block * n, 0), min(stop - block * n, n)
        if begin >= end:
            break
        features = slice(block * width, (block + 1) * width)
        if begin == 0:
            for f in range(block * width, (block + 1) * width):
                for b in range(n_bins[f]):
                    histogram[f, b] = 0
            target = histogram[features]
        else:
            partial = block
            edge[:] = 0
            target = edge
        _accumulate(words[block], rows, packed, first + begin, first + end, target.reshape(-1))
    return partial


@njit(nogil=True, cache=True, error_model="numpy")
def add_edge(edge, n_bins, block, histogram):
    """Add a block's histogram ``edge`` (width, 256) to ``histogram`` (n_features, 256)."""
    width = edge.shape[0]
    for lane in range(width):
        f = block * width + lane
        for b in range(n_bins[f]):
            histogram[f, b] += edge[lane, b]


@njit(nogil=True, cache=True, error_model="numpy")
def search_blocks(width, n_bins, enabled, blocks, small, large, totals, n_rows, bounds, work, gains, splits):
    """For the blocks of one worker: turn the parent's histogram into the larger child's, and split both children.

    ``small`` is the smaller child's histogram, ``large`` the parent's.  ``gains[child, block]`` and
    ``splits[child, block]`` get the results.  With ``n_rows[1] == 0`` there is no larger child (the root).
    """
    estimate = np.empty(0, dtype=np.int64)
    for k in range(blocks.shape[0]):
        block = blocks[k]
        first, last = block * width, (block + 1) * width
        best_split(
            small, estimate, n_bins, enabled, first, last, totals[0], n_rows[0], bounds, work,
            gains[0, block:], splits[0, block],
        )  # fmt: skip
        if n_rows[1] > 0:
            subtract(large, small, n_bins, first, last)
            best_split(
                large, estimate, n_bins, enabled, first, last, totals[1], n_rows[1], bounds, work,
                gains[1, block:], splits[1, block],
            )  # fmt: skip


@njit(nogil=True, cache=True, error_model="numpy")
def partition(column, stride, threshold, missing_left, rows, packed, first, last, spare_rows, spare_packed):
    """Reorder rows[first:last] (and packed with them) so that the left child comes first; both keep their order.

    before:  rows = [a b c d e f]      after:  rows = [a c f | b d e]   (a, c, f go left)

    ``column[row * stride]`` is the bin of the split feature.  Returns the number of rows on the left.
    """
    left, right = first, 0
    for i in range(first, last):
        row = rows[i]
        prefetch(column, rows[i + _FAR] * stride)
        b = column[row * stride]
        goes_left = (b <= threshold) & ((b != 0) | (missing_left != 0))
        value = packed[i]
        rows[left] = row
        packed[left] = value
        spare_rows[right] = row
        spare_packed[right] = value
        left += goes_left
        right += 1 - goes_left
    for i in range(right):
        rows[left + i] = spare_rows[i]
        packed[left + i] = spare_packed[i]
    return left - first


@njit(nogil=True, cache=True, error_model="numpy")
def deal_out(column, stride, threshold, missing_left, rows, packed, first, last, spare_rows, spare_packed):
    """First half of a partition by several workers: one worker's rows[first:last] into spare[first:last].

    rows = [a b c d e f]      spare = [a c f | e d b]   (a, c, f go left; the others come back to front)

    Returns the number of rows on the left.
    """
    left, right = first, last - 1
    for i in range(first, last):
        row = rows[i]
        prefetch(column, rows[i + _FAR] * stride)
        b = column[row * stride]
        goes_left = (b <= threshold) & ((b != 0) | (missing_left != 0))
        to = left if goes_left else right
        spare_rows[to] = row
        spare_packed[to] = packed[i]
        left += goes_left
        right -= 1 - goes_left
    return left - first


@njit(nogil=True, cache=True, error_model="numpy")
def collect(spare_rows, spare_packed, first, last, n_left, left_to, right_to, rows, packed):
    """Second half: put what one worker dealt out where the rows of all workers before it end, on either side."""
    for i in range(n_left):
        rows[left_to + i] = spare_rows[first + i]
        packed[left_to + i] = spare_packed[first + i]
    for i in range(last - first - n_left):
        rows[right_to + i] = spare_rows[last - 1 - i]
        packed[right_to + i] = spare_packed[last - 1 - i]


@njit(nogil=True, cache=True, error_model="numpy")
def leaf_sums(gradients, curvatures, gradient_scale, curvature_scale, rows, starts, first, last, out):
    """out[leaf] = (sum of round(g * scale), sum of round(h * scale)) over those rows[first:last] that the leaf holds.

    63-bit integers; leaf ``l`` holds rows[starts[l]:starts[l + 1]].
    """
    for leaf in range(starts.shape[0] - 1):
        total_g, total_h = np.int64(0), np.int64(0)
        for i in range(max(starts[leaf], first), min(starts[leaf + 1], last)):
            row = rows[i]
            total_g += np.int64(np.rint(gradients[row] * gradient_scale))
            total_h += np.int64(np.rint(curvatures[row] * curvature_scale))
        out[leaf, 0] = total_g
        out[leaf, 1] = total_h


@njit(nogil=True, cache=True, error_model="numpy")
def add_leaves(rows, starts, values, first, last, scores):
    """scores[row] += values[leaf] for those rows[first:last] that a leaf holds: rows[starts[leaf]:starts[leaf + 1]]."""
    for leaf in range(values.shape[0]):
        for i in range(max(starts[leaf], first), min(starts[leaf + 1], last)):
            scores[rows[i]] += values[leaf]


@njit(nogil=True, cache=True, error_model="numpy")
def add_tree(bins, feature, threshold, missing_left, left, right, value, first, last, scores):
    """scores[row] += value of the leaf that the bins (n_rows, n_features) of the row lead to, rows first .. last."""
    for row in range(first, last):
        node = 0
        while feature[node] >= 0:
            b = bins[row, feature[node]]
            goes_left = (b <= threshold[node]) if b != 0 else (missing_left[node] != 0)
            node = left[node] if goes_left else right[node]
        scores[row] += value[node]
