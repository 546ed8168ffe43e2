"""LogistRank, McRank and the ordinal models against their formulas."""

import numpy as np
import pytest

from tests.naive_points import softmax
from tests.trainer.objectives.loss_cases import (
    derivatives,
    gradient_error,
    hessian_error,
    objective_on,
    rows_with,
    steps_of,
)

GRADES = np.array([0, 4, 3, 2, 1, 4, 0, 2])
WEIGHTS = np.array([1.0, 2.0, 0.0, 1.0, 3.0, 1.0, 1.0, 0.5])
SCORES = np.random.default_rng(2).normal(size=8)
LEAVES = [np.array([1, 0, 7]), np.array([3]), np.array([4, 5, 6, 2])]


def printed(threshold=1):
    """Sign, scale, yb and relative weight of every document."""
    y = np.where(threshold <= GRADES, 1.0, -1.0)
    scale = np.select([GRADES == 4, GRADES == 3], [3.0, 2.0], 1.0)
    return y, scale, y / (1 + np.exp(y * SCORES)), WEIGHTS / WEIGHTS.mean()


@pytest.mark.parametrize("threshold", [1, 3])
def test_the_pseudo_response_is_the_printed_one_and_differentiates_the_loss(threshold):
    objective = objective_on(f"logistrank(threshold={threshold})", rows_with(grades=GRADES, weights=WEIGHTS))
    y, scale, yb, w = printed(threshold)
    np.testing.assert_allclose(derivatives(objective, SCORES)[0], -w * scale * yb, rtol=1e-11)
    np.testing.assert_allclose(objective.losses(SCORES), w * scale * np.log1p(np.exp(-y * SCORES)), rtol=1e-10)
    assert gradient_error(objective, SCORES) < 1e-6
    assert hessian_error(objective, SCORES) < 1e-6


def test_both_leaves_are_the_printed_ones():
    rows = rows_with(grades=GRADES, weights=WEIGHTS)
    _, scale, yb, w = printed()
    yt = scale * yb
    paper, newton = (
        steps_of(objective_on(f"logistrank(leaf={leaf})", rows), SCORES, LEAVES) for leaf in ("paper", "newton")
    )
    for leaf, a, b in zip(LEAVES, paper, newton, strict=True):
        below = (w * scale * np.abs(yb) * (1 - np.abs(yb)))[leaf].sum()
        assert b == pytest.approx((w * yt)[leaf].sum() / below, rel=1e-10)
        assert a == pytest.approx(
            (w * yt)[leaf].sum() / max((w * np.abs(yt * (2 - np.abs(yt))))[leaf].sum(), below), rel=1e-10
        )
    assert (np.abs(paper) <= np.abs(newton) * (1 + 1e-12)).all()


def test_a_leaf_whose_printed_terms_vanish_takes_newtons_step():
    """|yt| = 2 at F = -log 2 with scale 3: 3 / (1 + 1/2) = 2."""
    rows = rows_with(grades=[4, 4, 0])
    scores = np.full(3, -np.log(2.0))
    step = steps_of(objective_on("logistrank", rows), scores, [np.array([0, 1]), np.array([2])])[0]
    assert step == pytest.approx(2 / (3 * (2 / 3) * (1 / 3)), rel=1e-10)


def test_the_start_is_the_mean_class_without_offsets():
    rows = rows_with(grades=GRADES, weights=WEIGHTS)
    y = printed()[0]
    assert objective_on("logistrank", rows).start() == pytest.approx(np.average(y, weights=WEIGHTS))
    offsets = np.linspace(-1, 1, 8)
    moved = rows_with(grades=GRADES, weights=WEIGHTS, offsets=offsets)
    assert objective_on("logistrank", moved).start() == pytest.approx(np.average(y - offsets, weights=WEIGHTS))


OF_GRADES = np.array([0, 2, 3, 1, 0, 3, 2])
OF_WEIGHTS = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 0.0, 1.0])
OF_ROWS = rows_with(grades=OF_GRADES, weights=OF_WEIGHTS)
OF_SCORES = np.random.default_rng(6).normal(size=(4, 7)) * 2


def test_mcrank_is_softmax_regression():
    objective = objective_on("mcrank", OF_ROWS)
    assert objective.n_outputs == 4
    w = OF_WEIGHTS / OF_WEIGHTS.mean()
    p = np.array([softmax(list(column)) for column in OF_SCORES.T]).T
    g, h = derivatives(objective, OF_SCORES)
    np.testing.assert_allclose(g, w * (p - (np.arange(4)[:, None] == OF_GRADES)), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(h, w * p * (1 - p), rtol=1e-9)
    np.testing.assert_allclose(g.sum(axis=0), 0, atol=1e-12)  # probabilities sum to 1
    np.testing.assert_allclose(objective.losses(OF_SCORES), -w * np.log(p[OF_GRADES, np.arange(7)]), rtol=1e-10)


def test_ordinal_is_a_bernoulli_model_of_each_grade_and_those_below():
    scores = OF_SCORES[:3]
    objective = objective_on("ordinal", OF_ROWS)
    assert objective.n_outputs == 3
    g, h = derivatives(objective, scores)
    for k in range(3):
        alone = objective_on("bernoulli", rows_with(labels=k >= OF_GRADES, weights=OF_WEIGHTS))
        g_k, h_k = derivatives(alone, scores[k])
        assert g[k].tobytes() == g_k.tobytes()
        assert h[k].tobytes() == h_k.tobytes()
    total = sum(
        objective_on("bernoulli", rows_with(labels=k >= OF_GRADES, weights=OF_WEIGHTS)).losses(scores[k])
        for k in range(3)
    )
    np.testing.assert_allclose(objective.losses(scores), total, rtol=1e-13)


@pytest.mark.parametrize(("written", "n_outputs"), [("mcrank", 4), ("ordinal", 3)])
def test_g_and_h_differentiate(written, n_outputs):
    objective = objective_on(written, OF_ROWS)
    assert gradient_error(objective, OF_SCORES[:n_outputs]) < 1e-6
    assert hessian_error(objective, OF_SCORES[:n_outputs]) < 1e-6


def test_friedmans_factor_shortens_every_step():
    plain, short = objective_on("mcrank", OF_ROWS), objective_on("mcrank(friedman_factor=true)", OF_ROWS)
    (g, h), (g1, h1) = derivatives(plain, OF_SCORES), derivatives(short, OF_SCORES)
    assert g.tobytes() == g1.tobytes()
    np.testing.assert_allclose(h1 * 3 / 4, h, rtol=1e-12)  # so -g / h is 3/4 as long


def test_two_grades_are_bernoulli_of_the_difference():
    rows = rows_with(grades=[0, 1, 1, 0, 1], weights=[1, 2, 1, 1, 3])
    scores = np.random.default_rng(1).normal(size=(2, 5))
    g, h = derivatives(objective_on("mcrank", rows), scores)
    g1, h1 = derivatives(objective_on("bernoulli", rows), scores[1] - scores[0])
    np.testing.assert_allclose(g, [-g1, g1], rtol=1e-12)
    np.testing.assert_allclose(h, [h1, h1], rtol=1e-12)
    one = objective_on("ordinal", rows)
    assert one.n_outputs == 1
    np.testing.assert_allclose(
        derivatives(one, -scores[0])[0], -derivatives(objective_on("bernoulli", rows), scores[0])[0]
    )
    assert one.losses(-scores[0]).sum() == pytest.approx(objective_on("bernoulli", rows).losses(scores[0]).sum())


def test_what_is_only_watched_may_have_other_grades_than_what_is_learnt():
    assert objective_on("ordinal(max_grade=6)", OF_ROWS).n_outputs == 6
    assert np.isfinite(objective_on("mcrank", rows_with(grades=[0, 5, 1])).deviance(np.zeros((3, 3))))
