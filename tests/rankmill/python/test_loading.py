"""Models by name and by file in Python: the ones that the commands mean."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import rankmill
from rankmill import Ranker, Registry
from rankmill.foundation.errors import InputError, InvalidName, InvalidParameter, UnknownModel
from rankmill.foundation.options import DEFAULTS
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.scorer.models.model_service import find_model
from rankmill.trainer.parameters import TrainParameters
from tests.rankmill.python.small_ranker import small
from tests.refusals import refused
from tests.scorer.forests import random_forest


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    return tmp_path


def fitted(arrays, **parameters):
    X, y, qid = arrays
    return small(**parameters).fit(X, y, qid=qid, eval_set=(X, y, qid))


def test_a_file_gives_the_ranker_that_was_saved(arrays, here):
    X, y, qid = arrays
    ranker = fitted(arrays, monotone={"f0": 1}, metric="err@5", learning_rate=0.3)
    ranker.save(here / "m.rankmill")
    own = {"metric": "err@5", "learning_rate": 0.3, "monotone": {"f0": 1}}
    chosen = TrainParameters(preset=DEFAULTS, n_rounds=ranker.n_rounds, max_leaves=ranker.max_leaves, **own).as_dict()
    (here / "m.rankmill").rename(here / "odd name")
    for load, name in itertools.product((Ranker.load, rankmill.load_model), ("odd name", here / "odd name")):
        loaded = load(name)
        assert loaded.loaded_from_ == str(name)
        assert loaded.predict(X).tolist() == ranker.predict(X).tolist()
        assert loaded.score(X, y, qid=qid) == ranker.score(X, y, qid=qid)
        assert loaded.forest_.to_bytes() == ranker.forest_.to_bytes()
        assert loaded.get_params() == {**ranker.get_params(), **chosen, "n_threads": 0}
        assert (loaded.best_round_, loaded.n_features_in_) == (ranker.best_round_, 4)
        assert loaded.feature_importances_.tolist() == ranker.feature_importances_.tolist()
        assert loaded.evals_result_ == {}
        assert not hasattr(loaded, "feature_names_in_")
        assert pickle.loads(pickle.dumps(loaded)).predict(X).tolist() == ranker.predict(X).tolist()
    loaded.fit(X, y, qid=qid, eval_set=(X, y, qid))
    assert loaded.forest_.to_bytes() == ranker.forest_.to_bytes()
    assert not hasattr(loaded, "loaded_from_")


def test_names_mean_what_they_mean_to_the_commands(arrays, here, monkeypatch):
    X, _, _ = arrays
    rankers = [fitted(arrays, seed=seed, n_rounds=seed) for seed in (3, 4)]
    assert [str(rankmill.register_model(one, "web")) for one in rankers] == ["web@1", "web@2"]
    assert str(rankmill.register_model(rankers[0].forest_, "web")) == "web@1"  # the same once more
    Registry().promote("web", 1, force=True)
    for name, number in (("web", 1), ("web@production", 1), ("web@latest", 2), ("web@2", 2)):
        loaded = Ranker.load(name)
        assert loaded.loaded_from_ == f"web@{number}"
        assert loaded.forest_.to_bytes() == find_model(name, Path("registry-data"))[0].to_bytes()
        assert loaded.predict(X).tolist() == rankers[number - 1].predict(X).tolist()
    assert (Registry().resolve("web").number, Registry().resolve("web", bare="latest").number) == (1, 2)
    (here / "registry-data").rename(here / "other")
    for given in ({"registry": "other"}, {"registry": here / "other"}):
        assert rankmill.load_model("web", **given).loaded_from_ == "web@1"
    monkeypatch.setenv("RANKMILL_REGISTRY", str(here / "other"))
    assert rankmill.load_model("web@2").loaded_from_ == "web@2"
    assert Registry().names() == ["web"]
    assert str(rankmill.register_model(rankers[1], "web")) == "web@2"


def test_a_model_without_facts_of_its_training_is_loaded(arrays, here):
    """Such as one of another library."""
    X, y, qid = arrays
    forest = random_forest(3, n_features=4)
    assert not forest.parameters
    assert "max_grade" not in forest.info
    forest.save(here / "m.rankmill")
    loaded = Ranker.load("m.rankmill")
    assert loaded.get_params() == Ranker().get_params()
    assert 0.0 < loaded.score(X, y, qid=qid) <= 1.0


def test_what_goes_on_from_a_model_takes_names_too(arrays, here):
    X, y, qid = arrays
    half, whole = small(n_rounds=4).fit(X, y, qid=qid), small().fit(X, y, qid=qid)
    rankmill.register_model(half, "web")
    assert small().fit(X, y, qid=qid, resume="web@latest").forest_.to_bytes() == whole.forest_.to_bytes()
    loaded = Ranker.load("web@1")
    assert small().fit(X, y, qid=qid, resume=loaded).forest_.to_bytes() == whole.forest_.to_bytes()


def test_what_is_not_there_is_reported_in_one_line(arrays, here):
    cases = {
        "gone.rankmill": (InputError, ("gone.rankmill", "no such")),
        "models/web": (InputError, ("models/web", "no such")),
        here: (InputError, "folder"),
        Path("web"): (InputError, ("web", "no such")),
        "web": (UnknownModel, ("'web'", "registry-data")),
        "Web!": (InvalidName, ("'Web!'", "64")),
    }
    for name, (error, facts) in cases.items():
        with refused(error, facts):
            rankmill.load_model(name)
    rankmill.register_model(fitted(arrays), "web")
    with refused(UnknownModel, "production", "web@latest"):
        Ranker.load("web")
    with refused(InputError, "model", "'wep'", "'web'"):
        Ranker.load("wep")
    with refused(InvalidParameter, "register_model", "fit"):
        rankmill.register_model(Ranker(), "web")
    with refused(InvalidParameter, "save", "fitted"):
        Ranker().save("x.rankmill")


def test_a_dataset_is_opened_by_text_and_trained_on_as_it_is(here):
    rng = np.random.default_rng(5)
    frame = pl.DataFrame(rng.normal(size=(300, 2)), schema=["b", "a"]).with_columns(
        qid=np.repeat(np.arange(30), 10).astype(str)
    )
    frame = frame.with_columns(grade=(pl.col("a") > 0).cast(pl.Int32))
    frame.write_csv("rows.csv")
    ingest([Path("rows.csv")], Path("some"))
    dataset = Dataset.open("some")
    assert dataset.digest == Dataset.open(Path("some")).digest
    table = dataset.rows(None, ("qid", *dataset.feature_names))
    ranker = small().fit(table, dataset.rows(None, ["grade"])["grade"])
    assert list(ranker.feature_names_in_) == list(dataset.feature_names)
    assert (
        ranker.forest_.to_bytes()
        == small().fit(frame.select("qid", *dataset.feature_names), frame["grade"]).forest_.to_bytes()
    )
    assert Ranker.load(_saved(ranker)).feature_names_in_.tolist() == list(dataset.feature_names)


def _saved(ranker):
    ranker.save("some.rankmill")
    return "some.rankmill"
