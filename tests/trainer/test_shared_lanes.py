"""A training has the same bytes whether narrow features share lanes of the bins or not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from rankmill.pipeline.binspec import BinSpec, feature_bins
from rankmill.trainer import layout
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.workers import Team
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, planted


def alone(n_bins):
    """Return a lane for every feature: see ``layout.lanes_of``."""
    ones, numbers = np.ones(len(n_bins), dtype=np.int32), np.arange(len(n_bins), dtype=np.int32)
    return np.stack([numbers, ones, n_bins], axis=1)


@cache
def data():
    """Two parts of 4 features that mean nothing, and 20 of up to 6 different values, a tenth of them missing; and the bins."""
    parts = []
    for seed in (1, 2):
        x, grades, starts = planted(seed)
        narrow = [np.round(x[:, i % 7] * (i % 3 + 1) / 2).clip(-1 - i % 2, 1 + i % 3) for i in range(20)]
        parts.append((np.column_stack([x[:, 3:], *narrow]).astype(np.float32), grades, starts))
    columns = enumerate(parts[0][0].T)
    return *parts, BinSpec(tuple(feature_bins(f"f{i}", column.copy()) for i, column in columns))


WAYS = {
    "usual": {},
    "few rows": {"min_rows_in_leaf": 60},
    "weight": {"min_hessian_in_leaf": 5.0, "min_rows_in_leaf": 1},
    "oblivious": {"grow": "oblivious", "max_depth": 4, "max_leaves": 31, "min_rows_in_leaf": 30},
    "loss": {"criterion": "ole"},
    "squares": {"criterion": "se", "objective": "l2"},
    "samples": {"row_fraction": 0.5, "feature_fraction": 0.3},
    "random": {"extra_trees": True, "feature_fraction_by_node": 0.5},
    "exact": {"objective": "ranknet"},
    "dart": {"boosting": "dart"},
    "monotone": {"monotone": {"f10": 1, "f11": -1}},
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_trainings_have_the_same_bytes(way, threads, monkeypatch):
    given = {"n_rounds": 6, "options": {"n_threads": threads}} | way
    n_bins = data()[2].n_bins
    assert layout.n_lanes(layout.lanes_of(n_bins)) < len(n_bins) - 8
    shared = fit(data(), **given)
    monkeypatch.setattr(layout, "lanes_of", alone)
    assert fit(data(), **given).forest.to_bytes() == shared.forest.to_bytes()
    assert shared.forest.node_feature.max() >= 4  # narrow ones too


@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
def test_categories_have_the_same_trees(grow, monkeypatch):
    rng = np.random.default_rng(0)
    n_bins = np.array([9, 7, 5, 12] * 6, dtype=np.int32)
    bins = np.stack([rng.integers(0, n, 900) for n in n_bins], axis=1).astype(np.uint8)
    effect = rng.normal(size=12)
    g = effect[bins[:, 0]] + effect[bins[:, 3]] * effect[bins[:, 5]] + rng.normal(size=900)
    shape = {"grow": grow, "max_depth": 3, "max_leaves": 8}

    def grown():
        whole = layout.BlockedBins.from_batches([bins], 900, n_bins)
        grower = Grower(whole, fixed(**shape), Team(1), categorical=np.arange(24) % 2 == 0)
        scores = np.zeros(900)
        return grower.grow(g, np.ones(900), scores), scores, whole.words.shape

    tree, scores, shape_of_words = grown()
    monkeypatch.setattr(layout, "lanes_of", alone)
    other, others, wider = grown()
    assert shape_of_words != wider
    assert scores.tolist() == others.tolist()
    for name in ("feature", "threshold", "sets", "gain", "rows"):
        assert getattr(tree, name).tolist() == getattr(other, name).tolist(), name
    assert (tree.threshold == 0).any()
