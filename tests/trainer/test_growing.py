"""Orders of growth, oblivious trees, samples, constraints and the bounded pool, each against its slow twin or its law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rankmill.trainer.growing import grower as grower_module
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.growing.histogram import FEWEST_SLOTS, HistogramPool
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.sampling import Sampler
from rankmill.trainer.workers import Team, with_team
from tests import naive
from tests.trainer.fixed import fixed
from tests.trainer.small_case import TOP, small_case


def make(bins, team=None, *, monotone=None, pool_bytes=2**30, **parameters):
    defaults = {"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0}
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], TOP, dtype=np.int32))
    return Grower(
        layout, fixed(**{**defaults, **parameters}), team or Team(1), monotone=monotone, pool_bytes=pool_bytes
    )


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)


@pytest.fixture
def share_everything(monkeypatch):
    for name in ("_LEAST_ROWS", "_LEAST_VISITS", "_SHARED_ROWS"):
        monkeypatch.setattr(grower_module, name, 1)


@pytest.mark.parametrize("grow", ["best_first", "breadth_first", "depth_first"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_leaves", [5, 9])
def test_leaves_are_split_in_the_order_asked_for(grow, seed, max_leaves):
    bins, g, h = small_case(seed, n=60)
    scores = np.zeros(len(g))
    tree = make(bins, grow=grow, max_leaves=max_leaves).grow(g, h, scores)
    expected = naive.grow_by_node(bins, g, h, max_leaves, grow)
    assert tree.n_leaves == len(expected) == max_leaves
    for rows, step in expected.items():
        assert scores[list(rows)] == pytest.approx(step, rel=1e-9)


@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
@pytest.mark.usefixtures("share_everything")
def test_any_number_of_workers_grows_the_same_tree(grow):
    bins, g, h = small_case(3, n=500, n_features=20)

    def run(team):
        scores = np.zeros(len(g))
        tree = make(bins, team, grow=grow, max_leaves=20, max_depth=5).grow(g, h, scores)
        return tree, scores

    tree, scores = run(Team(1))
    for size in (2, 3, 7):
        shared, found = with_team(size, run)
        assert same(shared, tree)
        assert np.array_equal(found, scores)


@pytest.mark.parametrize("slots", [FEWEST_SLOTS, 5])
@pytest.mark.parametrize("grow", ["best_first", "breadth_first", "depth_first"])
@pytest.mark.usefixtures("share_everything")
def test_a_small_pool_grows_the_same_tree(slots, grow):
    bins, g, h = small_case(4, n=400, n_features=18)
    rng = np.random.default_rng(4)
    h = 10.0 ** rng.uniform(-4, 0, size=400)  # so that some splits are found to leave too few rows
    parameters = {"max_leaves": 24, "min_rows_in_leaf": 5, "grow": grow}
    expected = make(bins, **parameters).grow(g, h, np.zeros(400))
    one = HistogramPool.bytes_needed(32, fixed(max_leaves=2)) // FEWEST_SLOTS
    assert HistogramPool(32, fixed(max_leaves=24), slots * one).n_slots == slots
    for size in (1, 2):
        tree = with_team(
            size, lambda team: make(bins, team, pool_bytes=slots * one, **parameters).grow(g, h, np.zeros(400))
        )
        assert same(tree, expected)


@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
def test_a_sample_grows_the_tree_of_its_rows_and_all_rows_get_their_leaf(grow):
    bins, g, h = small_case(5, n=200)
    rows = np.flatnonzero(np.random.default_rng(1).random(200) < 0.4).astype(np.int32)
    scores, alone = np.zeros(200), np.zeros(len(rows))
    tree = make(bins, grow=grow, max_leaves=8, max_depth=3).grow(g, h, scores, rows=rows)
    expected = make(bins[rows], grow=grow, max_leaves=8, max_depth=3).grow(g[rows], h[rows], alone)
    # packed to another scale: the same tree, values to rounding
    assert np.array_equal(tree.feature, expected.feature)
    assert np.array_equal(tree.threshold, expected.threshold)
    assert np.array_equal(tree.rows, expected.rows)
    assert scores[rows] == pytest.approx(alone, rel=1e-9)
    for row in range(200):
        node = 0
        while tree.feature[node] >= 0:
            left = naive.goes_left(bins[row, tree.feature[node]], tree.threshold[node], tree.missing_left[node])
            node = tree.left[node] if left else tree.right[node]
        assert scores[row] == tree.value[node]


def test_features_left_out_are_not_used():
    bins, g, h = small_case(6, n=60, n_features=40)
    for chosen in ([3, 20, 39], [17], list(range(16, 32))):
        mask = np.zeros(40, np.uint8)
        mask[chosen] = 1
        grower = make(bins, max_leaves=8)
        tree = grower.grow(g, h, np.zeros(60), features=mask)
        expected = make(bins[:, chosen], max_leaves=8).grow(g, h, np.zeros(60))
        used = tree.feature >= 0
        assert np.array_equal(tree.feature[used], np.array(chosen)[expected.feature[used]])
        assert np.array_equal(tree.value, expected.value)
        again = grower.grow(g, h, np.zeros(60))  # the next tree sees all of them again
        assert same(again, make(bins, max_leaves=8).grow(g, h, np.zeros(60)))


@pytest.mark.parametrize("seed", range(8))
def test_scores_never_move_against_a_monotone_constraint(seed):
    rng = np.random.default_rng(seed)
    bins, _, h = small_case(seed, n=400, missing=0.1)
    trend = bins[:, 0].astype(float) - bins[:, 1] + 2 * np.sin(bins[:, 0] * 2.0) + np.cos(bins[:, 1] * 1.5)
    g = np.round((-trend + rng.normal(size=400)) * 1024) / 1024
    free = make(bins, max_leaves=30).grow(g, h, np.zeros(400))
    directions = np.array([1, -1, 0, 0, 0], np.int8)
    tree = make(bins, max_leaves=30, monotone=directions).grow(g, h, np.zeros(400))

    def against(tree):
        """Count neighbouring bins between which the tree moves against a constraint."""
        found = 0
        for row in bins[:50]:
            for feature, direction in ((0, 1), (1, -1)):
                values = []
                for b in range(1, TOP):
                    node, probe = 0, row.copy()
                    probe[feature] = b
                    while tree.feature[node] >= 0:
                        at = tree.feature[node]
                        left = naive.goes_left(probe[at], tree.threshold[node], tree.missing_left[node])
                        node = tree.left[node] if left else tree.right[node]
                    values.append(tree.value[node])
                found += int((direction * np.diff(values) < 0).sum())
        return found

    assert against(free) > 0  # or the test could not fail
    assert against(tree) == 0
    assert tree.n_leaves > 5


@pytest.mark.parametrize("seed", range(10))
def test_the_first_constrained_split_is_the_best_allowed_one(seed):
    bins, g, h = small_case(seed, n=60)
    directions = np.array([1, -1, 1, -1, 1], np.int8)
    best = 0.0
    for gain, feature, threshold, missing_left in naive.splits(bins, g, h):
        left = naive.goes_left(bins[:, feature], threshold, missing_left)
        values = [-g[m].sum() / h[m].sum() for m in (left, ~left)]
        if directions[feature] * (values[1] - values[0]) >= 0:
            best = max(best, gain)
    tree = make(bins, max_leaves=2, monotone=directions).grow(g, h, np.zeros(60))
    assert tree.gain[0] == pytest.approx(best, rel=1e-9)


STARTS = np.array([0, 3, 10, 10, 30, 64, 100], dtype=np.int64)


def test_samples_have_their_size_and_whole_queries():
    sampler = Sampler(STARTS, 10, fixed(query_fraction=0.5, feature_fraction=0.25))
    for round_number in range(1, 50):
        sample = sampler.draw(round_number)
        drawn = set(sample.rows.tolist())
        assert sample.rows.tolist() == sorted(drawn)
        whole = [set(range(a, b)) <= drawn for a, b in itertools.pairwise(STARTS)]
        partly = [bool(set(range(a, b)) & drawn) for a, b in itertools.pairwise(STARTS)]
        assert all(w == p or a == b for w, p, a, b in zip(whole, partly, STARTS[:-1], STARTS[1:], strict=True))
        assert sum(partly) in {2, 3}  # three of six queries, one of which is empty
        assert sample.features.sum() == 2


def test_rows_are_drawn_of_the_drawn_queries_evenly_and_differ_from_round_to_round():
    sampler = Sampler(STARTS, 10, fixed(row_fraction=0.3, query_fraction=0.999))
    counts = np.zeros(100)
    for round_number in range(1, 401):
        rows = sampler.draw(round_number).rows
        assert len(rows) == 30
        counts[rows] += 1
    assert abs(counts.mean() - 120) < 1e-9
    assert counts.std() < 2 * np.sqrt(400 * 0.3 * 0.7)
    assert np.array_equal(sampler.draw(7).rows, sampler.draw(7).rows)
    assert not np.array_equal(sampler.draw(7).rows, sampler.draw(8).rows)
    other = Sampler(STARTS, 10, fixed(row_fraction=0.3, seed=8))
    assert not np.array_equal(other.draw(7).rows, sampler.draw(7).rows)


def test_whole_samples_are_none_and_no_sample_is_empty():
    whole = Sampler(STARTS, 10, fixed()).draw(1)
    assert whole.rows is None
    assert whole.features is None
    least = Sampler(STARTS, 10, fixed(row_fraction=1e-9, feature_fraction=1e-9)).draw(1)
    assert len(least.rows) == least.features.sum() == 1
