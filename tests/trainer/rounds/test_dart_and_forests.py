"""dart, whose rounds drop earlier ones, and random forests, whose trees are averaged."""

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import ForestPredictor, predict
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.candidates.combined_forests import BaseModel, after_base
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.presets import DataShape, with_preset
from rankmill.trainer.rounds.sampling import Sampler
from rankmill.trainer.rounds.tree_weights import Dropout
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests.naive_forests import dart_weights
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, rows_of, small_data

DART = {"boosting": "dart", "skip_drop": 0.2, "drop_rate": 0.3, "n_rounds": 14, "early_stopping_rounds": 0}
FOREST = {"boosting": "rf", "query_fraction": 0.6, "feature_fraction": 0.7, "n_rounds": 12, "early_stopping_rounds": 0}


def scores_of_one_tree(forest, tree, x):
    """What a tree gives to documents before its weight."""
    found, first = np.empty(len(x)), forest.tree_starts[tree]
    for i, row in enumerate(x):
        node = first
        while forest.node_feature[node] >= 0:
            value = row[forest.node_feature[node]]
            left = bool(forest.node_missing_left[node]) if np.isnan(value) else value <= forest.thresholds[node]
            node = first + (forest.node_left[node] if left else forest.node_right[node])
        found[i] = forest.node_value[node]
    return found


@pytest.mark.parametrize(
    "given",
    [{}, {"drop_rate": 1.0, "skip_drop": 0.0, "max_drop": 0}, {"uniform_drop": True, "skip_drop": 0.1}, {"max_drop": 2, "drop_rate": 0.9},
     {"drop_rate": 0.4, "skip_drop": 0.0, "seed": 3}, {"skip_drop": 1.0}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("xgboost", [False, True])
def test_weights_are_those_of_the_drops_of_every_round(given, xgboost):
    for members, member in ((3, 1),) if xgboost else ((1, 0),):
        parameters = fixed(boosting="dart", xgboost_dart_mode=xgboost, learning_rate=0.3, members=members, **given)
        dropout = Dropout(parameters, member)
        drops = [dropout.next().rounds.tolist() for _ in range(40)]
        weights, expected = dart_weights(40, share=0.3 if xgboost else 1.0, members=members, member=member, **given)
        assert drops == expected
        assert dropout.weights.tolist() == pytest.approx(weights, rel=1e-12)
    dropped = len({each for some in expected for each in some})
    assert (dropped == 0) == (given == {"skip_drop": 1.0})


def test_each_round_of_dart_corrects_the_forest_without_what_it_drops():
    """Every tree has the leaf values of gradients of the scores that its round sees."""
    (x, grades, _), _, binspec = small_data()
    forest = fit(small_data(), objective="l2", watch=False, **DART).forest
    mean = objective_of(rows_of(small_data()[0], binspec), fixed(objective="l2")).starting_score
    values = [scores_of_one_tree(forest, tree, x) for tree in range(14)]
    _, drops = dart_weights(14, skip_drop=0.2, drop_rate=0.3)
    assert max(map(len, drops)) > 1
    for number, dropped in enumerate(drops):
        before, _ = dart_weights(number, skip_drop=0.2, drop_rate=0.3)
        seen = mean + sum(before[i] * values[i] for i in range(number) if i not in dropped)
        for leaf in np.unique(values[number]):
            rows = values[number] == leaf
            assert leaf == pytest.approx(0.1 * np.mean(grades[rows] - (seen + np.zeros(len(x)))[rows]), abs=1e-7)
    weights, _ = dart_weights(14, skip_drop=0.2, drop_rate=0.3)
    assert predict(forest, x) == pytest.approx(mean + sum(w * v for w, v in zip(weights, values, strict=True)))


def test_dart_that_never_drops_is_gradient_boosting():
    usual = fit(small_data(), n_rounds=6).forest
    for given in ({"drop_rate": 0.0}, {"skip_drop": 1.0}):
        forest = fit(small_data(), n_rounds=6, boosting="dart", **given).forest
        assert np.array_equal(forest.node_value, usual.node_value)
        assert forest.tree_weights.tolist() == [1.0] * forest.n_trees


def test_a_random_forest_is_the_mean_of_first_trees():
    x = small_data()[0][0]
    forest = fit(small_data(), watch=False, **FOREST).forest
    assert forest.tree_weights.tolist() == [1 / 12] * 12
    first = fit(small_data(), watch=False, **{**FOREST, "boosting": "gbdt", "n_rounds": 1, "learning_rate": 1.0}).forest
    assert np.array_equal(first.node_value, forest.node_value[: len(first.node_value)])
    assert predict(forest, x) == pytest.approx(np.mean([scores_of_one_tree(forest, t, x) for t in range(12)], axis=0))


@pytest.mark.parametrize(
    "way", [{**DART, "members": 2, "row_fraction": 0.8}, FOREST, {**DART, "objective": "mcrank"}], ids=str
)
def test_what_is_measured_in_a_round_is_what_the_forest_of_that_round_says(way):
    _, (x, grades, starts), _ = small_data()
    queries, metric = PreparedQueries(grades, starts, Policy()), parse_metric("ndcg@10")
    result = fit(small_data(), **way)
    for rounds in (5, len(result.history)):
        forest = fit(small_data(), **{**way, "n_rounds": rounds}).forest
        found = queries.means([metric], predict(forest, x))[metric]
        assert result.history[rounds - 1].metrics["valid"]["ndcg@10"] == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize("way", [DART, FOREST], ids=str)
def test_the_best_round_has_the_weights_that_it_had(way):
    way = {**way, "n_rounds": 28, "keep_rounds": "best", "learning_rate": 0.5}
    result = fit(small_data(), **way)
    assert result.best_round < 28  # else this tests nothing
    again = fit(small_data(), **{**way, "n_rounds": result.best_round, "keep_rounds": "all"}).forest
    assert np.array_equal(result.forest.tree_weights, again.tree_weights)
    assert np.array_equal(result.forest.node_value, again.node_value)


def test_what_is_out_of_the_bag_has_the_mean_of_the_trees_that_did_not_see_it():
    given = {**FOREST, "objective": "l2", "rounds_by": "oob", "row_fraction": 0.7}
    train, _, binspec = small_data()
    x, _, starts = train
    result = fit(small_data(), watch=False, **given)
    forest = fit(small_data(), watch=False, **{**given, "rounds_by": "valid"}).forest
    loss = objective_of(rows_of(train, binspec), fixed(**given))
    sampler = Sampler(starts, x.shape[1], fixed(**given))
    unseen = np.array([sampler.left_out(sampler.draw(number + 1), by_query=False) for number in range(12)])
    trees = np.stack([scores_of_one_tree(forest, tree, x) for tree in range(12)])
    curve = []
    for n in range(13):
        many = unseen[:n].sum(axis=0)
        scores = loss.starting_score + (trees[:n] * unseen[:n]).sum(axis=0) / np.maximum(1, many)
        curve.append(np.mean(loss.losses(scores)))
    assert [record.oob_improvement for record in result.history] == pytest.approx(-np.diff(curve), abs=1e-9)
    assert result.best_round == 1 + int(np.argmin(curve[1:]))


@pytest.mark.parametrize("way", [DART, FOREST], ids=str)
def test_another_boosting_is_no_start(way):
    short = fit(small_data(), **{**way, "n_rounds": 5}).forest
    with refused(InvalidParameter, "boosting", "gbdt"):
        fit(small_data(), options={"resume": short}, **{**way, "boosting": "gbdt"})


@pytest.mark.parametrize(
    "way", [{**DART, "members": 2, "objective": "l2"}, {**FOREST, "objective": "l2"}], ids=["dart", "forest"]
)
def test_on_top_of_a_base_model_it_resumes_and_adds_up(way, dataset):
    base = StartingModel(train(dataset, fixed(n_rounds=4, max_leaves=4)).forest)

    def on_top(rounds, resume=None):
        options = TrainingOptions(base_model=base, resume=None if resume is None else StartingModel(resume))
        return train(dataset, fixed(**{**way, "n_rounds": rounds, "max_leaves": 4}), options).forest

    whole, half = on_top(10), on_top(5)
    assert on_top(10, half).to_bytes() == whole.to_bytes() != half.to_bytes()
    after = after_base(whole, BaseModel(base.forest, dataset.feature_names))
    x = np.concatenate(list(dataset.feature_batches("test")))
    assert predict(whole, x) == pytest.approx(predict(base.forest, x) + predict(after, x), abs=1e-12)


@pytest.mark.parametrize(
    ("way", "more"),
    [
        (DART, {"refit": "all"}),
        (DART, {"rounds_by": "cv", "folds": 3}),
        ({**FOREST, "objective": "l2"}, {"rounds_by": "test"}),
    ],
    ids=["dart, refit", "dart, folds", "forest, held out"],
)
def test_refits_folds_and_held_out_queries_work(way, more, dataset):
    way = {**way, "n_rounds": 8, "early_stopping_rounds": 3, "max_leaves": 4, **more}
    whole = train(dataset, fixed(**way)).forest
    assert train(dataset, fixed(**way), TrainingOptions(n_threads=3)).forest.to_bytes() == whole.to_bytes()
    rounds = whole.n_rounds
    averaged = way["boosting"] == "rf"
    weights = [1 / rounds] * rounds if averaged else dart_weights(rounds, skip_drop=0.2, drop_rate=0.3)[0]
    assert whole.tree_weights == pytest.approx(weights)


@pytest.mark.parametrize("way", [FOREST, {**FOREST, "objective": "mcrank"}], ids=str)
def test_the_first_rounds_of_a_random_forest_are_their_mean(way):
    x = small_data()[1][0]
    whole = fit(small_data(), **way, watch=False).forest
    for rounds in (0, 5, 12):
        short = fit(small_data(), **{**way, "n_rounds": rounds}, watch=False).forest if rounds else whole.truncated(0)
        np.testing.assert_array_equal(whole.truncated(rounds).tree_weights, short.tree_weights)
        for cut in (
            whole.truncated(rounds),
            Forest.from_bytes(whole.truncated(max(rounds, 7)).to_bytes()).truncated(rounds),
        ):
            np.testing.assert_array_equal(predict(cut, x), predict(short, x))
        np.testing.assert_array_equal(predict(whole, x, n_rounds=rounds), predict(short, x))
        np.testing.assert_array_equal(ForestPredictor(whole, n_rounds=rounds).scores(x), predict(short, x))


@pytest.mark.parametrize("queries", [100, 9_000])
def test_the_preset_gives_a_forest_deep_trees_and_something_random(queries):
    chosen = with_preset(TrainParameters(boosting="rf"), DataShape(queries, has_valid=True, may_refit=True))
    assert (chosen.grow, chosen.bootstrap, chosen.bootstrap_by, chosen.members) == (
        "best_first",
        "bayesian",
        "query",
        1,
    )
