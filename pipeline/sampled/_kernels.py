"""Loops over the rows of a sample and over the values of a column that is not held: keys, heavy values, exact counts."""

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.randoms import GOLDEN, random_bits

_S52 = np.uint64(64 - 12)
SLOTS = 1 << 12
FREE = np.uint32(0x7FFFFFFF)  # bits of a NaN that no present value has


@kernel
def keys_up_to(queries, sizes, limit, out):
    """Write the keys of all rows of ``queries`` (hashes) that are ``limit`` at most into ``out``; returns their number."""
    found = 0
    for q in range(queries.shape[0]):
        for place in range(sizes[q]):
            key = random_bits(queries[q], place + 1)
            out[found] = key
            found += key <= limit
    return found


@kernel
def places_up_to(queries, sizes, limit, first, out, found):
    """Write ``first`` + the number of every row whose key is ``limit`` at most into ``out[found:]``; returns the new end."""
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
    """Return the slot of ``bits``, or the free one where it belongs."""
    slot = np.int64((np.uint64(bits) * GOLDEN) >> _S52)
    while slots[slot] != FREE and slots[slot] != bits:
        slot = (slot + 1) & (SLOTS - 1)
    return slot


@kernel
def _spend_one(slots, counts, kept, kept_counts):
    """Take one from every counter and those that have nothing left from the table; returns how many stay."""
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
def look(values, bits, slots, counts, kept, kept_counts, state, extremes):
    """First look at the ``values`` of a column, whose bits are ``bits``: what is missing, extremes, and heavy values.

    Misra and Gries: ``slots`` and ``counts`` count at most ``len(kept)`` values at a time; where another one comes, each
    of them loses one.  At the end every value that more than one of ``len(kept) + 1`` rows has is among them.  ``state``
    holds the counters in use, the missing values and the zeros, ``extremes`` the least and the greatest value.
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
    """Second look: count the values that are among the ascending ``known``, and find the nearest others beside each."""
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
        # the least and the greatest value are known: there is one to either side
        if known[low] == x:
            counts[low] += 1
        else:
            below[low] = max(below[low], x)
            above[low - 1] = min(above[low - 1], x)


@kernel
def tally(bins, keep, counts):
    """counts[f, b] += the rows with ``keep`` that are in bin b of feature f."""
    for r in range(bins.shape[0]):
        if keep[r]:
            for f in range(bins.shape[1]):
                counts[f, bins[r, f]] += 1
