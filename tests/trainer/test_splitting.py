"""Bounds of leaves, ties, missing values and rows that cannot be told apart; the best splits: test_growth_by_definition.py."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.workers import Team
from tests.trainer.fixed import fixed
from tests.trainer.small_case import small_case


def grow(bins, g, h, team=None, **parameters):
    defaults = {"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0}
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], 256, dtype=np.int32))
    scores = np.zeros(len(g))
    tree = Grower(layout, fixed(**{**defaults, **parameters}), team or Team(1)).grow(g, h, scores)
    return tree, scores


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("min_rows", [2, 5, 9])
def test_no_leaf_has_fewer_rows_than_asked_for(seed, min_rows):
    # hessians over five powers of ten say little about rows
    rng = np.random.default_rng(seed)
    bins, g, _ = small_case(seed, n=120)
    h = 10.0 ** rng.uniform(-5, 0, size=120)
    tree, _ = grow(bins, g, h, max_leaves=16, min_rows_in_leaf=min_rows)
    assert tree.rows[tree.feature < 0].min() >= min_rows
    assert tree.rows[tree.feature < 0].sum() == 120


@pytest.mark.parametrize("grow_so", [{}, {"grow": "oblivious", "max_depth": 1}])
def test_gains_are_those_of_the_split_whatever_it_must_gain_at_least(grow_so):
    bins, g, h = small_case(2)
    free, _ = grow(bins, g, h, max_leaves=2, **grow_so)
    bound, _ = grow(bins, g, h, max_leaves=2, min_gain=free.gain[0] * 0.75, **grow_so)
    assert bound.gain[0] == pytest.approx(free.gain[0], rel=1e-12)
    none, _ = grow(bins, g, h, max_leaves=2, min_gain=free.gain[0] * 1.01, **grow_so)
    assert none.n_leaves == 1


@pytest.mark.parametrize("max_depth", [1, 2, 3])
def test_depth_and_leaf_bounds_hold(max_depth):
    bins, g, h = small_case(5, n=300)
    tree, _ = grow(bins, g, h, max_depth=max_depth, max_leaves=64)
    assert tree.n_leaves == 2**max_depth
    depth = np.zeros(len(tree.feature), dtype=int)
    for node in np.flatnonzero(tree.feature >= 0):
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
        assert tree.rows[node] == tree.rows[tree.left[node]] + tree.rows[tree.right[node]]
    assert depth.max() == max_depth


def test_rows_that_cannot_be_told_apart_make_a_single_leaf():
    tree, scores = grow(np.ones((10, 2), np.uint8), np.arange(10.0), np.ones(10))
    assert tree.n_leaves == 1
    assert scores == pytest.approx(-4.5)
    assert tree.feature.tolist() == [-1]


def test_no_hessian_gives_no_step():
    tree, scores = grow(small_case(0)[0], np.zeros(40), np.zeros(40))
    assert tree.n_leaves == 1
    assert not scores.any()


def test_equal_gains_go_to_the_lowest_feature_then_the_lowest_bin():
    column = np.array([1, 1, 3, 3], dtype=np.uint8)
    bins = np.stack([np.ones(4, np.uint8), column, column], axis=1)
    tree, _ = grow(bins, np.array([1.0, 1.0, -1.0, -1.0]), np.ones(4), max_leaves=2)
    assert (tree.feature[0], tree.threshold[0]) == (1, 1)


def test_missing_values_learn_their_side():
    bins = np.array([[0], [0], [1], [2], [2]], dtype=np.uint8)
    for missing, expected in ((-1.0, 0), (1.0, 1)):  # the missing behave as the high, or as the low values
        g = np.array([missing, missing, 1.0, -1.0, -1.0])
        tree, scores = grow(bins, g, np.ones(5), max_leaves=2)
        assert tree.missing_left[0] == expected
        assert scores == pytest.approx(-g)


def test_a_split_may_part_the_missing_from_all_others():
    bins = np.array([[0], [0], [1], [2], [3]], dtype=np.uint8)
    tree, scores = grow(bins, np.array([1.0, 1.0, -1.0, -1.0, -1.0]), np.ones(5), max_leaves=2)
    assert (tree.threshold[0], tree.missing_left[0]) == (3, 0)
    assert scores.tolist() == [-1, -1, 1, 1, 1]
