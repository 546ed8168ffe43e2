"""A ranker inside scikit-learn's searches and cross-validation: whole queries in a fold, and the same values as by
hand."""

import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning, NotFittedError, UnsetMetadataPassedError
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

from rankmill.foundation.errors import InvalidParameter
from tests.rankmill.python.small_ranker import small
from tests.refusals import refused

FOLDS = GroupKFold(3)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def frame_of(arrays, library="pandas"):
    X, _, qid = arrays
    columns = {"a": X[:, 0], "qid": qid, "b": X[:, 1], "c": X[:, 2], "d": X[:, 3]}
    return {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}[library](columns)


def by_hand(arrays, weights=None, **parameters):
    """The score on each fold, without scikit-learn's cross-validation."""
    X, y, qid = arrays
    scores = []
    for train, test in FOLDS.split(X, y, qid):
        weight = None if weights is None else weights[train]
        ranker = small(**parameters).fit(X[train], y[train], qid=qid[train], sample_weight=weight)
        scores.append(ranker.score(X[test], y[test], qid=qid[test]))
    return scores


@pytest.mark.parametrize("library", ["polars"])
def test_a_frame_takes_its_queries_along(arrays, library):
    _, y, qid = arrays
    frame = frame_of(arrays, library)
    found = cross_val_score(small(), frame, y, groups=qid, cv=FOLDS, error_score="raise")
    assert found.tolist() == by_hand(arrays)
    search = GridSearchCV(small(), {"max_leaves": [2, 5]}, cv=FOLDS, error_score="raise").fit(frame, y, groups=qid)
    for leaves, score in zip((2, 5), search.cv_results_["mean_test_score"], strict=True):
        assert score == pytest.approx(np.mean(by_hand(arrays, max_leaves=leaves)), abs=1e-12)
    best = search.best_estimator_
    assert list(best.feature_names_in_) == ["a", "b", "c", "d"]
    assert best.predict(frame).tolist() == best.predict(frame[["a", "b", "c", "d"]]).tolist()
    assert search.score(frame, y) == best.score(frame, y)


@pytest.mark.usefixtures("routing")
def test_queries_are_routed_and_weights_if_they_are_asked_for(arrays):
    X, y, qid = arrays
    found = cross_val_score(
        small(), X, y, groups=None, cv=FOLDS, params={"qid": qid, "groups": qid}, error_score="raise"
    )
    assert found.tolist() == by_hand(arrays)
    weights = np.random.default_rng(3).integers(1, 9, size=400).astype(float)
    ranker = small().set_fit_request(sample_weight=True)
    assert clone(ranker).get_metadata_routing().fit.requests["sample_weight"] is True
    search = GridSearchCV(ranker, {"max_leaves": [2, 5]}, cv=FOLDS, error_score="raise")
    search.fit(X, y, groups=qid, qid=qid, sample_weight=weights)
    assert search.best_score_ == pytest.approx(max(np.mean(by_hand(arrays, weights, max_leaves=n)) for n in (2, 5)))
    assert search.score(X, y, qid=qid) == search.best_estimator_.score(X, y, qid=qid)
    reported = cross_validate(
        small().set_fit_request(qid="query").set_score_request(qid="query"), X, y, cv=FOLDS,
        params={"query": qid, "groups": qid}, return_train_score=True, error_score="raise",
    )  # fmt: skip
    assert reported["test_score"].tolist() == by_hand(arrays)
    assert np.isfinite(reported["train_score"]).all()
    with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
        GridSearchCV(small(), {}, cv=FOLDS).fit(X, y, groups=qid, qid=qid, sample_weight=weights)


@pytest.mark.usefixtures("routing")
def test_what_cannot_be_routed_is_refused():
    with refused(InvalidParameter, "pairs", "position"):
        small().set_fit_request(pairs=True)
    with refused(InvalidParameter, "score", "'sample_weight'", "qid"):
        small().set_score_request(sample_weight=True)


def test_a_search_that_cannot_work_says_why_in_one_line(arrays):
    X, y, qid = arrays
    line = "needs either qid, .* in scikit-learn's searches give them as a column 'qid' of a frame X, or by metadata routing$"
    with pytest.raises(InvalidParameter, match=f"^fit {line}"):
        cross_val_score(small(), X, y, groups=qid, cv=FOLDS, error_score="raise")
    with pytest.raises(ValueError, match=r"(?m)InvalidParameter: fit needs either qid, .* or by metadata routing$"):
        GridSearchCV(small(), {"max_leaves": [2, 5]}, cv=FOLDS).fit(X, y, groups=qid)
    with pytest.raises(InvalidParameter, match=f"^score {line}"):
        small().fit(X, y, qid=qid).score(X, y)
    with refused(InvalidParameter, "set_fit_request", "sklearn.set_config(enable_metadata_routing=True)"):
        small().set_fit_request(qid=True)
    search = GridSearchCV(small(), {"max_leaves": [0, 5]}, cv=FOLDS)
    with (
        pytest.warns(FitFailedWarning, match=r"InvalidParameter: max_leaves must be in 2 \.\. 65536, got 0"),
        pytest.warns(UserWarning, match="One or more of the test scores are non-finite"),
    ):
        search.fit(frame_of(arrays), y, groups=qid)
    assert search.best_params_ == {"max_leaves": 5}


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_the_column_of_queries_is_no_feature(arrays, library):
    X, y, qid = arrays
    frame = frame_of(arrays, library)
    ranker = small().fit(frame, y, eval_set=(frame, y))
    without = pd.DataFrame(X, columns=list("abcd"))
    same = small().fit(without, y, qid=qid, eval_set=(without, y, qid))
    assert ranker.forest_.to_bytes() == same.forest_.to_bytes()
    assert ranker.score(frame, y) == ranker.history_[ranker.best_round_ - 1].train["ndcg@10"]
    with refused(InvalidParameter, "column 'qid'", "qid=", "twice"):
        small().fit(frame, y, qid=qid)
    with refused(InvalidParameter, "'valid'", "query ids", "twice"):
        small().fit(frame, y, eval_set=(frame, y, qid))


@pytest.mark.slow
def test_scikit_learn_is_not_needed_and_not_loaded():
    code = (
        "import sys; import numpy as np; from rankmill import Ranker\n"
        "try: Ranker().predict([[1.0]])\nexcept ValueError: assert 'sklearn' not in sys.modules\n"
        "sys.modules['sklearn'] = None\n"
        "X = np.arange(40.0)[:, None]; r = Ranker(n_rounds=2, min_rows_in_leaf=1, n_threads=1); "
        "r.fit(X, np.arange(40) % 3, group=[20, 20]).predict(X); r.set_params(seed=8); repr(r); r.get_params()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("error_score", ["raise", np.nan])
def test_a_search_that_would_score_without_queries_is_refused_before_it_trains(arrays, error_score):
    X, y, qid = arrays
    search = GridSearchCV(small(), {"max_leaves": [2, 5]}, cv=FOLDS, error_score=error_score)
    line = "scikit-learn would call fit with the queries and score without them; .* column 'qid' .*enable_metadata_routing=True"
    with pytest.raises(ValueError, match=line):
        search.fit(X, y, groups=qid, qid=qid)
    pipeline = make_pipeline("passthrough", small())
    with pytest.raises(InvalidParameter, match=line):
        cross_val_score(pipeline, X, y, params={"ranker__qid": qid}, error_score="raise")


def test_folds_that_split_queries_are_said_and_others_are_taken_without_a_word(arrays):
    said = r"score: \d+ of \d+ queries have ids of queries that fit has learnt from, with other documents; .*GroupKFold"
    with pytest.warns(UserWarning, match=said):
        cross_val_score(
            small(), frame_of(arrays), arrays[1], cv=KFold(2, shuffle=True, random_state=0), error_score="raise"
        )
    _, y, qid = arrays
    given = {"groups": qid, "cv": GroupKFold(2), "return_train_score": True, "error_score": "raise"}
    cross_validate(small(), frame_of(arrays), y, **given, scoring=lambda ranker, X, y: float(ranker.predict(X).mean()))
    cross_validate(small(), frame_of(arrays), y, **given)


def test_an_unfitted_ranker_is_not_fitted_in_the_sense_of_scikit_learn(arrays):
    with pytest.raises(NotFittedError, match="predict needs a fitted ranker; call fit first"):
        small().predict(arrays[0])
    with pytest.raises(NotFittedError):
        check_is_fitted(small())
