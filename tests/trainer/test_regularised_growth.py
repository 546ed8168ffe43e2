"""Options that hold a tree back: lambda in units of the mean hessian, and noise on split scores."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest import Forest
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.workers import Team
from tests.refusals import refused
from tests.trainer.planted import fit, small_data
from tests.trainer.small_case import TOP, small_case


def grower_of(bins, **parameters):
    given = {"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0, **parameters}
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], TOP, dtype=np.int32))
    return Grower(layout, TrainParameters(**given), Team(1))


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
