"""Constraints of direction, whatever splits are chosen by and however leaves step."""

from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest.predict import predict
from rankmill.trainer.growing._leaf_kernels import Steps, node_values
from rankmill.trainer.growing._state_kernels import NODE
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import boost_rows, fit, rows_of, small_data

DIRECTIONS = {"f0": 1, "f1": -1}


def moves_against(forest):
    """Count neighbouring values of a feature between which scores move against a constraint."""
    x, found = small_data()[0][0][:40], 0
    for feature, direction in enumerate(DIRECTIONS.values()):
        probes = np.tile(x, (50, 1))
        probes[:, feature] = np.repeat(np.linspace(-3, 3, 50), len(x))
        scores = predict(forest, probes).reshape(50, len(x))
        found += int((direction * np.diff(scores, axis=0) < -1e-12).sum())
    return found


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ("lambdamart", {}),
        ("lambdamart", {"criterion": "se", "leaf": "exact"}),
        *((name, {}) for name in ("quantile(alpha=0.9)", "huber", "poisson", "logistrank", "coxph", "gbrank(trees=3)")),
        ("bernoulli", {"criterion": "se"}),
    ],
)
def test_no_leaf_rule_and_no_criterion_moves_scores_against_a_constraint(objective, options):
    forest = fit(
        small_data(), objective=objective, monotone=DIRECTIONS, n_rounds=10, max_leaves=16, min_rows_in_leaf=5,
        watch=False, **options,
    ).forest  # fmt: skip
    assert (forest.node_feature == 0).any()
    assert moves_against(forest) == 0
    free = fit(
        small_data(), objective=objective, n_rounds=10, max_leaves=16, min_rows_in_leaf=5, watch=False, **options
    ).forest
    assert moves_against(free) > 0  # or the test could not fail


@pytest.mark.parametrize(
    "options",
    [
        {"criterion": "se", "min_rows_in_leaf": 40},
        {"leaf": "exact"},
        {"objective": "laplace"},
        {"max_delta_step": 0.2, "lambda_l1": 0.1, "path_smooth": 20.0},
        {"row_fraction": 0.6, "leaf_rows": "all"},
    ],
    ids=str,
)
def test_oblivious_trees_move_no_scores_against_a_constraint(options):
    given = {"grow": "oblivious", "max_depth": 5, "n_rounds": 8, "min_rows_in_leaf": 3, "watch": False, **options}
    forest = fit(small_data(), monotone=DIRECTIONS, **given).forest
    assert (forest.node_feature == 0).any()
    assert moves_against(forest) == 0
    assert moves_against(fit(small_data(), **given).forest) > 0


@pytest.mark.parametrize("objective", ["quantile(alpha=0.7)", "huber"])
def test_constrained_leaves_are_on_the_scale_of_the_labels(objective):
    """Gradients of these losses do not grow with the labels; their steps do."""
    train, _, binspec = small_data()
    given = fixed(objective=objective, n_rounds=8, max_leaves=8, monotone=DIRECTIONS, stop_metric="deviance")
    one, other = (
        boost_rows(replace(rows_of(train, binspec), labels=train[1] * scale), [], given).forest
        for scale in (1.0, 1024.0)
    )
    assert np.array_equal(one.node_feature, other.node_feature)
    assert other.node_value == pytest.approx(1024.0 * one.node_value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("objective", ["mcrank", "ordinal"])
def test_scores_that_are_made_of_probabilities_have_no_offsets(objective):
    """Outputs that all rise with a feature say nothing of the expected grade; that of ordinal would fall."""
    parts, binspec = small_data()[:2], small_data()[2]
    for shifted in (0, 1):
        rows = [rows_of(part, binspec) for part in parts]
        rows[shifted] = replace(rows[shifted], offsets=np.ones(rows[shifted].n_rows))
        with refused(InvalidParameter, "offsets", "one score"):
            boost_rows(rows[0], [("valid", rows[1])], fixed(objective=objective))


def test_a_value_equal_to_its_bound_has_the_sign_of_the_bound():
    nodes = np.zeros(3, dtype=NODE)
    nodes["left"], nodes["rows"] = (1, -1, -1), (2, 1, 1)
    sums = np.array([[0, 2], [1, 1], [-1, 1]])  # lambda_l1 draws the children to -0 and 0: both must be 0, the midpoint
    steps = Steps(1.0, 1.0, 0.0, 5.0, 0.0, 0.0, 1, 0.0, 1.0, oblivious=True, by_h=True)
    monotone, values = np.ones(1, dtype=np.int8), np.empty(3)
    node_values(nodes, np.zeros((3, 4)), np.array([1, 2]), sums, steps, None, None, monotone, np.empty((3, 2)), values)
    assert not values.any()
    assert not np.signbit(values[1:]).any()
