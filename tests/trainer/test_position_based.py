"""The objective position_based: the position-based click model with relevance by trees."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.binspec import BinSpec, apply_bins, feature_bins
from rankmill.pipeline.clicks.simulate import EXAMINATION, click_probabilities
from rankmill.scorer.predict import predict
from rankmill.trainer.checkpoints import Checkpoint
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team, with_team
from tests.naive_clicks import regression_em_step
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import boost_rows

THETA = np.array(EXAMINATION) / EXAMINATION[0]
NAME = "position_based"


def impressions(seed=1, n_lists=300, length=10):
    """(x, rows): lists sorted by noise and a little relevance, shown to users of the position-based model."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n_lists, length))
    order = np.argsort(-(0.3 * hidden + rng.normal(size=hidden.shape)), axis=1)
    hidden = np.take_along_axis(hidden, order, axis=1).ravel()
    n = len(hidden)
    x = np.stack([hidden + 0.1 * rng.normal(size=n), rng.normal(size=n)], axis=1).astype(np.float32)
    gamma = click_probabilities(np.digitize(hidden, [0.0, 0.8, 1.4]).astype(np.int32), 0.1)
    positions = np.tile(np.arange(1, length + 1, dtype=np.int32), n_lists)
    clicks = (rng.random(n) < THETA[positions - 1] * gamma).astype(np.int32)
    return x, RankedRows(clicks, np.arange(0, n + 1, length, dtype=np.int64), [], positions=positions)


def trained(x, rows, options=None, **parameters):
    spec = BinSpec(tuple(feature_bins(f"f{i}", x[:, i].copy()) for i in range(x.shape[1])))
    rows = RankedRows(
        rows.grades, rows.starts, [apply_bins(x, spec)], rows.weights, rows.labels, positions=rows.positions
    )
    found = fixed(**{"objective": NAME, "n_rounds": 8, "max_leaves": 8, "early_stopping_rounds": 0, **parameters})
    edges = [feature.edges for feature in spec.features]
    return boost_rows(rows, [], edges, spec.feature_names, found, **{"max_grade": 1, "n_threads": 1, **(options or {})})


def gradients(objective, scores, step=1, team=None):
    g, h = np.full(len(scores), np.nan), np.full(len(scores), np.nan)
    objective.gradients(step, scores, g, h, team or Team(1))
    return g, h


def test_gradients_are_derivatives_of_the_loss():
    _, rows = impressions(n_lists=4)
    objective = objective_of(rows, fixed(objective=NAME))
    scores = np.random.default_rng(2).normal(size=rows.n_rows)
    for step in (1, 2, 3):
        found = objective_of(rows, fixed(objective=NAME))
        found._learnt = [objective._learnt[step - 1]]  # so that its losses are with the examination of this step
        for row in range(0, rows.n_rows, 7):
            up, down = scores.copy(), scores.copy()
            up[row] += 1e-5
            down[row] -= 1e-5
            slope = (found.losses(up).sum() - found.losses(down).sum()) / 2e-5
            assert gradients(objective, scores, step)[0][row] == pytest.approx(slope, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_steps_are_those_of_the_slow_twin(weighted):
    _, rows = impressions(n_lists=5)
    rng = np.random.default_rng(3)
    weights = rng.integers(1, 5, size=rows.n_rows).astype(float) if weighted else np.ones(rows.n_rows)
    labels = rng.integers(0, 5, size=rows.n_rows) / 4.0
    rows = RankedRows(rows.grades, rows.starts, [], weights if weighted else None, labels, positions=rows.positions * 2)
    objective = objective_of(rows, fixed(objective=NAME))
    theta = np.array(objective.learnt(0)["position_bias"]["examination"])
    scores = rng.normal(size=rows.n_rows)
    for step in range(1, 5):
        g, h = gradients(objective, scores, step)
        naive_g, naive_h, theta = regression_em_step(
            theta, rows.positions // 2 - 1, scores, labels, weights / weights.mean()
        )
        assert g == pytest.approx(naive_g, rel=1e-9, abs=1e-12)
        assert h == pytest.approx(naive_h, rel=1e-9, abs=1e-12)
        learnt = objective.learnt(step)["position_bias"]
        assert learnt["position"] == list(range(2, 21, 2))
        assert learnt["examination"] == pytest.approx(theta, rel=1e-9)


def test_each_step_of_examination_lowers_the_loss():
    _, rows = impressions()
    objective = objective_of(rows, fixed(objective=NAME))
    scores, losses = np.random.default_rng(4).normal(size=rows.n_rows) - 1.0, []
    for step in range(1, 12):
        losses.append(objective.losses(scores).sum())
        gradients(objective, scores, step)
    assert (np.diff(losses) <= 1e-9).all()
    assert losses[-1] < losses[0]


def test_one_position_is_the_logistic_loss():
    x, rows = impressions()
    alike = RankedRows(rows.grades, rows.starts, [], positions=np.full(rows.n_rows, 4, dtype=np.int32))
    found, unknown, plain = (
        trained(x, data, objective=name)
        for data, name in ((alike, NAME), (RankedRows(rows.grades, rows.starts, []), NAME), (rows, "bernoulli"))
    )
    assert predict(found.forest, x) == pytest.approx(predict(plain.forest, x), rel=1e-9)
    assert np.array_equal(predict(unknown.forest, x), predict(found.forest, x))
    assert found.forest.info["position_bias"] == {"position": [4], "examination": [1.0]}
    assert "position_bias" not in unknown.forest.info


WAYS = [
    {},
    {"members": 2, "bootstrap": "bayesian"},
    {"boosting": "dart", "skip_drop": 0.0, "drop_rate": 0.5},
    {"step_search": "line", "query_fraction": 0.5},
    {"rounds_by": "oob", "row_fraction": 0.5},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_threads_kills_and_resuming_change_no_byte(way, tmp_path):
    x, rows = impressions(n_lists=100)
    whole = trained(x, rows, **way)
    assert trained(x, rows, {"n_threads": 3}, **way).forest.to_bytes() == whole.forest.to_bytes()
    short = trained(x, rows, **{**way, "n_rounds": 5, "keep_rounds": "" if way.get("rounds_by") else "all"})
    resumed = trained(x, rows, {"resume": short.forest}, **way)
    assert resumed.forest.to_bytes() == whole.forest.to_bytes()
    seen = []

    def dies(record):
        seen.append(record)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(x, rows, {"checkpoint": Checkpoint(tmp_path / "one", every=0.0), "on_round": dies}, **way)
    again = trained(x, rows, {"checkpoint": Checkpoint(tmp_path / "one")}, **way)
    assert again.forest.to_bytes() == whole.forest.to_bytes()


def test_teams_change_no_bit():
    _, rows = impressions(n_lists=8_000)  # more rows than one worker takes
    scores = np.random.default_rng(5).normal(size=rows.n_rows)
    one, three = (objective_of(rows, fixed(objective=NAME)) for _ in range(2))
    g, h = gradients(one, scores)
    other = with_team(3, lambda team: gradients(three, scores, team=team))
    assert np.array_equal(other, (g, h))
    assert one.learnt(1) == three.learnt(1)


def test_what_it_cannot_learn_from_is_refused():
    x, rows = impressions(n_lists=20)
    nothing = np.where(rows.positions == 1, 0, rows.grades).astype(np.int32)
    with refused(TrainingDataRejected, NAME, "no click"):
        trained(x, RankedRows(nothing, rows.starts, [], positions=rows.positions))
    with refused(TrainingDataRejected, NAME, "-1", "row 0"):
        trained(
            x, RankedRows(rows.grades, rows.starts, [], labels=np.full(rows.n_rows, -1.0), positions=rows.positions)
        )
    with refused(InvalidParameter, "goals", NAME):
        goals = {"bought": rows.grades}
        objective_of(
            RankedRows(rows.grades, rows.starts, [], positions=rows.positions, goals=goals),
            fixed(objective=NAME, goals={"bought": 0.5}),
        )
    with refused(InvalidParameter, "position_bias", NAME):
        trained(x, rows, position_bias="additive")
