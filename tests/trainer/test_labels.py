"""Which objectives say that they learn labels: those whose gradients change with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankmill.trainer.objectives.registry import objective_class, objective_of
from rankmill.trainer.objectives.spelling import OBJECTIVES
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import with_team
from tests.trainer.fixed import fixed


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "user"])  # which needs a function
def test_what_learns_labels_says_so(name):
    rng = np.random.default_rng(7)
    grades = np.tile(np.arange(4, dtype=np.int32), 10)
    rows = RankedRows(grades, np.arange(0, 41, 8, dtype=np.int64), [])
    labels = grades[np.argsort(np.repeat(np.arange(5), 8) + rng.random(40) * 0.9)].astype(np.float64)
    parameters = fixed(objective=name, gain="linear")

    def gradients(rows):
        objective = objective_of(rows, parameters)
        shape = (40,) if objective.n_outputs == 1 else (objective.n_outputs, 40)
        scores, g, h = np.full(shape, 0.1) * np.arange(40), np.empty(shape), np.empty(shape)
        with_team(1, lambda team: objective.gradients(1, scores, g, h, team))
        return g

    assert (
        np.array_equal(gradients(rows), gradients(replace(rows, labels=labels))) != objective_class(name).learns_labels
    )
