"""Forests and documents to look into."""

from __future__ import annotations

import numpy as np

from tests.scorer.forests import random_forest


def random_values(seed, forest, n=40):
    """Values on, between and beyond the thresholds, some missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, forest.n_features)).astype(np.float32)
    for f in range(forest.n_features):
        cuts = forest.cuts[forest.cut_starts[f] : forest.cut_starts[f + 1]]
        if len(cuts):
            on = rng.random(n) < 0.4
            x[on, f] = rng.choice(cuts, size=int(on.sum()))
        if f in forest.categorical_features and len(cuts):
            x[:, f] = rng.choice([*cuts, 0.25, -7.0, np.inf], size=n)
    x[rng.random(x.shape) < 0.15] = np.nan
    return x


def several_outputs(seed, link="softmax_grade", n_outputs=3):
    return random_forest(seed, n_trees=2 * n_outputs, link=link, n_outputs=n_outputs)
