"""Kernels for binning (exact quantiles, samples, heavy values, the bin of a value)."""

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.randoms import GOLDEN, random_bits


@kernel
def _reach(cumulative, start, capacity):
    """Return the end of the widest bin from ``start`` with at most mass ``capacity``, but at least one value."""
    limit = cumulative[start] + capacity
    low, high = start + 1, cumulative.shape[0] - 1
    while low < high:
        middle = (low + high + 1) // 2
        if cumulative[middle] <= limit:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def heavier(cumulative, capacity, out):
    """Write the indices of the values heavier than ``capacity`` into ``out``; return their number."""
    found = 0
    for i in range(cumulative.shape[0] - 1):
        if cumulative[i + 1] - cumulative[i] > capacity:
            out[found] = i
            found += 1
    return found


@kernel
def count_bins(cumulative, capacity, limit):
    """Count the minimum number of bins of at most mass ``capacity`` (or one value); stop above ``limit``."""
    start, bins = 0, 0
    while start < cumulative.shape[0] - 1 and bins <= limit:
        start = _reach(cumulative, start, capacity)
        bins += 1
    return bins


@kernel
def fill_bins(cumulative, capacity, ends):
    """Write the ends of these bins into ``ends``; return their number."""
    start, bins = 0, 0
    while start < cumulative.shape[0] - 1:
        start = _reach(cumulative, start, capacity)
        ends[bins] = start
        bins += 1
    return bins


@kernel
def split_run(cumulative, start, stop, capacity, earliest, ends):
    """Divide the values ``start:stop`` into ``len(ends)`` bins that are as even as ``capacity`` allows.

    ``earliest[j]`` is the first position where bin j may end so that the later bins can hold the rest; computed from
    the back.  Then each bin takes an equal share of the rest, clipped to the allowed positions.
    """
    n = ends.shape[0]
    earliest[n - 1] = stop
    for j in range(n - 2, -1, -1):
        floor = cumulative[earliest[j + 1]] - capacity
        low, high = start, earliest[j + 1] - 1
        while low < high:
            middle = (low + high) // 2
            if cumulative[middle] >= floor:
                high = middle
            else:
                low = middle + 1
        earliest[j] = low
    begin = start
    for j in range(n - 1):
        target = cumulative[begin] + (cumulative[stop] - cumulative[begin]) // (n - j)
        low, high = begin, stop
        while low < high:
            middle = (low + high + 1) // 2
            if cumulative[middle] <= target:
                low = middle
            else:
                high = middle - 1
        if low < stop and cumulative[low + 1] - target < target - cumulative[low]:
            low += 1
        # every bin has at least one value, also the n - 1 - j later ones
        low = max(low, begin + 1, earliest[j])
        begin = min(low, _reach(cumulative, begin, capacity), stop - (n - 1 - j))
        ends[j] = begin
    ends[n - 1] = stop


@kernel
def find_bins(values, tables, categorical, out):
    """out[r, f] = 1 + number of edges of f below values[r, f]; 0 for NaN.

    If ``categorical[f]``, a value that equals no edge gets the last bin.
    ``tables`` (F, 255) are the edges, padded with +inf: a search takes eight steps without a branch.  Rows are
    processed in blocks that stay in cache while the kernel goes through the columns.
    """
    rows, features = values.shape
    for first in range(0, rows, 256):
        last = min(first + 256, rows)
        for f in range(features):
            edges = tables[f]
            for r in range(first, last):
                x = values[r, f]
                place = 0
                place += 128 * (edges[127] < x)
                place += 64 * (edges[place + 63] < x)
                place += 32 * (edges[place + 31] < x)
                place += 16 * (edges[place + 15] < x)
                place += 8 * (edges[place + 7] < x)
                place += 4 * (edges[place + 3] < x)
                place += 2 * (edges[place + 1] < x)
                place += 1 * (edges[place] < x)
                out[r, f] = (place + 1) * (x == x)
            if categorical[f]:
                others = 1
                while others < 256 and edges[others - 1] < np.inf:
                    others += 1
                for r in range(first, last):
                    x = values[r, f]
                    if x == x and (out[r, f] >= others or edges[out[r, f] - 1] != x):
                        out[r, f] = others


_S52 = np.uint64(64 - 12)
SLOTS = 1 << 12
FREE = np.uint32(0x7FFFFFFF)  # bits of a NaN: marks a free slot


@kernel
def keys_up_to(queries, sizes, limit, out):
    """Write the keys of all rows of ``queries`` (hashes) up to ``limit`` into ``out``; return their number."""
    found = 0
    for q in range(queries.shape[0]):
        for place in range(sizes[q]):
            key = random_bits(queries[q], place + 1)
            out[found] = key
            found += key <= limit
    return found


@kernel
def places_up_to(queries, sizes, limit, first, out, found):
    """Write ``first`` + the number of every row with a key up to ``limit`` into ``out[found:]``; return the new end."""
    row = first
    for q in range(queries.shape[0]):
        for place in range(sizes[q]):
            if random_bits(queries[q], place + 1) <= limit and found < out.shape[0]:
                out[found] = row
                found += 1
            row += 1
    return found


@kernel
def _slot_of(slots, bits):
    """Return the slot of ``bits``, or the free slot for it."""
    slot = np.int64((np.uint64(bits) * GOLDEN) >> _S52)
    while slots[slot] != FREE and slots[slot] != bits:
        slot = (slot + 1) & (SLOTS - 1)
    return slot


@kernel
def _spend_one(slots, counts, kept, kept_counts):
    """Decrement all counters and remove those at 0 from the table; return the number of the rest."""
    used = 0
    for slot in range(slots.shape[0]):
        if slots[slot] != FREE and counts[slot] > 1:
            kept[used] = slots[slot]
            kept_counts[used] = counts[slot] - 1
            used += 1
        slots[slot] = FREE
    for i in range(used):
        slot = _slot_of(slots, kept[i])
        slots[slot] = kept[i]
        counts[slot] = kept_counts[i]
    return used


@kernel
def first_pass(values, bits, slots, counts, kept, kept_counts, state, extremes):
    """First pass over the ``values`` of a column, with bits ``bits``.

    It counts missing values, and finds extremes and heavy values.

    Misra and Gries: ``slots`` and ``counts`` are counters of up to ``len(kept)`` values; if there is no free one for a
    new value, all are decremented.  At the end every value in more than one of ``len(kept) + 1`` rows has a counter.
    ``state``:
    number of counters in use, of missing values and of zeros; ``extremes``: minimum and maximum.
    """
    used, missing, zeros = state[0], state[1], state[2]
    low, high = extremes[0], extremes[1]
    last, slot = FREE, 0
    for i in range(values.shape[0]):
        x = values[i]
        if x != x:
            missing += 1
            continue
        low = min(low, x)
        high = max(high, x)
        word = bits[i]
        if x == 0:
            word = np.uint32(0)  # -0.0 too
            zeros += 1
        if word != last:
            slot = _slot_of(slots, word)
            if slots[slot] == FREE:
                if used == kept.shape[0]:
                    used = _spend_one(slots, counts, kept, kept_counts)
                    last = FREE
                    continue
                slots[slot] = word
                counts[slot] = 0
                used += 1
            last = word
        counts[slot] += 1
    state[0], state[1], state[2] = used, missing, zeros
    extremes[0], extremes[1] = low, high


@kernel
def count_known(values, known, counts, below, above):
    """Second pass over a column: count the ascending ``known`` values.

    It also finds the nearest other values on both sides of each.
    """
    last = known.shape[0] - 1
    for i in range(values.shape[0]):
        x = values[i]
        if x != x:
            continue
        low, high = 0, last + 1
        while low < high:
            middle = (low + high) // 2
            if known[middle] < x:
                low = middle + 1
            else:
                high = middle
        # minimum and maximum are known, so there is one on either side
        if known[low] == x:
            counts[low] += 1
        else:
            below[low] = max(below[low], x)
            above[low - 1] = min(above[low - 1], x)
