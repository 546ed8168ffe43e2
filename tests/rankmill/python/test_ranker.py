"""The Python face: scikit-learn's habits, and the same answer however queries are handed over."""

from operator import attrgetter

import numpy as np
import polars as pl
import pytest

from rankmill import register_model
from rankmill.foundation.errors import InvalidParameter, NotFitted, TrainingDataRejected
from rankmill.scorer.inspect.shap import shap_values
from tests.rankmill.python.small_ranker import small
from tests.refusals import refused


def test_query_ids_and_group_sizes_are_two_ways_to_say_the_same(arrays):
    X, y, qid = arrays
    by_id = small().fit(X, y, qid=qid).forest_.to_bytes()
    assert small().fit(X, y, group=[10] * 40).forest_.to_bytes() == by_id
    assert small().fit(X, y, qid=[f"q{q:02}" for q in qid]).forest_.to_bytes() == by_id


def test_the_order_of_rows_does_not_matter(arrays):
    X, y, qid = arrays
    shuffle = np.random.default_rng(3).permutation(400)
    expected = small().fit(X, y, qid=qid).forest_.to_bytes()
    assert small().fit(X[shuffle], y[shuffle], qid=qid[shuffle]).forest_.to_bytes() == expected


def test_columns_of_a_frame_are_found_by_name(arrays):
    X, y, qid = arrays
    names = ["a", "b", "c", "d"]
    frame = pl.DataFrame(X, schema=names)
    ranker = small().fit(frame, y, qid=qid)
    expected = ranker.predict(frame)
    assert ranker.forest_.feature_names == tuple(names)
    assert np.array_equal(small().fit(X, y, qid=qid).predict(X), expected)
    assert np.array_equal(ranker.predict(frame.select(names[::-1])), expected)
    assert np.array_equal(ranker.predict(frame.to_arrow()), expected)
    assert small().fit(frame.to_arrow(), y, qid=qid).forest_.to_bytes() == ranker.forest_.to_bytes()
    with refused(TrainingDataRejected, "column", "'b'"):
        ranker.predict(frame.drop("b"))
    with refused(TrainingDataRejected, "X", "3 features", "4"):
        ranker.predict(X[:, :3])


def test_predict_before_fit_says_so(arrays):
    X, y, qid = arrays
    calls = {
        "predict": lambda ranker: ranker.predict(X),
        "apply": lambda ranker: ranker.apply(X),
        "contributions": lambda ranker: ranker.contributions(X),
        "score": lambda ranker: ranker.score(X, y, qid=qid),
        "save": lambda ranker: ranker.save("never.rankmill"),
        "register_model": lambda ranker: register_model(ranker, "never"),
    }
    for names in ("model_ forest_ best_round_ history_", "evals_result_ feature_importances_ n_features_in_"):
        calls |= {name: attrgetter(name) for name in names.split()}
    for call in calls.values():
        with refused(NotFitted, "call fit") as caught:
            call(small())
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, AttributeError)
    assert not hasattr(small(), "feature_importances_")


def test_grades_may_be_large_where_the_gain_is_linear(arrays):
    X, y, qid = arrays
    assert small(gain="linear").fit(X, y * 10_000, qid=qid).forest_.n_trees == 8


def test_the_eval_set_decides_how_many_rounds_are_kept(arrays):
    X, y, qid = arrays
    held = qid >= 30
    ranker = small(n_rounds=200, learning_rate=0.5)
    ranker.fit(X[~held], y[~held], qid=qid[~held], eval_set=(X[held], y[held], qid[held]), early_stopping_rounds=5)
    assert ranker.best_round_ == ranker.forest_.n_trees == len(ranker.history_) - 5
    assert np.array_equal(ranker.predict(X, n_rounds=ranker.best_round_), ranker.predict(X))
    assert not np.array_equal(ranker.predict(X, n_rounds=1), ranker.predict(X))
    parts = ranker.predict(X, n_rounds=1) + ranker.predict(X, start_round=1)
    np.testing.assert_allclose(parts, ranker.predict(X), atol=1e-12)
    forest = ranker.forest_
    found = ranker.contributions(X)
    assert found.values.shape == (len(X), 1, X.shape[1])
    np.testing.assert_allclose((found.values.sum(axis=2) + found.base)[:, 0], ranker.predict(X), atol=1e-9)
    some = ranker.contributions(X, qid=qid, n_rounds=1)
    np.testing.assert_array_equal(some.values, shap_values(forest, X, qid=qid, n_rounds=1).values)
    leaves = ranker.apply(X)
    assert leaves.shape == (len(X), forest.n_trees)
    adds = forest.tree_weights * forest.node_value[forest.tree_starts[:-1] + leaves]
    np.testing.assert_allclose(forest.base_score + adds.sum(axis=1), ranker.predict(X), atol=1e-12)
    assert np.array_equal(ranker.apply(X, start_round=1, n_rounds=1), leaves[:, 1:2])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"y": -1.0}, TrainingDataRejected, ("row 0", "grade")),
        ({"y": 0.5}, TrainingDataRejected, "0.5"),
        ({"y": float("nan")}, TrainingDataRejected, "nan"),
        ({"qid": None}, InvalidParameter, "qid"),
        ({"group": [10] * 40}, InvalidParameter, "qid"),
        ({"qid": None, "group": [7] * 40}, TrainingDataRejected, ("280", "400 rows")),
        ({"qid": np.arange(399)}, TrainingDataRejected, ("400, 400", "399 rows")),
        ({"X": np.zeros(400)}, TrainingDataRejected, "n_features"),
        ({"X": np.zeros((400, 0))}, TrainingDataRejected, "feature"),
        ({"eval_set": [[1, 2, 3]]}, InvalidParameter, ("(X, y, qid)", "eval_qid")),
    ],
)
def test_bad_input_is_refused(arrays, change, error, message):
    X, y, qid = arrays
    given = {"X": X, "y": y.copy(), "qid": qid}
    if "y" in change:
        given["y"][0] = change["y"]
        change = {}
    with refused(error, message):
        small().fit(**{**given, **change})
