"""Trainings with losses over pairs, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.trainer.rows import RankedRows
from tests.refusals import refused
from tests.trainer import planted
from tests.trainer.pair_case import build, case, derivatives


@pytest.mark.parametrize(
    ("objective", "metric"),
    [
        ("lambdamart", "map"),
        ("lambdamart(normalise=query)", "ndcg@10"),
        ("lambdaloss", "ndcg@10"),
        ("yetirank", "ndcg@10"),
    ],
)
def test_sigma_changes_no_tree(objective, metric):
    fixed = {
        "objective": objective, "metric": metric, "lambda_normalisation": False, "n_rounds": 4,
        "min_hessian_in_leaf": 0.0, "min_gain": 0.0, "early_stopping_rounds": 0,
    }  # fmt: skip
    one = planted.fit(planted.small_data(), watch=False, sigma=1.0, **fixed).forest
    four = planted.fit(planted.small_data(), watch=False, sigma=4.0, **fixed).forest
    assert np.array_equal(one.node_feature, four.node_feature)
    assert np.array_equal(one.node_cut, four.node_cut)
    assert four.node_value == pytest.approx(one.node_value / 4.0, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("metric", "least"), [("err@10", 0.87), ("map", 0.82)])
def test_a_planted_signal_is_found(metric, least):
    result = planted.fit(
        planted.small_data(), objective="lambdamart", n_rounds=100, metric=metric, stop_metric="ndcg@10",
        learning_rate=0.2, early_stopping_rounds=0, options={"eval_metrics": ["deviance"]},
    )  # fmt: skip
    assert max(record.metrics["valid"]["ndcg@10"] for record in result.history) > least
    assert result.history[-1].metrics["train"]["deviance"] < result.history[0].metrics["train"]["deviance"]


def test_what_cannot_be_learnt_from_is_refused():
    rows = RankedRows(np.array([1, 1], np.int32), np.array([0, 2]), [])
    for objective in ("ranknet", "rankboost", "lambdamart", "lambdaloss", "yetirank"):
        with pytest.raises(TrainingDataRejected, match="nothing to learn"):
            build(rows, objective)
    build(rows, "ranknet(ties=true)")
    none = PreferencePairs(*(np.empty(0, t) for t in (np.int32, np.int32, float, float)), np.array([0, 0]))
    with refused(TrainingDataRejected, "no pair"):
        build(RankedRows(np.array([1, 0], np.int32), np.array([0, 2]), [], pairs=none), "ranknet")
    for better, worse, probability, message in (
        (0, 0, 1.0, "different rows"),
        (0, 2, 1.0, ("rows", "query")),
        (0, 1, 1.5, "probability"),
    ):
        one = PreferencePairs(
            np.array([better], np.int32), np.array([worse], np.int32), np.ones(1), np.array([probability]),
            np.array([0, 1]),
        )  # fmt: skip
        with refused(TrainingDataRejected, "pair 0", message):
            build(RankedRows(np.array([1, 0], np.int32), np.array([0, 2]), [], pairs=one), "ranknet")
    rows, _ = case(0)
    for objective, message in (
        ("ranknet(normalise=pair)", ("ranknet(normalise)", "'pair'", "none, query")),
        ("rankboost(pair_fraction=0)", "(0, 1]"),
        ("lambdamart(max_grade=90)", "0 .. 52"),
        ("ranknet(truncation=-1)", "0 .."),
        ("yetirank(permutations=0)", "1 .."),
        ("yetirank(decay=1.5)", "(0, 1]"),
        ("yetirank(noise=white)", ("yetirank(noise)", "'white'", "logistic, gumbel")),
    ):
        with refused(InvalidParameter, message):
            build(rows, objective)


@pytest.mark.parametrize(
    ("objective", "metric", "grades"),
    [
        ("lambdamart", "ndcg@10", [0, 0, 0, 0]),  # pairs without grades
        ("lambdamart", "err", [1, 1, 1, 1]),
        ("lambdaloss", "ndcg", [2, 2, 2, 2]),
        ("lambdamart", "map", [1, 2, 3, 1]),  # all are relevant
        ("lambdamart", "ndcg", [3, 0, 3, 0]),  # pairs of equal grades only
    ],
)
def test_pairs_that_no_swap_weighs_are_refused_instead_of_learning_nothing(objective, metric, grades):
    pairs = PreferencePairs(
        np.array([0, 1], np.int32), np.array([2, 3], np.int32), np.ones(2), np.ones(2), np.array([0, 2])
    )
    rows = RankedRows(np.array(grades, np.int32), np.array([0, 4]), [], pairs=pairs)
    with refused(TrainingDataRejected, "pair", "metric"):
        build(rows, objective, metric=metric)
    build(rows, "ranknet")


def test_a_query_whose_pairs_weigh_nothing_counts_nothing():
    rows = RankedRows(np.array([1, 2, 0, 1], np.int32), np.array([0, 2, 4]), [])
    built = build(rows, "lambdamart", metric="map")
    g, h = derivatives(built, np.array([0.3, 0.1, 0.2, 0.0]))
    assert not g[:2].any()
    assert not h[:2].any()
    assert (h[2:] > 0).all()
    assert built.losses(np.zeros(4))[0] == 0.0


def test_lambdaloss_is_for_ndcg():
    with refused(InvalidParameter, "lambdaloss", "metrics", "ndcg"):
        build(case(0)[0], "lambdaloss", metric="map")
