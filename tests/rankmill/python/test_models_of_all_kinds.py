"""Nets and blends in Python: loaded, registered and used as trees are, and what needs trees is refused in one line."""

import pickle
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import rankmill
from rankmill import Ranker
from rankmill.foundation.errors import InputError, TrainingDataRejected
from rankmill.scorer.models.loading import Blend, predictor_of
from rankmill.scorer.nets.net import Net
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.train_on_dataset import train_net_on
from rankmill.trainer.options import CheckpointOptions
from tests.rankmill.python.small_ranker import planted_arrays, small
from tests.refusals import refused
from tests.trainer.small_dataset import small_dataset


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(net, blend of it and of trees, the values of the test split, its grades and queries)."""
    dataset = small_dataset(tmp_path_factory.mktemp("models"))
    net = train_net_on(dataset, NetOptions(layers=(8,), epochs=2, batch_documents=100), CheckpointOptions()).net
    table = pl.from_arrow(dataset.rows("test", ("qid", "grade", *dataset.feature_names)))
    trees = small().fit(table.drop("grade"), table["grade"]).forest_
    blend = Blend(parts=(net, trees), weights=np.array([0.5, 2.0]))
    return net, blend, table.drop("qid", "grade"), table["grade"].to_numpy(), table["qid"].to_numpy()


@pytest.mark.parametrize("kind", [0, 1], ids=["net", "blend"])
def test_a_model_of_any_kind_is_loaded_scored_and_registered_again(models, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    model, (X, y, qid) = models[kind], models[2:]
    version = rankmill.register_model(model, "any")
    expected = predictor_of(model).scores(X.select(model.feature_names).to_numpy().astype(np.float32)).tolist()
    for loaded in (rankmill.load_model("any@1"), Ranker.load("any@latest")):
        assert loaded.loaded_from_ == str(version) == "any@1"
        assert type(loaded.model_) is type(model)
        assert loaded.predict(X).tolist() == expected
        assert list(loaded.feature_names_in_) == list(model.feature_names)
        assert 0.0 < loaded.score(X, y, qid=qid) <= 1.0
        assert pickle.loads(pickle.dumps(loaded)).predict(X).tolist() == expected
        assert str(rankmill.register_model(loaded, "any")) == "any@1"
        assert ("net" if isinstance(model, Net) else "blend") in loaded._repr_html_()
    loaded.save("m.rankmill")
    assert Path("m.rankmill").read_bytes() == model.to_bytes()
    with refused(TrainingDataRejected, model.feature_names[0]):
        loaded.predict(X.drop(model.feature_names[0]))


@pytest.mark.parametrize("kind", [0, 1], ids=["net", "blend"])
def test_what_needs_trees_says_so(models, kind):
    ranker, (X, y, qid) = Ranker.from_model(models[kind]), models[2:]
    uses = {
        "forest_": lambda: ranker.forest_,
        "apply": lambda: ranker.apply(X),
        "contributions": lambda: ranker.contributions(X),
        "feature_importances_": lambda: ranker.feature_importances_,
        "n_rounds": lambda: ranker.predict(X, n_rounds=1),
        "resume": lambda: small().fit(X, y, qid=qid, resume=ranker),
    }
    for use, call in uses.items():
        with refused(InputError, use, "net" if kind == 0 else "blend"):
            call()


def test_a_fitted_forest_is_the_model():
    X, y, qid = planted_arrays()
    ranker = small()
    assert not hasattr(ranker, "forest_")
    ranker.fit(X, y, qid=qid)
    assert ranker.forest_ is ranker.model_
