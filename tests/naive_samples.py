"""Slow, obvious twins of draws: samples of rows, what is counted of a column that is not held, weights, noise."""

import math
from collections import Counter
from statistics import NormalDist

import numpy as np

from tests.naive import hash_of_id, mixed

_WORD = (1 << 64) - 1


def key_of_row(qid, place, salt):
    """Number ``place`` (from 0) of the splitmix64 sequence whose seed is the hash of the query."""
    seed = hash_of_id(qid, salt)
    return mixed((seed + (place + 1) * 0x9E3779B97F4A7C15) & _WORD)


def smallest(queries, k, salt):
    """The rows of the ``k`` smallest keys, in order; ``queries`` are ids and sizes."""
    rows = [(qid, place) for qid, size in queries for place in range(size)]
    order = sorted(range(len(rows)), key=lambda row: key_of_row(*rows[row], salt))
    return sorted(order[:k])


def atoms(values, one_in):
    """Zero, the extremes, and every value that more than one row in ``one_in`` has, with its count; no NaN among
    ``values``."""
    counts = Counter(value + 0.0 for value in values)
    return {
        value: count
        for value, count in sorted(counts.items())
        if count * one_in > len(values) or value in {0.0, min(counts), max(counts)}
    }


def neighbours(values, atoms):
    """The nearest values below and above each of ``atoms`` that are none themselves, ascending."""
    found = set()
    for atom in atoms:
        found |= {max((value for value in values if value < atom), default=atom)}
        found |= {min((value for value in values if value > atom), default=atom)}
    return sorted(found - set(atoms))


def bits_of(key, *numbers):
    """64 bits of a key and numbers, each of which picks an element of the splitmix64 sequence of what is before it."""
    for number in numbers:
        key = mixed((key + number * 0x9E3779B97F4A7C15) & _WORD)
    return key


def uniform_of(bits):
    """A number between 0 and 1 from the upper 52 of 64 bits."""
    return ((bits >> 12) + 0.5) / 2**52


def bayesian_weight(seed, step, number, temperature):
    """Weight of query or document ``number`` in this step."""
    return (-math.log(uniform_of(bits_of(seed, 6, step, number)))) ** temperature


def chances(sizes, fraction):
    """min(1, size / mu) with the mu at which they add up to the fraction, by bisection."""
    low, high = 1e-12, 2 * sum(sizes) / (fraction * len(sizes))
    for _ in range(200):
        middle = 0.5 * (low + high)
        if sum(min(1.0, size / middle) for size in sizes) > fraction * len(sizes):
            low = middle
        else:
            high = middle
    return np.array([min(1.0, size / high) for size in sizes])


def one_sided(sizes, keys, top, other):
    """Weight 1 for the ``top`` largest, and a higher one for ``other`` of the others, those with the lowest keys."""
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    largest, rest = order[:top], sorted(order[top:], key=lambda i: keys[i])
    weights = [0.0] * len(sizes)
    for i in largest:
        weights[i] = 1.0
    for i in rest[:other]:
        weights[i] = len(rest) / other
    return weights


def noisy(gain, score, deviation, key, node, feature):
    """What the best split of a feature is compared by where there is noise; ``score`` is G^2 / (H + lambda) before the
    split."""
    return math.sqrt(score + gain) + deviation * NormalDist().inv_cdf(uniform_of(bits_of(key, node, feature)))
