"""dart and refitted leaves beside LightGBM's.

Known differences are switched off: what is drawn (everything is dropped), the mean as a start (targets have the mean 0), bins (features have few
values), and leaves without documents, which LightGBM moves towards 0 (all leaves of the new data have some).  LightGBM's gradients are float32.
"""

from __future__ import annotations

import numpy as np
import pytest

from rankmill import Ranker
from tests.scorer.exchange_cases import peer


def regression(seed, n=2_000):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 20, size=(n, 5)).astype(np.float32)
    y = x[:, 0] * (x[:, 1] > 9) - 0.2 * (x[:, 2] - 10) ** 2 + rng.normal(size=n)
    return x, y - y.mean(), np.arange(n) // 20


def ranker_of(**parameters):
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
    usual = {
        "objective": "regression",
        "boost_from_average": False,
        "num_leaves": 7,
        "min_sum_hessian_in_leaf": 0.0,
        "verbose": -1,
    }
    return usual | {"learning_rate": 0.3, "num_threads": 1} | parameters


@pytest.mark.parametrize("xgboost_dart_mode", [False, True])
def test_dart_that_drops_everything_is_lightgbm_s(xgboost_dart_mode):
    lightgbm = peer("lightgbm")
    x, y, qid = regression(1)
    drops = {"drop_rate": 1.0, "skip_drop": 0.0, "uniform_drop": True, "xgboost_dart_mode": xgboost_dart_mode}
    ours = ranker_of(boosting="dart", max_drop=0, **drops).fit(x, np.zeros(len(x)), qid=qid, label=y)
    data = lightgbm.Dataset(x, y, params={"min_data_in_bin": 1, "verbose": -1})
    theirs = lightgbm.train(settings_of(boosting="dart", max_drop=-1, **drops), data, 8)
    assert ours.predict(x) == pytest.approx(theirs.predict(x), abs=1e-4 * np.abs(y).max())
    assert np.abs(ours.predict(x)).max() > 1.0
