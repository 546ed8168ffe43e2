"""Going on gives the bytes of one go, whatever the loss: with samples, out-of-bag estimates and searched steps."""

from __future__ import annotations

import pytest

from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.objectives.spelling import OBJECTIVES
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, rows_of, small_data


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        *((name, "ndcg@10") for name in OBJECTIVES if name != "user"),  # which needs a function
        ("stochasticrank", "err"),
        ("yetirank(mode=metric)", "map@5"),
    ],
)
def test_two_halves_are_the_same_bytes_as_one_go(name, metric):
    data = small_data()
    objective = objective_of(rows_of(data[0], data[2]), fixed(objective=name))
    searched = {} if objective.steps_a_round > 1 else {"step_search": "line"}
    parameters = {
        "objective": name, "metric": metric, "query_fraction": 0.5, "rounds_by": "oob", "early_stopping_rounds": 0, "watch": False,
        "learning_rate": 0.05, **searched,
    }  # fmt: skip
    whole = fit(data, n_rounds=6, **parameters)
    half = fit(data, n_rounds=3, **parameters)
    resumed = fit(data, n_rounds=6, options={"resume": half.forest}, **parameters)
    assert resumed.forest.to_bytes() == whole.forest.to_bytes()
    assert resumed.history == whole.history
