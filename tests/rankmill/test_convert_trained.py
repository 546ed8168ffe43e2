"""Models as people train them, with missing values, through every format: on the rows they were trained on, and around cuts."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import ConversionRefused
from rankmill.scorer.exchange import lightgbm, onnx, solr, xgboost
from rankmill.scorer.exchange.conversion import missing_as_zero
from rankmill.scorer.predict import predict
from tests import naive_exchange
from tests.rankmill.small_ranker import planted_arrays, small
from tests.refusals import refused
from tests.scorer.exchange_cases import peer, rows_for

NAMES = ["f0", "f1", "f2", "f3"]


@pytest.fixture(scope="module", params=["lambdamart", "oblivious", "mcrank", "ordinal(score=gain)"])
def trained(request):
    """(forest, rows): the rows it was trained on, then some with values on and beside its cuts."""
    X, y, qid = planted_arrays()
    X[np.random.default_rng(3).random(X.shape) < 0.15] = np.nan
    how = {"grow": "oblivious", "max_depth": 3} if request.param == "oblivious" else {"objective": request.param}
    forest = small(metric="ndcg@5", min_rows_in_leaf=5, **how).fit(X, y, qid=qid).forest_
    assert np.any(forest.node_missing_left)
    return forest, np.concatenate([X, rows_for(forest, 1, infinite=False, tiny=False)])


def write_refused(forest, write):
    """Whether the forest has several outputs, which ``write`` then refuses."""
    if forest.link == "identity":
        return False
    with refused(ConversionRefused, "combine"):
        write(forest, "web")
    return True


def test_lightgbm_scores_it_to_the_bit(trained):
    forest, rows = trained
    if write_refused(forest, lightgbm.write):
        return
    model = peer("lightgbm").Booster(model_str=lightgbm.write(forest, "web").data.decode())
    assert np.array_equal(model.predict(rows, num_threads=1), predict(forest, rows))


def test_xgboost_scores_it_within_the_bound(trained):
    forest, rows = trained
    if write_refused(forest, xgboost.write):
        return
    xgb = peer("xgboost")
    written = xgboost.write(forest, "web")
    model = xgb.Booster({"nthread": 1})
    model.load_model(bytearray(written.data))
    there = model.predict(xgb.DMatrix(rows, feature_names=NAMES, nthread=1))
    assert np.max(np.abs(there - predict(forest, rows))) <= written.bound


def test_onnx_scores_it_within_half_a_step_of_float32(trained):
    forest, rows = trained
    written = onnx.write(forest, "web")
    assert np.max(np.abs(naive_exchange.onnx_scores(written.data, rows) - predict(forest, rows))) <= written.bound


def test_solr_scores_it_within_the_bound(trained):
    forest, rows = trained
    if write_refused(forest, solr.write):
        return
    for model in (forest, missing_as_zero(forest)):
        written = solr.write(model, "web", nearest=True)
        there = naive_exchange.solr_scores(
            written.data, rows[:400], NAMES
        )  # the rows it was trained on lie between cuts
        assert np.max(np.abs(there - predict(model, rows[:400]))) <= written.bound
