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
