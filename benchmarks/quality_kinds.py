"""Generated sets of several kinds for `benchmarks.quality`.

A name such as ``sparse-200`` has the kind and the number of train queries.

The relevance is a sum, in shares that depend on the kind.  It has steps of twelve features, six curves (tanh), each of
a random direction through all features, and five products of two features.  Every tenth feature is mostly one of the
query.

    sparse  60 features that are mostly 0, else have a long tail; 1 to 960 documents a query, 91 % of them of grade 0
    one     one relevant document a query, of 25 or so
    skewed  sizes of queries from 1 to 400, half of them below 8; noise by query
    noisy   grades 0 to 2, of which a quarter is drawn at random
    steps   steps alone, which trees find and nets do not
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.letor import Split

Values = npt.NDArray[np.float64]
STEPPED, DIRECTIONS, PAIRS = 12, 6, 5


@dataclass(frozen=True)
class Kind:
    """What sets of a kind have in common; ``mix`` are the shares of steps, curves and products."""

    mix: tuple[float, float, float]
    noise: float
    features: int = 30
    size: float = 20.0  # median of documents a query
    spread: float = 0.0  # of the logarithm of sizes
    sizes: tuple[int, int] = (1, 1000)  # least and most
    by_query: float = 0.0  # noise that all documents of a query share
    not_zero: float = 1.0  # share of values
    test_queries: int = 1500


KINDS = {
    "sparse": Kind((1.0, 0.3, 0.7), 1.0, 60, 60, 1.1, (2, 960), by_query=0.3, not_zero=0.12, test_queries=500),
    "one": Kind((0.7, 0.6, 0.5), 0.7, 25, 25, 0.4, (5, 100)),
    "skewed": Kind((0.7, 0.5, 0.6), 0.8, 30, 8, 1.2, (1, 400), by_query=0.5),
    "noisy": Kind((0.7, 0.5, 0.4), 0.6),
    "steps": Kind((1.0, 0.0, 0.0), 0.8),
}


def of_kind(name: str, seed: int, part: int, queries: int) -> Split:
    """Return one part of a set of the kind ``name``; all parts of a seed have the same signal."""
    kind, number = KINDS[name], list(KINDS).index(name)
    fixed, rng = np.random.default_rng([seed, 7, number]), np.random.default_rng([seed, 8, number, part])
    sizes = np.clip(np.round(kind.size * np.exp(kind.spread * rng.normal(size=queries))), *kind.sizes).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    n, query = int(starts[-1]), np.repeat(np.arange(queries), sizes)
    x = rng.normal(size=(n, kind.features))
    of_query = np.arange(kind.features) % 10 == 9
    x[:, of_query] = 0.3 * x[:, of_query] + rng.normal(size=(queries, int(of_query.sum())))[query]
    z = x
    if kind.not_zero < 1.0:
        present = rng.random(x.shape) < fixed.uniform(0.02, 2 * kind.not_zero, size=kind.features)
        x = np.where(present, np.exp(0.7 * x), 0.0)
        z = 2.0 * np.log1p(x)
    relevance = (
        _signal(z, kind, fixed) + kind.noise * rng.normal(size=n) + kind.by_query * rng.normal(size=queries)[query]
    )
    return Split(x.astype(np.float32), _grades(name, relevance, query, starts, rng), starts)


def _signal(z: Values, kind: Kind, fixed: np.random.Generator) -> Values:
    """Return the relevance (n,) of documents with the values ``z``, of deviation 1."""
    features, sparse = z.shape[1], kind.not_zero < 1.0
    used = fixed.permutation(features)[:STEPPED]
    cuts, heights = 0.8 * fixed.normal(size=(STEPPED, 3)), fixed.normal(size=(STEPPED, 3))
    cuts = np.abs(cuts) if sparse else cuts
    steps = sum(heights[i, j] * (z[:, used[i]] > cuts[i, j]) for i in range(STEPPED) for j in range(3))
    directions = fixed.normal(size=(features, DIRECTIONS)) * (2.5 if sparse else 1.0) / features**0.5
    curves = np.tanh(2.0 * z @ directions) @ np.array([1.0, 0.8, -0.8, 0.6, -0.6, 0.5])
    pairs = used[fixed.permutation(STEPPED)[: 2 * PAIRS].reshape(PAIRS, 2)]
    products = sum((-1.0) ** i * np.tanh(z[:, a] * z[:, b]) for i, (a, b) in enumerate(pairs))
    total = sum(
        share * (each - np.mean(each)) / np.std(each)
        for share, each in zip(kind.mix, (steps, curves, products), strict=True)
    )
    return np.asarray(total / np.std(total))


def _grades(
    name: str, relevance: Values, query: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], rng: np.random.Generator
) -> npt.NDArray[np.int32]:
    n = len(relevance)
    if name == "one":
        grades = np.zeros(n, dtype=np.int32)
        grades[np.lexsort((relevance, query))[starts[1:] - 1]] = 1
        return grades
    cuts = {
        "sparse": np.quantile(relevance, [0.91, 0.97, 0.99, 0.997]),
        "skewed": [0.4, 1.0, 1.7, 2.4],
        "noisy": [0.4, 1.4],
    }
    grades = np.digitize(relevance, cuts.get(name, [0.6, 1.2, 1.8, 2.4])).astype(np.int32)
    if name == "noisy":
        wrong = rng.random(n) < 0.25
        grades[wrong] = rng.integers(0, 3, size=int(wrong.sum()))
    return grades
