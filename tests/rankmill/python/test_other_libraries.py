"""What users of other libraries try first: their names, callbacks and metrics, frames and arrays in turn, indexed
columns."""

import copy
import re
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from rankmill import BinnedDataset, Dataset, Ranker, cross_validate
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.python import other_libraries
from rankmill.python.other_libraries import OURS, keywords_of
from tests.rankmill.python.small_ranker import small
from tests.refusals import refused, unnamed
from tests.scorer.exchange.exchange_cases import peer

OF_RANKER, OF_FIT = keywords_of(Ranker.__init__), keywords_of(Ranker.fit)


def test_a_name_of_another_library_gets_ours(arrays):
    X, y, qid = arrays
    for theirs, ours in OURS.items():
        assert theirs not in OF_RANKER + OF_FIT
        line = rf"^unknown {{}} {theirs!r}; did you mean {ours!r}\?$"
        if ours in OF_RANKER:
            for call in (Ranker, Ranker().set_params):
                with pytest.raises(InvalidParameter, match=line.format("parameter")):
                    call(**{theirs: 1})
        else:
            with pytest.raises(InvalidParameter, match=line.format("argument of fit")):
                small().fit(X, y, qid=qid, **{theirs: 1})
    for name, ours in (("verbose", "verbose"), ("num_boost_round", "n_rounds"), ("eval_at", "metric")):
        with refused(InvalidParameter, "fit", f"'{name}'", f"Ranker({ours}=..)"):
            small().fit(X, y, qid=qid, **{name: 1})
    with refused(InvalidParameter, "learning_rat", "learning_rate"):
        Ranker(learning_rat=0.1)
    with pytest.raises(InvalidParameter, match=r"'zzz'; known: .*objective, .*, n_rounds, "):
        Ranker(zzz=1)


def ndcg(scores, grades):
    return 0.0


def test_a_function_is_no_metric(arrays):
    X, y, qid = arrays
    facts = "'ndcg@10'", "function ndcg"
    for name in ("metric", "stop_metric"):
        with refused(InvalidParameter, name, facts):
            small(**{name: ndcg}).fit(X, y, qid=qid)
    for call in (small().fit, partial(cross_validate, small())):
        with refused(InvalidParameter, "eval_metrics", facts):
            call(X, y, qid=qid, eval_metrics=["map", ndcg])


def test_callbacks_of_other_libraries_are_refused(arrays):
    X, y, qid = arrays
    lightgbm = peer("lightgbm")
    cases = {
        lightgbm.early_stopping(5): ("_EarlyStoppingCallback", "LightGBM", "early_stopping_rounds=N"),
        lightgbm.record_evaluation({}): ("LightGBM", "evals_result_"),
        lightgbm.log_evaluation(5): ("LightGBM", "verbose="),
        lightgbm.reset_parameter(learning_rate=[0.1] * 8): ("function", "RoundRecord"),
        3: ("callbacks", "RoundRecord", "3"),
    }
    for callback, facts in cases.items():
        for callbacks in ([callback], callback):
            with refused(InvalidParameter, facts):
                small().fit(X, y, qid=qid, callbacks=callbacks)
    with refused(InvalidParameter, "callbacks", "EarlyStopping", "XGBoost", "early_stopping_rounds"):
        small().fit(X, y, qid=qid, callbacks=[peer("xgboost").callback.EarlyStopping(rounds=5)])
    plain = small().fit(X, y, qid=qid).forest_
    assert small().fit(X, y, qid=qid, callbacks=None, eval_metrics=None).forest_.to_bytes() == plain.to_bytes()


NAMES = ["a", "b", "c", "d"]
FRAMES = {
    "pandas": lambda X: pd.DataFrame(X, columns=NAMES),
    "polars": lambda X: pl.DataFrame(X, schema=NAMES),
    "pyarrow": lambda X: pa.table(dict(zip(NAMES, X.T, strict=True))),
}


@pytest.mark.parametrize("library", FRAMES)
def test_arrays_and_frames_in_turn(arrays, library):
    X, y, qid = arrays
    frame = FRAMES[library](X)
    of_array, of_frame = small().fit(X, y, qid=qid), small().fit(frame, y, qid=qid)
    with refused(TrainingDataRejected, "X", "'f0'"):
        of_array.predict(frame)
    with pytest.warns(UserWarning, match="X has no column names; its 4 columns are used .* in order: a, b, c, d$"):
        found = of_frame.predict(X)
    assert found.tolist() == of_frame.predict(frame).tolist() == of_array.predict(X).tolist()
    with pytest.warns(UserWarning, match="X has no column names"):
        small().fit(frame, y, qid=qid, eval_set=(X, y, qid))
    assert of_frame.score(frame, y, qid=qid) == of_array.score(X, y, qid=qid)


def test_a_pandas_frame_that_counts_its_columns_is_an_array(arrays):
    X, y, qid = arrays
    counted = pd.DataFrame(X)
    ranker = small().fit(counted, y, qid=qid)
    assert ranker.forest_.to_bytes() == small().fit(X, y, qid=qid).forest_.to_bytes()
    assert not hasattr(ranker, "feature_names_in_")
    assert ranker.predict(counted).tolist() == ranker.predict(X).tolist()
    swapped = pd.DataFrame(X, columns=[1, 0, 2, 3])
    assert small().fit(swapped, y, qid=qid).feature_names_in_.tolist() == ["1", "0", "2", "3"]


def test_another_index_is_refused_and_the_same_one_taken(arrays):
    X, y, qid = arrays
    index = np.random.default_rng(4).permutation(400)
    values = {"y": y, "qid": qid, "sample_weight": y + 1, "query_weight": np.ones(400), "offset": y / 9}
    given = {key: pd.Series(column, index=index) for key, column in values.items()}
    frame = pd.DataFrame(X, columns=NAMES, index=index)
    expected = small().fit(FRAMES["polars"](X), **{key: pl.Series(column) for key, column in values.items()})
    assert small().fit(frame, **given).forest_.to_bytes() == expected.forest_.to_bytes()
    ranker = small().fit(frame, **given)
    for name, column in given.items():
        facts = "X", name, "pandas indexes", f"{name}.loc[X.index]", f"{name}.to_numpy()"
        for other in (column.sort_index(), column.reset_index(drop=True)):
            columns = given | {name: other}
            with refused(TrainingDataRejected, facts):
                small().fit(frame, **columns)
            more = {key: column for key, column in columns.items() if key != "y"}
            with refused(TrainingDataRejected, "eval set 'valid'", facts):
                small().fit(X, y, qid=qid, eval_set=(frame, columns["y"], more))
        with refused(TrainingDataRejected, facts):
            cross_validate(small(), frame, **columns)
        if name in {"y", "qid"}:
            with refused(TrainingDataRejected, facts):
                ranker.score(frame, y=columns["y"], qid=columns["qid"])


@pytest.mark.parametrize(("library", "name"), [*zip(FRAMES, ["query_id", "Query ID", "group"], strict=True)])
def test_a_column_with_the_queries_is_no_feature(arrays, library, name):
    X, y, qid = arrays
    names = [*NAMES, name]
    frame = {
        "pandas": lambda: pd.DataFrame(np.column_stack([X, qid]), columns=names),
        "polars": lambda: pl.DataFrame(np.column_stack([X, qid]), schema=names),
        "pyarrow": lambda: pa.table(dict(zip(names, np.column_stack([X, qid]).T, strict=True))),
    }[library]()
    for call in (small().fit, partial(cross_validate, small())):
        for given in ({"qid": qid}, {"qid": [f"query {number}" for number in qid]}, {"group": [10] * 40}):
            with refused(TrainingDataRejected, f"'{name}'", "drop"):
                call(frame, y, **given)
    with refused(InvalidParameter, f"'{name}'", "'qid'"):  # it is not taken for the queries unasked
        small().fit(frame, y)
    with refused(InvalidParameter, "qid", f"X['{name}']"):
        small().fit(frame, y, qid=name)
    with refused(InvalidParameter, "qid", "array"):
        small().fit(X, y, qid=name)
    other = X[:, 0] > 0  # a feature that is only called like queries
    columns = dict(zip(names, [*X.T, other], strict=True))
    assert small().fit(pd.DataFrame(columns), y, qid=qid).n_features_in_ == 5


def test_arguments_of_predict_of_other_libraries_and_bins_get_a_way_out(arrays):
    X, y, qid = arrays
    fitted, binned = small().fit(X, y, qid=qid), BinnedDataset(X, y, qid=qid)
    ways = {"pred_contrib": "contributions", "pred_leaf": "apply", "iteration_range": "n_rounds", "raw_score": "raw"}
    for name, way in (ways | {"zzz": "start_round"}).items():
        with refused(InvalidParameter, "predict", f"'{name}'", way):
            fitted.predict(X, **{name: True})
    for call in (fitted.predict, fitted.apply, fitted.contributions):
        with refused(InvalidParameter, "BinnedDataset", "X"):
            call(binned)
    with refused(InvalidParameter, "gain", "table(0,1,3,7)"):
        small(gain=[0, 1, 3, 7]).fit(X, y, qid=qid)
    with refused(InvalidParameter, "Dataset.open", "BinnedDataset"):
        Dataset(X, y)


def test_a_cross_validation_shows_its_metric(arrays):
    X, y, qid = arrays
    found = cross_validate(small(folds=4), X, y, qid=qid)
    assert not unnamed(repr(found), "ndcg@10", f"{found.mean('ndcg@10'):.4f}", 4, found.best_round)
    assert len(repr(found)) < 120


THEIRS = """best_iteration_ best_round_, best_iteration best_round_, best_score_ history_, booster_ forest_, get_booster forest_,
evals_result evals_result_, feature_name_ feature_names_in_, n_features_ n_features_in_, get_score feature_importances_,
staged_predict predict, save_model save, tree_count_ best_round_, objective_ model_.objective"""


def test_an_attribute_of_another_library_gets_ours(arrays):
    X, y, qid = arrays
    ranker = small().fit(pd.DataFrame(X, columns=NAMES), y, qid=qid)
    for theirs, ours in map(str.split, THEIRS.split(",")):
        for one in (small(), ranker, copy.deepcopy(ranker)):
            with pytest.raises(AttributeError, match=f"^'Ranker' object has no attribute '{theirs}'; use {ours}"):
                getattr(one, theirs)
            assert not hasattr(one, theirs)
        named = re.match(r"\w+", other_libraries.unknown_attribute("Ranker", theirs).rpartition("; use ")[2])
        assert hasattr(ranker, named[0])
    with pytest.raises(AttributeError, match=r"^'Ranker' object has no attribute 'classes_'$"):
        ranker.classes_  # noqa: B018
