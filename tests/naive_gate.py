"""A slow, obvious twin of the paired comparison: dictionaries, loops, and the definition of the bootstrap."""

import itertools
import math

import numpy as np


def paired(candidate, other, replicates, seed, level=0.95):
    """Mean difference, interval, wins, ties, losses and effect size of two dicts qid -> value, in the order of the
    first."""
    differences = [candidate[qid] - other[qid] for qid in candidate]
    n = len(differences)
    means = []
    for b in range(replicates):
        raw = np.random.Philox(key=np.array([seed, b], np.uint64)).random_raw(n)
        total = 0.0
        for draw in raw:
            total += differences[((int(draw) >> 32) * n) >> 32]
        means.append(total / n)
    means.sort()
    cut = round((1 - level) / 2 * replicates)
    mean = sum(map(_exact, differences)) / n
    variance = sum((_exact(d) - mean) ** 2 for d in differences) / (n - 1)
    return {
        "difference": float(mean),
        "interval": (means[cut], means[replicates - 1 - cut]),
        "wins": sum(d > 1e-9 for d in differences),
        "ties": sum(abs(d) <= 1e-9 for d in differences),
        "losses": sum(d < -1e-9 for d in differences),
        "effect_size": float(mean) / math.sqrt(variance) if variance else None,
    }


def _exact(x):
    from fractions import Fraction

    return Fraction(x)


def constant_share(scores, starts):
    lists = [scores[a:b] for a, b in itertools.pairwise(starts) if b - a > 1]
    return sum(len(set(found)) == 1 for found in lists) / len(lists)


def comparisons_of(forest):
    """Steps of a binary search over the cuts of every feature that is asked for, and levels of every tree, and its
    leaf."""
    total = 0
    for f in {int(f) for f in forest.node_feature if f >= 0}:
        n, steps = int(forest.cut_starts[f + 1] - forest.cut_starts[f]), 0
        while n > 1:
            n -= n // 2
            steps += 1
        total += steps + 1
    for start in forest.tree_starts[:-1]:

        def depth(node, start=start):
            if forest.node_feature[start + node] < 0:
                return 0
            return 1 + max(depth(forest.node_left[start + node]), depth(forest.node_right[start + node]))

        total += depth(0) + 1
    return total
