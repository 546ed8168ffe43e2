"""Forests and rows on which converted models must agree: cuts of every size, and values on them and one step beside
them."""

from dataclasses import replace

import numpy as np
import pytest

from rankmill.scorer.exchange.categories import category_numbers
from tests.scorer.forests import TEXTS, random_forest

FEATURES = 5
NUMBERS = [text for text in TEXTS if text.isdecimal() and text != "01"]


def peer(name):
    """Return the module, or skip with the reason why it cannot be loaded (a slim image lacks libgomp)."""
    try:
        return __import__(name)
    except (ImportError, OSError) as error:
        pytest.skip(f"{name} cannot be loaded: {error}")


def awkward_forest(seed, **shape):
    """A forest whose features have cuts of very different sizes, 0 and the last float among them."""
    forest = random_forest(seed, **{"n_features": FEATURES, **shape})
    cuts = forest.cuts.copy()
    for f, scale in enumerate([1.0, 1e30, 1e-30, 100.0, 1e-3][: forest.n_features]):
        if f in forest.categorical_features:
            continue
        at = slice(int(forest.cut_starts[f]), int(forest.cut_starts[f + 1]))
        cuts[at] *= np.float32(scale)
        if f == 3 and len(cuts[at]):
            cuts[at] = np.arange(len(cuts[at])) - len(cuts[at]) // 2  # 0 is one of them
        if f == 4 and len(cuts[at]):
            cuts[at][-1] = np.finfo(np.float32).max
    return replace(forest, cuts=cuts)


def rows_for(forest, seed, n_rows=200, *, infinite=True, missing=True, tiny=True):
    """Rows whose values are mostly a cut, one float32 beside it, missing, infinite, or zero of either sign."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, forest.n_features)).astype(np.float32)
    for f in range(forest.n_features):
        cuts = forest.cuts[forest.cut_starts[f] : forest.cut_starts[f + 1]]
        with np.errstate(over="ignore", under="ignore"):
            pool = [cuts, np.nextafter(cuts, np.float32(np.inf)), np.nextafter(cuts, np.float32(-np.inf))]
        pool.append(np.float32([0.0, -0.0, 3e38, -3e38]))
        pool += [np.float32([np.nan] * 3)] * missing + [np.float32([np.inf, -np.inf])] * infinite
        pool += [np.float32([1e-45, -1e-45, 1e-35, -1e-35, 2e-35])] * tiny
        chosen = rng.random(n_rows) < 0.8
        rows[chosen, f] = rng.choice(np.concatenate(pool), size=int(chosen.sum()))
    rows[np.isinf(rows) & (not infinite)] = 1.0
    if not tiny:
        rows[np.abs(rows) <= np.float32(1e-35)] = 0.0
    return rows


def numbered(forest, rows, seed):
    """Return rows with the categories as other tools number them; those that no split knows are whole numbers of any
    kind."""
    rng = np.random.default_rng(seed)
    rows = rows.copy()
    for f, known in category_numbers(forest).items():
        taken = set(known.numbers.values())
        others = [n for n in (-7, -1, 0, 1, 5, 33, 64, 1000, 70_000, 2**24, 3e9) if n not in taken]
        rows[:, f] = [
            x if np.isnan(x) else known.numbers[float(x)] if float(x) in known.numbers else rng.choice(others)
            for x in rows[:, f]
        ]
    return rows


def same_model(one, other):
    """Whether two forests differ at most in what they say of the file that they were read from."""
    return one == replace(other, info=one.info)
