"""Count histograms: for every feature and bin of a node the sum of packed gradients and hessians of its rows.

    block 0                          block 1                    table[lane, code] int64
    words[0, row] = 16 lanes         words[1, row] = 16 lanes     code     0    1     2    ..
    row 0 |3|0|7|..|                 row 0 |2|2|9|..|             lane 0   .    .     .
    row 1 |1|4|7|..|                 row 1 |5|2|0|..|             lane 1   .    .     .

    table -> histogram[feature, bin]: the sums of all codes whose digit for the feature is the bin, see ``layout``

A *packed* value holds a gradient in its high and a hessian in its low 32 bits; the hessian is never negative and its
sum over all rows fits 32 bits, so sums never carry between the two.  All sums are integer sums, so threads, blocks and
the order of rows do not change them.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.arrays import copy_to
from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.foundation.kernels.instructions import prefetch, prefetch_to_second_level
from rankmill.trainer._kernels import CODES, LANE, PLACE
from rankmill.trainer.growing._state_kernels import (
    LINE,
    LOOK_AHEAD,
    NEXT,
    NO,
    SIDES,
    SUMS,
    YES,
    add_up,
    meet,
    own_features,
)

FAR = np.int64(LOOK_AHEAD)


@inner_kernel
def _add_word(word, value, out):
    """out[256 * lane + code of lane] += value, for the eight lanes of a word; ``out`` begins with the first of them."""
    for lane in range(8):
        out[np.uint64(256 * lane) + (word >> np.uint64(8 * lane) & np.uint64(255))] += value


@inner_kernel
def _accumulate(words, used, rows, packed, first, last, out):
    """out[256 * lane + code of lane] += packed[i] for the rows[i] of one block, i in first .. last.

    A processor adds to one cell a cycle at most, if it need not wait for anything else.  So four rows are read before
    the first of their additions, which otherwise might change what is read next.  Codes are cut out of words, as the
    units that load are busy with the additions.  Rows of a node lie far apart: each is requested from memory long
    before it is needed, and from the second-level cache shortly before.
    """
    cells, i, end = words.reshape(-1), np.uint64(first), np.uint64(last)  # unsigned: no index counts from the end
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    if words.shape[1] == 2 and used == 2:
        low, high = out, out[8 * 256 :]
        while i + three < end:
            a, b = two * np.uint64(rows[i]), two * np.uint64(rows[i + one])
            c, d = two * np.uint64(rows[i + two]), two * np.uint64(rows[i + three])
            low_a, high_a, value_a = cells[a], cells[a + one], packed[i]
            low_b, high_b, value_b = cells[b], cells[b + one], packed[i + one]
            low_c, high_c, value_c = cells[c], cells[c + one], packed[i + two]
            low_d, high_d, value_d = cells[d], cells[d + one], packed[i + three]
            for ahead in range(i, i + np.uint64(4)):
                prefetch(cells, two * np.uint64(rows[ahead + np.uint64(NEXT)]))
                prefetch_to_second_level(cells, two * np.uint64(rows[ahead + np.uint64(LOOK_AHEAD)]))
            _add_word(low_a, value_a, low)
            _add_word(high_a, value_a, high)
            _add_word(low_b, value_b, low)
            _add_word(high_b, value_b, high)
            _add_word(low_c, value_c, low)
            _add_word(high_c, value_c, high)
            _add_word(low_d, value_d, low)
            _add_word(high_d, value_d, high)
            i += np.uint64(4)
    for k in range(i, end):
        at = np.uint64(rows[k]) * np.uint64(words.shape[1])
        for word in range(used):
            _add_word(cells[at + np.uint64(word)], packed[k], out[8 * 256 * word :])


@inner_kernel
def marginal(counts, place, n, codes, out):
    """out[bin] = sum of ``counts`` (codes,) over the codes whose digit is the bin; ``out`` may be ``counts`` itself.

    What is written is not read again, as ``place`` * bin is at least the bin.
    """
    for b in range(n):
        total = np.int64(0)
        for high in range(b * place, codes, place * n):
            for code in range(high, high + place):
                total += counts[code]
        out[b] = total


@inner_kernel
def hand_out(table, block, bins, first_feature, last_feature, anew, sums, histogram):
    """Add a block's ``table`` (width, 256) to ``histogram`` (n_features, 256), for features in the range.

    ``anew``: the histogram holds nothing yet.  ``sums`` (256,) is scratch.
    """
    width = table.shape[0]
    for k in range(bins.block_starts[block], bins.block_starts[block + 1]):
        f = bins.by_lane[k]
        if f < first_feature or f >= last_feature:
            continue
        counted, n, codes = table[bins.lanes[f, LANE] - block * width], bins.n_bins[f], bins.lanes[f, CODES]
        if n != codes:
            marginal(counted, bins.lanes[f, PLACE], n, codes, sums)
            counted = sums
        if anew:
            copy_to(histogram[f, :n], counted)
        else:
            for b in range(n):
                histogram[f, b] += counted[b]


@inner_kernel
def _first_of_plain(block, width, bins):
    """Return the first of the features of a block if each lane holds one, in their order; else -1."""
    start = bins.block_starts[block]
    first = bins.by_lane[start]
    plain = bins.block_starts[block + 1] - start == width
    for k in range(width if plain else 0):
        f = bins.by_lane[start + k]
        plain &= f == first + k and bins.lanes[f, LANE] == block * width + k and bins.lanes[f, CODES] == bins.n_bins[f]
    return np.int64(first) if plain else np.int64(-1)


@kernel
def count_share(bins, rows, packed, first, last, share, shares, histogram, table, edge):
    """Add one worker's share of (row, word) visits of rows[first:last] to ``histogram`` (n_features, 256).

    The blocks asked for are laid end to end, ``n`` rows of ``used_words[block]`` words each, and the line is cut into
    ``shares`` parts of about equal length.  Where a part begins inside a block, that block's visits stay in ``edge``
    (width, 256); returns the number of that block, -1 if there is none.  The part in which a block begins clears the
    block. ``table`` (width + 1, 256) is scratch.
    """
    n, width, n_features = last - first, bins.words.shape[2] * 8, bins.n_bins.shape[0]
    whole = np.int64(0)
    for k in range(bins.blocks.shape[0]):
        whole += bins.used_words[bins.blocks[k]]
    start, stop = n * whole * share // shares, n * whole * (share + 1) // shares
    partial, offset = np.int64(-1), np.int64(0)
    for k in range(bins.blocks.shape[0]):
        block = bins.blocks[k]
        used = bins.used_words[block]
        begin = max(start - offset, 0) // used
        end = min(max(stop - offset, 0) // used, n)
        offset += n * used
        if begin >= end:
            continue
        target = table[:width]
        plain = _first_of_plain(block, width, bins)
        if begin > 0:
            partial = block
            target = edge
        elif plain >= 0:  # lanes are rows of the histogram
            target = histogram[plain : plain + width]
        target[: 8 * used] = 0
        _accumulate(bins.words[block], used, rows, packed, first + begin, first + end, target.reshape(-1))
        if begin == 0 and plain < 0:
            hand_out(target, block, bins, np.int64(0), n_features, YES, table[width], histogram)
    return partial


@inner_kernel
def subtract(from_parent, child, n_bins, first_feature, last_feature):
    """Turn the histogram of the parent into that of the other child.

    This is ``from_parent[feature, bin] -= child[feature, bin]``.
    """
    for f in range(first_feature, last_feature):
        for b in range(n_bins[f]):
            from_parent[f, b] -= child[f, b]


@inner_kernel
def count_bins(column, stride, rows, first, last, counts):
    """counts[code] = number of rows[first:last] with that code of a lane; see :func:`to_bins`."""
    counts[:] = 0
    for i in range(np.uint64(first), np.uint64(last)):
        prefetch(column, rows[i + np.uint64(FAR)] * stride)
        counts[column[np.uint64(rows[i]) * np.uint64(stride)]] += 1


@inner_kernel
def sum_hessians(column, stride, rows, first, last, hessians, scale, sums):
    """Set sums[code] to the sum of round(hessian * scale) over rows[first:last] with that code of a lane.

    See :func:`to_bins`.
    """
    sums[:] = 0
    for i in range(first, last):
        sums[column[rows[i] * stride]] += np.int64(np.rint(hessians[rows[i]] * scale))


@inner_kernel
def to_bins(bins, feature, counts):
    """Turn sums by the codes of a feature's lane, ``counts`` (256,), into sums by its bins."""
    n, codes = bins.n_bins[feature], bins.lanes[feature, CODES]
    if n != codes:
        marginal(counts, bins.lanes[feature, PLACE], n, codes, counts)
        counts[n:codes] = 0


@kernel(inline="always")
def column_of(bins, feature):
    """Return the codes of the lane of ``feature``, uint8: that of row r is at r * width."""
    width, lane = bins.words.shape[2] * 8, bins.lanes[feature, LANE]
    return bins.words[lane // width].view(np.uint8).reshape(-1)[lane % width :]


@inner_kernel
def count_node(crew, node, slot, bins, rows, table, histograms):
    """Count this worker's share of a node and wait for the others; :func:`add_edges` must follow.  False: stop."""
    return count_rows(crew, table[node].first, table[node].last, slot, bins, rows, histograms)


@inner_kernel
def count_rows(crew, first, last, slot, bins, rows, histograms):
    """Do as :func:`count_node` for rows[first:last]."""
    if first == last:  # the node may have rows in other processes
        first_feature, last_feature = own_features(crew, bins.n_bins.shape[0])
        histograms.pool[slot, first_feature:last_feature] = 0
        histograms.edge_blocks[crew.worker * LINE] = -1
        return meet(crew.barrier)
    histograms.edge_blocks[crew.worker * LINE] = count_share(
        bins, rows.rows, rows.packed, first, last, crew.worker, crew.size, histograms.pool[slot],
        histograms.tables[crew.worker], histograms.edges[crew.worker],
    )  # fmt: skip
    return meet(crew.barrier)


@inner_kernel
def add_edges(crew, slot, bins, histograms):
    """Add partial counts, of shares that begin inside a block, to the features of this worker."""
    first_feature, last_feature = own_features(crew, bins.n_bins.shape[0])
    sums = histograms.tables[crew.worker, bins.words.shape[2] * 8]
    for worker in range(crew.size):
        block = histograms.edge_blocks[worker * LINE]
        if block >= 0:
            hand_out(
                histograms.edges[worker], block, bins, first_feature, last_feature, NO, sums, histograms.pool[slot]
            )  # fmt: skip


@inner_kernel
def count_sides(crew, feature, bins, rows, first, last, hessians, scale, with_hessians, counts):
    """Write to ``counts`` (2, 256) the number of rows of each bin of a feature.

    If requested, their hessians follow in fine steps.

    Rows of all processes count.
    """
    column, stride = column_of(bins, feature), bins.words.shape[2] * 8
    count_bins(column, stride, rows, first, last, counts[0])
    to_bins(bins, feature, counts[0])
    if with_hessians:
        sum_hessians(column, stride, rows, first, last, hessians, scale, counts[1])
        to_bins(bins, feature, counts[1])
    if crew.peers != 0:
        copy_to(crew.sums[:SIDES], counts.reshape(-1))
        add_up(crew, SUMS, np.int64(SIDES))
        copy_to(counts.reshape(-1), crew.sums)
