"""Losses of single documents with one score each: their laws, and the rules of their starts and leaves."""

import math

import numpy as np
import pytest

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.foundation.kernels import elementary
from rankmill.trainer.objectives.pointwise import _kernels as _point_kernels
from tests.naive_points import least, quantile_range, term
from tests.refusals import refused
from tests.trainer.objectives.loss_cases import (
    derivatives,
    gradient_error,
    hessian_error,
    objective_on,
    rows_with,
    steps_of,
)

ALL = ["l2", "laplace", "quantile(alpha=0.7)", "huber(alpha=0.8)", "bernoulli", "adaboost", "poisson", "logistic2"]
TWO_CLASSES = ["bernoulli", "adaboost", "logistic2", "logistic2(balanced=true)"]
SMOOTH = ["l2", "bernoulli", "adaboost", "poisson", "logistic2", "logistic2(balanced=true)"]


def case(written, seed=0, n=12, weighted=True, offsets=False):
    """Rows that suit the loss, and scores away from its kinks."""
    rng = np.random.default_rng(seed)
    name = written.partition("(")[0]
    if name in {"l2", "laplace", "quantile", "huber"}:
        labels = rng.normal(size=n) * 3
    elif name == "poisson":
        labels = rng.poisson(2.0, size=n)
    else:
        labels = np.resize([0, 1, 1], n)
    weights = rng.integers(0, 4, size=n).astype(float) if weighted else None
    if weighted:
        weights[:4] = [1, 2, 0, 1]
    return rows_with(labels=labels, weights=weights, offsets=rng.normal(size=n) if offsets else None), rng.normal(
        size=n
    )


def loss_of(written, rows, scores, delta=1.0, sigma=1.0):
    """Sum of the terms from their definitions, weights relative to their mean."""
    name, _, option = written.partition("(")
    alpha = float(option[6:-1]) if option.startswith("alpha") else 0.5
    weights = np.ones(len(scores)) if rows.weights is None else rows.weights / rows.weights.mean()
    if "balanced" in option:
        positive = rows.labels > 0
        for members in (positive, ~positive):
            weights = np.where(members, weights * len(scores) / (2 * weights[members].sum()), weights)
    return sum(
        w * term(name, y, s, alpha=alpha, delta=delta, sigma=sigma)
        for w, y, s in zip(weights, rows.labels, scores, strict=True)
    )


def delta_of(rows, g):
    """Huber's delta: the greatest slope of a document of weight 1; it is frozen with the gradients."""
    weights = np.ones(len(g)) if rows.weights is None else rows.weights / rows.weights.mean()
    return max(abs(slope) / weight for slope, weight in zip(g, weights, strict=True) if weight > 0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("written", [*ALL, "logistic2(balanced=true)"])
def test_losses_are_those_of_the_definition_and_g_differentiates_them(written, weighted):
    rows, scores = case(written, weighted=weighted)
    objective = objective_on(written, rows, sigma=0.7)
    g, _ = derivatives(objective, scores)
    delta = delta_of(rows, g) if written.startswith("huber") else None
    assert objective.losses(scores).sum() == pytest.approx(loss_of(written, rows, scores, delta, 0.7), rel=1e-10)
    kinks = 0.0 if delta is None else delta
    assert gradient_error(objective, scores, np.abs(np.abs(rows.labels - scores) - kinks) > 1e-3) < 1e-6


@pytest.mark.parametrize("written", SMOOTH)
def test_h_differentiates_g(written):
    rows, scores = case(written)
    assert hessian_error(objective_on(written, rows, sigma=1.3), scores) < 1e-6


@pytest.mark.parametrize("written", ["laplace", "quantile(alpha=0.7)", "huber(alpha=0.8)"])
def test_losses_with_flat_parts_write_the_weight_as_hessian_and_permit_se_alone(written):
    rows, scores = case(written)
    objective = objective_on(written, rows)
    np.testing.assert_allclose(derivatives(objective, scores)[1], rows.weights / rows.weights.mean(), rtol=1e-14)
    assert objective.splits.criteria == ("se",)


@pytest.mark.parametrize(("weighted", "offsets"), [(False, False), (True, True)])
@pytest.mark.parametrize("written", [w for w in ALL if not w.startswith("huber")] + ["logistic2(balanced=true)"])
def test_no_constant_is_better_than_the_start(written, weighted, offsets):
    for seed in range(2):
        rows, _ = case(written, seed, weighted=weighted, offsets=offsets)
        base = rows.offsets if offsets else np.zeros(rows.n_rows)
        start = objective_on(written, rows).start()
        best = least(lambda f: loss_of(written, rows, base + f), -9.0, 9.0)  # noqa: B023 - used at once
        lowest = loss_of(written, rows, base + best)
        assert loss_of(written, rows, base + start) <= lowest + 1e-9 * abs(lowest)


@pytest.mark.parametrize("far", [30.0, 500.0])
def test_the_start_with_far_offsets_is_where_the_force_vanishes(far):
    """Newton's steps from 0 diverge here; the bracket holds them."""
    classes = np.array([1, 0, 1, 0, 1.0])
    rows = rows_with(labels=classes, offsets=[far, far - 3, far + 2, far + 1, far - 1])
    objective = objective_on("bernoulli", rows)
    g, h = derivatives(objective, rows.offsets + objective.start())
    assert abs(g.sum()) < 1e-9 * h.sum()


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.9])
def test_hubers_delta_is_the_quantile_of_the_sizes_of_the_residuals(alpha):
    rows, scores = case("huber")
    objective = objective_on(f"huber(alpha={alpha})", rows)
    low, high = quantile_range(list(np.abs(rows.labels - scores)), list(rows.weights), alpha)
    assert low <= delta_of(rows, derivatives(objective, scores)[0]) <= high
    low, high = quantile_range(list(rows.labels), list(rows.weights), 0.5)
    assert low <= objective_on("huber", rows).start() <= high  # the median


def test_hubers_deviance_depends_on_the_scores_alone():
    rows, scores = case("huber")
    objective, fresh = objective_on("huber", rows), objective_on("huber", rows)
    derivatives(objective, scores * 5)
    lost = objective.losses(scores)
    assert objective.deviance(scores) == fresh.deviance(scores)
    assert objective.losses(scores).tobytes() == lost.tobytes()  # still those of the last gradient


# ---- leaves ------------------------------------------------------------------------------------------------------

LEAVES = [np.array([5, 0, 3]), np.array([1]), np.array([11, 2, 4, 7, 10, 6])]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("written", ["l2", "laplace", "quantile(alpha=0.7)", "quantile(alpha=0.25)", "poisson"])
def test_no_step_of_a_leaf_is_better_than_its_own(written, weighted):
    for seed in range(2):
        rows, scores = case(written, seed, weighted=weighted)
        scores += 0.5  # so that no leaf of counts is empty of them and at the limit
        steps = steps_of(objective_on(written, rows), scores, LEAVES)
        for leaf, step in zip(LEAVES, steps, strict=True):
            if (
                written == "poisson"
                and not (rows.labels[leaf] * (1 if rows.weights is None else rows.weights[leaf])).any()
            ):
                continue

            def loss(o, leaf=leaf, rows=rows, scores=scores):
                moved = scores.copy()
                moved[leaf] += o
                return loss_of(written, rows, moved)

            lowest = loss(least(loss, -30.0, 30.0))
            assert loss(step) <= lowest + 1e-9 * abs(lowest)


def test_hubers_leaf_is_the_median_and_one_clipped_mean():
    rows, scores = case("huber")
    objective = objective_on("huber(alpha=0.8)", rows)
    steps, delta = steps_of(objective, scores, LEAVES), delta_of(rows, derivatives(objective, scores)[0])
    for leaf, step in zip(LEAVES, steps, strict=True):
        r, w = (rows.labels - scores)[leaf], rows.weights[leaf]
        if w.sum() == 0:
            assert step == 0
            continue
        low, high = quantile_range(list(r), list(w), 0.5)
        median = (low + high) / 2
        clipped = np.clip(r - median, -delta, delta)
        assert step == pytest.approx(median + (w * clipped).sum() / w.sum(), rel=1e-12)


def test_a_leaf_without_counts_goes_to_the_limit_and_none_passes_it():
    rows = rows_with(labels=[0, 0, 5e9, 5e9, 1])
    scores = np.array([1.0, -2.0, 18.0, 17.0, -25.0])
    steps = steps_of(objective_on("poisson", rows), scores, [np.array([0, 1]), np.array([2, 3]), np.array([4])])
    assert steps[0] == -17.0  # the lowest score of the leaf to -19
    assert steps[1] == 1.0  # the highest to 19
    assert steps[2] == pytest.approx(19.0)  # from the limit, where the score counts


def test_equal_quantiles_meet_in_the_middle_and_mirror_each_other():
    objective = objective_on("laplace", rows_with(labels=[1.0, 2.0, 7.0, 4.0]))
    assert objective.start() == 3.0
    labels = np.random.default_rng(3).normal(size=10)
    for alpha in (0.1, 0.3, 0.5, 0.7):
        up = objective_on(f"quantile(alpha={alpha})", rows_with(labels=labels)).start()
        down = objective_on(f"quantile(alpha={1 - alpha})", rows_with(labels=-labels)).start()
        assert up == -down


def test_a_leaf_without_weight_stays_where_it_is():
    rows = rows_with(labels=[1.0, 2.0, 3.0], weights=[0, 0, 1])
    for written in ("laplace", "quantile(alpha=0.7)", "huber", "poisson"):
        assert steps_of(objective_on(written, rows), np.full(3, 0.5), [np.array([0, 1]), np.array([2])])[0] == 0.0


@pytest.mark.parametrize("n", [1, 2, 16, 17, 300])
def test_values_are_sorted_whatever_their_order_was(n):
    rng = np.random.default_rng(n)
    values, mass = rng.integers(0, 20, size=n + 4).astype(float), rng.integers(0, 3, size=n + 4).astype(float)
    before = values.copy(), mass.copy()
    _point_kernels.sort_by_value(values, mass, 2, n + 2, np.empty(n + 4), np.empty(n + 4))
    expected = sorted(zip(before[0][2:-2], before[1][2:-2], strict=True))
    assert list(zip(values[2:-2], mass[2:-2], strict=True)) == expected
    for kept, was in zip((values, mass), before, strict=True):
        assert kept[[0, 1, -2, -1]].tolist() == was[[0, 1, -2, -1]].tolist()


# ---- invariances -------------------------------------------------------------------------------------------------


def test_the_threshold_parts_grades():
    rows = rows_with(grades=[0, 1, 2, 3, 4])
    g, _ = derivatives(objective_on("bernoulli(threshold=3)", rows), np.zeros(5))
    assert g.tolist() == [0.5, 0.5, 0.5, -0.5, -0.5]
    g, _ = derivatives(objective_on("adaboost", rows), np.zeros(5))
    assert g.tolist() == [1, -1, -1, -1, -1]


# ---- deviances, errors -------------------------------------------------------------------------------------------


def test_deviances_are_those_of_the_gbm_guide():
    y, s, w = np.array([1.0, 0.0, 1.0]), np.array([0.5, -1.0, -0.2]), np.array([1.0, 2.0, 5.0])
    mean = lambda parts: (w * parts).sum() / w.sum()  # noqa: E731
    rows = rows_with(labels=y, weights=w)
    expected = {
        "l2": mean((y - s) ** 2),
        "laplace": mean(np.abs(y - s)),
        "quantile(alpha=0.7)": mean(np.where(y > s, 0.7 * (y - s), 0.3 * (s - y))),
        "adaboost": mean(np.exp(-(2 * y - 1) * s)),
        "bernoulli": -2 * mean(y * s - np.log1p(np.exp(s))),
        "poisson": -2 * mean(y * s - np.exp(s)),
    }
    for written, deviance in expected.items():
        assert objective_on(written, rows).deviance(s) == pytest.approx(deviance, rel=1e-10), written


@pytest.mark.parametrize("written", TWO_CLASSES)
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_alone_is_refused_as_training_and_measured_otherwise(written, label):
    objective = objective_on(written, rows_with(labels=[label] * 3))
    with refused(TrainingDataRejected, "classes"):
        objective.start()
    assert math.isfinite(objective.deviance(np.zeros(3)))


def test_elementary_functions_against_the_library():
    for x in [*np.linspace(-690, 690, 101), 0.0, 1e-300, -1e-9]:
        assert elementary.exp_clipped(x) == pytest.approx(math.exp(x), rel=1e-11)
        assert elementary.softplus(x) == pytest.approx(max(x, 0) + math.log1p(math.exp(-abs(x))), abs=1e-12)
        assert elementary.sigmoid(x) == pytest.approx(math.exp(min(x, 0)) / (1 + math.exp(-abs(x))), rel=1e-11)
    for x in np.geomspace(1e-300, 1e300, 101):
        assert elementary.log_positive(x) == pytest.approx(math.log(x), rel=1e-11, abs=1e-12)
