"""Several models boosted side by side, whose mean is the forest."""

from dataclasses import fields

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.candidates.train_on_dataset import plan_of
from rankmill.trainer.rounds.sampling import Sampler
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, small_data

DRAWN = {"query_fraction": 0.7, "feature_fraction": 0.6, "bootstrap": "bayesian", "random_strength": 1.0}
RANDOM = {**DRAWN, "members": 3, "n_rounds": 9, "early_stopping_rounds": 0}


def member_of(forest, member, members):
    """Return the trees of one member as a forest of its own."""
    trees = np.flatnonzero(np.arange(forest.n_trees) // (forest.trees_a_round // members) % members == member)
    nodes = np.concatenate([np.arange(forest.tree_starts[t], forest.tree_starts[t + 1]) for t in trees])
    sizes = np.diff(forest.tree_starts)[trees]
    cut = {name: getattr(forest, name)[nodes] for name in (f.name for f in fields(forest)) if name.startswith("node_")}
    own = {
        "tree_starts": np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        "tree_weights": forest.tree_weights[trees] * members,
        "trees_a_round": forest.trees_a_round // members,
    }
    return Forest(**({f.name: getattr(forest, f.name) for f in fields(forest)} | cut | own))


def test_a_forest_is_the_mean_of_its_members():
    x = small_data()[1][0]
    forest = fit(small_data(), **RANDOM).forest
    of_each = [predict(member_of(forest, i, 3), x) for i in range(3)]
    assert (forest.n_rounds, forest.n_trees, forest.trees_a_round) == (9, 27, 3)
    assert predict(forest, x) == pytest.approx(np.mean(of_each, axis=0), abs=1e-12)
    assert min(np.abs(of_each[i] - of_each[i - 1]).max() for i in range(3)) > 1e-3


def test_a_member_is_the_model_that_has_its_turns_of_the_draws(monkeypatch):
    member = 1
    given = {
        "objective": "l2",
        "query_fraction": 0.7,
        "feature_fraction": 0.6,
        "n_rounds": 9,
        "early_stopping_rounds": 0,
    }
    forest = member_of(fit(small_data(), members=3, **given).forest, member, 3)
    draw = Sampler.draw
    monkeypatch.setattr(Sampler, "draw", lambda self, number: draw(self, (number - 1) * 3 + member + 1))
    alone = fit(small_data(), **given).forest
    for name in ("node_feature", "thresholds", "node_left", "node_value", "node_gain", "node_rows"):
        np.testing.assert_array_equal(getattr(forest, name), getattr(alone, name))


def test_members_without_random_draws_are_one_model_several_times():
    x, alone = small_data()[1][0], fit(small_data(), objective="l2", n_rounds=5).forest
    forest = fit(small_data(), objective="l2", n_rounds=5, members=4).forest
    assert predict(forest, x) == pytest.approx(predict(alone, x), abs=1e-12)


def test_a_model_of_other_members_is_no_start():
    short = fit(small_data(), **{**RANDOM, "n_rounds": 5}).forest
    with refused(InvalidParameter, "members", "3", "2"):
        fit(small_data(), options={"resume": short}, **{**RANDOM, "members": 2})


def test_a_model_names_its_members_only_where_there_are_several():
    assert "members" not in fit(small_data(), n_rounds=2).forest.parameters
    assert fit(small_data(), n_rounds=2, members=2).forest.parameters["members"] == 2


def test_the_plan_counts_the_scores_of_every_member(dataset):
    one, five = (plan_of(dataset, fixed(members=members)) for members in (1, 5))
    assert five.bytes_needed - one.bytes_needed == 5 * 8 * one.train_rows


SHAPES = {"mcrank": ("softmax_grade", 5, 5), "gbrank(trees=2)": ("identity", 1, 2), "yetirank": ("identity", 1, 1)}


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("objective", SHAPES)
def test_what_is_measured_in_a_round_is_what_its_forest_says(objective, members):
    data = small_data()
    _, (x, grades, starts), _ = data
    if members > 1 and objective.startswith("gbrank"):
        return  # refused: its score is a mean already
    result = fit(data, objective=objective, **{**RANDOM, "members": members, "n_rounds": 8})
    forest, (link, n_outputs, trees) = result.forest, SHAPES[objective]
    assert (forest.link, forest.n_outputs, forest.trees_a_round) == (link, n_outputs, members * trees)
    assert forest.n_rounds == result.best_round
    assert forest.n_trees == result.best_round * forest.trees_a_round
    metric = parse_metric("ndcg@10")
    queries = PreparedQueries(grades, starts, Policy())
    for record in result.history[: result.best_round]:
        found = queries.means([metric], predict(forest, x, n_rounds=record.round_number))[metric]
        assert record.metrics["valid"]["ndcg@10"] == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize(
    "change",
    [{"tree_weights": np.ones(8)}, {"base_score": 1.0}, {"trees_a_round": 1}, {"trees_a_round": 4}, {"link": "ordinal_grade"}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_forest_that_the_loss_could_not_have_made_is_no_start(change):
    forest = fit(small_data(), watch=False, objective="gbrank(trees=2)", n_rounds=4).forest
    other = Forest(**({f.name: getattr(forest, f.name) for f in fields(forest)} | change))
    with refused(InvalidParameter, "file", "changed"):
        fit(small_data(), watch=False, objective="gbrank(trees=2)", n_rounds=8, options={"resume": other})
