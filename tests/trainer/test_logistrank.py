"""LogistRank against the formulas of its notes."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from tests.refusals import refused
from tests.trainer.point_cases import (
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


def test_what_it_refuses():
    for wrong, hint in [("leaf=paper2", ("logistrank(leaf)", "paper2")), ("top=-1", ("top)", "0"))]:
        with refused(InvalidParameter, hint):
            objective_on(f"logistrank({wrong})", rows_with(grades=GRADES))
    with refused(TrainingDataRejected, "classes"):
        objective_on("logistrank(threshold=9)", rows_with(grades=GRADES)).start()
