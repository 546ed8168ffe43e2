"""Steps along the trees of a round: never worse than the plain one, and what was added is what the forest holds."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from rankmill.scorer.forest.predict import predict
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.rounds.line_search import EVALUATIONS, FARTHEST, best_step
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, rows_of, small_data


@pytest.mark.parametrize("at", [0.0, 0.5, 3.3, 10.0, 50.0])
def test_the_minimum_of_a_parabola_is_found(at):
    tried = []

    def loss(step):
        tried.append(step)
        return (step - at) ** 2

    assert abs(best_step(loss) - min(at, FARTHEST)) < 5e-3
    assert len(tried) == EVALUATIONS
    assert all(0.0 <= step <= FARTHEST for step in tried)


def test_a_step_is_never_worse_than_the_plain_one():
    rng = np.random.default_rng(1)
    for _ in range(50):
        bumps = rng.normal(size=(5, 3))

        def loss(step, bumps=bumps):
            return sum(a * np.sin(b * step + c) for a, b, c in bumps)

        assert loss(best_step(loss)) <= loss(1.0)
    assert best_step(lambda step: float("nan") if step > 0.7 else -step) < 0.7
    assert best_step(lambda _: float("inf")) == 1.0


def losses_by_round(forest, objective, x):
    return [float(objective.losses(predict(forest, x, n_rounds=n)).sum()) for n in range(forest.n_rounds + 1)]


@pytest.mark.parametrize("objective", ["l2", "bernoulli"])
def test_every_round_takes_the_step_that_lowers_its_loss_most(objective):
    data = small_data()
    (x, _, _), _, binspec = data
    parameters = {"objective": objective, "learning_rate": 1.0, "n_rounds": 4, "watch": False}
    forest = fit(data, step_search="line", **parameters).forest
    loss = objective_of(rows_of(data[0], binspec), fixed(objective=objective))
    for n in range(forest.n_rounds):
        before, after = (predict(forest, x, n_rounds=rounds) for rounds in (n, n + 1))

        def along(step, before=before, way=after - before):
            return loss.losses(before + step * way).sum()

        found = minimize_scalar(along, bounds=(0.0, 3.0), method="bounded")
        # the tree is scaled already: its own best step is 1, within the grid of the search
        assert along(1.0) <= found.fun + 1e-5 * abs(found.fun)
    plain = fit(data, **parameters).forest
    assert losses_by_round(forest, loss, x)[1] <= losses_by_round(plain, loss, x)[1] + 1e-9


def test_the_search_comes_before_the_shrinkage():
    data = small_data()
    parameters = {"objective": "bernoulli", "n_rounds": 1, "watch": False, "step_search": "line"}
    whole = fit(data, learning_rate=1.0, **parameters).forest
    tenth = fit(data, learning_rate=0.1, **parameters).forest
    assert np.allclose(whole.node_value, 10.0 * tenth.node_value, rtol=2e-2)
    plain = fit(data, learning_rate=0.1, objective="bernoulli", n_rounds=1, watch=False).forest
    ratio = tenth.node_value[plain.node_value != 0.0] / plain.node_value[plain.node_value != 0.0]
    assert np.allclose(ratio, ratio[0])
    assert ratio[0] >= 0.0
