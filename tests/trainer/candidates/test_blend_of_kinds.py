"""The preset auto-2: two kinds of trees and a net, weighted by queries that none of them learnt from, in one model."""

import pickle

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold

from rankmill import Ranker, cross_validate, load_model, select_features
from rankmill.foundation.errors import NoTrees
from rankmill.scorer.models.loading import Blend, parts_of
from rankmill.scorer.nets.net import Net
from tests.refusals import refused

QUERIES, DOCUMENTS = 40, 8


def rows(seed, queries=QUERIES, curve=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(queries * DOCUMENTS, 4)).astype(np.float32)
    signal = curve * np.tanh(x @ [1.0, -1.0, 0.5, 0.0]) + (x[:, 3] > 0.5) + 0.4 * rng.normal(size=len(x))
    return x, np.digitize(signal, [0.3, 1.0, 1.6]), np.repeat(np.arange(queries), DOCUMENTS)


def fitted(valid=True, **given):
    x, y, qid = rows(1)
    other = {name: given.pop(name) for name in ("eval_names", "eval_metrics") if name in given}
    other |= {"eval_set": rows(2, 20)} if valid else {}
    return Ranker(**{"preset": "auto-2", "verbose": 0, "early_stopping_rounds": 5, **given}).fit(x, y, qid=qid, **other)


@pytest.fixture(scope="module")
def ranker():
    return fitted()


def test_one_file_holds_all_kinds_and_its_scores_are_their_weighted_sum(ranker, tmp_path):
    model, (x, _, _) = ranker.model_, rows(3)
    assert isinstance(model, Blend)
    total = np.zeros(len(x))
    for weight, part in zip(model.weights.tolist(), model.parts, strict=True):
        total += weight * Ranker.from_model(part).predict(x)
    assert ranker.predict(x) == pytest.approx(total, abs=1e-12)
    ranker.save(tmp_path / "blend.rankmill")
    assert np.array_equal(load_model(tmp_path / "blend.rankmill").predict(x), ranker.predict(x))
    assert np.array_equal(pickle.loads(pickle.dumps(ranker)).predict(x), ranker.predict(x))
    assert Ranker.from_model(model).preset == "auto-2"


def test_the_fast_budget_is_the_trees_of_auto_1_and_so_is_what_trains_trees_alone():
    fast, trees = fitted(budget="fast"), fitted(preset="auto-1")
    assert np.array_equal(fast.predict(rows(3)[0]), trees.predict(rows(3)[0]))
    assert fast.forest_.n_rounds == trees.forest_.n_rounds
    x, y, qid = rows(1)
    rankers = [Ranker(preset="auto-2", n_rounds=3, verbose=0, **more) for more in ({}, {"budget": "fast"})]
    one, other = (cross_validate(ranker, x, y, qid=qid).histories for ranker in rankers)
    assert one == other


@pytest.mark.parametrize("given", [{"objective": "l2"}, {"grow": "oblivious"}, {"monotone": {0: 1}}, {"max_depth": 3}])
def test_with_options_that_only_one_kind_has_the_trees_are_alone_and_it_is_said_why(given, capsys):
    found = fitted(**given, verbose=2)
    assert found.forest_.n_trees
    assert f"preset auto-2, trees alone ({next(iter(given))} is given)" in capsys.readouterr().err


def test_callbacks_and_several_eval_sets_are_of_trees_alone():
    x, y, qid = rows(1)
    heard = []
    ranker = Ranker(preset="auto-2", verbose=0, early_stopping_rounds=5)
    found = ranker.fit(x, y, qid=qid, eval_set=[rows(2, 20), rows(3, 20)], eval_names=["one", "two"])
    assert list(found.evals_result_) == ["train", "one", "two"]
    assert found.forest_.n_trees
    found = ranker.fit(
        x, y, qid=qid, callbacks=[lambda record: heard.append(record.round_number) or record.round_number == 4]
    )
    assert heard == [1, 2, 3, 4]
    assert found.forest_.n_rounds == 4


def test_without_an_eval_set_folds_of_the_train_rows_judge():
    found = fitted(valid=False)
    assert isinstance(found.model_, Blend)
    assert "refit" not in found.model_.info


def test_the_final_parts_have_learnt_from_the_eval_set_and_say_so(ranker):
    assert ranker.model_.info["refit"]["queries"] == QUERIES + 20
    kept = fitted(refit="none")  # judged on the eval set, from which nothing is learnt
    assert all("refit" not in part.info for part in parts_of(kept.model_))


@pytest.mark.slow
def test_a_smooth_signal_is_given_to_the_net():
    x, y, qid = rows(1, 200, curve=4.0)
    found = Ranker(preset="auto-2", early_stopping_rounds=5, verbose=0).fit(
        x, y, qid=qid, eval_set=rows(2, 60, curve=4.0)
    )
    shares = {kind["kind"]: kind["share"] for kind in found.model_.parameters["kinds"]}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert any(isinstance(part, Net) for part in found.model_.parts)
    assert shares["net"] > 0.3


def test_importances_are_the_shares_of_its_trees_and_what_needs_one_forest_names_the_fast_budget(ranker):
    found = ranker.feature_importances_
    assert found.sum() == pytest.approx(1.0)
    forests = [Ranker.from_model(part).feature_importances_ for part in parts_of(ranker.model_) if part.n_trees]
    assert (np.min(forests, axis=0) <= found).all()
    assert (found <= np.max(forests, axis=0)).all()
    with refused(NoTrees, "apply", "needs a model of trees", 'budget="fast"'):
        ranker.apply(rows(3)[0])


def test_the_best_round_is_that_of_the_first_model_before_and_after_it_is_a_file(ranker, tmp_path):
    folds, rounds = ranker.cross_validation_, ranker.best_round_
    assert rounds == ranker.model_.parts[0].n_rounds == 2 * folds.best_round  # which learn at twice the rate
    ranker.save(tmp_path / "blend.rankmill")
    assert load_model(tmp_path / "blend.rankmill").best_round_ == rounds
    assert ranker.history_[rounds - 1].round_number == rounds
    assert len(ranker.history_) == 2 * len(folds.histories[0])
    assert ranker.evals_result_["holdout"]["ndcg@10"][rounds - 1] == pytest.approx(folds.mean("ndcg@10"))
    assert "<i>epochs</i>" not in ranker._repr_html_()


def test_a_notebook_shows_the_share_of_each_kind_and_what_its_table_is_about(ranker):
    shown = ranker._repr_html_()
    for kind in ranker.model_.parameters["kinds"]:
        assert f"<i>{kind['kind']}</i>{kind['share']:.0%} ({kind['alone']:.4f} alone" in shown
    assert f"after {ranker.best_round_} rounds of the first model" in shown


def test_an_eval_set_is_measured_under_its_name_also_where_folds_judge():
    found = fitted(eval_names=["later"], eval_metrics=["map"]).evals_result_
    assert list(found) == ["holdout", "later"]
    assert found["later"].keys() == found["holdout"].keys() == {"ndcg@10", "map"}
    assert len(found["later"]["map"]) == len(found["holdout"]["map"])
    assert found["later"] != found["holdout"]


def test_by_default_a_fit_prints_a_few_lines_and_none_of_them_is_printed_in_the_folds_of_a_search(capsys):
    def said():
        return [line for line in capsys.readouterr().err.splitlines() if "compil" not in line]

    fitted(verbose=1)
    learnt, blend = said()
    assert "valid" in learnt
    assert blend.startswith("fit: blend of trees ")
    x, y, qid = rows(1)
    frame = pl.DataFrame(x).with_columns(qid=qid).to_pandas()
    search = GridSearchCV(Ranker(max_leaves=4), {"n_rounds": [1, 2]}, cv=GroupKFold(2), error_score="raise")
    search.fit(frame, y, groups=qid)
    assert said() == ["preset auto-2, trees alone (n_rounds is given)"]  # by the last fit, on all rows
    cross_validate(Ranker(n_rounds=2), x, y, qid=qid)
    select_features(Ranker(n_rounds=2), x, y, qid=qid, eval_set=rows(2, 20))
    assert said().count("preset auto-2, trees alone (only fit, train and run blend)") == 2
    Ranker(n_rounds=2, budget="fast").fit(x, y, qid=qid)
    assert said() == []


def test_each_round_of_a_fold_is_printed_once_though_all_folds_are_trained_as_long_as_the_longest(capsys):
    fitted(verbose=2)
    lines = [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if " fold " in line]
    assert len(lines) == len(set(lines)) > 10


@pytest.mark.slow
def test_categories_and_weights_are_learnt_by_all_kinds_and_searches_clone_it():
    x, y, qid = rows(4)
    frame = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": np.where(x[:, 3] > 0.5, "x", "y")})
    weights = np.random.default_rng(4).random(len(x))
    given = {"preset": "auto-2", "early_stopping_rounds": 5, "verbose": 0}
    weighted = Ranker(**given).fit(frame, y, qid=qid, sample_weight=weights)
    plain = clone(weighted).fit(frame, y, qid=qid)
    assert all("c" in part.categories for part in (*parts_of(weighted.model_), *parts_of(plain.model_)))
    assert weighted.model_.sha256 != plain.model_.sha256
    other = frame.with_columns(pl.when(pl.col("c") == "x").then(pl.lit("y")).otherwise(pl.lit("x")).alias("c"))
    assert not np.allclose(plain.predict(frame), plain.predict(other))


@pytest.mark.parametrize("queries", [1, 2])
def test_fewer_queries_than_folds_are_learnt_by_trees(queries):
    X, y, groups = [[float(i)] for i in range(60)] * queries, [i // 20 for i in range(60)] * queries, [60] * queries
    ranker, alone = (Ranker(preset=preset).fit(X, y, group=groups) for preset in ("auto-2", "auto-1"))
    np.testing.assert_array_equal(ranker.predict(X), alone.predict(X))
