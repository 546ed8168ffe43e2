"""Slow, obvious twins: cells of values, the index of two samples, and the covariance of shares over queries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np


def cell_of(value: float, edges: list[float], low: float, high: float) -> int:
    """0 missing, 1 below all, then by edges, the last one above all."""
    if math.isnan(value):
        return 0
    if value < low:
        return 1
    return len(edges) + 3 if value > high else 2 + sum(edge < value for edge in edges)


def covariance(queries: Sequence[Sequence[int]], n_cells: int) -> np.ndarray:
    """Sum over the queries (cells of their rows) of z z' / rows^2, z = their counts less what their size lets expect."""
    rows = sum(map(len, queries))
    every = Counter(cell for query in queries for cell in query)
    share = np.array([every[cell] for cell in range(n_cells)]) / rows
    total = np.zeros((n_cells, n_cells))
    for query in queries:
        counts = Counter(query)
        z = np.array([counts[cell] for cell in range(n_cells)]) - len(query) * share
        total += np.outer(z, z)
    return total / rows**2


def psi(old: Sequence[float], new: Sequence[float]) -> float:
    """The index of two lists of shares."""
    return sum((p - q) * math.log(p / q) for p, q in zip(old, new, strict=True))
