"""Laws of weighing clicks by inverse propensities while training, and of the naive model beside."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InputError, InvalidParameter, TrainingDataRejected
from rankmill.pipeline.clicks.propensities import Propensities, write_propensities
from rankmill.trainer.clicks.propensities_given import as_propensities
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.parameters import TrainParameters, options_for
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.test_position_bias import RANKS, THETA, gradients, impressions, trained

GIVEN = {"examination": list(THETA)}


def same(found, expected):
    assert np.array_equal(found.thresholds, expected.thresholds, equal_nan=True)
    assert found.node_value.tobytes() == expected.node_value.tobytes()


@pytest.mark.parametrize("name", ["lambdamart", "query_rmse"])
def test_equal_propensities_are_plain_training(name):
    for given in ({"examination": [1.0]}, {"examination": [1.0] * RANKS, "trust": [0.0] * RANKS}):
        same(
            trained(objective=name, propensities=given).forest,
            trained(objective=name, lambda_normalisation=False).forest,
        )


@pytest.mark.parametrize("name", ["lambdamart", "ranknet"])
def test_a_pair_weighs_as_its_click(name):
    """As weights of documents do that are 1 / theta for clicks, which slow twins of the losses check."""
    rows = impressions(n_lists=60)
    clip = 0.3
    weights = np.where(rows.grades > 0, 1.0 / np.maximum(THETA[rows.positions - 1], clip), 1.0)
    scores = np.random.default_rng(1).normal(size=rows.n_rows)
    found = objective_of(rows, fixed(objective=name, propensities=GIVEN, propensity_clip=clip))
    expected = objective_of(replace(rows, weights=weights), fixed(objective=name, lambda_normalisation=False))
    assert np.array_equal(gradients(found, scores), gradients(expected, scores))


def test_self_normalised_weights_are_relative_within_a_list():
    rows = impressions(n_lists=60)
    scores = np.random.default_rng(1).normal(size=rows.n_rows)
    weights = np.ones(rows.n_rows)
    for q in range(rows.n_queries):
        own = slice(rows.starts[q], rows.starts[q + 1])
        clicked = rows.grades[own] > 0
        of_clicks = 1.0 / THETA[rows.positions[own][clicked] - 1]
        weights[own][clicked] = of_clicks / of_clicks.mean() if len(of_clicks) else 1.0
    parameters = {"propensities": GIVEN, "propensity_clip": 0.01, "self_normalise": True}
    found = objective_of(rows, fixed(objective="ranknet", **parameters))
    expected = objective_of(replace(rows, weights=weights), fixed(objective="ranknet"))
    assert gradients(found, scores) == pytest.approx(np.array(gradients(expected, scores)))


def test_labels_are_relevance_on_average_also_with_trust():
    theta, trust = np.array([0.9, 0.6, 0.3]), np.array([0.2, 0.1, 0.05])
    rng, gamma, n = np.random.default_rng(3), 0.4, 30_000
    rows = impressions(n_lists=3)
    positions = np.arange(n) % 3 + 1
    clicked = (rng.random(n) < theta[positions - 1] * gamma + trust[positions - 1]).astype(np.int32)
    rows = replace(rows, grades=clicked, starts=np.arange(0, n + 1, 3), positions=positions.astype(np.int32))
    given = {"examination": theta.tolist(), "trust": trust.tolist()}
    start = objective_of(rows, fixed(objective="l2", propensities=given)).starting_score
    assert start == pytest.approx(gamma, abs=0.02)
    clipped = objective_of(rows, fixed(objective="l2", propensities=given, propensity_clip=0.9))
    assert clipped.starting_score == pytest.approx(np.mean((clicked - trust[positions - 1]) / 0.9))


def test_a_file_of_clicks_fit_is_kept_as_its_numbers(tmp_path):
    path = tmp_path / "pbm.json"
    write_propensities(path, Propensities(model="pbm", examination=(1.0, 0.5), low=(1.0, 0.4), high=(1.0, 0.6)))
    found = TrainParameters(propensities=path)
    assert found.propensities == {"examination": [1.0, 0.5]} == as_propensities(str(path))
    assert options_for(found.stored())["propensities"] == {"examination": [1.0, 0.5]}
    assert "propensities" not in TrainParameters().stored()
    assert str(tmp_path) not in json.dumps(found.stored())


@pytest.mark.parametrize(
    ("given", "kind", "facts"),
    [
        ("/nowhere/pbm.json", InputError, ["/nowhere/pbm.json", "no such file"]),
        ({"examination": [1.0, 0.0]}, InvalidParameter, ["propensities", "over 0", "0.0"]),
        ({"examination": [1.0], "trust": [0.1, 0.2]}, InvalidParameter, ["propensities", "trust", "0.2"]),
        ({"theta": [1.0]}, InvalidParameter, ["propensities", "clicks fit"]),
        (7, InvalidParameter, ["propensities", "clicks fit", 7]),
    ],
)
def test_what_is_no_file_of_propensities_is_refused(given, kind, facts):
    with refused(kind, *facts):
        TrainParameters(propensities=given)


def test_what_does_not_go_together_is_refused():
    for more in ({"position_bias": "additive"}, {"goals": {"bought": 0.5}}, {"refit": "all"}):
        with refused(InvalidParameter, "propensities", *more):
            fixed(propensities=GIVEN, **more)


@pytest.mark.parametrize(
    ("name", "more", "facts"),
    [
        ("bernoulli", {}, ["bernoulli", "lambdamart", "query_rmse"]),
        ("laplace", {}, ["laplace", "mean"]),
        ("lambdamart", {"propensities": {"examination": [1.0], "trust": [0.1]}}, ["lambdamart", "trust", "l2"]),
        ("l2", {"self_normalise": True}, ["self_normalise", "l2"]),
    ],
)
def test_losses_that_cannot_be_corrected_are_refused(name, more, facts):
    with refused(InvalidParameter, *facts):
        objective_of(impressions(n_lists=20), fixed(objective=name, **{"propensities": GIVEN, **more}))


def test_rows_that_are_no_impressions_are_refused():
    rows = impressions(n_lists=20)
    parameters = fixed(objective="l2", propensities=GIVEN)
    with refused(TrainingDataRejected, "propensities", "column 'position'"):
        objective_of(replace(rows, positions=None), parameters)
    with refused(TrainingDataRejected, "propensities", "1 (clicked)", 2):
        objective_of(replace(rows, grades=rows.grades * 2), parameters)
    with refused(TrainingDataRejected, "propensities", "labels"):
        objective_of(replace(rows, labels=np.zeros(rows.n_rows)), parameters)
