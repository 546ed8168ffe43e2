"""One tree on given gradients and hessians beside LightGBM's: same bins, no bound of rows."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill import Ranker
from tests.scorer.exchange_cases import peer


def gain_of(leaves, g, h):
    """Sum of (sum g)^2 / sum h over the leaves, one number of ``leaves`` a row."""
    _, leaf = np.unique(leaves, return_inverse=True)
    return (np.bincount(leaf, g) ** 2 / np.bincount(leaf, h)).sum(), leaf.max() + 1


@pytest.mark.parametrize("seed", range(3))
def test_a_tree_gains_what_lightgbm_s_gains(seed):
    """LightGBM estimates the rows of a leaf from its hessian and has bins of its own: both are switched off here."""
    lightgbm = peer("lightgbm")
    rng = np.random.default_rng(seed)
    n = 2_000
    x = rng.integers(0, 60, size=(n, 6)).astype(np.float32)
    h = rng.gamma(0.3, size=n)  # as uneven as those of lambdas
    g = h * (0.1 * x[:, 0] * (x[:, 1] > 30) - 0.002 * (x[:, 2] - 30) ** 2 + rng.normal(size=n))

    def given(scores, targets, starts, gradients, hessians):
        row = targets.astype(np.int64)  # rows may be in another order there
        gradients[:], hessians[:] = g[row], h[row]

    ranker = Ranker(
        preset="defaults-1",
        objective=given,
        n_rounds=1,
        max_leaves=31,
        min_rows_in_leaf=1,
        min_hessian_in_leaf=0.001,
        n_threads=1,
    ).fit(x, rng.integers(0, 3, n), qid=np.arange(n) // 20, label=np.arange(n, dtype=float))
    settings = {
        "objective": lambda scores, data: (g, h), "num_leaves": 31, "min_data_in_leaf": 1, "verbose": -1, "num_threads": 1,
    }  # fmt: skip
    data = lightgbm.Dataset(x, np.zeros(n), params={"min_data_in_bin": 1, "verbose": -1})
    theirs = lightgbm.train(settings, data, 1).predict(x, pred_leaf=True).ravel()
    ours, expected = gain_of(ranker.predict(x), g, h), gain_of(theirs, g, h)
    assert ours[1] == expected[1] == 31
    assert ours[0] == pytest.approx(expected[0], rel=1e-5)
