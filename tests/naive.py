"""Slow, obvious twins of the kernels: they say what is right."""

import itertools
import math
import re
from decimal import Decimal

import numpy as np

# ---- pipeline: quantile bins -------------------------------------------------------------------------------------


def lightest_heaviest_bin(counts, max_bin):
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


def bin_of(x, edges):
    """Bin 0 for NaN, else 1 + the number of edges below ``x``."""
    return 0 if math.isnan(x) else 1 + sum(edge < x for edge in edges)


# --- scorer/forest/predict ------------------------------------------------------------------------------------------


def value_goes_left(forest, node, row):
    """Return whether a row goes left at an inner node."""
    f, c = int(forest.node_feature[node]), int(forest.node_cut[node])
    x, cuts = row[f], forest.cuts[forest.cut_starts[f] : forest.cut_starts[f + 1]]
    if x != x:
        return bool(forest.node_missing_left[node])
    if forest.feature_names[f] in forest.categories:
        return any(x == cuts[k] for k in forest.set_members[forest.set_starts[c] : forest.set_starts[c + 1]])
    return bool(x <= cuts[c])


def leaf_value(forest, t, row):
    """Walk one row down tree ``t`` node by node, on the raw floats, and return what its leaf adds."""
    start = int(forest.tree_starts[t])
    node = start
    while forest.node_feature[node] != -1:
        node = start + int(forest.node_left[node] if value_goes_left(forest, node, row) else forest.node_right[node])
    return float(forest.tree_weights[t]) * float(forest.node_value[node])


def predict(forest, values, n_rounds=None):
    """Sum up the trees of every row of ``values``, for a forest of one output and one tree a round."""
    n_trees = forest.n_trees if n_rounds is None else n_rounds
    scores = []
    for row in values:
        score = forest.base_score
        for t in range(n_trees):
            score = score + leaf_value(forest, t, row)
        scores.append(score)
    return scores


# ---- scorer: ties (the metrics are in naive_metrics)


def orders_of(scores):
    """Every order of the rows by descending score, rows of equal score in each of their orders."""
    levels = [[i for i, s in enumerate(scores) if s == level] for level in sorted(set(scores), reverse=True)]
    for parts in itertools.product(*(itertools.permutations(level) for level in levels)):
        yield [i for part in parts for i in part]


# ---------------------------------------------------------------------------------------------------- trainer


def encoded_in_order(codes, targets, starts, order, smoothing):
    """Return what each row's category is worth by the rows of earlier queries, with ``smoothing`` rows of the mean."""
    mean, values = float(np.mean(targets)), np.full(len(codes), float(np.mean(targets)))
    for at, q in enumerate(order):
        before = np.concatenate([np.arange(starts[e], starts[e + 1]) for e in order[:at]] or [np.zeros(0, dtype=int)])
        for row in range(starts[q], starts[q + 1]):
            if codes[row] == codes[row]:
                same = before[codes[before] == codes[row]]
                values[row] = (np.sum(targets[same]) + smoothing * mean) / (len(same) + smoothing)
    return values


# ---- pipeline: generated judgments -------------------------------------------------------------------------------


def hidden_relevance(f):
    """The planted signal, term by term as docs/synth.md has it; ``f[1]`` is f1."""
    topical = f[1] / (f[1] + 9)
    h = topical + 0.6 * f[5] / (f[5] + 0.5) + 1.2 * topical * f[2]
    h += f[9] * (1.6 * f[3] / (f[3] + 2.5) + 1.2 * f[4] / (f[4] + 4))
    h += (1 - f[9]) * topical * 30 / (30 + f[10])
    h += 0.3 * (f[8] - 1) / 5 * f[2]
    if f[7] > 0.6:
        h -= 0.8
    return h - 0.5 * abs(f[6] - 2) / 6


def letor_line(grade, query, document, grid, decimals):
    """One line of LETOR text of the values ``grid / 10 ** decimals``."""
    values = [Decimal(k).scaleb(-places) for k, places in zip(grid, decimals, strict=True)]
    features = " ".join(f"{i}:{value:f}" for i, value in enumerate(values, start=1))
    return f"{grade} qid:{query} {features} #docid = D{query}-{document}"


# ---- pipeline: LETOR text ----------------------------------------------------------------------------------------


_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|infinity)", re.ASCII | re.IGNORECASE)
_MISSING = re.compile(r"[+-]?nan|null|[+-]null", re.IGNORECASE)


def number_of(token):
    """Value of a token: NaN where it says that it is missing, None where it is no number."""
    if _MISSING.fullmatch(token):
        return np.float32(np.nan)
    if not _NUMBER.fullmatch(token):
        return None
    with np.errstate(over="ignore"):
        return np.float32(float(token))


def query_numbers(sizes, rows):
    """Number of the query, from 1, of each of ``rows`` rows, by a text of sizes; ValueError where they do not fit."""
    numbers = [number for number, size in enumerate(map(int, sizes.split()), start=1) for _ in range(size)]
    if len(numbers) != rows:
        raise ValueError(f"{len(numbers)} != {rows}")
    return numbers


def mixed(h):
    """Finaliser of splitmix64."""
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    h = (h ^ h >> 27) * 0x94D049BB133111EB % 2**64
    return h ^ h >> 31


def hash_of_id(name, salt=0):
    """FNV-1a of the bytes, xored with the salt, mixed."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return mixed(h ^ salt)


def part_of_folds(name, folds):
    """Which of ``folds`` equal parts a query falls into: the upper 32 bits of a hash of its own, as a fraction."""
    return (hash_of_id(name, 0x14057B7EF767814F) >> 32) * folds // 2**32


def digest_of_row(grade, bits):
    """Two words that name a row: its grade and the bits of its float32 values, two values at a time."""
    a = 0x9E3779B97F4A7C15 ^ grade
    b = (0xC2B2AE3D27D4EB4F + grade) % 2**64
    words = [bits[i] << 32 | bits[i + 1] for i in range(0, len(bits) - 1, 2)] + bits[len(bits) // 2 * 2 :]
    for word in words:
        word = (word ^ word >> 32) * 0x9E3779B97F4A7C15 % 2**64
        word ^= word >> 29
        a = (a ^ word) * 0xBF58476D1CE4E5B9 % 2**64
        a ^= a >> 32
        b = (b + word) * 0x94D049BB133111EB % 2**64
        b ^= b >> 29
    return mixed(a), mixed(b)
