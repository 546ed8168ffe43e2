"""Only ratios of weights count: scaling all of them changes no byte of trees and no metric, whatever the loss."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from rankmill.pipeline.binspec import apply_bins
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.scorer.predict import predict
from rankmill.trainer.objectives.spelling import OBJECTIVES
from rankmill.trainer.rows import RankedRows
from tests.trainer.fixed import fixed
from tests.trainer.planted import boost_rows, rows_of, small_data


@pytest.mark.parametrize("name", ["ranknet", "rankboost", "lambdamart", "gbrank"])
def test_scaling_the_weights_of_all_pairs_changes_nothing(name):
    data = small_data()
    rng = np.random.default_rng(12)
    starts = data[0][2]
    better = np.concatenate([rng.permutation(np.arange(a, b))[:4] for a, b in pairwise(starts)])
    worse = np.concatenate([np.full(4, a) for a in starts[:-1]])
    keep = better != worse
    of = np.searchsorted(starts, better[keep], side="right") - 1
    weight = rng.uniform(0.1, 2.0, size=int(keep.sum()))

    def trained(scale):
        pairs = PreferencePairs(
            better[keep].astype(np.int32), worse[keep].astype(np.int32), weight * scale, np.ones(int(keep.sum())),
            np.searchsorted(of, np.arange(len(starts))).astype(np.int64),
        )  # fmt: skip
        return boost_rows(
            replace(rows_of(data[0], data[2]), pairs=pairs), [], [f.edges for f in data[2].features],
            data[2].feature_names, fixed(objective=name, n_rounds=4, max_leaves=8), max_grade=4, n_threads=1,
        )  # fmt: skip

    one, two = trained(1.0), trained(4.0)
    assert np.array_equal(one.forest.node_value, two.forest.node_value)
    assert one.history == two.history


DRAWN = {  # their draws go by the numbers of rows, so that a query that comes twice is not drawn alike
    "lambdamart", "lambdaloss", "listmle", "rank_xendcg", "apxdcg", "stochasticrank", "yetirank",
}  # fmt: skip


@cache
def with_more_queries(source, n_more):
    """The queries to learn from, followed by the first ``n_more`` of those (0) or of those to watch (1); and how many rows."""
    train, more = small_data()[0], small_data()[source]
    n = int(more[2][n_more])
    x, grades = np.concatenate([train[0], more[0][:n]]), np.concatenate([train[1], more[1][:n]])
    return x, grades, np.concatenate([train[2], train[2][-1] + more[2][1 : n_more + 1]]), n


def scores_after(x, grades, starts, weights, query_weights, **parameters):
    """Train on these rows; return the scores of those of the small data."""
    spec = small_data()[2]
    forest = boost_rows(
        RankedRows(grades, starts, [apply_bins(x, spec)], weights, query_weights=query_weights), [],
        [f.edges for f in spec.features], spec.feature_names,
        fixed(
            n_rounds=3, max_leaves=4, min_rows_in_leaf=1, min_hessian_in_leaf=0.0, lambda_normalisation=False, **parameters
        ),
        max_grade=4, n_threads=1,
    ).forest  # fmt: skip
    scores = predict(forest, small_data()[0][0])
    return scores - scores.mean() if parameters["objective"] == "coxph" else scores  # which a constant tells nothing


def own_weights():
    """Weights of the documents to learn from, so that no two splits have the same gain."""
    return np.random.default_rng(3).uniform(1.0, 5.0, size=len(small_data()[0][1]))


@pytest.mark.parametrize("by_query", [False, True])
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "user"])
def test_what_has_no_weight_is_as_if_it_were_not_there(name, by_query):
    train, own = small_data()[0], own_weights()
    x, grades, starts, n = with_more_queries(1, 3)
    weights = np.append(own, np.ones(n) if by_query else np.zeros(n))
    of_query = np.append(np.ones(len(train[2]) - 1), np.zeros(3)) if by_query else None
    plain = scores_after(*train, own, None, objective=name)
    found = scores_after(x, grades, starts, weights, of_query, objective=name)
    assert found == pytest.approx(plain, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "user" and name not in DRAWN])
def test_a_query_of_weight_two_is_one_that_comes_twice(name):
    train, own = small_data()[0], own_weights()
    x, grades, starts, n = with_more_queries(0, 10)
    of_query = np.where(np.arange(len(train[2]) - 1) < 10, 2.0, 1.0)
    weighed = scores_after(*train, own, of_query, objective=name)
    twice = scores_after(x, grades, starts, np.append(own, own[:n]), None, objective=name)
    assert twice == pytest.approx(weighed, rel=1e-6, abs=1e-6)
