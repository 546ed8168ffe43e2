"""Counts of cells in all rows, and their products within queries."""

import numpy as np

from rankmill.foundation.kernels.compiling import kernel


@kernel
def place(values, edges, low, high, out):
    """out[k] = 0 for NaN, 1 below ``low``, 2 + edges below the value inside, and behind these one above ``high``."""
    for k in range(values.shape[0]):
        x = values[k]
        if x != x:
            out[k] = 0
        elif x < low:
            out[k] = 1
        elif x > high:
            out[k] = edges.shape[0] + 3
        else:
            cell = 2
            for edge in edges:
                cell += edge < x
            out[k] = cell


@kernel
def moments(cells, starts, counts, products, weighted):
    """Add up over the queries: counts of each cell c, products of counts, and counts times documents.

    ``products[a, b] += c[a] c[b]``, ``weighted[a] += c[a] n`` for a query of n documents.
    """
    of_query = np.zeros(counts.shape[0], dtype=np.int64)
    found = np.empty(counts.shape[0], dtype=np.int64)
    for q in range(starts.shape[0] - 1):
        used = 0
        for r in range(starts[q], starts[q + 1]):
            cell = cells[r]
            if of_query[cell] == 0:
                found[used] = cell
                used += 1
            of_query[cell] += 1
        size = starts[q + 1] - starts[q]
        for i in range(used):
            a = found[i]
            counts[a] += of_query[a]
            weighted[a] += of_query[a] * size
            for j in range(used):
                products[a, found[j]] += of_query[a] * of_query[found[j]]
        for i in range(used):
            of_query[found[i]] = 0
