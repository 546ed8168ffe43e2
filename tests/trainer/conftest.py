"""Fixtures of this folder."""

from __future__ import annotations

import pytest

from rankmill.pipeline.dataset.dataset import Dataset
from tests.trainer.small_dataset import small_dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A small dataset that all tests read and none writes."""
    return small_dataset(tmp_path_factory.mktemp("dataset"))
