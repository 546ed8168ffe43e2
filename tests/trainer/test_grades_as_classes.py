"""McRank and the ordinal models: their losses, and what training with them learns."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from tests.naive_points import softmax
from tests.refusals import refused
from tests.trainer.point_cases import (
    derivatives,
    gradient_error,
    hessian_error,
    objective_on,
    rows_with,
)

GRADES = np.array([0, 2, 3, 1, 0, 3, 2])
WEIGHTS = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 0.0, 1.0])
ROWS = rows_with(grades=GRADES, weights=WEIGHTS)
SCORES = np.random.default_rng(6).normal(size=(4, 7)) * 2


def test_mcrank_is_softmax_regression():
    objective = objective_on("mcrank", ROWS)
    assert objective.n_outputs == 4
    w = WEIGHTS / WEIGHTS.mean()
    p = np.array([softmax(list(column)) for column in SCORES.T]).T
    g, h = derivatives(objective, SCORES)
    np.testing.assert_allclose(g, w * (p - (np.arange(4)[:, None] == GRADES)), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(h, w * p * (1 - p), rtol=1e-9)
    np.testing.assert_allclose(g.sum(axis=0), 0, atol=1e-12)  # probabilities sum to 1
    np.testing.assert_allclose(objective.losses(SCORES), -w * np.log(p[GRADES, np.arange(7)]), rtol=1e-10)


def test_ordinal_is_a_bernoulli_model_of_each_grade_and_those_below():
    scores = SCORES[:3]
    objective = objective_on("ordinal", ROWS)
    assert objective.n_outputs == 3
    g, h = derivatives(objective, scores)
    for k in range(3):
        alone = objective_on("bernoulli", rows_with(labels=k >= GRADES, weights=WEIGHTS))
        g_k, h_k = derivatives(alone, scores[k])
        assert g[k].tobytes() == g_k.tobytes()
        assert h[k].tobytes() == h_k.tobytes()
    total = sum(
        objective_on("bernoulli", rows_with(labels=k >= GRADES, weights=WEIGHTS)).losses(scores[k]) for k in range(3)
    )
    np.testing.assert_allclose(objective.losses(scores), total, rtol=1e-13)


@pytest.mark.parametrize(("written", "n_outputs"), [("mcrank", 4), ("ordinal", 3)])
def test_g_and_h_differentiate(written, n_outputs):
    objective = objective_on(written, ROWS)
    assert gradient_error(objective, SCORES[:n_outputs]) < 1e-6
    assert hessian_error(objective, SCORES[:n_outputs]) < 1e-6


def test_friedmans_factor_shortens_every_step():
    plain, short = objective_on("mcrank", ROWS), objective_on("mcrank(friedman_factor=true)", ROWS)
    (g, h), (g1, h1) = derivatives(plain, SCORES), derivatives(short, SCORES)
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


def test_what_it_refuses():
    with refused(InvalidParameter, "mcrank(score)", "grade, gain"):
        objective_on("mcrank(score=rank)", ROWS)
    with pytest.raises(TrainingDataRejected, match=r"mcrank\(max_grade"):
        objective_on("mcrank(max_grade=2)", ROWS).start()
    with refused(TrainingDataRejected, "two grades"):
        objective_on("ordinal", rows_with(grades=[1, 1])).start()
    with refused(TrainingDataRejected, "many grades"):
        objective_on("mcrank(score=gain)", rows_with(grades=[0, 60])).start()
    assert objective_on("ordinal(max_grade=6)", ROWS).n_outputs == 6
    # what is only watched may have other grades than what is learnt
    higher = rows_with(grades=[0, 5, 1])
    assert np.isfinite(objective_on("mcrank", higher).deviance(np.zeros((3, 3))))
