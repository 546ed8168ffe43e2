"""What has no weight might as well not be there, and a query of weight two might come twice, whatever the loss."""

import numpy as np
import pytest

from rankmill.pipeline.bins.spec import apply_bins
from rankmill.scorer.forest.predict import predict
from rankmill.trainer.data.rows import RankedRows
from tests.trainer.fixed import fixed
from tests.trainer.objectives.test_every_objective import NAMES
from tests.trainer.planted import boost_rows, small_data

DRAWN = {  # their draws go by the numbers of rows, so that a query that comes twice is not drawn alike
    "lambdamart", "lambdaloss", "listmle", "rank_xendcg", "apxdcg", "stochasticrank", "yetirank",
}  # fmt: skip


def scores_after(x, grades, starts, weights, query_weights, **parameters):
    """Train on these rows; return the scores of those of the small data."""
    rows = RankedRows(grades, starts, [apply_bins(x, small_data()[2])], weights, query_weights=query_weights)
    given = {"max_leaves": 4, "min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "lambda_normalisation": False}
    scores = predict(boost_rows(rows, [], fixed(n_rounds=3, **given, **parameters)).forest, small_data()[0][0])
    return scores - scores.mean() if parameters["objective"] == "coxph" else scores  # which a constant does not change


def own_weights():
    """Weights of the documents to learn from, so that no two splits have the same gain."""
    return np.random.default_rng(3).uniform(1.0, 5.0, size=len(small_data()[0][1]))


def with_queries_of(source, n_more):
    """The queries to learn from, followed by the first ``n_more`` of those (0) or of those to watch (1); and their
    sizes."""
    train, more = small_data()[0], small_data()[source]
    n = int(more[2][n_more])
    x, grades = np.concatenate([train[0], more[0][:n]]), np.concatenate([train[1], more[1][:n]])
    return x, grades, np.concatenate([train[2], train[2][-1] + more[2][1 : n_more + 1]]), np.diff(more[2][: n_more + 1])


@pytest.mark.parametrize("name", NAMES)
def test_what_has_no_weight_is_not_there_and_a_query_of_weight_two_comes_twice(name):
    train, own = small_data()[0], own_weights()
    n_queries = len(train[2]) - 1
    plain = scores_after(*train, own, None, objective=name)
    *rows, sizes = with_queries_of(1, 3)
    weights = np.append(own, np.repeat([1.0, 1.0, 0.0], sizes))  # two without weight as queries, one as documents
    of_query = np.append(np.ones(n_queries), [0.0, 0.0, 1.0])
    assert scores_after(*rows, weights, of_query, objective=name) == pytest.approx(plain, rel=1e-6, abs=1e-6)
    if name not in DRAWN:
        *rows, sizes = with_queries_of(0, 10)
        of_query = np.where(np.arange(n_queries) < 10, 2.0, 1.0)
        weighed = scores_after(*train, own, of_query, objective=name)
        twice = scores_after(*rows, np.append(own, own[: sizes.sum()]), None, objective=name)
        assert twice == pytest.approx(weighed, rel=1e-6, abs=1e-6)
