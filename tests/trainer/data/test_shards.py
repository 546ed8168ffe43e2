"""A training whose rows are divided among processes gives the bytes of one process."""

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from tests.refusals import refused
from tests.trainer.peers_in_threads import divided
from tests.trainer.planted import fit, planted, small_data

NEED_ALL_ROWS = {"coxph", "huber", "laplace", "quantile", "poisson", "consistent_kl", "logistrank", "user"}
EVEN = {1: (0.0, 1.0), 2: (0.0, 0.5, 1.0), 3: (0.0, 1 / 3, 2 / 3, 1.0)}


def trained(cuts, data=None, **way):
    """Train in one process, and in as many as there are parts between ``cuts``; return the former and all of the
    latter."""
    found = []

    def run(data, parameters, options):
        results, group = divided(data, parameters, options, cuts)
        found.append((results, group))
        return results[0]

    data = small_data() if data is None else data
    way = {"n_rounds": 4, "early_stopping_rounds": 0} | way
    whole = fit(data, **way)
    fit(data, **way | {"options": {**way.get("options", {}), "run": run}})
    return whole, *found[0]


def check_same(cuts, data=None, **way):
    whole, results, _ = trained(cuts, data, **way)
    for each in results:
        assert each.forest.to_bytes() == whole.forest.to_bytes()
        assert each.history == whole.history
        assert each.best_round == whole.best_round


@pytest.mark.parametrize(
    "name",
    [
        "lambdamart",
        "ranknet",
        "listnet",
        "rank_xendcg",
        "yetirank",
        "query_rmse",
        "bernoulli",
        "mcrank",
        "gbrank",
        "apxdcg",
    ],
)
def test_every_objective_has_the_same_bytes_in_two_processes(name):
    check_same(EVEN[2], objective=name)


@pytest.mark.parametrize("name", sorted(NEED_ALL_ROWS - {"user"}))
def test_objectives_that_need_all_rows_are_refused(name):
    with refused(InvalidParameter, name, "cluster"):
        trained(EVEN[2], objective=name)


@pytest.mark.parametrize("cuts", [EVEN[1], (0.0, 0.0, 0.3, 1.0), (0.0, 0.5, 0.5, 1.0), (0.0, 0.001, 0.2, 0.999, 1.0)])
def test_any_cuts_give_the_same_bytes_even_empty_parts(cuts):
    check_same(cuts, early_stopping_rounds=3, n_rounds=20)


WAYS = {
    "oblivious": {"grow": "oblivious", "max_depth": 4},
    "breadth first": {"grow": "breadth_first", "max_depth": 3},
    "few rows in a leaf of a level": {"grow": "oblivious", "max_depth": 4, "min_rows_in_leaf": 60},
    "little hessian in a leaf": {"min_hessian_in_leaf": 8.0},
    "splits by weights, by level": {"criterion": "se", "grow": "oblivious", "max_depth": 4, "min_hessian_in_leaf": 2.0},
    "samples of queries, rows and features": {"query_fraction": 0.6, "row_fraction": 0.7, "feature_fraction": 0.6},
    "leaves of all rows": {"query_fraction": 0.6, "leaf_rows": "all"},
    "few histograms": {"max_leaves": 20, "options": {"histogram_memory": 1}},
    "bayesian weights": {"bootstrap": "bayesian"},
    "noise": {"random_strength": 1.0},
    "random thresholds": {"extra_trees": True},
    "monotone": {"monotone": {"f0": 1, "f1": -1}},
    "smooth": {"path_smooth": 5.0, "max_delta_step": 0.5, "lambda_l1": 0.01},
    "dart": {"boosting": "dart", "drop_rate": 0.5},
    "members": {"members": 2, "query_fraction": 0.5},
    "scaled lambda": {"lambda_l2": 1.0, "l2_scale": "mean_hessian"},
    "weights of features": {"feature_weights": {"f0": 0.1}},
    "two threads": {"options": {"n_threads": 2}},
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_of_training_have_the_same_bytes_in_three_processes(way):
    check_same((0.0, 0.2, 0.7, 1.0), **WAYS[way])


@pytest.mark.parametrize("cuts", [EVEN[2], (0.0, 0.1, 0.11, 0.5, 1.0)])
def test_blocks_of_rows_that_lie_in_several_processes_are_summed_as_one(cuts):
    data = planted(3, 700), planted(4, 50), small_data()[2]
    assert len(data[0][1]) > 2 * 4096
    check_same(cuts, data=data, min_rows_in_leaf=100, max_leaves=20)


def test_one_giant_query_is_one_part():
    (x, grades, starts), valid, binspec = small_data()
    assert len(starts) > 2
    for cuts in (EVEN[2], EVEN[3]):
        check_same(cuts, data=((x, grades, np.array([0, len(grades)])), valid, binspec))


def test_weights_of_documents_are_relative_to_all():
    weights = np.random.default_rng(3).uniform(0.5, 2.0, size=len(small_data()[0][1]))
    check_same(EVEN[3], weights=weights, objective="ranknet")


@pytest.mark.parametrize(
    "way", [{}, {"objective": "yetirank"}, {"grow": "oblivious", "max_depth": 3}, {"boosting": "dart"}]
)
def test_a_model_is_resumed_in_parts(way):
    short = fit(small_data(), **{"n_rounds": 3, "early_stopping_rounds": 0} | way).forest
    check_same(EVEN[2], options={"resume": short}, **way)


def test_early_stopping_ends_all_processes_in_the_same_round():
    whole, results, _ = trained(EVEN[3], n_rounds=60, early_stopping_rounds=2)
    assert len(whole.history) < 60
    assert [len(each.history) for each in results] == [len(whole.history)] * 3


REFUSED = {
    "bootstrap": {"bootstrap": "goss"},
    "criterion": {"criterion": "ole"},
    "rounds_by": {"rounds_by": "oob", "query_fraction": 0.5},
    "refit": {"refit": "all"},
    "step_search": {"step_search": "line"},
    "deviance": {"stop_metric": "deviance"},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_all_rows_is_refused_in_a_line(what):
    with refused(InvalidParameter, what, "cluster"):
        trained(EVEN[2], **REFUSED[what])
