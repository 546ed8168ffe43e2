"""What trees may be split by and how values are held back, where features are categorical: brute force, and whole models."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from rankmill import Ranker
from rankmill.trainer.growing.controls import Controls
from rankmill.trainer.growing.grower import Grower, SplitNoise
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.workers import Team, with_team
from tests import naive
from tests.trainer.fixed import fixed
from tests.trainer.test_categories import FREE, set_of
from tests.trainer.test_growth_by_definition import BY_NODE, CATEGORICAL, N_BINS
from tests.trainer.test_growth_by_definition import categories_case as case
from tests.trainer.test_growth_controls import paths

NAMES = ["number", "colour", "shop", "other"]
GROUPS = [["number", "colour"], ["colour", "shop"]]  # other is in none
SHAPES = [{"grow": grow, "max_leaves": 9} for grow in BY_NODE] + [{"grow": "oblivious", "max_depth": 3}]
TREE = SplitNoise(0.0, np.uint64(0), np.uint64(99))


def grown(bins, g, h, team=None, n_bins=N_BINS, **parameters):
    usual = {"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0, **FREE}
    given = fixed(**(usual | parameters))
    layout = BlockedBins.from_batches([bins], len(bins), np.array(n_bins, dtype=np.int32))
    by_set, controls = np.array(CATEGORICAL), Controls.of(given, NAMES)
    grower = Grower(layout, given, team or Team(1), categorical=by_set, controls=controls)
    return grower.grow(g, h, np.zeros(len(g)), noise=TREE)


def left_rows(tree, node, bins):
    f = tree.feature[node]
    if CATEGORICAL[f]:
        return np.isin(bins[:, f], list(set_of(tree, node)))
    return naive.goes_left(bins[:, f], tree.threshold[node], tree.missing_left[node])


def nodes_of(tree, bins):
    """Return the rows of every node, by walking down."""
    rows = {0: np.arange(len(bins))}
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        left = left_rows(tree, node, bins[rows[node]])
        rows[int(tree.left[node])], rows[int(tree.right[node])] = rows[node][left], rows[node][~left]
    return rows


def ways(bins, g, h, features=range(4)):
    """Yield (feature, rows on the left) of every split of these rows that is tried."""
    for f in features:
        if CATEGORICAL[f]:
            yield from ((f, left) for _, left in naive.sets_in_order(bins[:, f], N_BINS[f], g, h))
            continue
        for b in range(1, N_BINS[f]):
            for missing_left in (False, True):
                left = naive.goes_left(bins[:, f], b, missing_left)
                if left.any() and not left.all():
                    yield f, left


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)


def used_on_paths(tree):
    return [{NAMES[tree.feature[node]] for node in path} for path in paths(tree)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", SHAPES)
def test_groups_hold_on_every_path_and_one_of_all_changes_nothing(seed, shape):
    bins, g, h = case(seed)
    free = grown(bins, g, h, **shape)
    held = used_on_paths(grown(bins, g, h, interaction_constraints=GROUPS, **shape))
    assert all(len(path) <= 1 or any(path <= set(group) for group in GROUPS) for path in held)
    assert {"colour", "shop"} & set().union(*held)
    assert same(grown(bins, g, h, interaction_constraints=[NAMES], **shape), free)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_count_for_categories_as_for_numbers(seed, shape):
    bins, g, h = case(seed)
    free = grown(bins, g, h, **shape)
    assert {1, 2} & set(free.feature.tolist())
    without = grown(bins, g, h, feature_weights={"colour": 0.0}, **shape)
    assert 1 not in without.feature
    constant = bins.copy()
    constant[:, 1] = 0
    assert same(without, grown(constant, g, h, **shape))
    assert same(grown(bins, g, h, feature_weights=dict.fromkeys(NAMES, 1.0), **shape), free)
    preferred = grown(bins, g, h, feature_weights={"shop": 1e6}, **shape)
    assert preferred.feature[0] == 2
    gains = [naive.split_gain(g, h, left, 0.0) for _, left in ways(bins, g, h, [2])]
    assert preferred.gain[0] == pytest.approx(max(gains), rel=1e-9)  # the true one


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_random_set_is_one_of_those_in_order_and_the_only_one_where_there_is_one(seed, shape):
    bins, g, h = case(seed)
    tree, free = grown(bins, g, h, extra_trees=True, **shape), grown(bins, g, h, **shape)
    assert not same(tree, free)
    if shape["grow"] != "oblivious":
        for node, mine in nodes_of(tree, bins).items():
            if tree.feature[node] >= 0:
                offered = ways(bins[mine], g[mine], h[mine], [tree.feature[node]])
                gains = [naive.split_gain(g[mine], h[mine], left, 0.0) for _, left in offered]
                assert min(abs(gain - tree.gain[node]) for gain in gains) < 1e-9 * max(gains)
    single = np.minimum(bins, 2).clip(1)  # two values of a number; one category of colour, the second is a rare one
    single[:, 2] = 1 + (bins[:, 2] > 5)
    n_bins = [3, 3, 3, 3]
    assert same(
        grown(single, g, h, n_bins=n_bins, extra_trees=True, **shape), grown(single, g, h, n_bins=n_bins, **shape)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"interaction_constraints": GROUPS, "extra_trees": True},
        {"feature_weights": {"colour": 3.0}, "feature_fraction_by_level": 0.6},
        {"lambda_l1": 5.0, "path_smooth": 30.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]])
def test_the_number_of_workers_changes_nothing(shape, options):
    bins, g, h = case(1, n=40_000)
    usual = grown(bins, g, h, **shape, **options)
    assert same(with_team(3, lambda team: grown(bins, g, h, team, **shape, **options)), usual)
    assert {1, 2} & set(usual.feature.tolist())


def judged(seed=0, n_queries=60):
    """A frame with a number, a few colours and many shops, with missing ones, and what it is judged by."""
    rng = np.random.default_rng(seed)
    n = n_queries * 15
    number, colour, shop = rng.normal(size=n), rng.integers(0, 6, size=n), rng.integers(0, 30, size=n)
    hidden = number + rng.normal(size=6)[colour] + rng.normal(size=30)[shop] + 0.4 * rng.normal(size=n)
    shops = [None if lost else f"shop {code}" for code, lost in zip(shop, rng.random(n) < 0.1, strict=True)]
    frame = pl.DataFrame({
        "number": number, "colour": [f"colour {code}" for code in colour], "shop": shops, "other": rng.normal(size=n),
    })  # fmt: skip
    return frame, np.digitize(hidden, [0.0, 1.0, 2.0]), np.repeat(np.arange(n_queries), 15)


def fitted(**options):
    frame, grades, qid = judged()
    usual = {"preset": "defaults-1", "n_rounds": 6, "min_rows_in_leaf": 5, "min_rows_in_group": 10, "n_threads": 1}
    return Ranker(**(usual | options)).fit(frame, grades, qid=qid).forest_


def paths_of(forest):
    stack, found = [(int(root), int(root), frozenset()) for root in forest.tree_starts[:-1]], []
    while stack:
        root, node, path = stack.pop()
        if forest.node_feature[node] < 0:
            found.append(path)
            continue
        path = path | {NAMES[forest.node_feature[node]]}
        stack += [(root, root + int(child), path) for child in (forest.node_left[node], forest.node_right[node])]
    return found


@pytest.mark.parametrize("encode_above", [0, 20])  # the shops get a second column, of numbers
@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
def test_models_obey_groups_and_weights(encode_above, grow):
    shape = {"encode_above": encode_above, "grow": grow}
    assert {"colour", "shop"} <= set().union(*paths_of(fitted(**shape)))
    held = paths_of(fitted(interaction_constraints=GROUPS, **shape))
    assert all(len(path) <= 1 or any(path <= set(group) for group in GROUPS) for path in held)
    assert "shop" in set().union(*held)
    assert "shop" not in set().union(*paths_of(fitted(feature_weights={"shop": 0.0}, **shape)))
    with pytest.warns(UserWarning, match="no tree has a split"):
        assert not np.abs(fitted(lambda_l1=1e9, **shape).node_value).any()
    smooth = fitted(path_smooth=1e12, **shape)
    assert np.ptp(smooth.node_value[: smooth.tree_starts[1]]) < 1e-6
    drawn = fitted(extra_trees=True, **shape)
    assert drawn.sha256 == fitted(extra_trees=True, n_threads=3, **shape).sha256
    assert drawn.sha256 != fitted(extra_trees=True, seed=8, **shape).sha256
