"""Fixtures of this folder."""

import pytest

from rankmill.scorer.evaluate import evaluate, slices
from rankmill.scorer.metrics.significance import REPLICATES, percentile_interval
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import random_candidates


@pytest.fixture(autouse=True)
def few_replicates(monkeypatch):
    """Intervals of evaluations take more time than all else; what an interval is, the tests of the metrics say."""

    def of_few(*arguments, replicates=REPLICATES, **options):
        return percentile_interval(*arguments, replicates=min(replicates, 80), **options)

    for module in (evaluate, slices):
        monkeypatch.setattr(module, "percentile_interval", of_few)


@pytest.fixture(scope="module")
def forest():
    """A model that ranks :func:`random_candidates`."""
    return random_forest(5, n_trees=10, max_leaves=12, info={"max_grade": 4})


@pytest.fixture(scope="module")
def rows():
    """Candidates of which some have no id."""
    return random_candidates(1, nameless=0.2)
