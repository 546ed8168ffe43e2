"""One tree on given gradients and hessians beside LightGBM's, same bins, no bound of rows; and dart, which drops
everything."""

import numpy as np
import pytest

from rankmill import Ranker
from tests.scorer.exchange.exchange_cases import peer


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
        "objective": lambda scores, data: (g, h), "num_leaves": 31, "min_data_in_leaf": 1, "verbose": -1,
        "num_threads": 1,
    }  # fmt: skip
    data = lightgbm.Dataset(x, np.zeros(n), params={"min_data_in_bin": 1, "verbose": -1})
    theirs = lightgbm.train(settings, data, 1).predict(x, pred_leaf=True).ravel()
    ours, expected = gain_of(ranker.predict(x), g, h), gain_of(theirs, g, h)
    assert ours[1] == expected[1] == 31
    assert ours[0] == pytest.approx(expected[0], rel=1e-5)


CATEGORY_SETTINGS = [
    (3, {}),  # each against the rest
    (9, {}),
    (30, {}),
    (30, {"category_l2": 0.0, "lambda_l2": 2.0}),
    (30, {"category_smoothing": 1.0, "min_rows_in_group": 1}),
    (60, {"categories_in_set": 5, "min_rows_in_group": 30}),
]
THEIRS = {
    "one_vs_rest": "max_cat_to_onehot", "category_l2": "cat_l2", "lambda_l2": "lambda_l2",
    "category_smoothing": "cat_smooth",
    "categories_in_set": "max_cat_threshold", "min_rows_in_group": "min_data_per_group",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("k", "settings"), CATEGORY_SETTINGS)
def test_a_split_by_categories_is_lightgbm_s(seed, k, settings):
    """The same set of categories goes to one side, with the same gain.

    LightGBM also bounds a set to half of the categories, which is said to us as ``categories_in_set``.  Which of two
    equal sides is left may differ.  All categories have a bin, and no value is missing.
    """
    lightgbm = peer("lightgbm")
    rng = np.random.default_rng(seed)
    n = 3_000
    codes = rng.permutation(np.concatenate([np.arange(k), rng.integers(0, k, size=n - k)]))
    x = codes[:, None].astype(np.float32)
    effects, h = rng.normal(size=k), rng.gamma(2.0, size=n)
    g = effects[codes] + rng.normal(size=n)

    def given(scores, targets, starts, gradients, hessians):
        row = targets.astype(np.int64)
        gradients[:], hessians[:] = g[row], h[row]

    limits = {
        "categories_in_set": (k + 1) // 2,
        "one_vs_rest": 4,
        "category_l2": 10.0,
        "category_smoothing": 10.0,
        "min_rows_in_group": 100,
    } | settings
    ranker = Ranker(
        preset="defaults-1", objective=given, n_rounds=1, max_leaves=2, min_rows_in_leaf=1, min_hessian_in_leaf=0.0,
        n_threads=1, categorical=[0], **limits,
    ).fit(x, rng.integers(0, 3, n), qid=np.arange(n) // 20, label=np.arange(n, dtype=float))  # fmt: skip
    asked = {
        "objective": lambda scores, data: (g, h), "num_leaves": 2, "min_data_in_leaf": 1,
        "min_sum_hessian_in_leaf": 0.0,
        "verbose": -1, "num_threads": 1, **{THEIRS[name]: value for name, value in limits.items()},
    }  # fmt: skip
    data = lightgbm.Dataset(x, np.zeros(n), categorical_feature=[0], params={"min_data_in_bin": 1, "verbose": -1})
    root = lightgbm.train(asked, data, 1).dump_model()["tree_info"][0]["tree_structure"]
    assert root["decision_type"] == "=="
    chosen = {int(code) for code in root["threshold"].split("||")}
    scores = ranker.predict(np.arange(k, dtype=np.float32)[:, None])
    sides = {frozenset(np.flatnonzero(scores == score).tolist()) for score in np.unique(scores)}
    assert sides == {frozenset(chosen), frozenset(set(range(k)) - chosen)}
    assert ranker.forest_.node_gain[0] == pytest.approx(root["split_gain"], rel=1e-5)


def regression(seed, n=2_000):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 20, size=(n, 5)).astype(np.float32)
    y = x[:, 0] * (x[:, 1] > 9) - 0.2 * (x[:, 2] - 10) ** 2 + rng.normal(size=n)
    return x, y - y.mean(), np.arange(n) // 20


def dart_ranker(**parameters):
    usual = {
        "preset": "defaults-1",
        "objective": "l2",
        "n_rounds": 8,
        "max_leaves": 7,
        "min_hessian_in_leaf": 0.0,
        "verbose": 0,
    }
    return Ranker(**usual, learning_rate=0.3, n_threads=1, **parameters)


def settings_of(**parameters):
    usual = {"objective": "regression", "boost_from_average": False, "num_leaves": 7, "min_sum_hessian_in_leaf": 0.0}
    return usual | {"verbose": -1} | {"learning_rate": 0.3, "num_threads": 1} | parameters


@pytest.mark.parametrize("xgboost_dart_mode", [False, True])
def test_dart_that_drops_everything_is_lightgbm_s(xgboost_dart_mode):
    lightgbm = peer("lightgbm")
    x, y, qid = regression(1)
    drops = {"drop_rate": 1.0, "skip_drop": 0.0, "uniform_drop": True, "xgboost_dart_mode": xgboost_dart_mode}
    ours = dart_ranker(boosting="dart", max_drop=0, **drops).fit(x, np.zeros(len(x)), qid=qid, label=y)
    data = lightgbm.Dataset(x, y, params={"min_data_in_bin": 1, "verbose": -1})
    theirs = lightgbm.train(settings_of(boosting="dart", max_drop=-1, **drops), data, 8)
    assert ours.predict(x) == pytest.approx(theirs.predict(x), abs=1e-4 * np.abs(y).max())
    assert np.abs(ours.predict(x)).max() > 1.0
