"""Cross-validation of a ranker on arrays."""

import numpy as np

from rankmill import Ranker, cross_validate
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from tests.rankmill.python.small_ranker import planted_arrays, small
from tests.refusals import refused


def test_the_order_of_rows_has_no_effect_and_the_ranker_stays_unchanged():
    X, y, qid = planted_arrays()
    ranker = small(folds=4, objective="l2")
    found = cross_validate(ranker, X, y, qid=qid, eval_metrics="map")
    order = np.random.default_rng(0).permutation(len(X))
    assert cross_validate(ranker, X[order], y[order], qid=qid[order], eval_metrics=["map"]) == found
    assert not hasattr(ranker, "forest_")
    assert found.measures == ("ndcg@10", "map")


def test_by_cv_a_ranker_keeps_what_was_found():
    X, y, qid = planted_arrays()
    parameters = {"folds": 3, "n_rounds": 12, "learning_rate": 0.5}
    ranker = small(rounds_by="cv", **parameters).fit(X, y, qid=qid)
    assert ranker.cross_validation_ == cross_validate(small(**parameters), X, y, qid=qid)
    assert ranker.forest_.n_rounds == ranker.best_round_ == ranker.cross_validation_.best_round


def test_what_is_wrong_is_named():
    X, y, qid = planted_arrays()
    with refused(TrainingDataRejected, "41 folds", "40"):
        cross_validate(small(folds=41), X, y, qid=qid)
    with refused(InvalidParameter, "folds", "2"):
        cross_validate(small(folds=1), X, y, qid=qid)
    with refused(InvalidParameter, "'sample_weight'"):
        cross_validate(Ranker(), X, y, qid=qid, sample_weights=y)
