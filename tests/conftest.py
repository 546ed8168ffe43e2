"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

for name in (
    "COLUMNS",
    "LINES",
):  # pytest-xdist's workers have 80 and 24 from readline; a test that needs a width sets it
    os.environ.pop(name, None)

# The first example may compile, and the machine may be busy: how long an example takes says nothing.
settings.register_profile("rankmill", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rankmill")


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder of the public data sets; skips, saying so, where none is named."""
    folder = os.environ.get("RANKMILL_TEST_DATA")
    if not folder:
        pytest.skip("RANKMILL_TEST_DATA is not set: tests on public data sets are left out")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"RANKMILL_TEST_DATA={folder} is not a folder")
    return path


@pytest.fixture(scope="module")
def dask() -> Iterator[Any]:
    """A cluster of two processes."""
    from rankmill.foundation.cluster.workers import open_cluster

    with open_cluster("local:2") as cluster:
        yield cluster
