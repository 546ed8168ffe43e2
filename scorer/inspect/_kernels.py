"""Kernels over the paths of a forest, from each root to each leaf: flat loops without checks.

A path is the features that its nodes ask for, each once (an *element*): the codes ``low .. high`` that go along it, whether a
missing value does, and the ``share`` of the training rows that do, multiplied over the nodes of that feature.  A code is 0
where the value is missing, else 1 plus the number of the feature's cuts below it.  An element is *met* by a document that
goes along at all of its nodes; a document ends in the leaf whose elements it all meets.  ``slot`` counts the features that the
forest uses.
"""

import numpy as np
from numba import njit

HIGHEST = 65_535  # no code is greater
CACHED = 256  # sets of met elements whose contributions are kept while one path is looked at; 2 ** 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FOLDED = np.uint64(56)  # leaves 8 bits
_ONE = np.uint64(1)
_MASKED = 63  # elements of a path of which a set fits one number


@njit(nogil=True, cache=True)
def find_parents(tree_starts, node_left, node_right, parent, depth):
    """Write the ``parent`` of every node, -1 for a root, and its ``depth``."""
    for t in range(tree_starts.shape[0] - 1):
        start = tree_starts[t]
        parent[start] = -1
        depth[start] = 0
        for node in range(start, tree_starts[t + 1]):
            if node_left[node] >= 0:
                for child in (start + node_left[node], start + node_right[node]):
                    parent[child] = node
                    depth[child] = depth[node] + 1


@njit(nogil=True, cache=True, error_model="numpy")
def gather_paths(
    leaves, roots, parent, slot_of, node_feature, node_cut, node_missing_left, node_left, node_right, node_rows,
    starts, slot, low, high, missing, share,
):  # fmt: skip
    """Write the elements of the path to each of ``leaves``, the lowest node's first; returns how many there are."""
    filled = 0
    for p in range(leaves.shape[0]):
        starts[p] = filled
        root = roots[p]
        child = leaves[p]
        node = parent[child]
        while node >= 0:
            goes_left = root + node_left[node] == child
            rows = node_rows[child]
            total = rows + node_rows[root + (node_right[node] if goes_left else node_left[node])]
            s = slot_of[node_feature[node]]
            e = starts[p]
            while e < filled and slot[e] != s:
                e += 1
            if e == filled:
                filled += 1
                slot[e] = s
                low[e] = 1
                high[e] = HIGHEST
                missing[e] = 1
                share[e] = 1.0
            if goes_left:
                high[e] = min(high[e], node_cut[node] + 1)
                missing[e] &= node_missing_left[node]
            else:
                low[e] = max(low[e], node_cut[node] + 2)
                missing[e] &= 1 - node_missing_left[node]
            share[e] *= rows / total if total > 0 else 0.5
            child = node
            node = parent[node]
    starts[leaves.shape[0]] = filled
    return filled


@njit(nogil=True, cache=True, error_model="numpy")
def add_contributions(
    codes, first, last, starts, slot, low, high, missing, share, value, output, points, weights, out
):  # fmt: skip
    """Add the Shapley values of the rows ``first`` .. ``last`` - 1 of ``codes`` to ``out`` (n, outputs, slots).

    On a path of d elements a coalition S is worth ``value * prod over S of met * prod over the others of share``.  With
    |S|! (d - 1 - |S|)! / d! = integral over t in [0, 1] of t^|S| (1 - t)^(d - 1 - |S|), the Shapley value of a met element e is

        value * prod over unmet of share * (1 - share_e) * integral of (1 - t)^unmet * prod over met j != e of (t + (1 - t) share_j)

    and that of an unmet one ``- value * prod over unmet of share * integral of (1 - t)^(unmet - 1) * prod over met of (..)``.
    The integrands are polynomials of degree d - 1 with no negative term: Gauss and Legendre's rule of (d + 1) // 2 ``points``
    (those of the rule of n begin at n (n - 1) / 2) is exact, and nothing cancels.

    Which elements are met decides about all of it, and many documents meet the same.
    """
    widest = 0
    for p in range(value.shape[0]):
        widest = max(widest, starts[p + 1] - starts[p])
    most = (widest + 1) // 2
    factor = np.empty((widest, most))
    inverse = np.empty((widest, most))
    power = np.empty((widest + 1, most))
    base = np.empty(most)
    met = np.empty(widest, np.uint8)
    parts = np.empty((CACHED, widest))
    masks = np.zeros(CACHED, np.uint64)
    known = np.full(CACHED, -1, np.int64)
    for p in range(value.shape[0]):
        begin = starts[p]
        d = starts[p + 1] - begin
        n_points = (d + 1) // 2
        at = n_points * (n_points - 1) // 2
        for q in range(n_points):
            t = points[at + q]
            power[0, q] = weights[at + q]
            for m in range(d):
                power[m + 1, q] = power[m, q] * (1.0 - t)
            for e in range(d):
                factor[e, q] = t + (1.0 - t) * share[begin + e]
                inverse[e, q] = 1.0 / factor[e, q]
        for i in range(first, last):
            mask = np.uint64(0)
            for e in range(d):
                code = codes[i, slot[begin + e]]
                along = (low[begin + e] <= code <= high[begin + e]) or (code == 0 and missing[begin + e] == 1)
                met[e] = along
                mask = (mask << _ONE) | np.uint64(along)
            place = np.int64((mask * _GOLDEN) >> _FOLDED)
            if known[place] != p or masks[place] != mask or d > _MASKED:
                known[place] = p
                masks[place] = mask
                worth = value[p]
                unmet = 0
                for e in range(d):
                    if met[e] == 0:
                        worth *= share[begin + e]
                        unmet += 1
                for q in range(n_points):
                    base[q] = power[max(unmet - 1, 0), q]
                for e in range(d):
                    if met[e]:
                        for q in range(n_points):
                            base[q] *= factor[e, q]
                lost = 0.0
                if unmet > 0:
                    for q in range(n_points):
                        lost -= base[q]
                        base[q] *= 1.0 - points[at + q]
                    lost *= worth
                for e in range(d):
                    if met[e]:
                        won = 0.0
                        for q in range(n_points):
                            won += base[q] * inverse[e, q]
                        parts[place, e] = worth * (1.0 - share[begin + e]) * won
                    else:
                        parts[place, e] = lost
            for e in range(d):
                out[i, output[p], slot[begin + e]] += parts[place, e]
