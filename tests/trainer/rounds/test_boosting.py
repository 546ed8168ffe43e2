"""Whole trainings: the same bytes whatever the machine, scores that the forest reproduces, known signals found."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.rounds.early_stopping import EarlyStopping
from rankmill.trainer.training_options import TrainingOptions
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import boost_rows, fit, rows_of, small_data


@pytest.fixture(scope="module")
def data():
    return small_data()


def test_blocks_of_other_rows_are_refused(data):
    train, valid, binspec = data
    other = replace(rows_of(valid, binspec, width=16), grades=train[1], starts=train[2])
    with refused(TrainingDataRejected, "bins", "7)"):
        boost_rows(other, None, fixed())


def test_another_seed_breaks_first_round_ties_in_another_way(data):
    assert fit(data, seed=1).forest.to_bytes() != fit(data, seed=2).forest.to_bytes()


@pytest.mark.parametrize(
    "way", [{"grow": "breadth_first"}, {"bootstrap": "mvs", "query_fraction": 0.5}, {"random_strength": 1.0}], ids=str
)
def test_a_planted_signal_is_found(data, way):
    _, valid, _ = data
    result = fit(data, early_stopping_rounds=0, n_rounds=60, learning_rate=0.15, **way)
    queries = PreparedQueries(valid[1], valid[2], Policy(max_grade=4))
    metric = parse_metric("ndcg@10")
    # above the best single feature, which knows x0 but not the product
    alone = queries.means([metric], np.nan_to_num(valid[0][:, 0]).astype(np.float64))[metric]
    assert queries.means([metric], predict(result.forest, valid[0]))[metric] > alone + 0.05


def test_early_stopping_keeps_the_best_round(data):
    result = fit(data, n_rounds=400, early_stopping_rounds=10, learning_rate=0.3)
    values = [record.metrics["valid"]["ndcg@10"] for record in result.history]
    assert result.best_round == 1 + int(np.argmax(values))
    assert len(values) == result.best_round + 10
    assert result.forest.n_trees == result.best_round
    shorter = fit(data, n_rounds=result.best_round, early_stopping_rounds=0, learning_rate=0.3)
    assert np.array_equal(shorter.forest.node_value, result.forest.node_value)
    stopping = EarlyStopping(patience=3)  # the earliest of equals, and no NaN
    ended = [stopping.update(i, value) for i, value in enumerate([0.5, 0.7, 0.7, float("nan"), 0.6], start=1)]
    assert ended == [False] * 4 + [True]
    assert (stopping.best_round, stopping.best_value) == (2, 0.7)


def test_no_rows_and_negative_threads_are_refused(data):
    with refused(InvalidParameter, "n_threads"):
        fit(data, options={"n_threads": -1})
    empty = (np.empty((0, 7), np.float32), np.empty(0, np.int32), np.zeros(1, np.int64))
    with refused(TrainingDataRejected, "train split", "no rows"):
        fit((empty, data[1], data[2]))


def test_numbers_of_any_kind_become_plain_ones():
    given = fixed(
        max_leaves=np.int64(15), n_rounds=10.0, seed=np.array(3, np.uint8), learning_rate=np.float32(0.1), lambda_l2=1,
        min_gain=-0.0, lambda_normalisation=np.bool_(False), metric=np.str_("map"),
        monotone={np.str_("a"): np.int8(-1)},
    )  # fmt: skip
    # a float32 keeps the digits that it has, and no zero has a sign
    expected = {
        "max_leaves": 15, "n_rounds": 10, "seed": 3, "learning_rate": 0.10000000149011612, "lambda_l2": 1.0,
        "min_gain": 0.0, "lambda_normalisation": False, "metric": "map", "monotone": {"a": -1},
    }  # fmt: skip
    found = {name: given.as_dict()[name] for name in expected}
    assert json.dumps(found) == json.dumps(expected)
    assert {name: type(value) for name, value in found.items()} == {name: type(v) for name, v in expected.items()}


def test_a_direction_of_zero_has_no_effect(data):
    assert fixed(monotone={"f0": 1, "f1": 0}) == fixed(monotone={"f0": 1})
    assert fixed(grow="oblivious", monotone={"f1": 0}).monotone == {}
    without = fit(data, n_rounds=2, monotone={"f0": 1}).forest
    assert fit(data, n_rounds=2, monotone={"f0": 1, "f1": 0}).forest.to_bytes() == without.to_bytes()


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([("a", range(255))], ("'a'", "254", "255")),
        ([("a", [1.0, 1.0])], ("'a'", "254", "2", "ascend")),
        ([("a", [np.nan])], ("1", "ascend")),
        ([("a", [1.0]), ("", [1.0])], ("feature 1", "unique", "''")),
        ([("a", [1.0]), ("a", [1.0])], ("feature 1", "unique", "'a'")),
        ([], "0"),
    ],
    ids=str,
)
def test_features_without_a_name_or_with_edges_that_are_none_are_refused(features, message):
    rows = RankedRows(np.array([0, 1, 0, 1], np.int32), np.array([0, 4]), [np.ones((4, len(features)), np.uint8)])
    edges = [np.array(cuts, np.float32) for _, cuts in features]
    data = TrainingData(train=rows, edges=edges, feature_names=[name for name, _ in features], max_grade=1)
    with refused(TrainingDataRejected, message):
        boost(data, fixed(n_rounds=1))


def test_the_most_edges_that_fit_into_a_byte_are_trained_with():
    rows = RankedRows(
        (np.arange(256) > 127).astype(np.int32), np.array([0, 256]), [np.arange(256, dtype=np.uint8)[:, None]]
    )
    edges = [np.arange(254, dtype=np.float32)]
    data = TrainingData(train=rows, edges=edges, feature_names=["a"], max_grade=np.int64(1))
    forest = boost(data, fixed(n_rounds=1, max_leaves=2), TrainingOptions(n_threads=np.int64(1))).forest
    assert forest.thresholds[0] == 126.0  # bin 127 holds 125 < x <= 126
    assert forest.to_bytes()
