"""Small lists for the tests of losses of lists."""

from __future__ import annotations

import numpy as np

from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team
from tests.trainer.fixed import fixed

SIZES = [1, 6, 9, 2, 4]


def starts_of(sizes):
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def objective_for(objective, grades, sizes=None, *, weights=None, query_weights=None, labels=None, **parameters):
    grades = np.asarray(grades, dtype=np.int32)
    rows = RankedRows(
        grades, starts_of(sizes or [len(grades)]), (), weights, labels=labels, query_weights=query_weights
    )
    return objective_of(rows, fixed(objective=objective, **parameters))


def derivatives(objective, scores, *, step=1, team=None):
    scores = np.asarray(scores, dtype=np.float64)
    g, h = np.full(len(scores), np.nan), np.full(len(scores), np.nan)
    objective.gradients(step, scores, g, h, team or Team(1))
    return g, h


def random_lists(seed, sizes=SIZES, spread=1.5):
    """(scores, grades) with two grades in every list of two documents or more."""
    rng = np.random.default_rng(seed)
    scores, grades = rng.normal(scale=spread, size=sum(sizes)), rng.integers(0, 4, size=sum(sizes))
    for first, n in zip(starts_of(sizes), sizes, strict=False):
        if n > 1:
            grades[first : first + 2] = (0, 3)
    return scores, grades
