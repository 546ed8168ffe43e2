"""Only ratios of weights count: scaling all of them changes no byte of trees and no metric, whatever the loss."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.trainer.planted import rows_of, small_data
from trainer.boosting import boost
from trainer.objectives.registry import OBJECTIVES
from trainer.parameters import TrainParameters
from trainer.rows import Preferences


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "user"])  # which needs a function
def test_scaling_all_weights_changes_nothing(name):
    data = small_data()
    rng = np.random.default_rng(11)
    n, n_queries = len(data[0][1]), len(data[0][2]) - 1
    weights, of_query = rng.uniform(0.1, 2.0, size=n), rng.uniform(0.1, 2.0, size=n_queries)

    def trained(scale, of_queries):
        rows = replace(rows_of(data[0], data[2]), weights=weights * scale, query_weights=of_query * of_queries)
        return boost(
            rows, [], [f.edges for f in data[2].features], data[2].feature_names,
            TrainParameters(objective=name, n_rounds=4, max_leaves=8), max_grade=4, n_threads=1,
        )  # fmt: skip

    one = trained(1.0, 1.0)
    for scale, of_queries in ((8.0, 1.0), (1.0, 0.25)):  # powers of two: the ratios keep their last bits
        two = trained(scale, of_queries)
        assert one.history == two.history
        for part in ("node_value", "node_feature", "node_cut", "cuts", "node_gain"):
            assert np.array_equal(getattr(one.forest, part), getattr(two.forest, part)), part


@pytest.mark.parametrize("name", ["ranknet", "rankboost", "lambdamart", "gbrank"])
def test_scaling_the_weights_of_all_pairs_changes_nothing(name):
    data = small_data()
    rng = np.random.default_rng(12)
    starts = data[0][2]
    better = np.concatenate([rng.permutation(np.arange(a, b))[:4] for a, b in pairwise(starts)])
    worse = np.concatenate([np.full(4, a) for a in starts[:-1]])
    keep = better != worse
    of = np.searchsorted(starts, better[keep], side="right") - 1
    weight = rng.uniform(0.1, 2.0, size=int(keep.sum()))

    def trained(scale):
        pairs = Preferences(
            better[keep].astype(np.int32), worse[keep].astype(np.int32), weight * scale, np.ones(int(keep.sum())),
            np.searchsorted(of, np.arange(len(starts))).astype(np.int64),
        )  # fmt: skip
        return boost(
            replace(rows_of(data[0], data[2]), pairs=pairs), [], [f.edges for f in data[2].features],
            data[2].feature_names, TrainParameters(objective=name, n_rounds=4, max_leaves=8), max_grade=4, n_threads=1,
        )  # fmt: skip

    one, two = trained(1.0), trained(4.0)
    assert np.array_equal(one.forest.node_value, two.forest.node_value)
    assert one.history == two.history
