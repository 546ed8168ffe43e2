from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankmill.scorer.forest import feature_importance
from tests.scorer.forests import random_forest


def test_influence_is_the_share_of_a_feature_in_the_gains() -> None:
    forest = random_forest(1)
    gains = dict.fromkeys(range(forest.n_features), 0.0)
    for feature, gain in zip(forest.node_feature.tolist(), forest.node_gain.tolist(), strict=True):
        if feature >= 0:
            gains[feature] += gain
    found = feature_importance(forest)
    assert found == pytest.approx([gain / sum(gains.values()) for gain in gains.values()])
    assert found.sum() == pytest.approx(1.0)


def test_without_gains_splits_count_by_their_documents_and_without_these_alike() -> None:
    forest = random_forest(2)
    nothing = np.zeros(len(forest.node_gain))
    by_rows = replace(forest, node_gain=nothing)
    as_gains = replace(forest, node_gain=np.where(forest.node_feature >= 0, forest.node_rows, 0))
    assert feature_importance(by_rows).tolist() == feature_importance(as_gains).tolist()
    counted = np.bincount(forest.node_feature[forest.node_feature >= 0], minlength=forest.n_features)
    bare = replace(by_rows, node_rows=nothing.astype(np.int64))
    assert feature_importance(bare) == pytest.approx(counted / counted.sum())


def test_gains_of_a_damaged_file_are_shares_still() -> None:
    forest = random_forest(3)
    inner = forest.node_feature >= 0
    for gains in (np.where(np.arange(len(inner)) % 2, 1.0, -1.0), np.full(len(inner), 1e308)):
        found = feature_importance(replace(forest, node_gain=np.where(inner, gains, 0.0)))
        assert np.all(found >= 0.0)
        assert found.sum() == pytest.approx(1.0)


def test_without_a_split_nothing_has_influence() -> None:
    assert feature_importance(random_forest(0).truncated(0)).tolist() == [0.0] * 5
