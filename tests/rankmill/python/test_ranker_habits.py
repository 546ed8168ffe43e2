"""What users of scikit-learn and LightGBM expect of a ranker: eval sets, weights, callbacks, importances, going on."""

import inspect
import pickle
from dataclasses import MISSING, fields

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import evaluate_queries, mean_of
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.parameters import TrainParameters
from tests.rankmill.python.small_ranker import small
from tests.refusals import refused


def halves(arrays):
    X, y, qid = arrays
    held = qid >= 30
    return (X[~held], y[~held], qid[~held]), (X[held], y[held], qid[held])


def test_every_training_parameter_is_a_parameter_with_the_same_default():
    defaults = {name: p.default for name, p in inspect.signature(Ranker.__init__).parameters.items()}
    for field in fields(TrainParameters):
        if field.default is not MISSING:
            assert defaults[field.name] == field.default, field.name
    of_nets = {field.name for field in fields(NetOptions)}
    assert set(defaults) - {field.name for field in fields(TrainParameters)} - of_nets == {
        *("self", "max_bin", "max_bin_of", "categorical", "n_threads", "importance_type", "verbose", "delta", "model"),
        *("cluster", "scratch"),
    }
    assert of_nets <= set(defaults)


def test_several_eval_sets_each_with_its_metrics(arrays):
    train, (Xv, yv, qv) = halves(arrays)
    ranker = small(n_rounds=40, learning_rate=0.5).fit(
        train[0], train[1], qid=train[2], eval_set=[(Xv, yv, qv), train], eval_names=["held", "seen"],
        eval_metrics=["map"], early_stopping_rounds=5,
    )  # fmt: skip
    results = ranker.evals_result_
    assert list(results) == ["train", "held", "seen"]
    assert results["seen"] == results["train"]
    assert ranker.best_round_ == 1 + int(np.argmax(results["held"]["ndcg@10"]))
    metric = parse_metric("map")
    found = evaluate_queries([metric], ranker.predict(Xv), yv.astype(np.int32), np.arange(0, 101, 10), Policy())
    assert results["held"]["map"][ranker.best_round_ - 1] == mean_of(found[metric])


def test_query_ids_and_groups_of_eval_sets_may_be_separate_arguments(arrays):
    (X, y, qid), (Xv, yv, qv) = halves(arrays)
    expected = small().fit(X, y, qid=qid, eval_set=(Xv, yv, qv))
    assert list(expected.evals_result_) == ["train", "valid"]
    for given in ({"eval_qid": [qv]}, {"eval_group": [[10] * 10]}):
        assert small().fit(X, y, qid=qid, eval_set=[(Xv, yv)], **given).forest_ == expected.forest_
    two = small().fit(X, y, qid=qid, eval_set=[(Xv, yv)] * 2, eval_group=[[10] * 10] * 2)
    assert list(two.evals_result_) == ["train", "valid_0", "valid_1"]


def test_callbacks_get_every_round_and_may_stop(arrays):
    X, y, qid = arrays
    seen = []
    ranker = small().fit(X, y, qid=qid, callbacks=[seen.append, lambda record: record.round_number == 3])
    assert [record.round_number for record in seen] == [1, 2, 3]
    assert tuple(seen) == ranker.history_
    assert ranker.forest_.n_trees == 3


def test_going_on_is_training_in_one_go(arrays, tmp_path):
    train, (Xv, yv, qv) = halves(arrays)
    given = {"qid": train[2], "eval_set": (Xv, yv, qv), "early_stopping_rounds": 0}
    whole = small(n_rounds=9, learning_rate=0.5).fit(train[0], train[1], **given)
    half = small(n_rounds=4, learning_rate=0.5).fit(train[0], train[1], **given)
    half.forest_.save(tmp_path / "half.rankmill")
    for model in (half, half.forest_, tmp_path / "half.rankmill"):
        resumed = small(n_rounds=9, learning_rate=0.5).fit(train[0], train[1], **given, resume=model)
        assert resumed.forest_.to_bytes() == whole.forest_.to_bytes()
        assert resumed.history_ == whole.history_
    more = small(n_rounds=9 - half.forest_.n_rounds, learning_rate=0.5)
    assert more.fit(train[0], train[1], **given, init_model=half).forest_.to_bytes() == whole.forest_.to_bytes()


def test_resuming_other_rows_or_parameters_is_refused(arrays):
    X, y, qid = arrays
    model = small().fit(X, y, qid=qid)
    with refused(InvalidParameter, "dataset_digest"):
        small().fit(X[:-10], y[:-10], qid=qid[:-10], resume=model)
    with refused(InvalidParameter, "max_leaves", "5", "6"):
        small(max_leaves=6).fit(X, y, qid=qid, resume=model)
    with refused(InvalidParameter, "init_model", "max_leaves", "5", "6"):
        small(max_leaves=6).fit(X, y, qid=qid, init_model=model)
    with pytest.raises(InvalidParameter, match="binspec_digest"):
        small(max_bin=15).fit(X, y, qid=qid, resume=model)
    with refused(InvalidParameter, "both"):
        small().fit(X, y, qid=qid, resume=model, init_model=model)
    with refused(InvalidParameter, "fitted"):
        small().fit(X, y, qid=qid, resume=small())


def test_importances_are_shares_of_gain_or_of_splits(arrays):
    X, y, qid = arrays
    constant = np.hstack([X, np.ones((400, 1), np.float32)])
    ranker = small().fit(constant, y, qid=qid)
    gains = ranker.feature_importances_
    assert gains.shape == (5,)
    assert gains.sum() == pytest.approx(1.0)
    assert gains[4] == 0.0
    assert set(np.argsort(gains)[-2:]) == {0, 1}  # y depends on these
    inner = ranker.forest_.node_feature[ranker.forest_.node_feature >= 0]
    splits = ranker.set_params(importance_type="split").feature_importances_
    assert np.allclose(splits, np.bincount(inner, minlength=5) / len(inner))
    with refused(InvalidParameter, "importance_type", "gian", "gain"):
        small(importance_type="gian").fit(X, y, qid=qid)


def test_a_forest_without_a_split_gives_no_feature_a_share(arrays):
    X, y, qid = arrays
    with pytest.warns(UserWarning, match="no tree has a split"):
        ranker = small(min_rows_in_leaf=300).fit(X, y, qid=qid)
    assert ranker.feature_importances_.tolist() == [0.0] * 4


def test_scores_never_fall_with_a_monotone_feature(arrays):
    X, y, qid = arrays
    by_name = small(monotone={"f0": 1}).fit(X, y, qid=qid)
    for same in ({0: 1}, {"f0": 1, "f2": 0}, [1, 0, 0, 0], np.array([1.0, 0, 0, 0])):
        assert small(monotone=same).fit(X, y, qid=qid).forest_.to_bytes() == by_name.forest_.to_bytes()
    line = np.tile(X[:1], (50, 1))
    line[:, 0] = np.linspace(-3, 3, 50)
    assert (np.diff(by_name.predict(line)) >= 0.0).all()
    assert by_name.get_params()["monotone"] == {"f0": 1}
    with refused(InvalidParameter, "feature", "'age'"):
        small(monotone={"age": 1}).fit(X, y, qid=qid)


def test_the_score_is_the_mean_of_the_stop_metric(arrays):
    X, y, qid = arrays
    ranker = small(stop_metric="err@5").fit(X, y, qid=qid)
    assert ranker.score(X, y, qid=qid) == ranker.history_[-1].train["err@5"]
    assert ranker.score(X, y, group=[10] * 40) == ranker.score(X, y, qid=qid)


def test_what_was_seen_in_fit(arrays):
    X, y, qid = arrays
    ranker = small()
    assert not ranker.__sklearn_is_fitted__()
    frame = pl.DataFrame(X, schema=["a", "b", "c", "d"])
    assert ranker.fit(frame, y, qid=qid).feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert ranker.n_features_in_ == 4
    check_is_fitted(ranker)
    assert not hasattr(ranker.fit(X[:, :3], y, qid=qid), "feature_names_in_")
    assert ranker.n_features_in_ == 3


def test_clone_pickle_and_repr_keep_the_parameters(arrays):
    X, y, qid = arrays
    ranker = small(monotone={"f1": -1}, grow="depth_first", importance_type="split").fit(X, y, qid=qid)
    assert clone(ranker).get_params() == ranker.get_params()
    again = pickle.loads(pickle.dumps(ranker))
    assert again.history_ == ranker.history_
    assert again.forest_ == ranker.forest_
    assert repr(ranker) == (
        "Ranker(preset='defaults-1', n_rounds=8, grow='depth_first', max_leaves=5, monotone={'f1': -1}, n_threads=1, importance_type='split')"
    )
    assert repr(Ranker()) == repr(clone(Ranker())) == repr(pickle.loads(pickle.dumps(Ranker()))) == "Ranker()"
    assert repr(Ranker(folds=np.int64(5), monotone=np.array([1, 0]))) == "Ranker(monotone=array([1, 0]))"


def test_numbers_of_any_kind_are_parameters(arrays):
    X, y, qid = arrays
    plain = small(learning_rate=float(np.float32(0.1)), max_bin=20).fit(X, y, qid=qid)
    numpy = small(
        n_rounds=8.0, max_leaves=np.int64(5), learning_rate=np.float32(0.1), max_bin=np.int32(20), n_threads=np.int8(1)
    )
    assert numpy.fit(X, y, qid=qid).forest_.to_bytes() == plain.forest_.to_bytes()
    assert np.array_equal(numpy.predict(X), plain.predict(X))
    more = small(n_rounds=np.int64(1), learning_rate=np.float32(0.1), max_bin=20)
    assert more.fit(X, y, qid=qid, init_model=plain).forest_.n_trees == 9
    for name, value in (("max_bin", 20.5), ("n_threads", 1.5), ("n_threads", -1), ("n_rounds", "8"), ("folds", None)):
        with refused(InvalidParameter, name, repr(value)):
            small(**{name: value}).fit(X, y, qid=qid)


def test_a_tuple_of_eval_sets_is_a_list_of_them(arrays):
    (X, y, qid), held = halves(arrays)
    as_list = small().fit(X, y, qid=qid, eval_set=[held, (X, y, qid)])
    as_tuple = small().fit(X, y, qid=qid, eval_set=(held, (X, y, qid)))
    assert as_tuple.evals_result_ == as_list.evals_result_
    frames = small().fit(X, y, qid=qid, eval_set=((pl.DataFrame(held[0], schema=["f0", "f1", "f2", "f3"]), *held[1:]),))
    assert frames.forest_.to_bytes() == as_tuple.forest_.to_bytes()
    of_tuples = (((1, 2, 3, 4), (4, 3, 2, 1)), (0, 1), (0, 0))  # one set, whose rows are tuples
    assert list(small().fit(X, y, qid=qid, eval_set=of_tuples).evals_result_) == ["train", "valid"]


def test_going_on_may_watch_a_set_with_higher_grades(arrays):
    (X, y, qid), (Xv, yv, qv) = halves(arrays)
    model = small(n_rounds=4).fit(X, y, qid=qid)
    given = {"qid": qid, "eval_set": (Xv, yv + 1, qv), "early_stopping_rounds": 0}
    resumed = small().fit(X, y, **given, resume=model)
    assert resumed.forest_.to_bytes() == small().fit(X, y, **given).forest_.to_bytes()
    assert resumed.forest_.info["max_grade"] == 5


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"eval_names": ["a", "b"]}, InvalidParameter, ("eval_names", "2", "1")),
        ({"eval_names": ["train"]}, InvalidParameter, ("eval_names", "'train'", "other rows")),
        ({"eval_names": ["holdout"]}, InvalidParameter, ("eval_names", "'holdout'", "other rows")),
        ({"eval_group": []}, InvalidParameter, ("eval_group", "0", "1")),
        ({}, InvalidParameter, ("eval set 'valid'", "qid")),
        ({"eval_group": [[9] * 40]}, TrainingDataRejected, ("eval set 'valid'", "group", "360", "400")),
    ],
    ids=str,
)
def test_eval_sets_that_do_not_go_together_are_refused(arrays, given, error, message):
    X, y, qid = arrays
    with refused(error, message):
        small().fit(X, y, qid=qid, eval_set=[(X, y)], **given)
    with refused(InvalidParameter, "eval_names", "'a'", "twice"):
        small().fit(X, y, qid=qid, eval_set=[(X, y, qid)] * 2, eval_names=["a", "a"])
    with pytest.raises(TrainingDataRejected, match="X has 3 features"):
        small().fit(X, y, qid=qid, eval_set=(X[:, :3], y, qid))
