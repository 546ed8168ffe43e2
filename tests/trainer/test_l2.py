"""Squared error against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.objectives.pointwise.regression import SquaredError
from rankmill.trainer.objectives.protocol import NoOptions
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team
from tests.trainer.fixed import fixed


@pytest.mark.parametrize("weights", [None, np.array([1.0, 0.0, 3.0, 4.0])])
def test_gradient_and_hessian_are_those_of_the_loss(weights):
    grades, scores = np.array([0, 1, 4, 2], np.int32), np.array([0.5, -1.0, 4.0, 2.25])
    rows = RankedRows(grades, np.array([0, 4]), (), weights)
    objective = SquaredError(rows, fixed(objective="l2"), NoOptions())
    relative = np.ones(4) if weights is None else weights / weights.mean()
    g, h = np.empty(4), np.empty(4)
    objective.gradients(1, scores, g, h, Team(1))

    def loss(at):
        return (relative * (grades - at) ** 2 / 2).sum()

    for i in range(4):
        step = np.eye(4)[i] * 1e-3
        assert g[i] == pytest.approx((loss(scores + step) - loss(scores - step)) / 2e-3, abs=1e-9)
        assert h[i] == pytest.approx((loss(scores + step) - 2 * loss(scores) + loss(scores - step)) / 1e-6, abs=1e-6)
    # no constant is better than the start
    start = objective.start()
    assert loss(start) < min(loss(start - 1e-3), loss(start + 1e-3))


def test_weights_are_checked():
    with pytest.raises(TrainingDataRejected, match="shape"):
        objective_of(RankedRows(np.zeros(3, np.int32), np.array([0, 3]), (), np.ones(2)), fixed(objective="l2"))
