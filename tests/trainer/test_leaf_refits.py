"""Leaves refitted on new data: nothing moves where nothing should, and new values are those of the gradients of each round."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.foundation.errors import InvalidParameter
from rankmill.pipeline.binspec import apply_bins
from rankmill.scorer.forest import Forest
from rankmill.scorer.predict import predict
from rankmill.trainer.boosting import boost
from rankmill.trainer.combined_forests import average
from rankmill.trainer.leaf_refits import bins_of_cuts, refit_leaves_on_rows
from rankmill.trainer.rows import RankedRows, TrainingData
from rankmill.trainer.training_options import TrainingOptions
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, planted, small_data
from tests.trainer.small_dataset import small_dataset
from tests.trainer.test_dart_and_forests import scores_of_one_tree
from tests.trainer.test_target_encoding import ENCODE, training

KEPT = ("node_feature", "thresholds", "node_left", "node_right", "node_missing_left", "node_gain", "tree_weights")
WAYS = [
    {},
    {"objective": "l2"},
    {"objective": "l2", "grow": "oblivious", "max_depth": 3},
    {"objective": "laplace"},
    {"objective": "mcrank"},
    {"objective": "yetirank", "lambda_l2": 3.0, "l2_scale": "mean_hessian"},
    {"objective": "ranknet", "criterion": "ole", "min_rows_in_leaf": 5},
    {"objective": "query_rmse", "grow": "breadth_first", "max_depth": 4},
    {"objective": "listnet", "criterion": "se"},
    {"objective": "l2", "boosting": "dart", "skip_drop": 0.0, "drop_rate": 0.5},
    {"boosting": "rf", "feature_fraction": 0.5},
    {"objective": "l2", "members": 2, "feature_fraction": 0.5},
]


def data_for(forest, part):
    spec = bins_of_cuts(forest)
    rows = RankedRows(part[1], part[2], [apply_bins(part[0], spec)])
    return TrainingData(
        train=rows, edges=[feature.edges for feature in spec.features], feature_names=forest.feature_names, max_grade=4
    )


def refitted(forest, part, decay, n_threads=1) -> Forest:
    return refit_leaves_on_rows(forest, data_for(forest, part), decay, TrainingOptions(n_threads=n_threads)).forest


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_on_the_rows_of_the_training_a_decay_of_0_gives_the_same_leaves(way):
    forest = fit(small_data(), n_rounds=7, watch=False, **way).forest
    again = refitted(forest, small_data()[0], 0.0)
    assert np.array_equal(again.node_value, forest.node_value)
    assert np.array_equal(again.node_rows, forest.node_rows)
    assert again.base_score == forest.base_score
    for name in KEPT:
        np.testing.assert_array_equal(getattr(again, name), getattr(forest, name))
    assert again.parameters == forest.parameters


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_decay_of_1_changes_no_value_and_threads_change_no_byte(way):
    forest = fit(small_data(), n_rounds=7, watch=False, **way).forest
    assert np.array_equal(refitted(forest, planted(5), 1.0).node_value, forest.node_value)
    one, three = (refitted(forest, planted(5), 0.4, n_threads=n) for n in (1, 3))
    assert one.to_bytes() == three.to_bytes()
    assert not np.array_equal(one.node_value, forest.node_value)
    for name in KEPT:
        np.testing.assert_array_equal(getattr(one, name), getattr(forest, name))


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9])
def test_each_leaf_is_a_mean_of_residuals_of_the_refitted_trees_before_it(decay):
    x, grades, starts = planted(9, n_queries=8)  # few rows, so that leaves are empty
    forest = fit(small_data(), n_rounds=6, watch=False, objective="l2", max_leaves=16).forest
    found = refitted(forest, (x, grades, starts), decay)
    start = decay * forest.base_score + (1 - decay) * grades.mean()
    assert found.base_score == pytest.approx(start)
    scores, empty = np.full(len(x), start), 0
    for tree in range(6):
        first, last = forest.tree_starts[tree : tree + 2]
        marked = replace(forest, node_value=np.arange(len(forest.node_value), dtype=np.float64))
        leaf_of_row = scores_of_one_tree(marked, tree, x).astype(int)
        for node in range(first, last):
            if forest.node_feature[node] >= 0:
                continue
            rows, expected = leaf_of_row == node, forest.node_value[node]
            if rows.any():
                fresh = 0.1 * np.mean(grades[rows] - scores[rows])
                expected = decay * expected + (1 - decay) * fresh
            empty += not rows.any()
            assert found.node_value[node] == pytest.approx(expected, abs=1e-9)
        scores = scores + scores_of_one_tree(found, tree, x)
    assert empty
    assert predict(found, x) == pytest.approx(scores)


def test_monotone_constraints_still_hold():
    forest = fit(small_data(), n_rounds=8, watch=False, monotone={"f0": 1, "f1": -1}, objective="l2").forest
    found = refitted(forest, planted(6), 0.2)
    x = np.nan_to_num(planted(7)[0])
    for f, sign in ((0, 1), (1, -1)):
        more = x.copy()
        more[:, f] += 1.0
        assert (sign * (predict(found, more) - predict(found, x)) >= 0).all()


def test_sampled_trainings_are_refitted_on_all_rows():
    forest = fit(small_data(), n_rounds=5, watch=False, query_fraction=0.5, bootstrap="bayesian", objective="l2").forest
    found = refitted(forest, small_data()[0], 0.5)
    assert found.node_rows[found.tree_starts[:-1]].tolist() == [len(small_data()[0][1])] * 5


def test_what_cannot_be_refitted_is_refused():
    forest = fit(small_data(), n_rounds=3, watch=False).forest
    with refused(InvalidParameter, "decay", "1.5"):
        refitted(forest, planted(5), 1.5)
    with refused(InvalidParameter, "step_search"):
        refitted(fit(small_data(), n_rounds=2, objective="l2", step_search="line").forest, planted(5), 0.5)
    with refused(InvalidParameter, "gbrank"):
        refitted(fit(small_data(), n_rounds=2, objective="gbrank").forest, planted(5), 0.5)
    with refused(InvalidParameter, "several models"):
        refitted(average([forest, forest], {"seeds": [1, 2]}), planted(5), 0.5)
    with refused(InvalidParameter, "does not say how"):
        refitted(replace(forest, parameters={}), planted(5), 0.5)
    again = refitted(forest, small_data()[0], 0.0)
    with refused(InvalidParameter, "resume", "refitted", "base_model"):
        fit(small_data(), n_rounds=5, watch=False, options={"resume": again})


def test_parts_of_models_are_refused_unless_they_are_what_training_gives():
    dart = {"objective": "l2", "boosting": "dart", "skip_drop": 0.0, "drop_rate": 0.5}
    for way, cut in (({"objective": "l2"}, True), ({"boosting": "rf", "feature_fraction": 0.5}, True), (dart, False)):
        forest = fit(small_data(), n_rounds=6, watch=False, **way).forest
        short, late = forest.truncated(3), forest.truncated(None, 4).truncated(1, 1)
        assert late.info["first_round"] == 5
        with refused(InvalidParameter, "leaves", "first 5 rounds"):
            refitted(late, planted(5), 1.0)
        with refused(InvalidParameter, "resume", "first 5 rounds"):
            fit(small_data(), n_rounds=6, watch=False, **way, options={"resume": late})
        if cut:
            np.testing.assert_array_equal(refitted(short, planted(5), 1.0).tree_weights, short.tree_weights)
            again = fit(small_data(), n_rounds=6, watch=False, **way, options={"resume": short}).forest
            assert again.to_bytes() == forest.to_bytes()
            continue
        with refused(InvalidParameter, "leaves", "weights", "3 rounds", "dart", "cut"):
            refitted(short, planted(5), 1.0)
        with refused(InvalidParameter, "resume", "weights", "3 rounds", "cut"):
            fit(small_data(), n_rounds=6, watch=False, **way, options={"resume": short})


def test_the_command_registers_the_model_with_its_lineage(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    dataset, other = small_dataset(tmp_path / "a"), small_dataset(tmp_path / "b", queries=60)
    run = CliRunner()
    common = ["--registry", str(tmp_path / "r"), "--json"]
    trained = run.invoke(
        app, ["train", str(dataset.path), "--name", "web", "--preset", "defaults-1", "--n-rounds", "5", *common]
    )
    assert trained.exit_code == 0, trained.output
    done = run.invoke(
        app, ["models", "refit-leaves", "web@1", str(other.path), "--name", "web", "--decay", "0.5", *common]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["model"], report["refitted"], report["decay"]) == ("web@2", "web@1", 0.5)
    assert set(report["train"]) == {"ndcg@10"}
    for ignored in ("--bin-cache", "--histogram-memory"):
        assert ignored not in run.invoke(app, ["models", "refit-leaves", "--help"]).output
    again = run.invoke(
        app, ["models", "refit-leaves", "web@1", str(other.path), "--name", "web", "--decay", "0.5", *common]
    )
    assert json.loads(again.stdout)["new"] is False
    shown = json.loads(run.invoke(app, ["models", "show", "web@2", *common]).stdout)
    assert "web@1" in json.dumps(shown)


@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
def test_splits_of_categories_are_kept(grow):
    data, (x, grades, starts), _ = training(k=60)
    own = {"n_rounds": 6, "max_leaves": 6, "max_depth": 3, "grow": grow, "objective": "l2"}
    plain, coded = (boost(replace(data), fixed(**own, **more)).forest for more in ({"encode_above": 0}, ENCODE))
    assert "encoded_splits" in coded.info
    for forest in (plain, coded):
        spec = bins_of_cuts(forest)
        rows = RankedRows(grades, starts, [apply_bins(x, spec)])
        own_data = TrainingData(
            train=rows, edges=[each.edges for each in spec.features], categories=spec.categories,
            feature_names=forest.feature_names, max_grade=3,
        )  # fmt: skip
        found = refit_leaves_on_rows(forest, own_data, 0.0).forest
        for name in (*KEPT, "set_members", "set_starts"):
            np.testing.assert_array_equal(getattr(found, name), getattr(forest, name))
        assert np.array_equal(found.node_value, forest.node_value) == (forest is plain)
        assert predict(found, x) == pytest.approx(predict(forest, x), abs=0.5)
        assert found.node_rows[found.tree_starts[:-1]].tolist() == [len(x)] * found.n_trees


def test_too_many_categories_are_refused():
    data, _, _ = training(k=400)
    forest = boost(data, fixed(n_rounds=4, max_leaves=4, **ENCODE)).forest
    with refused(InvalidParameter, "shop", "254"):
        bins_of_cuts(forest)
