"""Quality on real judgments: the five official folds of MQ2008, averaged over three seeds."""

from __future__ import annotations

import pytest

from benchmarks import letor5
from rankmill.scorer.metrics import Policy, parse_metric
from tests.trainer.fixed import fixed


@pytest.fixture(scope="module")
def folds(test_data, tmp_path_factory):
    work = tmp_path_factory.mktemp("folds")
    found = [letor5.make_fold(test_data / "mq2008", number, work) for number in range(letor5.PARTS)]
    assert (sum(len(fold.test.sizes) for fold in found), sum(len(fold.test.grades) for fold in found)) == (784, 15_211)
    return found


@pytest.mark.slow
def test_mean_ndcg_and_map_are_at_least_their_bounds(folds):
    """0.500 NDCG@10 and 0.472 MAP with exponential gain, queries with nothing relevant counted as 0."""
    parameters = fixed(max_leaves=10, learning_rate=0.05, n_rounds=1000, early_stopping_rounds=100)
    policy = Policy(nothing_relevant="zero", max_grade=2)
    values, _ = letor5.measure(folds, letor5.ours(parameters), [1, 2, 3], policy)
    means = dict(zip(letor5.METRICS, values.mean(axis=(0, 1)), strict=True))
    assert means[parse_metric("ndcg@10")] >= 0.500
    assert means[parse_metric("map")] >= 0.472
