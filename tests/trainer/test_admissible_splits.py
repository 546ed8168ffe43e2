"""Which splits may stand: their sides have the rows and the hessian asked for, and their gain is no rounding."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from rankmill.pipeline.binspec import BinSpec, feature_bins
from rankmill.trainer.growing import _histogram_kernels, _split_kernels
from rankmill.trainer.growing import grower as grower_module
from rankmill.trainer.growing._state_kernels import LOOK_AHEAD, Crew
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.objectives.registry import objective_class
from rankmill.trainer.workers import Team, with_team
from tests import naive
from tests.trainer.fixed import fixed
from tests.trainer.grown import nodes_of, trees_of
from tests.trainer.planted import fit, planted, small_data
from tests.trainer.small_case import small_case
from tests.trainer.test_every_objective import NAMES

CRITERIA = [(name, criterion) for name in NAMES for criterion in objective_class(name).criteria]


def grow(bins, g, h, team=None, *, weights=None, scores=None, **parameters):
    given = {"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0, **parameters}
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], 256, dtype=np.int32))
    scores = np.zeros(len(g)) if scores is None else scores
    return Grower(layout, fixed(**given), team or Team(1)).grow(g, h, scores, weights=weights)


def binspec_of(x):
    return BinSpec(tuple(feature_bins(f"f{i}", x[:, i].copy()) for i in range(x.shape[1])))


def leaves_of(tree, bins):
    return [rows for node, rows in enumerate(nodes_of(tree, bins)) if tree.feature[node] < 0]


# -- the least sum of hessians -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "criterion"), CRITERIA)
def test_every_leaf_has_the_least_sum_of_hessians_by_every_criterion(name, criterion):
    bound, n_leaves = 5.0, 0
    for tree, bins, _, h, _ in trees_of(name, criterion, max_leaves=31, min_hessian_in_leaf=bound):
        if tree.n_leaves > 1:
            n_leaves += tree.n_leaves
            assert min(h[rows].sum() for rows in leaves_of(tree, bins)) >= bound * (1 - 1e-12)
    assert n_leaves > 3


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("constrained", [False, True])
def test_squared_error_chooses_the_best_split_that_has_the_hessian(seed, constrained):
    bins, g, _ = small_case(seed, n=120)
    rng = np.random.default_rng(seed)
    h, weights = rng.integers(1, 2000, size=120) ** 2 / 2**22, rng.integers(1, 500, size=120) / 1024
    parameters = {"monotone": {}} if not constrained else {"min_rows_in_leaf": 9}
    tree = grow(bins, g, h, weights=weights, max_leaves=2, min_hessian_in_leaf=12.0, **parameters)
    least = {"min_rows": parameters.get("min_rows_in_leaf", 1), "min_hessian": 12.0}
    best = max(gain for gain, *_ in naive.splits(bins, g, weights, hessians=h, **least))
    assert tree.gain[0] == pytest.approx(best, rel=1e-9)
    assert min(h[rows].sum() for rows in leaves_of(tree, bins)) >= 12.0


@pytest.mark.parametrize("share", [0.5, 0.97, 1.0])
@pytest.mark.parametrize("bound", [1e-3, 1.0])
@pytest.mark.parametrize(
    ("objective", "criterion", "leaf"),
    [("bernoulli", criterion, "") for criterion in ("rwse", "se")]
    + [("ranknet", *rest) for rest in itertools.product(("rwse", "se", "ole"), ("newton", "exact"))],
)
def test_offsets_that_are_confidently_wrong_give_sane_leaves(objective, criterion, leaf, bound, share):
    """Where h vanishes, no Newton step is longer than |G| / the least sum of h."""
    (x, grades, starts), watched, binspec = small_data()
    grades = np.minimum(grades, 1)
    wrong = np.repeat(np.random.default_rng(1).random(len(starts) - 1) < share, np.diff(starts))
    offsets = np.where(wrong, -40.0, 1.0) * (2.0 * grades - 1.0)
    for tree, bins, g, _, _ in trees_of(
        objective, criterion, ((x, grades, starts), watched, binspec), n_rounds=1, offsets=offsets, leaf=leaf,
        min_hessian_in_leaf=bound,
    ):  # fmt: skip
        for node, rows in enumerate(nodes_of(tree, bins)):
            if tree.feature[node] < 0:
                assert abs(tree.value[node]) <= 0.3 * abs(g[rows].sum()) / bound * (1 + 1e-9)


# -- rows on a side --------------------------------------------------------------------------------------------------


def misses(tree, bins, g, h, searched_by=None, **bounds):
    """Return the share of the greatest admissible gain that each node has kept, brute force; a leaf keeps none."""
    searched_by, kept = h if searched_by is None else searched_by, []
    for node, rows in enumerate(nodes_of(tree, bins)):
        found = naive.splits(bins[rows], g[rows], searched_by[rows], hessians=h[rows], **bounds)
        best = max((gain for gain, *_ in found), default=0.0)
        if best > 1e-9 * abs(g).sum():
            kept.append(tree.gain[node] / best)
    return kept


@pytest.mark.parametrize("criterion", ["rwse", "se"])
@pytest.mark.parametrize("name", ["listnet", "lambdamart", "bernoulli", "listmle", "stochasticrank"])
@pytest.mark.parametrize("min_rows", [5, 20])
def test_every_node_has_its_best_admissible_split(name, criterion, min_rows):
    """With more leaves than rows every node is split that can be: none keeps less than the greedy optimum."""
    x, grades, starts = planted(3, n_queries=12)
    x = np.round(2 * x) / 2  # few bins, so that everything can be tried
    data = (x, grades, starts), None, binspec_of(x)
    least = {"min_hessian_in_leaf": 0.05, "min_rows_in_leaf": min_rows}
    kept = []
    for tree, bins, g, h, searched_by in trees_of(name, criterion, data, n_rounds=2, max_leaves=400, **least):
        kept += misses(tree, bins, g, h, searched_by, min_rows=min_rows, min_hessian=0.05)
    assert len(kept) > 4
    assert min(kept) > 1 - 1e-4


@pytest.mark.parametrize("grow_so", ["best_first", "breadth_first", "depth_first"])
@pytest.mark.parametrize("seed", range(8))
def test_rows_that_weigh_very_differently_do_not_hide_a_split(seed, grow_so):
    rng = np.random.default_rng(seed)
    bins, g, _ = small_case(seed, n=80)
    h = rng.integers(1, 2000, size=80) ** 2 / 2**22
    tree = grow(bins, g, h, max_leaves=80, min_rows_in_leaf=11, grow=grow_so)
    kept = misses(tree, bins, g, h, min_rows=11)
    assert len(kept) > 1
    assert min(kept) == pytest.approx(1.0, rel=1e-6)
    assert max(kept) == pytest.approx(1.0, rel=1e-6)  # more is gained by no split that is allowed
    assert tree.rows.min() >= 11


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("lambda_l2", [0.0, 2.0])
def test_oblivious_trees_count_the_rows_of_their_leaves(seed, lambda_l2):
    rng = np.random.default_rng(seed)
    bins, g, _ = small_case(seed, n=80, missing=0.1)
    h = rng.integers(1, 2000, size=80) ** 2 / 2**22
    scores = np.zeros(80)
    tree = grow(bins, g, h, scores=scores, grow="oblivious", max_depth=3, min_rows_in_leaf=8, lambda_l2=lambda_l2)
    conditions, values = naive.grow_by_level(bins, g, h, 3, min_rows=8, lambda_l2=lambda_l2)
    assert tree.n_leaves == 2 ** len(conditions)
    assert [(tree.feature[2**depth - 1], tree.threshold[2**depth - 1]) for depth in range(len(conditions))] == [
        (feature, threshold) for feature, threshold, _ in conditions
    ]
    assert scores == pytest.approx(values, rel=1e-6)


@pytest.mark.parametrize("grow_so", ["best_first", "oblivious"])
@pytest.mark.parametrize("weighted", [False, True])
def test_any_number_of_workers_refuses_and_takes_the_same_splits(monkeypatch, grow_so, weighted):
    for name in ("_LEAST_ROWS", "_LEAST_VISITS", "_SHARED_ROWS"):
        monkeypatch.setattr(grower_module, name, 1)
    bins, g, _ = small_case(3, n=600, n_features=37)
    rng = np.random.default_rng(3)
    h, weights = 10.0 ** rng.uniform(-5, 0, size=600), rng.uniform(0.5, 2, size=600) if weighted else None
    bounds = {"min_rows_in_leaf": 15, "min_hessian_in_leaf": 2.0, "max_leaves": 30, "max_depth": 5}

    def run(team):
        return grow(bins, g, h, team, weights=weights, grow=grow_so, **bounds)

    alone = run(Team(1))
    assert alone.n_leaves > 4
    for size in (2, 3, 5):
        together = with_team(size, run)
        assert all(np.array_equal(getattr(alone, name), getattr(together, name)) for name in alone.__slots__)


# -- gains that are nothing but rounding -----------------------------------------------------------------------------


def whole_numbers(seed, n=1500, n_features=6):
    return np.random.default_rng(seed).integers(0, 50, size=(n, n_features)).astype(np.float32)


def learn(x, y, **parameters):
    starts = np.arange(0, len(x) + 1, 30)
    given = {"objective": "l2", "n_rounds": 5, "max_leaves": 31, "watch": False, **parameters}
    return fit(((x, y.astype(np.int32), starts), None, binspec_of(x)), **given).forest


def splits_of(forest):
    """Return how many splits each tree has, and the features that are used."""
    inner = forest.node_feature >= 0
    trees = [int(part.sum()) for part in np.split(inner, forest.tree_starts[1:-1])]
    return trees, set(forest.node_feature[inner].tolist())


@pytest.mark.parametrize(
    "parameters",
    [
        {}, {"criterion": "se"}, {"lambda_l2": 1.0}, {"objective": "bernoulli"}, {"objective": "poisson"},
        {"objective": "huber"}, {"grow": "oblivious"}, {"monotone": {"f2": 1}}, {"row_fraction": 0.7},
        {"weights": "any"}, {"weights": "by feature"}, {"min_rows_in_leaf": 1},
    ],
    ids=str,
)  # fmt: skip
def test_labels_that_one_threshold_explains_are_split_once(parameters):
    x = whole_numbers(0)
    weights = {
        "any": np.random.default_rng(1).uniform(0.1, 3.0, len(x)),
        "by feature": np.where(x[:, 4] > 20, 1.0, 1 / 3),  # what is rounded differs with another feature
        None: None,
    }[parameters.get("weights")]
    trees, used = splits_of(learn(x, x[:, 2] > 30, **{**parameters, "weights": weights}))
    assert trees == [1] * 5
    assert used == {2}


@pytest.mark.parametrize("grow_so", ["best_first", "oblivious"])
def test_labels_that_two_features_explain_use_no_third(grow_so):
    x = whole_numbers(1)
    trees, used = splits_of(learn(x, (x[:, 2] > 30) + 2 * (x[:, 4] > 17), grow=grow_so))
    assert trees == [3] * 5
    assert used == {2, 4}


@pytest.mark.parametrize("n", [100, 3000])
@pytest.mark.parametrize("steps", [3, 30, 1000])
@pytest.mark.parametrize("weight", [1.0, 1 / 3])
def test_small_gains_are_taken_down_to_the_packed_resolution(n, steps, weight):
    """A second feature that moves g by a few parts in 2 ** 31 / n of the mean |g| is found under the first one."""
    rng = np.random.default_rng(n)
    bins = rng.integers(1, 9, size=(n, 3)).astype(np.uint8)
    small = steps * n / 2.0**31
    g = weight * (np.where(bins[:, 0] > 4, 1.0, -1.0) + small * (bins[:, 1] > 6))
    h = np.full(n, weight)
    tree = grow(bins, g, h, max_leaves=4)
    assert sorted(tree.feature[tree.feature >= 0].tolist()) == [0, 1, 1]
    inner = tree.feature == 1
    assert set(tree.threshold[inner]) == {6}
    assert (tree.gain[inner] > 0).all()
    assert max(tree.gain[inner]) < 1e-6 * tree.gain[0] or steps == 1000


@pytest.mark.parametrize("seed", range(20))
def test_means_differ_only_where_no_error_within_the_bounds_makes_them_equal(seed):
    """Against all corners of the box of errors, in fractions; G_l H_r - G_r H_l is linear in each of the four."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        g = [float(v) for v in rng.integers(-300, 300, size=2)]
        h = [float(v) for v in rng.integers(1, 300, size=2)]
        off_g, off_h = rng.integers(0, 12, size=2) / 2, rng.integers(0, 12, size=2) / 2
        found = _split_kernels.means_differ(g[0], h[0], off_g[0], off_h[0], g[1], h[1], off_g[1], off_h[1])
        corners = []
        for s in itertools.product((-1, 1), repeat=4):
            moved_g = [Fraction(g[i]) + s[i] * Fraction(off_g[i]) for i in range(2)]
            moved_h = [Fraction(h[i]) + s[i + 2] * Fraction(off_h[i]) for i in range(2)]
            corners.append(moved_g[0] * moved_h[1] - moved_g[1] * moved_h[0])
        apart = min(corners) > 0 or max(corners) < 0
        assert not found or apart
        far = abs(g[0] * h[1] - g[1] * h[0]) > 2 * (max(corners) - min(corners))
        assert found or not far


@pytest.mark.parametrize("seed", range(5))
def test_a_pass_over_rows_tells_what_fractions_tell(seed):
    rng = np.random.default_rng(seed)
    column = rng.integers(0, 5, size=40).astype(np.uint8)
    rows = rng.permutation(40)[:30].astype(np.int32)
    rows_read = np.concatenate((rows, np.zeros(LOOK_AHEAD, np.int32)))
    none = np.zeros(0, np.int64)
    alone = Crew(0, 1, none, 1, -1, none, none, 0, none)
    for equal in (False, True):
        w = rng.integers(1, 9, size=40) / 3
        g = w * 0.7 if equal else w * (0.7 + 1e-9 * (column > 2))
        sides = (np.arange(256) <= 2).astype(np.uint8)
        found = _split_kernels.fine_means_differ(alone, column, 1, sides, rows_read, 0, 30, g, w, 2.0**50, 2.0**50)
        left = rows[naive.goes_left(column[rows], 2, True)]
        right = np.setdiff1d(rows, left)
        sums = [sum(map(Fraction, a[side])) for side in (left, right) for a in (g, w)]
        apart = abs(sums[0] / sums[1] - sums[2] / sums[3]) > Fraction(1, 10**12)
        assert found == apart == (not equal)


@pytest.mark.parametrize("seed", range(5))
def test_counts_and_sums_of_sides_are_those_of_their_rows(seed):
    rng = np.random.default_rng(seed)
    column, h = rng.integers(0, 9, size=60).astype(np.uint8), rng.random(60)
    rows = np.concatenate((rng.permutation(60)[:40], np.zeros(LOOK_AHEAD))).astype(np.int32)
    sums, first, last = np.full(256, -1), 3, 37
    _histogram_kernels.sum_hessians(column, 1, rows, first, last, h, 2.0**40, sums)
    expected = [sum(round(h[row] * 2.0**40) for row in rows[first:last] if column[row] == b) for b in range(256)]
    assert sums.tolist() == expected
    packed = rng.integers(-1000, 1000, size=60) * 2**32 + rng.integers(3, 1000, size=60)
    assert _histogram_kernels.total_and_least(packed) == (packed.sum(), min(int(p) & 0xFFFFFFFF for p in packed))
