"""The data of `benchmarks.quality`: the folds of real sets, and generated sets, with shuffled documents.

Real sets are LETOR folders (README beside them: fold f trains on parts f, f+1, f+2, validates on f+3, tests on f+4,
cyclic).  A generated set of n queries has n train queries, n / 3 valid queries (16 to 2,000) and 2,000 test queries, of
20 documents each.  Of its 30 features, 10 carry the signal.  Grades have noise 1.2: mean test NDCG@10 is 0.55 to 0.75
with it, and above 0.8 with the default noise.  Another seed makes another set.

A set of k categories has 2,000 train, 666 valid and 2,000 test queries of 20 documents, with eight normal features and
one of k categories.  The frequencies of the categories fall with rank as 1 / (rank + 10)^0.8.  A category moves the
relevance by a normal number for itself and half of one times a feature; the number of a category says nothing about it.

The relevance of a smooth set is a sum of six curves (tanh), each of a random direction through all 30 normal features.
Nets find them easily, and trees only by many steps.  `benchmarks.quality_kinds` has further kinds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.judgments import judgments, reordered
from benchmarks.letor import PARTS, Parts, Split, make_fold
from benchmarks.quality_kinds import KINDS, of_kind
from rankmill.pipeline.options import ReadOptions

REAL = {
    "mq2008": ReadOptions(),
    "ohsumed": ReadOptions(),  # NULL is missing
    "www2018": ReadOptions(absent="missing"),
}
GENERATED = {f"generated-{queries}": queries for queries in (50, 200, 1000, 5000, 20_000)}
CATEGORIES = {f"categories-{k}": k for k in (10, 100, 10_000)}
SMOOTH = {f"smooth-{queries}": queries for queries in (50, 200, 1000, 5000)}
OF_KINDS = {f"{kind}-{queries}": (kind, queries) for kind in KINDS for queries in (50, 200, 1000, 3000)}
SETS = (*REAL, *GENERATED, *CATEGORIES, *SMOOTH, *OF_KINDS)
SMALL = 1000  # most queries of the generated sets whose mean is shown
TEST_QUERIES, DOCUMENTS, FEATURES, NOISE = 2000, 20, 30, 1.2
VALID_SEED, TEST_SEED = 1_000_000, 2_000_000  # added to the seed of the train part


@dataclass(frozen=True)
class Unit:
    """One training of each system: a fold of a set in the order and with the seed ``seed``.

    Generated sets have fold 0.
    """

    name: str
    fold: int
    seed: int

    def parts(self, data: Path) -> Parts:
        """Return the fold with the documents of each query shuffled by the seed."""
        parts = real_fold(data, self.name, self.fold) if self.name in REAL else generated(self.name, self.seed)
        shuffled = [_shuffled(split, self.seed) for split in (parts.train, parts.valid, parts.test)]
        return Parts(*shuffled, categorical=parts.categorical)


def units(names: Sequence[str], seeds: Sequence[int], generated_seeds: Sequence[int]) -> list[Unit]:
    """Return the units of the named sets, all of the first seed before the second."""
    found = [Unit(name, fold, seed) for name in names if name in REAL for seed in seeds for fold in range(PARTS)]
    found += [Unit(name, 0, seed) for name in names if name not in REAL for seed in generated_seeds]
    return sorted(found, key=lambda unit: ([*seeds, *generated_seeds].index(unit.seed), names.index(unit.name)))


@lru_cache(maxsize=len(REAL) * PARTS)
def real_fold(data: Path, name: str, fold: int) -> Parts:
    """Return fold ``fold`` (from 0) of the real set ``name`` below ``data``, its documents as stored."""
    with tempfile.TemporaryDirectory() as work:
        made = make_fold(data / name, fold, Path(work), REAL[name])
        return Parts(made.train, made.valid, made.test)


def valid_queries(queries: int) -> int:
    """Return how many valid queries a generated set of ``queries`` train queries has."""
    return min(2000, max(16, queries // 3))


@lru_cache(maxsize=2)
def generated(name: str, seed: int) -> Parts:
    """Return the generated set ``name`` of ``seed``."""
    if name in CATEGORIES:
        k, queries = CATEGORIES[name], (2000, 666, TEST_QUERIES)
        return Parts(*(_of_categories(k, seed, part, n) for part, n in enumerate(queries)), categorical=(8,))
    if name in SMOOTH:
        sizes_of = SMOOTH[name], valid_queries(SMOOTH[name]), TEST_QUERIES
        return Parts(*(_smooth(seed, part, n) for part, n in enumerate(sizes_of)))
    if name in OF_KINDS:
        kind, queries = OF_KINDS[name]
        sizes_of = queries, valid_queries(queries), KINDS[kind].test_queries
        return Parts(*(of_kind(kind, seed, part, n) for part, n in enumerate(sizes_of)))
    queries = GENERATED[name]
    sizes = ((0, queries), (VALID_SEED, valid_queries(queries)), (TEST_SEED, TEST_QUERIES))
    return Parts(*(Split(*judgments(seed + added, n, DOCUMENTS, FEATURES, NOISE)) for added, n in sizes))


def _smooth(seed: int, part: int, queries: int) -> Split:
    """Return one part of a smooth set; all parts of a seed have the same directions."""
    directions = np.random.default_rng([seed, 5]).normal(size=(FEATURES, 6)) / FEATURES**0.5
    rng, n = np.random.default_rng([seed, 5, part]), queries * DOCUMENTS
    x = rng.normal(size=(n, FEATURES))
    relevance = np.tanh(2.0 * x @ directions) @ np.array([1.0, 0.8, -0.8, 0.6, -0.6, 0.5])
    grades = np.digitize(relevance + NOISE / 2 * rng.normal(size=n), [0.6, 1.2, 1.8, 2.4]).astype(np.int32)
    return Split(x.astype(np.float32), grades, np.arange(0, n + 1, DOCUMENTS))


def _of_categories(k: int, seed: int, part: int, queries: int) -> Split:
    """Return one part of a set of ``k`` categories; all parts of a seed have the same effects."""
    fixed = np.random.default_rng([seed, k])
    alone, with_feature = fixed.normal(size=k), 0.5 * fixed.normal(size=k)
    share = fixed.permutation(1.0 / (np.arange(k) + 10) ** 0.8)
    rng, n = np.random.default_rng([seed, k, part]), queries * DOCUMENTS
    x, category = rng.normal(size=(n, 8)), rng.choice(k, size=n, p=share / share.sum())
    relevance = 0.8 * x[:, 0] + 0.6 * np.tanh(x[:, 1] * x[:, 2]) + alone[category] + with_feature[category] * x[:, 3]
    grades = np.digitize(relevance + rng.normal(size=n), [0.6, 1.5, 2.3, 3.2]).astype(np.int32)
    return Split(np.column_stack([x, category]).astype(np.float32), grades, np.arange(0, n + 1, DOCUMENTS))


def _shuffled(split: Split, seed: int) -> Split:
    return Split(*reordered((split.x, split.grades, split.starts), seed))
