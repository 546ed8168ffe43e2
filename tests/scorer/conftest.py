"""Fixtures of this folder."""

from __future__ import annotations

import pytest

from rankmill.scorer.forest import Forest
from tests.scorer.candidate_files import random_candidates
from tests.scorer.forests import random_forest


@pytest.fixture(scope="module")
def forest() -> Forest:
    """A model that ranks :func:`random_candidates`."""
    return random_forest(5, n_trees=10, max_leaves=12, info={"max_grade": 4})


@pytest.fixture(scope="module")
def rows() -> list:
    """Candidates of which some have no id."""
    return random_candidates(1, nameless=0.2)
