"""Fixtures of this folder."""

import pytest

from tests.trainer.small_dataset import small_dataset


@pytest.fixture(autouse=True)
def little_work_is_shared(monkeypatch):
    """Let the small trainings of these tests have all threads that they ask for."""
    monkeypatch.setattr("rankmill.trainer.team.LEAST_CELLS", 1)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A small dataset that all tests read and none writes."""
    return small_dataset(tmp_path_factory.mktemp("dataset"))
