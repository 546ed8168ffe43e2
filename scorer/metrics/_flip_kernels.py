"""Sums of whole numbers under random signs: exact, so that neither order nor threads change them."""

import numpy as np

from rankmill.foundation.kernels.compiling import kernel


@kernel
def add_flipped(values, raw, table, sums):
    """Add to sums[b] all 64 ``values``, negated where the bit of raw[b] is set; ``table`` (8, 256) is room for 8 at a time."""
    for byte in range(8):
        first = 8 * byte
        table[byte, 0] = values[first : first + 8].sum()
        for pattern in range(1, 256):
            lowest = 0
            while not (pattern >> lowest) & 1:
                lowest += 1
            table[byte, pattern] = table[byte, pattern & (pattern - 1)] - 2 * values[first + lowest]
    for b in range(raw.shape[0]):
        bits = np.int64(raw[b])
        total = np.int64(0)
        for byte in range(8):
            total += table[byte, (bits >> (8 * byte)) & 255]
        sums[b] += total


@kernel
def count_all_signs(values, least):
    """Count, of all 2^m ways to choose the signs of ``values`` (m,), those whose sum is ``least`` or more on either side.

    In Gray's order, where one sign changes at a time.  ``values`` is as before afterwards.
    """
    m = values.shape[0]
    total = values.sum()
    found = 0
    for step in range(1, (1 << m) + 1):
        if abs(total) >= least:
            found += 1
        turned = 0
        while turned < m and not (step >> turned) & 1:
            turned += 1
        if turned < m:
            total -= 2 * values[turned]
            values[turned] = -values[turned]
    for i in range(m):
        values[i] = abs(values[i])
    return found
