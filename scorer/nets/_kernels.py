"""NetInputs and scores of nets.  The wrappers check the arguments.

Every number is computed from the values of its own row alone, in a fixed order: a score does not depend on the other
rows.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import exp_negative, log_positive

LINEAR, LOG1P = 0, 1  # transforms of a value without knots
OTHER_CATEGORY, MISSING_CATEGORY, FIRST_CATEGORY = 0, 1, 2  # rows of a table of embeddings
LARGEST_INPUT = 1000.0  # scaled inputs are clipped to it, so that no value, however absurd, makes a score infinite
MOST_KNOTS = 128  # a power of two
TOGETHER = 64  # rows that meet the knots of one feature after another, which then stay in the cache
_LARGEST = 3.4028234663852886e38  # of float32: infinite values count as that


@kernel
def transformed(x, kind):
    """Return x, or its transform ``LOG1P``."""
    wide = min(max(np.float64(x), -_LARGEST), _LARGEST)
    if kind == LOG1P:
        size = log_positive(1.0 + abs(wide))
        return size if wide >= 0.0 else -size
    return wide


@kernel
def write_numbers(values, first, last, features, kind, centres, scales, knots, heights, indicators, scratch, out):
    """Write the inputs of the rows first <= r < last into ``out[r - first]``.

    They are scale (transform - centre), then indicators.

    A missing value (NaN) is 0, the centre; the indicator of a feature is 1 where its value is missing.  ``kind`` is
    None for ``QUANTILE``, the line through knots that is flat outside; ``knots`` and ``heights`` are None for other
    transforms.  They are (n_features, MOST_KNOTS + 1), padded with infinity and the last height, so that all rows take
    the same steps, as vectors.  ``scratch`` has (TOGETHER,) float32, float64 and int64.
    """
    n = features.shape[0]
    x, result, places = scratch
    for begin in range(first, last, TOGETHER):
        m = min(TOGETHER, last - begin)
        for j in range(n):
            feature, centre, scale = features[j], centres[j], scales[j]
            for i in range(m):
                x[i] = values[begin + i, feature]
            if kind is not None:
                for i in range(m):
                    result[i] = transformed(x[i], kind)
            if knots is not None:
                final = 0
                for k in range(knots.shape[1]):
                    final = k if knots[j, k] < np.inf else final
                least, greatest = knots[j, 0], knots[j, final]
                for i in range(m):
                    places[i] = 0
                half = MOST_KNOTS >> 1
                while half > 0:
                    for i in range(m):
                        places[i] += half if knots[j, places[i] + half] <= x[i] else 0
                    half >>= 1
                for i in range(m):
                    low = min(places[i], final)  # an infinite value is beyond the padding
                    inside = np.float64(min(max(x[i], least), greatest))
                    share = (inside - knots[j, low]) / (np.float64(knots[j, low + 1]) - knots[j, low])
                    result[i] = heights[j, low] + share * (np.float64(heights[j, low + 1]) - heights[j, low])
            for i in range(m):
                scaled = min(max(scale * (result[i] - centre), -LARGEST_INPUT), LARGEST_INPUT)
                out[begin - first + i, j] = scaled if x[i] == x[i] else 0.0
        for j in range(indicators.shape[0]):
            for i in range(m):
                value = values[begin + i, indicators[j]]
                out[begin - first + i, n + j] = 0.0 if value == value else 1.0


@kernel
def find_categories(values, first, last, features, code_starts, codes, table_starts, out):
    """out[r - first, j] = the row of all tables that holds the category of feature j; codes ascend within a feature."""
    for r in range(first, last):
        for j in range(features.shape[0]):
            x = values[r, features[j]]
            begin, end = code_starts[j], code_starts[j + 1]
            row = OTHER_CATEGORY
            if x != x:
                row = MISSING_CATEGORY
            else:
                low, high = begin, end
                while low < high:
                    middle = (low + high) // 2
                    if codes[middle] < x:
                        low = middle + 1
                    else:
                        high = middle
                if low < end and codes[low] == x:
                    row = FIRST_CATEGORY + low - begin
            out[r - first, j] = table_starts[j] + row


@kernel
def write_embeddings(categories, n_rows, tables, column, out):
    """Write the embeddings of the categories (n, n_features) of each row side by side, from ``column`` on."""
    width = tables.shape[1]
    for r in range(n_rows):
        for j in range(categories.shape[1]):
            row, place = categories[r, j], column + j * width
            for k in range(width):
                out[r, place + k] = tables[row, k]


@kernel
def tanh(x):
    """Hyperbolic tangent."""
    e = exp_negative(-2.0 * abs(x))
    size = (1.0 - e) / (1.0 + e)
    return size if x >= 0.0 else -size


@kernel
def squashed(z, first, last, n_columns, factor, shift, h):
    """Write h = tanh(z * factor + shift) of the rows first <= r < last; columns from ``n_columns`` on are 0."""
    for r in range(first, last):
        for c in range(n_columns):
            h[r, c] = tanh(z[r, c] * factor[c] + shift[c])
        for c in range(n_columns, z.shape[1]):
            h[r, c] = 0.0


@kernel
def scores_of(inputs, first, last, weights, start, scores, base):
    """Set scores[base + r] to start + the sum over k, in order, of inputs[r, k] weights[k].

    Each product and sum is rounded to float32.
    """
    n = weights.shape[0]
    r = first
    while r + 4 <= last:  # four sums at a time, since each waits for its last one
        a = b = c = d = np.float32(start)
        for k in range(n):
            w = weights[k]
            a += inputs[r, k] * w
            b += inputs[r + 1, k] * w
            c += inputs[r + 2, k] * w
            d += inputs[r + 3, k] * w
        scores[base + r], scores[base + r + 1], scores[base + r + 2], scores[base + r + 3] = a, b, c, d
        r += 4
    while r < last:
        a = np.float32(start)
        for k in range(n):
            a += inputs[r, k] * weights[k]
        scores[base + r] = a
        r += 1
