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

_FAR = np.int64(16)  # rows between the prefetch and the use: about one trip to memory
_LOW = np.int64(0xFFFFFFFF)
_BYTE = np.uint64(255)
_U8 = np.uint64(8)
_U256 = np.uint64(256)
_MAGIC = 6755399441055744.0  # 1.5 * 2 ** 52: adding it leaves the rounded integer in the low bits of the double


@intrinsic
def prefetch(typingctx, array, row):
    """Ask for the cache line of ``array[row, 0]`` (2-d, C order); reads nothing, so any row is harmless."""
    signature = types.void(array, row)

    def codegen(context, builder, signature, arguments):
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, value=arguments[0])
        strides = cgutils.unpack_tuple(builder, view.strides)
        byte = ir.IntType(8)
        base = builder.bitcast(view.data, byte.as_pointer())
        row_number = context.cast(builder, arguments[1], signature.args[1], types.intp)
        address = builder.gep(base, [builder.mul(row_number, strides[0])])
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), word, word, word])
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


@njit(nogil=True, cache=True, error_model="numpy")
def absolute_sums(values, block, sums):
    """sums[b] = sum of |values| over rows b*block .. (b+1)*block, each in row order."""
    n = values.shape[0]
    for b in range(sums.shape[0]):
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
    for i in range(first, last):
        row = rows[i]
        prefetch(words, rows[i + _FAR])
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
def histogram(words, rows, packed, first, last, n_bins, block, out):
    """Fill ``out[feature, bin]`` of one block from rows[first:last]; bins past ``n_bins[feature]`` are left alone."""
    width = words.shape[2] * 8
    for lane in range(width):
        for b in range(n_bins[block * width + lane]):
            out[block * width + lane, b] = 0
    _accumulate(words[block], rows, packed, first, last, out[block * width : (block + 1) * width].reshape(-1))


@njit(nogil=True, cache=True, error_model="numpy")
def subtract(from_parent, child, n_bins, first_feature, last_feature):
    """Turn the parent's histogram into that of the other child: ``from_parent[feature, bin] -= child[feature, bin]``."""
    for f in range(first_feature, last_feature):
        for b in range(n_bins[f]):
            from_parent[f, b] -= child[f, b]


@njit(nogil=True, cache=True, error_model="numpy")
def _score(gradient, curvature, lambda_l2):
    """Return ``G^2 / (H + lambda)``, 0 for an empty side."""
    denominator = curvature + lambda_l2
    if denominator <= 0.0:
        return 0.0
    return gradient * gradient / denominator


@njit(nogil=True, cache=True, error_model="numpy")
def best_split(hist, counts, n_bins, enabled, first_feature, last_feature, total, n_rows, bounds, gain_out, split_out):
    """Best (feature, bin, side of the missing) of one node over a range of features.

    ``bounds`` holds [1 / gradient scale, 1 / curvature scale, lambda, min gain, min curvature, min rows].  Rows on
    a side are estimated as n_rows * H_side / H, unless ``counts`` (256,) holds the rows of each bin (of the one
    feature asked for); empty: estimate.  A bound of one row needs no estimate: no side with a gain is empty.  ``gain_out[0]`` gets the gain (0: no split), ``split_out`` gets
    [feature, bin, missing left, packed sum of the left side].  Equal gains go to the lowest feature, then the
    lowest bin, then missing right.
    """
    counted = counts.shape[0] > 0
    unit_g, unit_h, lambda_l2 = bounds[0], bounds[1], bounds[2]
    min_gain, min_curvature, min_rows = bounds[3], bounds[4], bounds[5]
    total_g, total_h = total >> np.int64(32), total & _LOW
    best = 0.0
    split_out[0] = -1
    gain_out[0] = 0.0
    if total_h == 0:
        return
    rows_a_unit = n_rows / total_h
    parent = _score(total_g * unit_g, total_h * unit_h, lambda_l2) + min_gain
    for f in range(first_feature, last_feature):
        if not enabled[f]:
            continue
        missing = hist[f, 0]
        last = n_bins[f] - 1
        present = np.int64(0)  # packed sum of bins 1 .. b: the left side with the missing sent right
        present_rows = np.int64(0)
        for b in range(1, last + 1):
            present += hist[f, b]
            if counted:
                present_rows += counts[b]
            if b == last and missing == 0:
                break
            for side in range(2):
                if side == 1 and (missing == 0 or b == last):
                    break
                left = present + missing if side == 1 else present
                h_left = left & _LOW
                h_right = total_h - h_left
                if h_left * unit_h < min_curvature or h_right * unit_h < min_curvature:
                    continue
                if counted:
                    # where nothing weighs on the missing side, the missing follow the heavier side (see below)
                    with_missing = side == 1 or (missing == 0 and h_left >= h_right)
                    rows_left = np.float64(present_rows + counts[0] if with_missing else present_rows)
                    rows_right = n_rows - rows_left
                else:
                    rows_left, rows_right = h_left * rows_a_unit + 0.5, h_right * rows_a_unit + 0.5
                if min_rows > 1.0 and (rows_left < min_rows or rows_right < min_rows):
                    continue
                g_left = left >> np.int64(32)
                gain = (
                    _score(g_left * unit_g, h_left * unit_h, lambda_l2)
                    + _score((total_g - g_left) * unit_g, h_right * unit_h, lambda_l2)
                    - parent
                )
                if gain > best:
                    best = gain
                    split_out[0] = f
                    split_out[1] = b
                    if missing == 0:
                        split_out[2] = 1 if h_left >= h_right else 0
                    else:
                        split_out[2] = side
                    split_out[3] = left
    gain_out[0] = best


@njit(nogil=True, cache=True, error_model="numpy")
def count_bins(column, stride, rows, first, last, counts):
    """counts[bin] = rows[first:last] with that bin of one feature."""
    counts[:] = 0
    for i in range(first, last):
        counts[column[rows[i] * stride]] += 1


@njit(nogil=True, cache=True, error_model="numpy")
def grow_blocks(
    words, rows, packed, first, last, n_bins, enabled, blocks, small, large, totals, n_rows, bounds, gains, splits
):
    """For every block of one worker: histogram of the small child, subtraction, best split of both children.

    ``small`` gets the histogram of rows[first:last]; ``large`` holds the parent's and becomes the other child's.
    ``gains[child, block]`` and ``splits[child, block]`` get the results.  With ``n_rows[1] == 0`` there is no
    other child (the root): ``large`` is not read.
    """
    width = words.shape[2] * 8
    estimate = np.empty(0, dtype=np.int64)
    for k in range(blocks.shape[0]):
        block = blocks[k]
        f0, f1 = block * width, (block + 1) * width
        histogram(words, rows, packed, first, last, n_bins, block, small)
        best_split(
            small, estimate, n_bins, enabled, f0, f1, totals[0], n_rows[0], bounds, gains[0, block:], splits[0, block]
        )
        if n_rows[1] > 0:
            subtract(large, small, n_bins, f0, f1)
            best_split(
                large,
                estimate,
                n_bins,
                enabled,
                f0,
                f1,
                totals[1],
                n_rows[1],
                bounds,
                gains[1, block:],
                splits[1, block],
            )


@njit(nogil=True, cache=True, error_model="numpy")
def partition(column, stride, threshold, missing_left, rows, packed, first, last, spare_rows, spare_packed):
    """Reorder rows[first:last] (and packed with them) so that the left child comes first; both keep their order.

    before:  rows = [a b c d e f]      after:  rows = [a c f | b d e]   (a, c, f go left)

    ``column[row * stride]`` is the bin of the split feature.  Returns the number of rows on the left.
    """
    left, right = first, 0
    for i in range(first, last):
        row = rows[i]
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
def leaf_sums(gradients, curvatures, gradient_scale, curvature_scale, rows, starts, out):
    """out[leaf] = (sum of round(g * scale), sum of round(h * scale)) over the rows of each leaf, as 63-bit integers."""
    for leaf in range(starts.shape[0] - 1):
        total_g, total_h = np.int64(0), np.int64(0)
        for i in range(starts[leaf], starts[leaf + 1]):
            row = rows[i]
            total_g += np.int64(np.rint(gradients[row] * gradient_scale))
            total_h += np.int64(np.rint(curvatures[row] * curvature_scale))
        out[leaf, 0] = total_g
        out[leaf, 1] = total_h


@njit(nogil=True, cache=True, error_model="numpy")
def add_leaves(rows, starts, values, scores):
    """scores[row] += values[leaf] for the rows of each leaf, rows[starts[leaf]:starts[leaf + 1]]."""
    for leaf in range(values.shape[0]):
        for i in range(starts[leaf], starts[leaf + 1]):
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
