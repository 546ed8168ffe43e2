"""Laws of a tree: workers, pools, samples, directions, bounds, ties, controls; the best splits:
test_growth_by_definition.py."""

import numpy as np
import pytest

from rankmill.trainer.growing import grower as grower_module
from rankmill.trainer.growing.grower import SplitNoise
from rankmill.trainer.growing.histogram import FEWEST_SLOTS, HistogramPool
from rankmill.trainer.team import Team, with_team
from tests import naive_growth as naive
from tests.naive_samples import bits_of
from tests.trainer.fixed import fixed
from tests.trainer.growing.test_growth_by_definition import CATEGORICAL, GROUPS, N_BINS, categories_case, pairs_case
from tests.trainer.grown import TOP, grower_of, grown, same, small_case

SHAPES = ({"grow": "best_first", "max_leaves": 9}, {"grow": "oblivious", "max_depth": 3})
BY_SET = {"n_bins": N_BINS, "categorical": CATEGORICAL}
TREE = {"noise": SplitNoise(0.0, np.uint64(0), np.uint64(99))}
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture
def share_everything(monkeypatch):
    for name in ("_LEAST_ROWS", "_LEAST_VISITS", "_SHARED_ROWS"):
        monkeypatch.setattr(grower_module, name, 1)


BOUNDED = {"min_rows_in_leaf": 15, "min_hessian_in_leaf": 2.0}
DRAWN = {"extra_trees": True, "feature_fraction_by_level": 0.7, "feature_weights": {"f3": 5.0, "f5": 0.5}}
WAYS = {
    "plain": {},
    "uneven": BOUNDED,
    "weights": BOUNDED,
    "controls": {**DRAWN, "interaction_constraints": [[f"f{n}" for n in range(25)], [f"f{n}" for n in range(10, 37)]]},
    "categories": {**BY_SET, "extra_trees": True, "interaction_constraints": GROUPS},
    "held categories": {**BY_SET, "lambda_l1": 5.0, "path_smooth": 30.0},
    "pairs": {"criterion": "ole", "ole_features": 0, "min_rows_in_leaf": 20},
    "screened pairs": {"criterion": "ole", "ole_features": 2, "min_rows_in_leaf": 20},
}


@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("share_everything")
def test_any_number_of_workers_grows_the_same_tree(way, grow):
    bins, g, h = small_case(3, n=600, n_features=37)
    rng, grow_with = np.random.default_rng(3), dict(TREE)
    if way in {"uneven", "weights"}:
        h = 10.0 ** rng.uniform(-5, 0, size=600)
    if way == "weights":
        grow_with["weights"] = rng.uniform(0.5, 2, size=600)
    if "categories" in way:
        bins, g, h = categories_case(1, n=600)
    if "pairs" in way:
        if grow == "oblivious":
            return  # refused
        bins, g, h, grow_with["pairs"] = pairs_case(8, n=900, n_features=19, query=30)

    def run(team):
        scores = np.zeros(len(g))
        shape = {"grow": grow, "max_leaves": 20, "max_depth": 5}
        return grown(bins, g, h, team, scores=scores, grow_with=grow_with, **shape, **WAYS[way]), scores

    tree, scores = run(Team(1))
    assert tree.n_leaves > 4
    for size in (2, 5):
        shared, found = with_team(size, run)
        assert same(shared, tree)
        assert np.array_equal(found, scores)


@pytest.mark.parametrize("slots", [FEWEST_SLOTS, 5])
@pytest.mark.usefixtures("share_everything")
def test_a_small_pool_grows_the_same_tree(slots):
    bins, g, _ = small_case(4, n=400, n_features=18)
    h = 10.0 ** np.random.default_rng(4).uniform(-4, 0, size=400)  # so that some splits are found to leave too few rows
    one = HistogramPool.bytes_needed(32, fixed(max_leaves=2)) // FEWEST_SLOTS
    assert HistogramPool(32, fixed(max_leaves=24), slots * one).n_slots == slots
    for grow in ("best_first", "breadth_first", "depth_first"):
        given = {"max_leaves": 24, "min_rows_in_leaf": 5, "grow": grow}
        expected = grown(bins, g, h, **given)
        for size in (1, 2):
            tree = with_team(size, lambda team, given=given: grown(bins, g, h, team, pool_bytes=slots * one, **given))
            assert same(tree, expected)


@shapes
def test_a_sample_grows_the_tree_of_its_rows_and_all_rows_get_their_leaf(shape):
    bins, g, h = small_case(5, n=200)
    rows = np.flatnonzero(np.random.default_rng(1).random(200) < 0.4).astype(np.int32)
    scores, alone = np.zeros(200), np.zeros(len(rows))
    tree = grown(bins, g, h, scores=scores, grow_with={"rows": rows}, **shape)
    expected = grown(bins[rows], g[rows], h[rows], scores=alone, **shape)
    # packed to another scale: the same tree, values to rounding
    for name in ("feature", "threshold", "rows"):
        assert np.array_equal(getattr(tree, name), getattr(expected, name))
    assert scores[rows] == pytest.approx(alone, rel=1e-9)
    for node, members in enumerate(naive.nodes_of(tree, bins)):
        if tree.feature[node] < 0:
            assert (scores[members] == tree.value[node]).all()


def test_features_left_out_are_not_used():
    bins, g, h = small_case(6, n=60, n_features=40)
    for chosen in ([3, 20, 39], [17], list(range(16, 32))):
        mask = np.zeros(40, np.uint8)
        mask[chosen] = 1
        grower = grower_of(bins, max_leaves=8)
        tree = grower.grow(g, h, np.zeros(60), features=mask)
        expected = grown(bins[:, chosen], g, h, max_leaves=8)
        used = tree.feature >= 0
        assert np.array_equal(tree.feature[used], np.array(chosen)[expected.feature[used]])
        assert np.array_equal(tree.value, expected.value)
        again = grower.grow(g, h, np.zeros(60))  # the next tree sees all of them again
        assert same(again, grown(bins, g, h, max_leaves=8))


@pytest.mark.parametrize("seed", range(3))
def test_scores_never_move_against_a_monotone_constraint(seed):
    rng = np.random.default_rng(seed)
    bins, _, h = small_case(seed, n=400, missing=0.1)
    trend = bins[:, 0].astype(float) - bins[:, 1] + 2 * np.sin(bins[:, 0] * 2.0) + np.cos(bins[:, 1] * 1.5)
    g = np.round((-trend + rng.normal(size=400)) * 1024) / 1024
    free = grown(bins, g, h, max_leaves=30)
    tree = grown(bins, g, h, max_leaves=30, monotone=np.array([1, -1, 0, 0, 0], np.int8))

    def against(tree):
        """Count neighbouring bins between which the tree moves against a constraint."""
        found = 0
        for feature, direction in ((0, 1), (1, -1)):
            probes = np.repeat(bins[:50], TOP - 1, axis=0)
            probes[:, feature] = np.tile(np.arange(1, TOP), 50)
            values = np.zeros(len(probes))
            for node, rows in enumerate(naive.nodes_of(tree, probes)):
                if tree.feature[node] < 0:
                    values[rows] = tree.value[node]
            found += int((direction * np.diff(values.reshape(50, -1), axis=1) < 0).sum())
        return found

    assert against(free) > 0  # or the test could not fail
    assert against(tree) == 0
    assert tree.n_leaves > 5


@pytest.mark.parametrize("given", [
    {}, {"min_rows_in_leaf": 20}, {"min_hessian_in_leaf": 2.0, "min_rows_in_leaf": 5}, {"lambda_l2": 0.7}, {"lambda_l2": 1e200}, {"min_gain": 3.0},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_trying_few_splits_of_a_level_finds_the_split_of_trying_all(given, missing):
    """With a control, even one that permits everything, the exact gains of all bins are compared."""
    rng = np.random.default_rng(11)
    for n_rows, unit in ((60, 1.0), (900, 1.0), (900, 1e-170), (900, 1e150)):
        bins = rng.integers(1, 255, size=(n_rows, 40), dtype=np.uint8)
        bins[rng.random(bins.shape) < missing] = 0
        bins[:, 20] = bins[:, 5]  # ties between features, and between the bins that no row has
        bins[:, 30] = np.where(bins[:, 7] > 0, 255 - bins[:, 7], 0)
        h = rng.exponential(size=n_rows) ** 3 * unit
        g = (rng.normal(size=n_rows) + bins[:, 3] / 200) * h
        for weights in (None, rng.exponential(size=n_rows)):
            shape = {"grow": "oblivious", "max_depth": 4, "n_bins": [256] * 40, "grow_with": {"weights": weights}}
            every = grown(bins, g, h, **shape, **given, interaction_constraints=[[f"f{k}" for k in range(40)]])
            assert same(grown(bins, g, h, **shape, **given), every)


# -- bounds, ties, missing values ------------------------------------------------------------------------------------


@shapes
def test_gains_are_those_of_the_split_whatever_it_must_gain_at_least(shape):
    bins, g, h = small_case(2)
    one = {**shape, "max_leaves": 2, "max_depth": 1}
    free = grown(bins, g, h, **one)
    bound = grown(bins, g, h, min_gain=free.gain[0] * 0.75, **one)
    assert bound.gain[0] == pytest.approx(free.gain[0], rel=1e-12)
    assert grown(bins, g, h, min_gain=free.gain[0] * 1.01, **one).n_leaves == 1


@pytest.mark.parametrize("max_depth", [1, 3])
def test_depth_and_leaf_bounds_hold(max_depth):
    bins, g, h = small_case(5, n=300)
    tree = grown(bins, g, h, max_depth=max_depth, max_leaves=64)
    assert tree.n_leaves == 2**max_depth
    for node in np.flatnonzero(tree.feature >= 0):
        assert tree.rows[node] == tree.rows[tree.left[node]] + tree.rows[tree.right[node]]


def test_rows_that_cannot_be_distinguished_and_rows_without_hessian_make_a_single_leaf():
    scores = np.zeros(10)
    tree = grown(np.ones((10, 2), np.uint8), np.arange(10.0), np.ones(10), scores=scores)
    assert scores == pytest.approx(-4.5)
    assert tree.feature.tolist() == [-1]
    scores = np.zeros(40)
    assert grown(small_case(0)[0], np.zeros(40), np.zeros(40), scores=scores).n_leaves == 1
    assert not scores.any()


def test_equal_gains_go_to_the_lowest_feature_then_the_lowest_bin():
    column = np.array([1, 1, 3, 3], dtype=np.uint8)
    bins = np.stack([np.ones(4, np.uint8), column, column], axis=1)
    tree = grown(bins, np.array([1.0, 1.0, -1.0, -1.0]), np.ones(4), max_leaves=2)
    assert (tree.feature[0], tree.threshold[0]) == (1, 1)


def test_missing_values_learn_their_side_or_are_parted_from_all_others():
    bins = np.array([[0], [0], [1], [2], [2]], dtype=np.uint8)
    for missing, expected in ((-1.0, 0), (1.0, 1)):  # the missing behave as the high, or as the low values
        g, scores = np.array([missing, missing, 1.0, -1.0, -1.0]), np.zeros(5)
        tree = grown(bins, g, np.ones(5), scores=scores, max_leaves=2)
        assert tree.missing_left[0] == expected
        assert scores == pytest.approx(-g)
    bins, g = np.array([[0], [0], [1], [2], [3]], dtype=np.uint8), np.array([1.0, 1.0, -1.0, -1.0, -1.0])
    scores = np.zeros(5)
    tree = grown(bins, g, np.ones(5), scores=scores, max_leaves=2)
    assert (tree.threshold[0], tree.missing_left[0]) == (3, 0)
    assert scores.tolist() == [-1, -1, 1, 1, 1]


# -- controls of features --------------------------------------------------------------------------------------------


@shapes
@pytest.mark.parametrize("by_set", [False, True])
def test_a_group_of_all_and_weights_of_1_change_nothing_and_weight_0_is_a_constant_feature(shape, by_set):
    bins, g, h = categories_case(1) if by_set else small_case(3, n=80)
    given = {**shape, **(BY_SET if by_set else {})}
    names = [f"f{number}" for number in range(bins.shape[1])]
    free = grown(bins, g, h, **given)
    assert same(grown(bins, g, h, interaction_constraints=[names], **given), free)
    assert same(grown(bins, g, h, feature_weights=dict.fromkeys(names, 1.0), **given), free)
    constant = bins.copy()
    constant[:, free.feature[0]] = 0
    without = grown(bins, g, h, feature_weights={f"f{free.feature[0]}": 0.0}, **given)
    assert same(without, grown(constant, g, h, **{**given, "n_bins": N_BINS if by_set else [TOP] * 5}))
    assert grown(bins, g, h, feature_weights={"f2": 1e6}, **given).feature[0] == 2


@shapes
@pytest.mark.parametrize("seed", range(2))
def test_a_random_set_of_categories_is_one_of_those_in_order_and_the_only_one_where_there_is_one(seed, shape):
    bins, g, h = categories_case(seed)
    given = {"grow_with": TREE, **BY_SET, **shape}
    tree = grown(bins, g, h, extra_trees=True, **given)
    assert not same(tree, grown(bins, g, h, **given))
    if shape["grow"] != "oblivious":
        for node, rows in enumerate(naive.nodes_of(tree, bins)):
            f = tree.feature[node]
            if f >= 0 and CATEGORICAL[f]:
                offered = naive.sets_in_order(bins[rows, f], N_BINS[f], g[rows], h[rows])
                gains = [naive.split_gain(g[rows], h[rows], left, 0.0) for _, left in offered]
                assert min(abs(gain - tree.gain[node]) for gain in gains) < 1e-9 * max(gains)
    single = np.minimum(bins, 2).clip(1)  # two values of a number; one category of colour, the second is a rare one
    single[:, 2] = 1 + (bins[:, 2] > 5)
    given["n_bins"] = [3, 3, 3, 3]
    assert same(grown(single, g, h, extra_trees=True, **given), grown(single, g, h, **given))


def test_groups_beyond_a_word_of_bits_count_too():
    bins = np.random.default_rng(5).integers(0, TOP, size=(300, 150), dtype=np.uint8)
    g = bins[:, 148] * 1.0 - bins[:, 149] - 1.0
    tree = grown(bins, g, np.ones(300), max_leaves=20, interaction_constraints=[["f148", "f149"]])
    assert {int(f) for f in tree.feature if f >= 0} == {148, 149}  # and nothing of the others after either


def test_columns_made_from_a_feature_are_in_its_groups_its_draws_and_its_weight():
    bins, g, h = small_case(4, n=90, n_features=6)
    g += bins[:, 5] - bins[:, 1] * 1.0
    held = {"made_from": [0], "interaction_constraints": [["f0", "f1"], ["f2", "f3", "f4"]]}
    tree, path = grown(bins, g, h, max_leaves=20, **held), {0: frozenset()}
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        path[tree.left[node]] = path[tree.right[node]] = path[node] | {int(tree.feature[node])}
    assert any(5 in used for used in path.values())
    assert all(used <= {0, 1, 5} or used <= {2, 3, 4} for used in path.values())

    bins, g, h = small_case(1, n=200, n_features=7)
    tree = grown(bins, g, h, made_from=[2, 2], max_leaves=40, feature_fraction_by_node=0.2, grow_with=TREE)
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        only = min(range(5), key=lambda f, node=node: bits_of(99, naive.NODE, node, f))
        assert tree.feature[node] in ({2, 5, 6} if only == 2 else {only})
    assert (tree.feature >= 5).any()

    bins, g, h = small_case(1, n=200, n_features=6)
    g += bins[:, 5] - 4.0
    assert grown(bins, g, h, made_from=[0], max_leaves=8).feature[0] == 5
    assert not {0, 5} & set(grown(bins, g, h, made_from=[0], max_leaves=8, feature_weights={"f0": 0.0}).feature)


# -- scales ----------------------------------------------------------------------------------------------------------


@shapes
def test_lambda_in_units_of_the_mean_hessian_follows_the_scale_of_the_loss_and_so_does_noise(shape):
    bins, g, h = small_case(1, n=64)
    plain = grown(bins, g, h, lambda_l2=1.5 * h.mean(), **shape)
    scaled = {"lambda_l2": 1.5, "l2_scale": "mean_hessian", **shape}
    assert same(plain, grown(bins, g, h, **scaled))
    assert plain.n_leaves > 3
    noise = {"noise": SplitNoise(2.0, np.uint64(12345))}
    for factor in (2.0**-20, 2.0**-10, 2.0**20):
        for given in ({"grow_with": {}, **scaled}, {"grow_with": noise, **shape}):
            one, other = (grown(bins, g * f, h * f, **given) for f in (1.0, factor))
            assert np.array_equal(one.feature, other.feature)
            assert np.array_equal(one.value, other.value)
