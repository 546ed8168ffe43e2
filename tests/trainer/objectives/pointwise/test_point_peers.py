"""A hundred rounds beside the peers at equal settings: deviance by one formula, within a hundredth; and what no setting
may change."""

from dataclasses import replace
from functools import cache

import lightgbm
import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

from rankmill.pipeline.bins.spec import BinSpec, apply_bins, feature_bins
from rankmill.trainer.data.rows import RankedRows
from tests.trainer.fixed import fixed
from tests.trainer.objectives.loss_cases import objective_on
from tests.trainer.planted import boost_rows

SETTINGS = {"n_rounds": 100, "learning_rate": 0.1, "max_leaves": 8, "min_rows_in_leaf": 20}
PEERS = {
    "l2": "squared_error",
    "laplace": "absolute_error",
    "quantile(alpha=0.7)": "quantile",
    "huber(alpha=0.8)": "huber",
    "bernoulli": "log_loss",
    "adaboost": "exponential",
}


@cache
def features():
    """Six features of 25 values each, so that bins lose nothing."""
    return np.random.default_rng(4).integers(0, 25, size=(1500, 6)).astype(np.float32)


def rows_with_bins(labels, weights=None):
    x = features()
    spec = BinSpec(tuple(feature_bins(f"f{i}", x[:, i].copy()) for i in range(x.shape[1])))
    n = len(x)
    grades, starts = np.zeros(n, np.int32), np.array([0, n])
    return RankedRows(grades, starts, [apply_bins(x, spec)], weights, labels=labels), spec


def train(written, rows, spec, **parameters):
    given = fixed(objective=written, stop_metric="deviance", min_hessian_in_leaf=0.0, **{**SETTINGS, **parameters})
    return boost_rows(rows, None, given, binspec=spec, max_grade=1)


def final_deviance(written, rows, spec, **parameters):
    return train(written, rows, spec, **parameters).history[-1].metrics["train"]["deviance"]


def signal():
    x = features() / 12 - 1
    return x[:, 0] + x[:, 1] * x[:, 2] - np.abs(x[:, 3])


@pytest.mark.parametrize(("written", "weighted"), [*((name, False) for name in PEERS), ("l2", True), ("laplace", True)])
def test_deviance_is_that_of_scikit_learn(written, weighted):
    rng = np.random.default_rng(9)
    n = len(features())
    classes = written in {"bernoulli", "adaboost"}
    labels = (signal() + rng.logistic(size=n) > 0).astype(float) if classes else signal() + rng.standard_t(3, size=n)
    weights = rng.integers(1, 4, size=n).astype(float) if weighted else None
    rows, spec = rows_with_bins(labels, weights)
    options = {"alpha": float(written[-4:-1])} if "alpha" in written else {}
    peer = (GradientBoostingClassifier if classes else GradientBoostingRegressor)(
        loss=PEERS[written], n_estimators=100, learning_rate=0.1, max_leaf_nodes=8, max_depth=None,
        min_samples_leaf=20, random_state=0, **options,
    )  # fmt: skip
    peer.fit(features(), labels, sample_weight=weights)
    theirs = peer.decision_function(features()) if classes else peer.predict(features())
    expected = objective_on(written, rows).deviance(theirs)
    ours = final_deviance(written, rows, spec, criterion="se")
    assert ours == pytest.approx(expected, rel=0.01)


def test_deviance_of_counts_is_that_of_lightgbm():
    rng = np.random.default_rng(9)
    labels = rng.poisson(np.exp(0.7 * signal() + 0.5)).astype(float)
    rows, spec = rows_with_bins(labels)
    peer = lightgbm.train(
        {"objective": "poisson", "learning_rate": 0.1, "num_leaves": 8, "min_data_in_leaf": 20,
         "min_sum_hessian_in_leaf": 0.0, "poisson_max_delta_step": 1e-9, "verbose": -1, "num_threads": 1},
        lightgbm.Dataset(features(), labels), 100,
    )  # fmt: skip
    objective = objective_on("poisson", rows)
    expected = objective.deviance(peer.predict(features(), raw_score=True))
    saturated = (
        2 * (labels - labels * np.log(np.maximum(labels, 1))).mean()
    )  # so that a hundredth is one of what is lost
    ours = final_deviance("poisson", rows, spec)
    assert ours - saturated == pytest.approx(expected - saturated, rel=0.01)


def test_deviance_of_grades_is_that_of_lightgbm():
    """Both start from 0 and multiply leaves by (K - 1) / K."""
    grades = np.digitize(signal() + np.random.default_rng(3).normal(size=len(features())), [-1, 0, 1]).astype(np.int32)
    rows, spec = rows_with_bins(None)
    rows = replace(rows, grades=grades)
    peer = lightgbm.train(
        {"objective": "multiclass", "num_class": 4, "learning_rate": 0.1, "num_leaves": 8, "min_data_in_leaf": 20,
         "min_sum_hessian_in_leaf": 0.0, "boost_from_average": False, "verbose": -1, "num_threads": 1},
        lightgbm.Dataset(features(), grades), 30,
    )  # fmt: skip
    raw = peer.predict(features(), raw_score=True)
    expected = objective_on("mcrank", rows).deviance(np.ascontiguousarray(raw.T))
    ours = final_deviance("mcrank(friedman_factor=true)", rows, spec, n_rounds=30)
    assert ours == pytest.approx(expected, rel=0.01)


# ---- training as a whole -----------------------------------------------------------------------------------------
