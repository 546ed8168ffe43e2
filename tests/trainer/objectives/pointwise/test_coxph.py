"""Cox's partial likelihood against its definition and against XGBoost."""

import numpy as np
import pytest

from tests.naive_points import cox_loss
from tests.trainer.objectives.loss_cases import (
    derivatives,
    gradient_error,
    hessian_error,
    objective_on,
    rows_with,
    steps_of,
)


def case(seed=0, n=14, weighted=False, ties=True):
    rng = np.random.default_rng(seed)
    times = rng.integers(1, 6, size=n).astype(float) if ties else rng.permutation(n) + 1.0
    weights = rng.integers(0, 4, size=n).astype(float) if weighted else None
    return rows_with(labels=times, events=rng.random(n) < 0.6, weights=weights), rng.normal(size=n) * 2


def relative(rows):
    return np.ones(rows.n_rows) if rows.weights is None else rows.weights / rows.weights.mean()


@pytest.mark.parametrize(("seed", "weighted"), [(0, False), (2, True)])
def test_losses_are_the_partial_likelihood_and_g_and_h_differentiate_them(seed, weighted):
    rows, scores = case(seed, weighted=weighted)
    objective = objective_on("coxph", rows)
    assert objective.losses(scores).sum() == pytest.approx(
        cox_loss(scores, rows.labels, rows.events, relative(rows)), rel=1e-10
    )
    assert gradient_error(objective, scores) < 1e-6
    assert hessian_error(objective, scores) < 1e-6


def test_derivatives_sum_to_zero_and_ignore_a_constant():
    rows, scores = case(3, weighted=True)
    objective = objective_on("coxph", rows)
    g, h = derivatives(objective, scores)
    assert g.sum() == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(derivatives(objective, scores + 100), (g, h), rtol=1e-9, atol=1e-12)
    assert objective.start() == 0.0
    all_events = rows_with(labels=rows.labels, events=np.ones(rows.n_rows), weights=rows.weights)
    unsaid = rows_with(labels=rows.labels, weights=rows.weights)
    assert np.array_equal(*(derivatives(objective_on("coxph", each), scores)[0] for each in (all_events, unsaid)))


# ---- leaves ------------------------------------------------------------------------------------------------------

LEAVES = [
    np.array([5, 0, 3]),
    np.array([1, 8]),
    np.array([11, 2, 4, 7, 10, 6]),
]  # not every row: the others are out of bag


@pytest.mark.parametrize(("seed", "weighted"), [(0, False), (2, True)])
def test_leaves_are_one_joint_newton_step_over_the_rows_of_the_tree(seed, weighted):
    rows, scores = case(seed, weighted=weighted)
    bag = np.concatenate(LEAVES)

    def loss(steps):
        moved = np.concatenate([scores[leaf] + step for leaf, step in zip(LEAVES, steps, strict=True)])
        return cox_loss(moved, rows.labels[bag], rows.events[bag], relative(rows)[bag])

    e, d = np.eye(3), 1e-3
    gradient = np.array([(loss(d * a) - loss(-d * a)) / (2 * d) for a in e])
    hessian = np.array([[(loss(d * (a + b)) - loss(d * (a - b)) - loss(d * (b - a)) + loss(-d * (a + b))) / (4 * d * d) for b in e] for a in e])  # fmt: skip
    expected = -np.linalg.pinv(hessian, rcond=1e-5) @ gradient
    steps = steps_of(objective_on("coxph", rows), scores, LEAVES)
    np.testing.assert_allclose(steps - steps.mean(), expected - expected.mean(), rtol=1e-4, atol=1e-5)
    assert loss(steps / 100) < loss(np.zeros(3))
    # lambda is added to the diagonal
    held = steps_of(objective_on("coxph", rows, lambda_l2=0.3), scores, LEAVES)
    np.testing.assert_allclose(held, np.linalg.solve(hessian + 0.3 * e, -gradient), rtol=1e-4, atol=1e-5)


def test_a_leaf_that_no_event_knows_of_stays_and_one_leaf_alone_too():
    rows = rows_with(labels=[1, 2, 3, 4, 5], events=[0, 0, 1, 0, 1])
    scores = np.array([0.5, -0.2, 0.1, 0.9, 0.0])
    steps = steps_of(objective_on("coxph", rows), scores, [np.array([0, 1]), np.array([2]), np.array([3, 4])])
    assert steps[0] == 0.0
    assert steps[1] > 0 > steps[2]
    assert steps_of(objective_on("coxph", rows), scores, [np.arange(5)])[0] == pytest.approx(0.0, abs=1e-6)


# ---- XGBoost -----------------------------------------------------------------------------------------------------


def test_gradients_and_likelihood_are_those_of_xgboost():
    """Without ties: XGBoost counts, for a row, only those events of its own time that its sorting put before it."""
    xgboost = pytest.importorskip("xgboost")
    rows, scores = case(7, n=30, ties=False)
    scores = np.float32(scores * 0.5).astype(float)
    signed = np.where(rows.events, rows.labels, -rows.labels)
    data = xgboost.DMatrix(np.arange(30.0)[:, None], signed, base_margin=scores)
    settings = {"objective": "survival:cox", "eta": 1, "lambda": 0, "gamma": 0, "min_child_weight": 0,
                "max_depth": 30, "tree_method": "exact", "nthread": 1}  # fmt: skip
    # a tree with a leaf for every row says -g / h of every row
    booster = xgboost.train(settings, data, 1)
    moved = booster.predict(data, output_margin=True) - scores
    leaves = booster.predict(data, pred_leaf=True).ravel()
    alone = np.array([(leaves == leaf).sum() == 1 for leaf in leaves])
    objective = objective_on("coxph", rows)
    g, h = derivatives(objective, scores)
    sure = alone & (h > 1e-3)
    assert sure.sum() > 20
    np.testing.assert_allclose(moved[sure], -g[sure] / h[sure], rtol=2e-3, atol=2e-5)
    said = float(xgboost.train(settings, data, 0).eval(data).split(":")[-1])
    assert objective.losses(scores).sum() / rows.events.sum() == pytest.approx(said, rel=1e-5)
