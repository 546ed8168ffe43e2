"""Options that hold a tree back: lambda in units of the mean hessian, and noise on split scores."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest import Forest
from rankmill.trainer.growing.grower import Grower, SplitNoise
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.sampling import noise_of
from rankmill.trainer.workers import Team
from tests.refusals import refused
from tests.trainer.fixed import fixed
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
