"""Fixtures of this folder."""

from __future__ import annotations

import pytest

from rankmill.pipeline.dataset import Dataset
from rankmill.scorer.forest import Forest
from tests.rankmill.gate_case import dataset_of, rows_of, trained
from tests.rankmill.small_ranker import planted_arrays


@pytest.fixture(scope="module")
def arrays():
    """(X, y, qid) with a planted signal."""
    return planted_arrays()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The dataset of the tests of the gate."""
    return dataset_of(tmp_path_factory.mktemp("real"), "real", *rows_of(1))


@pytest.fixture(scope="module")
def model(real: Dataset) -> Forest:
    """A model that was trained on it."""
    return trained(real)
