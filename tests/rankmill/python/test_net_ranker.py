"""``Ranker(model="net")``: the net of ``rankmill train --model net``, the same for any threads, and used as trees
are."""

import pickle

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold

from rankmill import BinnedDataset, Ranker, cross_validate, select_features
from rankmill.foundation.errors import InputError, InvalidParameter, TrainingDataRejected
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.python import net_rows
from rankmill.python.binned_dataset import binned_or_given
from rankmill.python.binned_rows import BinningOptions
from rankmill.trainer.nets.cross_validating import cross_validate_net, cross_validate_net_on
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.train_on_dataset import train_net_on
from rankmill.trainer.options import CheckpointOptions, MachineOptions
from tests.rankmill.python.small_ranker import small
from tests.refusals import refused
from tests.trainer.small_dataset import small_dataset

SMALL = {"layers": (8,), "epochs": 3, "batch_documents": 100}


def net(**parameters):
    return Ranker(**{"model": "net", "n_threads": 1, "verbose": 0, **SMALL, **parameters})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return small_dataset(tmp_path_factory.mktemp("net"))


def halves(arrays):
    first = arrays[2] < 25
    return [part[first] for part in arrays], [part[~first] for part in arrays]


def test_a_dataset_gives_the_net_of_the_command(dataset):
    train, valid = (BinnedDataset.open(dataset.path, split) for split in ("train", "valid"))
    expected = train_net_on(dataset, NetOptions(**SMALL, seed=3), CheckpointOptions(eval_metrics=("map",)))
    for threads in (1, 2):
        found = net(seed=3, n_threads=threads).fit(train, eval_set=valid, eval_metrics="map")
        assert found.model_.to_bytes() == expected.net.to_bytes()
        assert found.history_ == expected.result.history
        assert found.best_round_ == expected.result.best_epoch
    with refused(InvalidParameter, "values"):
        net().fit(pickle.loads(pickle.dumps(train)))  # holds no path


def test_the_net_depends_on_the_rows_alone(arrays):
    (X, y, qid), watched = halves(arrays)
    weights = np.where(X[:, 2] > 0, 1.0, 3.0)
    expected = net().fit(X, y, qid=qid, eval_set=tuple(watched), sample_weight=weights)
    order = np.random.default_rng(4).permutation(len(y))
    frame = pl.DataFrame(X[order], schema=["f0", "f1", "f2", "f3"]).with_columns(qid=qid[order])
    again = net(n_threads=2).fit(frame, y[order], eval_set=tuple(watched), sample_weight=weights[order])
    assert again.model_.to_bytes() == expected.model_.to_bytes()
    assert net().fit(X, y, qid=qid, eval_set=tuple(watched)).model_ != expected.model_
    assert [record.round_number for record in expected.history_] == [1, 2, 3]
    assert expected.evals_result_["valid"]["ndcg@10"][expected.best_round_ - 1] == pytest.approx(
        expected.score(watched[0], watched[1], qid=watched[2]), abs=1e-12
    )


def test_it_stops_early_and_when_it_is_asked_to(arrays):
    (X, y, qid), watched = halves(arrays)
    long = {"epochs": 40, "early_stopping_epochs": 2, "learning_rate": 0.05}
    ranker = net(**long).fit(X, y, qid=qid, eval_set=tuple(watched), eval_names=["later"])
    assert len(ranker.history_) == ranker.best_round_ + 2 < 40
    assert {*ranker.evals_result_} == {"train", "later"}
    seen = []
    reported = net(**long).fit(X, y, qid=qid, callbacks=lambda record: seen.append(record) or len(seen) == 2)
    assert reported.history_ == tuple(seen)
    assert reported.best_round_ == 2


def test_it_is_saved_loaded_cloned_and_trained_again(arrays, tmp_path):
    X, y, qid = arrays
    ranker = net(objective="softmax", learning_rate=0.01, dropout=0.1, seed=9).fit(X, y, qid=qid)
    ranker.save(tmp_path / "net.rankmill")
    loaded = Ranker.load(tmp_path / "net.rankmill")
    for same in (loaded, pickle.loads(pickle.dumps(ranker))):
        assert same.predict(X).tolist() == ranker.predict(X).tolist()
        assert same.score(X, y, qid=qid) == ranker.score(X, y, qid=qid)
    assert loaded.best_round_ == ranker.best_round_
    assert loaded.set_params(verbose=0).fit(X, y, qid=qid).model_ == ranker.model_
    unfitted = clone(ranker)
    assert unfitted.get_params() == ranker.get_params()
    assert not hasattr(unfitted, "model_")
    assert unfitted.fit(X, y, qid=qid).model_ == ranker.model_
    assert unfitted.set_params(**Ranker().get_params() | {"n_rounds": 2}).fit(X, y, qid=qid).forest_
    with refused(InputError, "forest_", "net"):
        _ = ranker.forest_


def test_a_cross_validation_measures_nets_on_queries_that_they_have_not_seen(arrays, dataset):
    X, y, qid = arrays
    weights, seen = np.where(X[:, 2] > 0, 1.0, 3.0), []
    ranker = net(folds=2, epochs=4, early_stopping_epochs=2, learning_rate=0.05)
    found = cross_validate(
        ranker, X, y, qid=qid, sample_weight=weights, on_round=lambda fold, record: seen.append((fold, record))
    )
    assert {fold for fold, _ in seen} == {1, 2}
    assert not hasattr(ranker, "model_")
    order = np.random.default_rng(4).permutation(len(y))
    again = cross_validate(ranker, X[order], y[order], qid=qid[order], sample_weight=weights[order])
    assert again == found != cross_validate(ranker, X, y, qid=qid)
    data = net_rows.rows_for_net(
        binned_or_given(X, y, qid, None, {"sample_weight": weights}, BinningOptions(), ""), NetOptions()
    )
    options = NetOptions(**{**SMALL, "epochs": 4, "early_stopping_epochs": 2, "learning_rate": 0.05})
    assert cross_validate_net(data, options, 2) == found
    ranker.fit(X, y, qid=qid)  # which does not use the folds
    of_file = cross_validate(net(folds=3), BinnedDataset.open(dataset.path))
    assert of_file == cross_validate_net_on(dataset, NetOptions(**SMALL), 3, MachineOptions(n_threads=1))


def test_a_search_of_scikit_learn_varies_its_options(arrays):
    X, y, qid = arrays
    frame = pl.DataFrame(X, schema=["a", "b", "c", "d"]).with_columns(qid=qid).to_pandas()
    search = GridSearchCV(net(), {"layers": [(), (4,)]}, cv=GroupKFold(2), error_score="raise")
    search.fit(frame, y, groups=qid)
    assert search.best_params_["layers"] in ((), (4,))


def test_categories_goals_and_queries_come_with_a_frame(arrays):
    X, y, qid = arrays
    brand = np.array(["acme", "bolt", "core"])[(X[:, 3] > 0).astype(int) + (X[:, 3] > 1)]
    frame = pl.DataFrame(X[:, :3], schema=["a", "b", "c"]).with_columns(
        brand=brand, qid=qid, bought=(X[:, 1] > 1).astype(np.int32)
    )
    train, watched = frame.filter(pl.col("qid") < 25), frame.filter(pl.col("qid") >= 25)
    ranker = net().fit(
        train, y[qid < 25], eval_set=(watched, y[qid >= 25]), goals=["bought"], eval_metrics="ndcg@5:bought"
    )
    assert {*ranker.model_.categories} == {"brand"}
    assert sorted(ranker.model_.categories["brand"]) == ["acme", "bolt", "core"]
    assert ranker.evals_result_["valid"].keys() == {"ndcg@10", "ndcg@5:bought"}
    assert np.isfinite(ranker.predict(watched.with_columns(brand=pl.lit("never seen")))).all()
    with refused(TrainingDataRejected, "brand"):
        ranker.predict(watched.with_columns(brand=pl.lit(3)))


def test_what_is_of_the_other_kind_is_refused(arrays, dataset):
    X, y, qid = arrays

    def fit(ranker, **more):
        return ranker.fit(X, y, qid=qid, **more)

    cases = {
        "n_rounds": lambda: fit(net(n_rounds=5)),
        "max_leaves": lambda: fit(net(max_leaves=5)),
        "max_bin": lambda: fit(net(max_bin=15)),
        "early_stopping_epochs": lambda: fit(net(), early_stopping_rounds=3),
        "resume": lambda: fit(net(), resume=small()),
        "init_model": lambda: fit(net(), init_model="web"),
        "base_model": lambda: fit(net(), base_model=small()),
        "layers": lambda: fit(Ranker(layers=(3,))),
        "model": lambda: fit(Ranker(model="nets")),
        "eval set": lambda: fit(net(), eval_set=[(X, y, qid), (X, y, qid)]),
        "values": lambda: net().fit(BinnedDataset(X, y, qid=qid)),
        "trees": lambda: select_features(net(), X, y, qid=qid, eval_set=(X, y, qid)),
        "features": lambda: net().fit(X, y, qid=qid, eval_set=BinnedDataset.open(dataset.path)),
        "dropout": lambda: fit(net(dropout=2.0)),
        "label": lambda: fit(net(), label=y),
    }
    for named, call in cases.items():
        with refused(InvalidParameter, named):
            call()
    assert Dataset.open(dataset.path).digest == dataset.digest
