"""Laws of learning position bias beside the trees."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.trainer.boosting import boost
from rankmill.trainer.checkpoints import Checkpoint
from rankmill.trainer.clicks.position_bias import POSITION_BIAS
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.rows import RankedRows, TrainingData
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from rankmill.trainer.workers import Team
from tests.naive_clicks import naive_additive_step, naive_unbiased_step
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import planted, rows_of, small_data

RANKS = 10
THETA = 1.0 / np.arange(1, RANKS + 1)


def impressions(seed=1, n_lists=300, theta=THETA, positions=None, follows=0, noise=2.0) -> RankedRows:
    """Lists of ten in an order that follows a feature, by default one that says a little, with clicks of a position-based model."""
    x, grades, starts = planted(seed, n_queries=n_lists)
    rng = np.random.default_rng(seed)
    kept, rank = [], []
    for first, last in pairwise(starts):
        order = np.argsort(
            -(np.nan_to_num(x[first:last, follows]) + noise * rng.normal(size=last - first)), kind="stable"
        )[:RANKS]
        at = np.empty(last - first, dtype=np.int64)
        at[order] = np.arange(len(order))
        shown = np.sort(order)
        kept.append(first + shown)
        rank.append(at[shown])
    rows, at = np.concatenate(kept), np.concatenate(rank)
    gamma = 0.1 + 0.9 * (2.0 ** grades[rows] - 1) / 15.0
    clicked = (rng.random(len(rows)) < theta[at] * gamma).astype(np.int32)
    sizes = np.array([len(part) for part in kept])
    part = (x[rows], clicked, np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))
    found = rows_of(part, small_data()[2])
    return replace(found, positions=(at + 1 if positions is None else np.full(len(at), positions)).astype(np.int32))


def data_of(rows=None) -> TrainingData:
    _, second, binspec = small_data()
    return TrainingData(
        train=rows or impressions(),
        eval_sets=[("valid", rows_of(second, binspec))],
        edges=[feature.edges for feature in binspec.features],
        feature_names=binspec.feature_names,
        max_grade=4,
    )


def trained(rows=None, checkpoint=None, options=None, **parameters):
    given = {"n_rounds": 12, "max_leaves": 8, "min_rows_in_leaf": 5, "early_stopping_rounds": 0, **parameters}
    own = TrainingOptions(**{"n_threads": 1, **(options or {})})
    return boost(data_of(rows), fixed(**given), own, checkpoint=checkpoint)


def gradients(objective, scores, step=1, team=None):
    g, h = np.full_like(scores, np.nan), np.full_like(scores, np.nan)
    objective.gradients(step, scores, g, h, team or Team(1))
    return g, h


WAYS = [
    {"position_bias": "additive"},
    {"position_bias": "additive", "objective": "ranknet", "position_bias_l2": 0.1},
    {"position_bias": "additive", "objective": "l2"},
    {"position_bias": "additive", "objective": "query_rmse"},
    {"position_bias": "unbiased"},
    {"position_bias": "unbiased", "objective": "ranknet", "position_bias_norm": 0.0},
]


@pytest.mark.parametrize(
    ("name", "bias"), [("l2", "additive"), ("softmax", "additive"), ("ranknet", "additive"), ("ranknet", "unbiased")]
)
def test_gradients_are_derivatives_of_the_loss_of_shifted_or_weighted_scores(name, bias):
    rows = impressions(n_lists=60)
    objective = objective_of(rows, fixed(objective=name, position_bias=bias))
    rng = np.random.default_rng(1)
    scores, tiny = rng.normal(size=rows.n_rows), 1e-5
    for step in (1, 2, 3):
        g, _ = gradients(objective, scores, step)
    learnt = objective.learnt(3)[POSITION_BIAS]
    assert max(np.ptp(values) for name, values in learnt.items() if name != "position") > 0.01
    for row in rng.choice(rows.n_rows, 12, replace=False):
        moved = [scores.copy() for _ in range(2)]
        for values, sign in zip(moved, (1.0, -1.0), strict=True):
            values[row] += sign * tiny
        above, below = (float(np.sum(objective.losses(values))) for values in moved)
        assert g[row] == pytest.approx((above - below) / (2 * tiny), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("name", ["l2", "ranknet", "lambdamart"])
def test_additive_steps_are_those_of_the_slow_twin(name):
    rows = impressions(n_lists=40)
    plain = objective_of(rows, fixed(objective=name))
    objective = objective_of(rows, fixed(objective=name, position_bias="additive", position_bias_l2=0.2))
    rng, bias = np.random.default_rng(2), np.zeros(RANKS)
    for step in range(1, 5):
        scores = rng.normal(size=rows.n_rows)
        g, h = gradients(objective, scores, step)
        expected = gradients(plain, scores + bias[rows.positions - 1], step)
        assert g == pytest.approx(expected[0])
        assert h == pytest.approx(expected[1])
        bias = naive_additive_step(bias, rows.positions, g, h, rate=0.1, l2=0.2)
        found = objective.learnt(step)[POSITION_BIAS]
        assert found["position"] == list(range(1, RANKS + 1))
        assert found["additive"] == pytest.approx(bias - bias[0])


def test_unbiased_steps_are_those_of_the_slow_twin():
    rows = impressions(n_lists=200)
    rows = replace(rows, weights=np.random.default_rng(4).random(rows.n_rows) + 0.5)
    objective = objective_of(rows, fixed(objective="ranknet", position_bias="unbiased"))
    weights = rows.weights / rows.weights.mean()
    rng, ratios = np.random.default_rng(2), (np.ones(RANKS), np.ones(RANKS))
    for step in range(1, 5):
        scores = rng.normal(size=rows.n_rows)
        g, _ = gradients(objective, scores, step)
        expected, ratios = naive_unbiased_step(
            ratios, scores, rows.grades, rows.starts, rows.positions, weights, power=0.5
        )
        assert g == pytest.approx(expected)
        found = objective.learnt(step)[POSITION_BIAS]
        assert found["clicked"] == pytest.approx(ratios[0])
        assert found["not_clicked"] == pytest.approx(ratios[1])


@pytest.mark.parametrize("way", [WAYS[1], WAYS[4]], ids=str)
def test_one_position_for_all_is_plain_training(way):
    """Where only differences of scores matter: with l2 a common number takes a part of what the trees would learn."""
    rows = impressions(positions=3)
    plain = {name: value for name, value in way.items() if not name.startswith("position_bias")}
    if way["position_bias"] == "unbiased":
        plain["lambda_normalisation"] = False
    found, expected = trained(rows, **way).forest, trained(rows, **plain).forest
    assert np.array_equal(found.thresholds, expected.thresholds, equal_nan=True)
    assert found.node_value == pytest.approx(expected.node_value, rel=1e-6, abs=1e-9)
    assert found.info[POSITION_BIAS]["position"] == [3]


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2], WAYS[5]], ids=str)
def test_threads_kills_and_resuming_change_no_byte(way, tmp_path):
    rows = impressions()
    more = {"query_fraction": 0.7, **way}
    found = trained(rows, **more).forest.to_bytes()
    assert trained(rows, options={"n_threads": 3}, **more).forest.to_bytes() == found
    half = trained(rows, **{**more, "n_rounds": 5}).forest
    assert trained(rows, options={"resume": StartingModel(half)}, **more).forest.to_bytes() == found
    path, rounds = tmp_path / "a.checkpoint", []

    def dies(record):
        rounds.append(record)
        if len(rounds) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(rows, Checkpoint(path, every=0.0), {"on_round": dies}, **more)
    assert trained(rows, Checkpoint(path), **more).forest.to_bytes() == found


@pytest.mark.parametrize("way", [WAYS[3], WAYS[5]], ids=str)
def test_the_bias_of_the_simulation_is_found(way):
    """Examination falls with the rank, and so must what is learnt; without bias hardly anything is learnt."""
    biased = trained(impressions(n_lists=1500), **{**way, "n_rounds": 20}).forest.info[POSITION_BIAS]
    fair = trained(impressions(n_lists=1500, theta=np.full(RANKS, 0.5)), **{**way, "n_rounds": 20}).forest.info[
        POSITION_BIAS
    ]
    kind = "additive" if way["position_bias"] == "additive" else "clicked"
    found, other = np.array(biased[kind]), np.array(fair[kind])
    assert np.corrcoef(found, np.log(THETA))[0, 1] > 0.9
    assert np.ptp(other) < 0.5 * np.ptp(found)
    if kind == "clicked":  # the same for the rest would undo the weights of clicks
        assert min(biased["not_clicked"]) > 0.8


def test_the_model_has_the_bias_of_its_best_round():
    whole = trained(position_bias="additive", n_rounds=12, early_stopping_rounds=3)
    rounds = whole.best_round
    assert rounds < 12
    part = trained(position_bias="additive", n_rounds=rounds, early_stopping_rounds=0)
    assert whole.forest.info[POSITION_BIAS] == part.forest.info[POSITION_BIAS]


@pytest.mark.parametrize(
    "parameters", [{"boosting": "dart"}, {"boosting": "rf", "query_fraction": 0.5}, {"members": 2}, {"refit": "all"}]
)
def test_parameters_that_do_not_go_together_are_refused(parameters):
    (name, value), *_ = parameters.items()
    with refused(InvalidParameter, "position_bias 'additive'", name, value):
        fixed(position_bias="additive", **parameters)


def test_losses_that_have_other_targets_or_no_pairs_are_refused():
    rows = impressions(n_lists=20)
    for name in ("mcrank", "gbrank"):
        with refused(InvalidParameter, "position_bias 'additive'", name):
            objective_of(rows, fixed(objective=name, position_bias="additive"))
    for name in ("l2", "yetirank"):
        with refused(InvalidParameter, "position_bias 'unbiased'", name, "ranknet"):
            objective_of(rows, fixed(objective=name, position_bias="unbiased"))


def test_rows_without_positions_and_grades_that_are_no_clicks_are_refused():
    rows = impressions(n_lists=20)
    with refused(TrainingDataRejected, "position_bias 'additive'", "column 'position'", "position="):
        objective_of(replace(rows, positions=None), fixed(position_bias="additive"))
    with refused(TrainingDataRejected, "position_bias 'unbiased'", "1 (clicked)", 3):
        objective_of(replace(rows, grades=rows.grades * 3), fixed(position_bias="unbiased"))
    objective_of(replace(rows, grades=rows.grades * 3), fixed(position_bias="additive"))
