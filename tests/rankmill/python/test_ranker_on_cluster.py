"""A ranker that is fitted on a cluster, from a Dask DataFrame, has the bytes of a training on one machine from a
dataset."""

import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rankmill import Ranker, cross_validate, select_features
from rankmill.foundation.errors import DataRejected, InputError, InvalidParameter, TrainingDataRejected, WorkerLost
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import IngestOptions, ingest
from rankmill.pipeline.options import ReadOptions
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests.refusals import refused
from tests.trainer.fixed import fixed

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
frames = pytest.importorskip("dask.dataframe")
pytestmark = pytest.mark.slow

ROUNDS = 4
SETTINGS = {"preset": "defaults-1", "n_rounds": ROUNDS, "max_leaves": 4, "max_bin": 31, "verbose": 0}


def rows_of(queries, seed):
    """Return rows of queries of 1 to 9 documents, with names that tables have for other things."""
    draw = np.random.default_rng(seed)
    qid = np.repeat(np.arange(queries) + 100 * seed, draw.integers(1, 10, queries))
    found = pd.DataFrame({"target": draw.normal(size=len(qid)), "price": draw.gamma(2.0, size=len(qid))})
    found["shop"] = draw.choice(["a", "b", "c"], len(qid))
    found["in_stock"] = draw.random(len(qid)) < 0.7
    found.loc[draw.random(len(qid)) < 0.1, "price"] = np.nan
    found["qid"] = qid
    found["grade"] = np.clip(np.round(found["target"] + draw.normal(0.0, 0.5, len(qid)) + 1), 0, 3).astype(np.int64)
    return found


TRAIN, VALID = rows_of(60, 1), rows_of(20, 2)


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return dataset_of(tmp_path_factory.mktemp("one"))


def dataset_of(folder, **columns):
    for name, rows in {"train": TRAIN, "valid": VALID}.items():
        rows.to_parquet(folder / f"{name}.parquet", index=False)
    read = ReadOptions(columns={"qid": "qid", "grade": "grade"} | columns, categorical=("shop",))
    ingest([folder / "train.parquet"], folder / "d", valid=[folder / "valid.parquet"], options=IngestOptions(read=read))
    bin_dataset(Dataset.open(folder / "d"), 31)
    return Dataset.open(folder / "d")


@pytest.fixture(scope="module")
def expected(dataset):
    return train(dataset, fixed(n_rounds=ROUNDS, max_leaves=4))


def partitions(rows, *cuts):
    """Return the rows as a Dask DataFrame that is cut at these rows; two equal cuts make an empty partition."""
    parts = [rows.iloc[first:last] for first, last in zip((0, *cuts), (*cuts, len(rows)), strict=True)]
    return frames.from_delayed([dask.delayed(part) for part in parts], meta=rows.iloc[:0], verify_meta=False)


def inside_a_query(rows):
    return int(np.flatnonzero(rows["qid"].to_numpy()[1:] == rows["qid"].to_numpy()[:-1])[50]) + 1


def check_same(ranker, expected):
    assert ranker.forest_.to_bytes() == expected.forest.to_bytes()
    assert ranker.history_ == expected.history
    assert ranker.best_round_ == expected.best_round
    assert list(ranker.feature_names_in_) == ["target", "price", "shop", "in_stock"]


@pytest.mark.parametrize("cuts", [(), (inside_a_query(TRAIN), 200), (0, 90, 90, len(TRAIN))])
def test_any_partitions_and_queries_that_are_split(cuts, client, expected, tmp_path):
    ranker = Ranker(cluster=client, scratch=tmp_path, **SETTINGS)
    check_same(
        ranker.fit(partitions(TRAIN, *cuts), "grade", eval_set=(partitions(VALID, 30), "grade", "qid")), expected
    )
    assert not list(tmp_path.iterdir())
    assert client.status == "running"
    assert len(ranker.predict(TRAIN.drop(columns=["qid", "grade"]))) == len(TRAIN)


def test_series_and_names_of_columns(client, expected, tmp_path):
    frame = partitions(TRAIN, 90).rename(columns={"qid": "search", "grade": "bought"})
    valid = partitions(VALID)
    ranker = Ranker(cluster=client, scratch=tmp_path, **SETTINGS)
    features = frame[["target", "price", "shop", "in_stock"]]
    ranker.fit(features, frame["bought"], qid=frame["search"], eval_set=[(valid, valid["grade"])])
    check_same(ranker, expected)
    ranker.fit(frame, "bought", qid="search", eval_set=(valid, "grade"), eval_qid=["qid"])
    check_same(ranker, expected)


def test_local_workers_and_all_types_of_columns(expected, tmp_path, monkeypatch):
    rows = TRAIN.sample(frac=1.0, random_state=1).astype({"shop": "category", "grade": "float64", "qid": "str"})
    valid = VALID.astype({"shop": "object", "price": "Float64", "grade": "Int8"})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ranker = Ranker(cluster="local:2", **SETTINGS).fit(
        partitions(rows, 100), "grade", eval_set=(partitions(valid), "grade")
    )
    check_same(ranker, expected)
    assert not list(tmp_path.glob("rankmill*"))


def test_columns_of_a_dataset_and_goals(client, tmp_path):
    draw = np.random.default_rng(3)
    more = {
        name: rows.assign(
            importance=draw.integers(1, 4, len(rows)), shown=draw.integers(1, 9, len(rows)),
            sold=draw.integers(0, 2, len(rows))
        )
        for name, rows in {"train": TRAIN, "valid": VALID}.items()
    }  # fmt: skip
    for name, rows in more.items():
        rows.to_parquet(tmp_path / f"{name}.parquet", index=False)
    columns = {"qid": "qid", "grade": "grade", "weight": "importance", "offset": "shown"}
    read = ReadOptions(columns=columns, categorical=("shop",), goals=("sold",))
    files = [tmp_path / "train.parquet"], [tmp_path / "valid.parquet"]
    ingest(files[0], tmp_path / "d", valid=files[1], options=IngestOptions(read=read))
    bin_dataset(Dataset.open(tmp_path / "d"), 31)
    parameters = fixed(n_rounds=ROUNDS, max_leaves=4, goals={"sold": 0.5})
    expected = train(Dataset.open(tmp_path / "d"), parameters, TrainingOptions(eval_metrics=["ndcg@3:sold"]))
    named = {"sample_weight": "importance", "offset": "shown"}
    ranker = Ranker(cluster=client, scratch=tmp_path, goals={"sold": 0.5}, **SETTINGS)
    ranker.fit(
        partitions(more["train"], 50), "grade", goals=["sold"], eval_metrics="ndcg@3:sold", **named,
        eval_set=(partitions(more["valid"]), "grade", {"qid": "qid", **named}),
    )  # fmt: skip
    check_same(ranker, expected)


def test_more_rounds(client, dataset, tmp_path):
    longer = fixed(n_rounds=2 * ROUNDS, max_leaves=4)
    whole = train(dataset, longer)
    ranker = Ranker(cluster=client, scratch=tmp_path, **SETTINGS)
    rows, valid = partitions(TRAIN, 90), (partitions(VALID), "grade")
    first = ranker.fit(rows, "grade", eval_set=valid).forest_
    check_same(ranker.set_params(n_rounds=2 * ROUNDS).fit(rows, "grade", eval_set=valid, resume=first), whole)
    check_same(ranker.set_params(n_rounds=ROUNDS).fit(rows, "grade", eval_set=valid, init_model=first), whole)
    resumed = train(dataset, longer, TrainingOptions(resume=StartingModel(first)))
    assert resumed.forest.to_bytes() == whole.forest.to_bytes()


def test_callbacks_are_called_every_round_and_cannot_end_it(client, expected, tmp_path):
    reported = []
    ranker = Ranker(cluster=client, scratch=tmp_path, **SETTINGS)
    rows, valid = partitions(TRAIN, 90), (partitions(VALID), "grade")
    ranker.fit(rows, "grade", eval_set=valid, callbacks=reported.append)
    assert tuple(reported) == expected.history
    with refused(InvalidParameter, "callback", "early_stopping_rounds"):
        ranker.fit(rows, "grade", eval_set=valid, callbacks=lambda record: record.round_number == 2)


def kill_once(part, once):
    """Return a partition; the first worker that computes it is killed."""
    if not Path(once).exists():
        Path(once).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return part


def test_a_worker_is_killed_while_it_writes(client, expected, tmp_path):
    once = tmp_path / "once"
    rows = partitions(TRAIN, 90, 200).map_partitions(kill_once, str(once), meta=TRAIN.iloc[:0])
    ranker = Ranker(cluster=client, scratch=tmp_path, **SETTINGS)
    check_same(ranker.fit(rows, "grade", eval_set=(partitions(VALID), "grade")), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["once"]


def kill(part):
    os.kill(os.getpid(), signal.SIGKILL)
    return part


@pytest.mark.slow
def test_workers_that_are_killed_again_and_again(tmp_path):
    rows = partitions(TRAIN, 90).map_partitions(kill, meta=TRAIN.iloc[:0])
    with refused(WorkerLost, "local:2", "run the same again"):
        Ranker(cluster="local:2", scratch=tmp_path, **SETTINGS).fit(rows, "grade")
    assert not list(tmp_path.iterdir())


def test_functions_that_use_no_cluster(client):
    X, y = TRAIN[["target", "price"]], TRAIN["grade"]
    with refused(InvalidParameter, "cross_validate", "cluster"):
        cross_validate(Ranker(cluster=client), X, y, qid=TRAIN["qid"])
    with refused(InvalidParameter, "select_features", "cluster"):
        select_features(Ranker(cluster=client), X, y, qid=TRAIN["qid"], eval_set=(X, y, TRAIN["qid"]))


def test_rows_that_are_refused(client, tmp_path):
    ranker, rows = Ranker(cluster=client, scratch=tmp_path, **SETTINGS), partitions(TRAIN, 90)
    for X in (TRAIN, TRAIN[["target"]].to_numpy(), rows["grade"], rows.to_dask_array()):
        with refused(InvalidParameter, "Dask DataFrame", "cluster"):
            ranker.fit(X, "grade", qid="qid")
    for facts, X, y, more in (
        (("y", "name of a column"), rows, None, {}),
        (("qid", "name of a column"), rows.rename(columns={"qid": "search"}), "grade", {}),
        (("'grades'", "'grade'"), rows, "grades", {}),
        (("y", "ndarray"), rows, TRAIN["grade"].to_numpy(), {}),
        (("'weight'", "rename"), rows.rename(columns={"price": "weight"}), "grade", {}),
        (("'grade'", "rename"), rows.assign(other=rows["grade"]), "other", {}),
        (("group", "qid"), rows, "grade", {"group": [1]}),
        (("pairs",), rows, "grade", {"pairs": [[0, 1]]}),
    ):
        with refused(InvalidParameter, *facts):
            ranker.fit(X, y, **more)
    with refused(TrainingDataRejected, "qid", 1, 2, "partitions"):
        ranker.fit(rows, "grade", eval_set=(rows, "grade", partitions(TRAIN)["qid"]))
    with refused(TrainingDataRejected, "partition 0", 90, 91, "grade"):
        ranker.fit(rows.drop(columns="grade"), partitions(TRAIN, 91)["grade"])
    with refused(TrainingDataRejected, "no rows"):
        ranker.fit(partitions(TRAIN.iloc[:0]), "grade")
    with refused(TrainingDataRejected, "eval set", "'price'"):
        ranker.fit(rows, "grade", eval_set=(rows.drop(columns="price"), "grade"))
    with refused(DataRejected, "000001.parquet", "grade"):
        ranker.fit(
            partitions(TRAIN.assign(grade=np.where(np.arange(len(TRAIN)) == 100, -1, TRAIN["grade"])), 90), "grade"
        )
    assert not list(tmp_path.iterdir())


def test_what_does_not_work_on_a_cluster(client, tmp_path):
    rows, valid = partitions(TRAIN, 90), (partitions(VALID), "grade")

    def fit(rows=rows, eval_set=None, **given):
        arguments = {name: given.pop(name) for name in ("base_model", "eval_names") if name in given}
        ranker = Ranker(**({"cluster": client, "scratch": tmp_path} | SETTINGS | given))
        ranker.fit(rows, "grade", eval_set=eval_set, **arguments)

    for given, fact in [
        ({"model": "net"}, "net"),
        ({"objective": lambda *_: None}, "objective"),
        ({"rounds_by": "cv"}, "rounds_by"),
        ({"refit": "all"}, "refit"),
        ({"bootstrap": "goss"}, "bootstrap"),
        ({"base_model": Ranker()}, "base_model"),
        ({"eval_names": ["mine"], "eval_set": valid}, "eval_names"),
        ({"eval_set": [valid, valid]}, "one eval set"),
    ]:
        with refused(InvalidParameter, fact, "cluster"):
            fit(**given)
    with refused(InputError, "scratch", "nowhere"):
        fit(scratch=tmp_path / "nowhere")
    with refused(InvalidParameter, "cluster", "local:4"):
        fit(cluster=4)
    with refused(InvalidParameter, "cluster", "remote"):
        fit(cluster="remote")


def test_a_client_whose_workers_are_threads(tmp_path):
    with (
        warnings.catch_warnings(action="ignore"),
        distributed.Client(processes=False, n_workers=1, dashboard_address=None, set_as_default=False) as threads,
        refused(InputError, "threads", "processes=True"),
    ):
        Ranker(cluster=threads, scratch=tmp_path, **SETTINGS).fit(partitions(TRAIN), "grade")
