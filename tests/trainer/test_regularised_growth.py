"""Options that hold a tree back: lambda in units of the mean hessian, and noise on split scores."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest import Forest
from rankmill.trainer.growing.grower import Grower, SplitNoise
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.sampling import noise_of
from rankmill.trainer.workers import Team
from tests import naive
from tests.naive_samples import noisy
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.grown import nodes_of
from tests.trainer.planted import fit, small_data
from tests.trainer.small_case import TOP, small_case


def grower_of(bins, **parameters):
    given = {"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0, **parameters}
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], TOP, dtype=np.int32))
    return Grower(layout, fixed(**given), Team(1))


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)


# -- l2_scale --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
def test_lambda_in_units_of_the_mean_hessian_is_lambda_times_the_mean_hessian(grow):
    bins, g, h = small_case(1, n=64)
    shape = {"grow": grow, "max_depth": 3}
    plain = grower_of(bins, lambda_l2=1.5 * h.mean(), **shape).grow(g, h, np.zeros(64))
    scaled = grower_of(bins, lambda_l2=1.5, l2_scale="mean_hessian", **shape).grow(g, h, np.zeros(64))
    assert plain.n_leaves > 3
    assert same(plain, scaled)


def test_a_loss_of_another_scale_gives_the_same_trees_with_a_scaled_lambda():
    bins, g, h = small_case(2, n=64)
    small = grower_of(bins, lambda_l2=4.0, l2_scale="mean_hessian").grow(g / 1024, h / 1024, np.zeros(64))
    large = grower_of(bins, lambda_l2=4.0, l2_scale="mean_hessian").grow(g, h, np.zeros(64))
    assert np.array_equal(small.value, large.value)
    assert np.array_equal(small.feature, large.feature)


def test_a_model_names_a_younger_option_only_where_it_is_set():
    usual = Forest.from_bytes(fit(small_data(), n_rounds=2).forest.to_bytes())
    scaled = fit(small_data(), n_rounds=2, lambda_l2=1.0, l2_scale="mean_hessian").forest
    assert "l2_scale" not in usual.parameters
    assert scaled.parameters["l2_scale"] == "mean_hessian"
    with refused(InvalidParameter, "l2_scale", "none", "mean_hessian"):
        fit(small_data(), n_rounds=3, l2_scale="mean_hessian", options={"resume": usual})


# -- lambda_l1, max_delta_step, path_smooth --------------------------------------------------------------------------

HOLDS = [
    {"lambda_l1": 0.7},
    {"max_delta_step": 0.3},
    {"path_smooth": 9.0},
    {"lambda_l1": 0.4, "max_delta_step": 0.5, "path_smooth": 4.0, "lambda_l2": 0.5},
]


def shrunk(slope, least):
    return np.sign(slope) * max(abs(slope) - least, 0.0)


def held_value(g, h, n_rows, above, *, lambda_l1=0.0, max_delta_step=0.0, path_smooth=0.0, lambda_l2=0.0):
    """The value of a node with sums ``g`` and ``h``; ``above``: that of its parent, None for the root."""
    value = -shrunk(g, lambda_l1) / (h + lambda_l2)
    if max_delta_step:
        value = np.clip(value, -max_delta_step, max_delta_step)
    if path_smooth and above is not None:
        share = n_rows / path_smooth
        value = value * share / (share + 1) + above / (share + 1)  # as LightGBM
    return value


def gain_held(g, h, left, own, *, lambda_l1=0.0, lambda_l2=0.0, **held):
    """The gain of a split of a node whose value is ``own``; rows of sides are estimated by their hessian."""

    def of_value(g, h, value):
        return -(2.0 * shrunk(g, lambda_l1) * value + (h + lambda_l2) * value**2)

    gain = -of_value(g.sum(), h.sum(), own)
    for side in (left, ~left):
        rows = len(g) * h[side].sum() / h.sum()
        value = held_value(g[side].sum(), h[side].sum(), rows, own, lambda_l1=lambda_l1, lambda_l2=lambda_l2, **held)
        gain += of_value(g[side].sum(), h[side].sum(), value)
    return gain


def values_held(tree, rows_of_nodes, g, h, held):
    """The value of each node, from its rows alone; an empty one has that of the node above."""
    values = {0: held_value(g.sum(), h.sum(), len(g), None, **held)}
    for node in np.flatnonzero(tree.left >= 0):
        for child in (int(tree.left[node]), int(tree.right[node])):
            rows = rows_of_nodes[child]
            above = values[int(node)]
            values[child] = held_value(g[rows].sum(), h[rows].sum(), len(rows), above, **held) if len(rows) else above
    return values


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("held", HOLDS, ids=str)
@pytest.mark.parametrize("grow", ["best_first", "breadth_first", "depth_first"])
def test_nodes_have_the_best_splits_and_values_by_the_formulas(seed, held, grow):
    bins, g, h = small_case(seed, n=70)
    tree = grower_of(bins, max_leaves=8, grow=grow, **held).grow(g, h, np.zeros(70))
    nodes = nodes_of(tree, bins)
    values = values_held(tree, nodes, g, h, held)
    assert tree.n_leaves > 1
    for node, rows in enumerate(nodes):
        assert tree.value[node] == pytest.approx(values[node], rel=1e-9, abs=1e-12)
        if tree.feature[node] < 0:
            continue
        ways = itertools.product(range(bins.shape[1]), range(1, TOP), (False, True))
        lefts = [(f, b, naive.goes_left(bins[rows, f], b, m)) for f, b, m in ways]
        gains = [
            (gain_held(g[rows], h[rows], x, values[node], **held), f, b) for f, b, x in lefts if x.any() and not x.all()
        ]
        best = max(gains)[0]
        assert tree.gain[node] == pytest.approx(best, rel=1e-9)
        assert any((f, b) == (tree.feature[node], tree.threshold[node]) and gain > best - 1e-9 for gain, f, b in gains)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("held", HOLDS, ids=str)
def test_levels_have_the_best_splits_and_values_by_the_formulas(seed, held):
    bins, g, h = small_case(seed, n=70)
    tree = grower_of(bins, max_depth=3, grow="oblivious", **held).grow(g, h, np.zeros(70))
    nodes = nodes_of(tree, bins)
    values = values_held(tree, nodes, g, h, held)
    for node in range(len(nodes)):
        assert tree.value[node] == pytest.approx(values[node], rel=1e-9, abs=1e-12)
    for first in (0, 1, 3):
        if tree.feature[first] < 0:
            break
        gains = []
        for f, b, m in itertools.product(range(bins.shape[1]), range(1, TOP), (False, True)):
            gain = 0.0
            for node in range(first, 2 * first + 1):
                rows = nodes[node]
                left = naive.goes_left(bins[rows, f], b, m)
                gain += (
                    gain_held(g[rows], h[rows], left, values[node], **held) if left.any() and not left.all() else 0.0
                )
            gains.append((gain, f, b))
        best = max(gains)[0]
        assert tree.gain[first : 2 * first + 1].sum() == pytest.approx(best, rel=1e-9)
        assert any(
            (f, b) == (tree.feature[first], tree.threshold[first]) and gain > best - 1e-9 for gain, f, b in gains
        )


@pytest.mark.parametrize("shape", [{"grow": "best_first"}, {"grow": "oblivious", "max_depth": 4}])
@pytest.mark.parametrize("options", [{}, {"criterion": "se"}, {"leaf": "exact"}, {"objective": "laplace"}])
def test_no_leaf_is_above_the_maximum_and_a_large_l1_leaves_nothing(shape, options):
    given = {"n_rounds": 4, "learning_rate": 0.5, "watch": False, **shape, **options}
    forest = fit(small_data(), max_delta_step=0.01, **given).forest
    assert 0.0 < np.abs(forest.node_value).max() <= 0.5 * 0.01 * (1 + 1e-12)
    if "objective" not in options:
        nothing = fit(small_data(), lambda_l1=1e6, **given).forest
        assert not np.abs(nothing.node_value).any()
    smooth = fit(small_data(), path_smooth=1e9, **given).forest
    assert np.ptp(smooth.node_value[: smooth.tree_starts[1]]) < 1e-4


@pytest.mark.parametrize("name", ["lambda_l1", "max_delta_step", "path_smooth"])
def test_what_holds_values_back_is_refused_with_the_loss_as_criterion_and_below_0(name):
    with refused(InvalidParameter, name, "ole"):
        fit(small_data(), criterion="ole", **{name: 1.0})
    with refused(InvalidParameter, name, "0"):
        fixed(**{name: -1.0})


# -- random_strength -------------------------------------------------------------------------------------------------

NOISE = SplitNoise(2.0, np.uint64(12345))


def deviation_of(g, h):
    return NOISE.strength * np.sqrt((g**2).sum() / h.sum())


def best_by_feature(found):
    """Return {feature: (gain, feature, threshold, missing_left)}, the first of equals."""
    best = {}
    for split in found:
        if split[0] > 1e-12 and split[0] > best.get(split[1], (0.0,))[0]:
            best[split[1]] = split
    return best


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("bounds", [{}, {"lambda_l2": 0.5}, {"min_rows": 7}])
@pytest.mark.parametrize("grow", ["best_first", "breadth_first", "depth_first"])
def test_each_node_has_the_split_that_trying_everything_with_the_noise_finds(seed, bounds, grow):
    bins, g, h = small_case(seed, n=70)
    given = {"lambda_l2": bounds.get("lambda_l2", 0.0), "min_rows_in_leaf": bounds.get("min_rows", 1)}
    tree = grower_of(bins, max_leaves=8, grow=grow, **given).grow(g, h, np.zeros(70), noise=NOISE)
    others = 0
    for node, rows in enumerate(nodes_of(tree, bins)):
        if tree.feature[node] < 0:
            continue
        score = g[rows].sum() ** 2 / (h[rows].sum() + given["lambda_l2"])
        best = best_by_feature(naive.splits(bins[rows], g[rows], h[rows], **bounds))
        keys = {f: noisy(best[f][0], score, deviation_of(g, h), int(NOISE.key), node, f) for f in best}
        gain, feature, threshold, _ = best[max(keys, key=keys.get)]
        assert (tree.feature[node], tree.threshold[node]) == (feature, threshold)
        assert tree.gain[node] == pytest.approx(gain, rel=1e-9)  # the true one
        others += gain < max(split[0] for split in best.values())
    assert others > 0


def gain_of(bins, g, h, way, *, lambda_l2=0.0, min_rows=1):
    feature, threshold, missing_left = way
    left = naive.goes_left(bins[:, feature], threshold, missing_left)
    return naive.split_gain(g, h, left, lambda_l2) if min(left.sum(), (~left).sum()) >= min_rows else 0.0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("bounds", [{}, {"lambda_l2": 0.5}, {"min_rows": 7}])
def test_each_level_has_the_split_that_trying_everything_with_the_noise_finds(seed, bounds):
    bins, g, h = small_case(seed, n=70)
    given = {"lambda_l2": bounds.get("lambda_l2", 0.0), "min_rows_in_leaf": bounds.get("min_rows", 1)}
    tree = grower_of(bins, max_depth=3, grow="oblivious", **given).grow(g, h, np.zeros(70), noise=NOISE)
    nodes = nodes_of(tree, bins)
    for depth in range(3):
        first = 2**depth - 1
        leaves = nodes[first : 2 * first + 1]
        ways = itertools.product(range(bins.shape[1]), range(1, TOP), (False, True))
        gains = {way: sum(gain_of(bins[rows], g[rows], h[rows], way, **bounds) for rows in leaves) for way in ways}
        score = sum(g[rows].sum() ** 2 / (h[rows].sum() + given["lambda_l2"]) for rows in leaves if len(rows))
        best = best_by_feature((gain, *way) for way, gain in gains.items())
        keys = {f: noisy(best[f][0], score, deviation_of(g, h), int(NOISE.key), first, f) for f in best}
        gain, feature, threshold, _ = best[max(keys, key=keys.get)]
        assert (tree.feature[first], tree.threshold[first]) == (feature, threshold)
        assert tree.gain[first : 2 * first + 1].sum() == pytest.approx(gain, rel=1e-9)


@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
def test_noise_of_strength_0_is_none_and_that_of_trees_differs(grow):
    shape = {"grow": grow, "max_depth": 3, "n_rounds": 8}
    silent, noisy_too = fit(small_data(), **shape), fit(small_data(), random_strength=1.0, **shape)
    assert fit(small_data(), random_strength=0.0, **shape).forest.sha256 == silent.forest.sha256
    assert noisy_too.forest.sha256 != silent.forest.sha256
    assert fit(small_data(), random_strength=1.0, **shape).forest.sha256 == noisy_too.forest.sha256
    keys = {int(noise_of(fixed(), 1, tree, 100).key) for tree in range(1, 100)}
    assert len(keys) == 99


def test_noise_fades_with_the_rounds_and_later_where_there_are_more_documents():
    parameters = fixed(random_strength=2.0, learning_rate=0.1)
    strengths = [noise_of(parameters, number, number, 1000).strength for number in range(1, 200)]
    assert strengths == sorted(strengths, reverse=True)
    assert strengths[0] == pytest.approx(2.0 * 1000 / 1001, rel=1e-9)
    assert strengths[70] == pytest.approx(2.0 * 1000 / (1000 + np.exp(7.0)), rel=1e-9)
    assert noise_of(parameters, 71, 71, 10_000).strength > strengths[70]
    assert 0.0 <= noise_of(parameters, 10**6, 10**6, 1000).strength < 1e-100


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_noise_does_not_depend_on_the_scale_of_the_loss(factor):
    bins, g, h = small_case(3, n=64)
    one, other = (grower_of(bins).grow(g * f, h * f, np.zeros(64), noise=NOISE) for f in (1.0, factor))
    assert np.array_equal(one.feature, other.feature)
    assert np.array_equal(one.value, other.value)


def test_noise_with_the_loss_as_criterion_is_refused():
    with refused(InvalidParameter, "random_strength", "ole"):
        fit(small_data(), criterion="ole", random_strength=1.0)
