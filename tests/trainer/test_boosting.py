"""Whole trainings: the same bytes whatever the machine, scores that the forest reproduces, known signals found."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from scorer.metrics import Policy, parse_metric
from scorer.metrics.queries import PreparedQueries
from scorer.predict import predict
from tests.trainer.planted import fit, rows_of, small_data
from trainer.boosting import boost
from trainer.errors import InvalidParameter, TrainingDataRejected
from trainer.parameters import TrainParameters
from trainer.stopping import EarlyStopping


@pytest.fixture(scope="module")
def data():
    return small_data()


WAYS = [
    {},
    {"grow": "breadth_first"},
    {"grow": "depth_first"},
    {"grow": "oblivious", "max_depth": 3},
    {"objective": "l2"},
    {"monotone": {"f0": 1}},
    {"query_fraction": 0.5, "row_fraction": 0.7, "feature_fraction": 0.6},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_threads_batches_and_block_width_do_not_change_a_byte(data, monkeypatch, way):
    for name in (
        "growing.grower._LEAST_ROWS",
        "growing.grower._LEAST_VISITS",
        "growing.grower._SHARED_ROWS",
        "objectives.lambdamart._LEAST_WORK",
        "objectives.l2._LEAST_ROWS",
        "watching._LEAST_WALKED",
    ):
        monkeypatch.setattr(f"trainer.{name}", 1)  # let small work be shared out as well
    fit_so = partial(fit, data, **way)
    expected = fit_so().forest.to_bytes()
    for n_threads in (2, 3, 7):
        assert fit_so(options={"n_threads": n_threads}).forest.to_bytes() == expected
    assert fit_so(options={"pool_bytes": 1}).forest.to_bytes() == expected
    assert fit_so(batch=13).forest.to_bytes() == expected
    for width in (8, 16, 32):
        assert fit_so(width=width).forest.to_bytes() == expected


def test_blocks_of_other_rows_are_refused(data):
    train, valid, binspec = data
    other = replace(rows_of(valid, binspec, width=16), grades=train[1], starts=train[2])
    with pytest.raises(TrainingDataRejected, match=r"expected the bins of \(1\d+, 7\) rows and features, found \("):
        boost(
            other,
            None,
            [cuts.edges for cuts in binspec.features],
            binspec.feature_names,
            TrainParameters(),
            max_grade=4,
        )


def test_another_seed_breaks_first_round_ties_in_another_way(data):
    assert fit(data, seed=1).forest.to_bytes() != fit(data, seed=2).forest.to_bytes()


def test_the_forest_reproduces_the_metrics_of_training(data):
    """Raw values through the forest's cuts, and bins through the trees, must be the same scores to the last bit."""
    result = fit(data)
    (x, grades, starts), valid, _ = data
    for part, recorded in (((x, grades, starts), "train"), (valid, "valid")):
        queries = PreparedQueries(part[1], part[2], Policy(max_grade=4))
        metric = parse_metric("ndcg@10")
        found = queries.means([metric], predict(result.forest, part[0]))[metric]
        assert found == result.history[result.best_round - 1].metrics[recorded]["ndcg@10"]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_planted_signal_is_found(data, way):
    _, valid, _ = data
    result = fit(data, n_rounds=100, early_stopping_rounds=0, **way)
    queries = PreparedQueries(valid[1], valid[2], Policy(max_grade=4))
    metric = parse_metric("ndcg@10")
    # above the best single feature, which knows x0 but not the product
    alone = queries.means([metric], np.nan_to_num(valid[0][:, 0]).astype(np.float64))[metric]
    assert queries.means([metric], predict(result.forest, valid[0]))[metric] > alone + 0.05


def test_training_ndcg_rises(data):
    history = fit(data, watch=False).history
    assert history[-1].train["ndcg@10"] > history[0].train["ndcg@10"] > 0.5
    assert all(list(record.metrics) == ["train"] for record in history)


def test_early_stopping_keeps_the_best_round(data):
    result = fit(data, n_rounds=400, early_stopping_rounds=10, learning_rate=0.3)
    values = [record.metrics["valid"]["ndcg@10"] for record in result.history]
    assert result.best_round == 1 + int(np.argmax(values))
    assert len(values) == result.best_round + 10
    assert result.forest.n_trees == result.best_round
    shorter = fit(data, n_rounds=result.best_round, early_stopping_rounds=0, learning_rate=0.3)
    assert np.array_equal(shorter.forest.node_value, result.forest.node_value)


def test_sigma_changes_no_tree(data):
    """Newton leaves and no lambda: scores scale by 1 / sigma (METHODS 3).  Powers of two keep every bit."""
    one = fit(data, lambda_normalisation=False, min_hessian_in_leaf=0.0).forest
    two = fit(data, lambda_normalisation=False, min_hessian_in_leaf=0.0, sigma=2.0).forest
    assert np.array_equal(one.node_feature, two.node_feature)
    assert np.array_equal(one.node_cut, two.node_cut)
    assert np.array_equal(one.node_value, two.node_value * 2.0)


def test_leaf_rows_obey_the_bound_and_add_up(data):
    forest = fit(data, min_rows_in_leaf=15).forest
    leaf = forest.node_feature < 0
    assert forest.node_rows[leaf].min() >= 15
    assert set(forest.node_rows[forest.tree_starts[:-1]]) == {len(data[0][1])}


def test_no_rows_are_refused(data):
    empty = (np.empty((0, 7), np.float32), np.empty(0, np.int32), np.zeros(1, np.int64))
    with pytest.raises(TrainingDataRejected, match="no rows"):
        fit((empty, data[1], data[2]))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("learning_rate", 0.0, r"learning_rate must be in \(0, 1\], got 0.0"),
        ("learning_rate", float("nan"), "learning_rate"),
        ("max_leaves", 1, "max_leaves must be in 2"),
        ("lambda_l2", -1.0, "lambda_l2 must be a number of 0 or more, got -1.0"),
        ("lambda_l2", float("inf"), "lambda_l2"),
        ("objective", "lambdamat", "did you mean 'lambdamart'"),
        ("gain", "expo", "did you mean 'exp'"),
        ("sigma", 0.0, "sigma"),
        ("seed", -1, "seed"),
    ],
)
def test_parameters_out_of_bounds_are_refused(name, value, message):
    with pytest.raises(InvalidParameter, match=message):
        TrainParameters(**{name: value})


def test_negative_threads_are_refused(data):
    with pytest.raises(InvalidParameter, match="n_threads"):
        fit(data, options={"n_threads": -1})


def test_stopping_prefers_the_earliest_of_equals_and_ignores_nan():
    stopping = EarlyStopping(patience=3)
    assert [stopping.update(i, v) for i, v in enumerate([0.5, 0.7, 0.7, float("nan"), 0.6], start=1)] == [False] * 4 + [
        True
    ]
    assert (stopping.best_round, stopping.best_value) == (2, 0.7)
