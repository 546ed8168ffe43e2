"""Slow, obvious twins of the kernels: they say what is right."""

from __future__ import annotations

import itertools
import math

# ---- pipeline: quantile bins -------------------------------------------------------------------------------------


def bins_needed(counts: list[int], capacity: int) -> int:
    """Fewest bins that hold all values in order, where a bin of two or more values has mass ``capacity`` at most."""
    bins, mass = 0, 0
    for i, count in enumerate(counts):
        if i == 0 or mass + count > capacity:
            bins, mass = bins + 1, 0
        mass += count
    return bins


def lightest_heaviest_bin(counts: list[int], max_bin: int) -> int:
    """Of every way to cut ``counts`` into at most ``max_bin`` bins: the least mass of the heaviest bin of many values.

    Tries every subset of the borders; a bin of one value does not count.
    """
    best = sum(counts)
    borders = range(1, len(counts))
    for n_cuts in range(min(max_bin, len(counts))):
        for cuts in itertools.combinations(borders, n_cuts):
            parts = [counts[a:b] for a, b in itertools.pairwise((0, *cuts, len(counts)))]
            best = min(best, max((sum(part) for part in parts if len(part) > 1), default=0))
    return best


def bin_of(x: float, edges: list[float]) -> int:
    """Bin 0 for NaN, else 1 + the number of edges below ``x``."""
    return 0 if math.isnan(x) else 1 + sum(edge < x for edge in edges)


# --- scorer/predict ---------------------------------------------------------------------------------------------------


def predict(forest, values, n_rounds=None):
    """Walk every row of ``values`` down every tree node by node, on the raw floats."""
    n_trees = forest.n_trees if n_rounds is None else n_rounds
    scores = []
    for row in values:
        score = forest.base_score
        for t in range(n_trees):
            start = int(forest.tree_starts[t])
            node = start
            while forest.node_feature[node] != -1:
                f = int(forest.node_feature[node])
                x = row[f]
                if x != x:
                    goes_left = bool(forest.node_missing_left[node])
                else:
                    goes_left = bool(x <= forest.cuts[forest.cut_starts[f] + forest.node_cut[node]])
                node = start + int(forest.node_left[node] if goes_left else forest.node_right[node])
            score = score + float(forest.tree_weights[t]) * float(forest.node_value[node])
        scores.append(score)
    return scores
