"""Fixtures of this folder."""

import pytest

from tests.trainer.small_dataset import small_dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A small dataset that all tests read and none writes."""
    return small_dataset(tmp_path_factory.mktemp("dataset"))
