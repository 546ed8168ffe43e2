"""What trees may be split by: features that may occur together, samples of features, random thresholds, weights, costs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest import Forest
from rankmill.trainer.growing.controls import Controls
from rankmill.trainer.growing.grower import Grower, SplitNoise
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.workers import Team, with_team
from tests.naive_samples import bits_of
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, small_data
from tests.trainer.small_case import TOP, small_case
from tests.trainer.test_growth_by_definition import BY_NODE

SHAPES = [{"grow": grow, "max_leaves": 12} for grow in BY_NODE] + [{"grow": "oblivious", "max_depth": 4}]
NAMES = [f"f{number}" for number in range(5)]
KEY = 987654321
TREE = SplitNoise(0.0, np.uint64(0), np.uint64(KEY))
GROUPS = [["f0", "f1"], ["f1", "f2", "f3"]]  # f4 is in none
LEVEL, NODE, SPLIT = 1, 2, 3  # streams of a tree's draws


def grown(bins, g, h, team=None, made_from=(), **parameters):
    given = fixed(**{"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0, **parameters})
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], TOP, dtype=np.int32))
    controls = Controls.of(given, NAMES[: bins.shape[1] - len(made_from)], made_from)
    scores = np.zeros(len(g))
    return Grower(layout, given, team or Team(1), controls=controls).grow(g, h, scores, noise=TREE)


def paths(tree):
    """Yield the split nodes from the root to each leaf."""
    above = {0: ()}
    for node in range(len(tree.feature)):
        if tree.feature[node] < 0:
            yield above[node]
        else:
            above[int(tree.left[node])] = above[int(tree.right[node])] = (*above[node], node)


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)


def drawn(features, fraction, *stream):
    """The features whose random numbers are the smallest."""
    many = max(1, round(fraction * len(features)))
    return set(sorted(features, key=lambda f: bits_of(KEY, *stream, f))[:many])


# -- interaction_constraints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", SHAPES)
def test_no_path_has_two_features_that_no_group_has_together(seed, shape):
    bins, g, h = small_case(seed, n=90)
    free = grown(bins, g, h, **shape)
    held = grown(bins, g, h, interaction_constraints=GROUPS, **shape)
    numbers = [{NAMES.index(name) for name in group} for group in GROUPS]

    def broken(tree):
        used = [{int(tree.feature[node]) for node in path} for path in paths(tree)]
        pairs = [set(pair) for path in used for pair in itertools.combinations(path, 2)]
        return [pair for pair in pairs if not any(pair <= group for group in numbers)]

    assert held.n_leaves > 3
    assert not broken(held)
    assert broken(free)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_group_of_all_features_constrains_nothing(shape):
    bins, g, h = small_case(3, n=80)
    assert same(grown(bins, g, h, **shape), grown(bins, g, h, interaction_constraints=[NAMES], **shape))


def test_groups_beyond_a_word_of_bits_count_too():
    rng = np.random.default_rng(5)
    bins = rng.integers(0, TOP, size=(300, 150), dtype=np.uint8)
    layout = BlockedBins.from_batches([bins], 300, np.full(150, TOP, dtype=np.int32))
    names = [f"n{number}" for number in range(150)]
    given = fixed(max_leaves=20, min_rows_in_leaf=1, interaction_constraints=[["n148", "n149"]])
    grower = Grower(layout, given, Team(1), controls=Controls.of(given, names))
    tree = grower.grow(bins[:, 148] * 1.0 - bins[:, 149] - 1.0, np.ones(300), np.zeros(300))
    assert {int(f) for f in tree.feature if f >= 0} == {148, 149}  # and nothing of the others after either


def test_a_column_made_from_a_feature_is_in_its_groups():
    bins, g, h = small_case(4, n=90, n_features=6)
    g += bins[:, 5] - bins[:, 1] * 1.0
    tree = grown(bins, g, h, made_from=[0], max_leaves=20, interaction_constraints=[["f0", "f1"], ["f2", "f3", "f4"]])
    used = [{0 if tree.feature[node] == 5 else int(tree.feature[node]) for node in path} for path in paths(tree)]
    assert any(5 in tree.feature[list(path)] for path in paths(tree))
    assert all(path <= {0, 1} or path <= {2, 3, 4} for path in used)


@pytest.mark.parametrize("criterion", ["rwse", "se", "ole"])
def test_no_tree_of_a_model_breaks_a_group_whatever_splits_are_chosen_by(criterion):
    options = {"objective": "ranknet", "criterion": criterion, "n_rounds": 4, "max_leaves": 8, "min_rows_in_leaf": 5}
    forest = fit(small_data(), interaction_constraints=[["f0", "f1"]], **options).forest
    found = Forest.from_bytes(forest.to_bytes())
    assert found.parameters["interaction_constraints"] == [["f0", "f1"]]
    assert (forest.node_feature >= 0).any()
    stack = [(int(root), int(root), frozenset()) for root in forest.tree_starts[:-1]]
    while stack:
        root, node, path = stack.pop()
        feature = int(forest.node_feature[node])
        if feature < 0:
            assert len(path) <= 1 or path <= {0, 1}
        else:
            children = forest.node_left[node], forest.node_right[node]
            stack += [(root, root + int(child), path | {feature}) for child in children]


def test_a_training_with_groups_resumes_with_the_same_groups_only():
    start = fit(small_data(), interaction_constraints=[["f0", "f1"]], n_rounds=3, watch=False).forest
    with refused(InvalidParameter, "interaction_constraints"):
        fit(small_data(), interaction_constraints=[["f0", "f2"]], options={"resume": start}, n_rounds=6, watch=False)


@pytest.mark.parametrize(
    ("groups", "facts"),
    [
        ([["f0", "g7"]], ("unknown feature", "'g7'")),
        ([["f0", "f0"]], ("different", "f0")),
        ([[]], ("[]",)),
        ("f0,f1", ("lists", "names")),
        (["f0,f1"], ("lists", "names")),
    ],
)
def test_groups_that_are_none_are_refused(groups, facts):
    with refused(InvalidParameter, "interaction_constraints", *facts):
        fit(small_data(), n_rounds=1, interaction_constraints=groups)


# -- samples of features ---------------------------------------------------------------------------------------------


def test_columns_are_drawn_with_the_feature_that_they_are_made_from():
    bins, g, h = small_case(1, n=200, n_features=7)
    tree = grown(bins, g, h, made_from=[2, 2], max_leaves=40, feature_fraction_by_node=0.2)
    used = 0
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        (only,) = drawn(range(5), 0.2, NODE, node)
        assert tree.feature[node] in ({2, 5, 6} if only == 2 else {only})
        used += tree.feature[node] >= 5
    assert used


# -- extra_trees -----------------------------------------------------------------------------------------------------


def test_random_thresholds_with_the_loss_as_criterion_are_refused():
    with refused(InvalidParameter, "extra_trees", "ole"):
        fit(small_data(), criterion="ole", extra_trees=True)


# -- weights ---------------------------------------------------------------------------------------------------------


def test_columns_made_from_a_feature_share_its_weight():
    bins, g, h = small_case(1, n=200, n_features=6)
    g += bins[:, 5] - 4.0
    free = grown(bins, g, h, made_from=[0], max_leaves=8)
    assert free.feature[0] == 5
    assert not {0, 5} & set(grown(bins, g, h, made_from=[0], max_leaves=8, feature_weights={"f0": 0.0}).feature)


def test_weights_of_1_change_no_score():
    names = small_data()[2].feature_names
    usual = fit(small_data(), n_rounds=4).forest
    same_trees = fit(small_data(), n_rounds=4, feature_weights=dict.fromkeys(names, 1.0)).forest
    assert np.array_equal(usual.node_value, same_trees.node_value)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"feature_weights": {"f0": -1.0}}, ("feature_weights['f0']", "0 or more", "-1")),
        ({"feature_weights": {"g7": 1.0}}, ("feature_weights", "unknown feature", "'g7'")),
        ({"feature_weights": {"f0": float("inf")}}, ("feature_weights['f0']",)),
        ({"feature_weights": [1.0]}, ("feature_weights", "by feature name")),
        ({"feature_weights": {"f0": 1.0}, "criterion": "ole"}, ("feature_weights", "ole")),
    ],
)
def test_weights_that_are_none_are_refused(options, facts):
    with refused(InvalidParameter, *facts):
        fit(small_data(), n_rounds=1, **options)


# -- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_no_draw_depends_on_the_number_of_threads(shape):
    rng = np.random.default_rng(1)
    bins = rng.integers(0, TOP, size=(30_000, 40), dtype=np.uint8)
    g, h = rng.normal(size=30_000), rng.random(30_000)
    options = {**shape, "feature_fraction_by_level": 0.7}
    options["interaction_constraints"] = [[f"f{n}" for n in range(25)], [f"f{n}" for n in range(10, 40)]]
    options |= {"extra_trees": True, "feature_weights": {"f3": 5.0, "f5": 0.5, "f7": 3.0}}
    options |= {} if shape["grow"] == "oblivious" else {"feature_fraction_by_node": 0.5}
    layout = BlockedBins.from_batches([bins], len(bins), np.full(40, TOP, dtype=np.int32))
    given = fixed(**options)
    controls = Controls.of(given, [f"f{number}" for number in range(40)])

    def tree_of(team):
        return Grower(layout, given, team, controls=controls).grow(g, h, np.zeros(len(g)), noise=TREE)

    one, three = tree_of(Team(1)), with_team(3, tree_of)
    assert one.n_leaves > 4
    assert same(one, three)


@pytest.mark.parametrize(
    "option",
    [{"feature_fraction_by_level": 0.5}, {"feature_fraction_by_node": 0.5}, {"extra_trees": True}],
)
def test_a_model_names_a_control_only_where_it_is_set_and_its_trees_differ_by_the_seed(option):
    (name,) = option
    usual = fit(small_data(), n_rounds=3)
    assert name not in Forest.from_bytes(usual.forest.to_bytes()).parameters
    forests = [fit(small_data(), n_rounds=3, seed=seed, **option).forest for seed in (1, 1, 2)]
    assert forests[0].sha256 == forests[1].sha256
    assert forests[0].parameters[name] == option[name]
    assert not np.array_equal(forests[0].node_value, forests[2].node_value)
    assert fit(small_data(), n_rounds=3, boosting="rf", **option).forest.n_rounds > 0  # random enough for a forest


def test_samples_by_node_of_an_oblivious_tree_are_refused():
    with refused(InvalidParameter, "feature_fraction_by_node", "oblivious", "feature_fraction_by_level"):
        fixed(grow="oblivious", feature_fraction_by_node=0.5)
