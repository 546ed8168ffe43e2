"""Nets and blends in Python: loaded, registered and used as trees are, and what needs trees is refused in one line."""

import pickle
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import rankmill
from rankmill import Ranker
from rankmill.foundation.errors import InputError, TrainingDataRejected
from rankmill.scorer.inspect import any_model
from rankmill.scorer.models.loading import Blend, predictor_of
from rankmill.scorer.nets.net import Net
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.train_on_dataset import train_net_on
from rankmill.trainer.options import CheckpointOptions
from tests.naive_inspect import shapley_values
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
        "feature_importances_": lambda: ranker.feature_importances_,
        "n_rounds": lambda: ranker.predict(X, n_rounds=1),
        "resume": lambda: small().fit(X, y, qid=qid, resume=ranker),
        "init_model": lambda: small().fit(X, y, qid=qid, init_model=ranker),
        "base_model": lambda: small().fit(X, y, qid=qid, base_model=ranker),
    }
    assert not hasattr(ranker, "forest_")
    assert not hasattr(ranker, "feature_importances_")
    for use, call in uses.items():
        with refused(InputError, use, "net" if kind == 0 else "blend"):
            call()


@pytest.mark.parametrize("kind", [0, 1], ids=["net", "blend"])
def test_contributions_add_up_to_the_scores(models, kind, monkeypatch):
    ranker, (X, _, qid) = Ranker.from_model(models[kind]), models[2:]
    ranker.n_threads = 1
    some, queries = X[:40], qid[:40]
    found = ranker.contributions(some)
    assert found.values.shape == (40, 1, X.width)
    assert (found.base == found.base[0]).all()
    assert found.values.sum(axis=2) + found.base == pytest.approx(ranker.predict(some)[:, np.newaxis], abs=1e-5)
    for tried in (any_model.ALL_SETS, 0):  # all sets, and random orders
        monkeypatch.setattr(any_model, "ALL_SETS", tried)
        whole = ranker.contributions(some).values
        assert whole == pytest.approx(found.values, abs=0.1)
        assert np.array_equal(ranker.contributions(some[::-1]).values, whole[::-1])
        ranker.n_threads = 3 - ranker.n_threads
        assert np.array_equal(ranker.contributions(some[:7]).values, whole[:7])
    within = ranker.contributions(some, qid=queries)
    assert within.values.sum(axis=2) + within.base == pytest.approx(ranker.predict(some)[:, np.newaxis], abs=1e-5)
    for query in np.unique(queries):
        assert within.values[queries == query].mean(axis=0) == pytest.approx(0.0, abs=1e-6)
    with refused(InputError, "n_rounds", "net" if kind == 0 else "blend"):
        ranker.contributions(some, n_rounds=1)


def test_contributions_of_a_blend_are_the_weighted_sums_of_its_parts(models):
    net, blend, X = models[:3]
    of_parts = [Ranker.from_model(part).contributions(X[:20]).values for part in (net, blend.parts[1])]
    found = Ranker.from_model(blend).contributions(X[:20]).values
    assert found == pytest.approx(0.5 * of_parts[0] + 2.0 * of_parts[1], abs=1e-12)


def test_contributions_of_a_net_are_shapley_values_over_missing_features(models):
    net, document = models[0], models[2][:1]
    names, predict = [net.feature_names[f] for f in net.used_features], Ranker.from_model(net).predict

    def score(known):
        unknown = [name for number, name in enumerate(names) if number not in known]
        return float(predict(document.with_columns(pl.lit(None, pl.Float32).alias(name) for name in unknown))[0])

    values = Ranker.from_model(net).contributions(document).values[0, 0]
    found = [values[net.feature_names.index(name)] for name in names]
    assert found == pytest.approx(shapley_values(score, len(names)), abs=1e-6)


def test_a_fitted_forest_is_the_model():
    X, y, qid = planted_arrays()
    ranker = small()
    assert not hasattr(ranker, "forest_")
    ranker.fit(X, y, qid=qid)
    assert ranker.forest_ is ranker.model_
