"""Gains of grades from a table: in losses, in early stopping and in what a ranker measures."""

import itertools
import math

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InputError
from rankmill.scorer.forest.predict import predict
from tests.refusals import refused
from tests.trainer.planted import fit, small_data

OBJECTIVES = (
    "lambdamart", "lambdaloss", "apxdcg", "stochasticrank", "listnet", "rank_xendcg", "yetirank", "consistent_l2",
    "consistent_kl",
)  # fmt: skip


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_table_of_the_same_gains_trains_the_same_model_and_another_one_another(objective):
    one, same, other = (
        fit(small_data(), objective=objective, gain=gain, n_rounds=3)
        for gain in ("exp", "table(0,1,3,7,15)", "table(0,0.5,0.5,8,9)")
    )
    assert np.array_equal(one.forest.node_value, same.forest.node_value)
    assert one.history == same.history
    assert same.forest.parameters["gain"] == "table(0,1,3,7,15)"
    assert not np.array_equal(one.forest.node_value, other.forest.node_value)


def ndcg(scores, grades, k, gains):
    """By the definition; no two scores tie."""

    def dcg(order):
        return sum(gains[grades[i]] / math.log2(rank + 2) for rank, i in enumerate(order[:k]))

    ideal = dcg(sorted(range(len(grades)), key=lambda i: -gains[grades[i]]))
    return dcg(np.argsort(-scores, kind="stable").tolist()) / ideal if ideal else None


def test_early_stopping_and_score_measure_by_the_table():
    gains = [0, 0.5, 0.5, 8, 9]
    train, (x, grades, starts), _ = small_data()
    result = fit(
        small_data(), gain="table(0,0.5,0.5,8,9)", n_rounds=20, objective="l2", max_leaves=64, min_rows_in_leaf=1
    )
    scores = predict(result.forest, x)
    each = [ndcg(scores[a:b] - 1e-9 * np.arange(b - a), grades[a:b], 10, gains) for a, b in itertools.pairwise(starts)]
    expected = np.mean([value for value in each if value is not None])
    assert result.history[result.best_round - 1].metrics["valid"]["ndcg@10"] == pytest.approx(expected, abs=2e-3)
    assert abs(expected - fit(small_data(), n_rounds=20, objective="l2").history[-1].metrics["valid"]["ndcg@10"]) > 2e-3

    qid, qid_of = (np.repeat(np.arange(len(s) - 1), np.diff(s)) for s in (train[2], starts))
    ranker = Ranker(gain="table(0,1,3,7,15)", n_rounds=5, preset="defaults-1", verbose=0).fit(
        train[0], train[1], qid=qid
    )
    usual = Ranker(n_rounds=5, preset="defaults-1", verbose=0).fit(train[0], train[1], qid=qid)
    assert ranker.score(x, grades, qid=qid_of) == usual.score(x, grades, qid=qid_of)


def test_a_table_that_ends_below_a_grade_is_refused():
    with refused(InputError, "table(0,1)", "grade 4"):
        fit(small_data(), gain="table(0,1)")
