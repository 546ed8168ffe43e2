"""Fixtures that the tests of all folders share."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.refusals import only_line

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


class Typed:
    """Runs a command line as it is typed: the words of a text, and further ones."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, text: str, *more: object, code: int = 0) -> tuple[str, str]:
        """Return what the command printed, (stdout, stderr)."""
        from rankmill.cli import execute

        self._capsys.readouterr()
        found = execute([*shlex.split(text), *map(str, more)])
        out, err = self._capsys.readouterr()
        assert found == code, err
        return out, err

    def out(self, text: str, *more: object) -> str:
        return self(text, *more)[0]

    def err(self, text: str, *more: object, code: int = 0) -> str:
        return self(text, *more, code=code)[1]

    def json(self, text: str, *more: object) -> Any:
        """Return the one object on stdout."""
        return json.loads(self(text, *more, "--json")[0])

    def refused(self, text: str, *more: object, code: int = 2) -> str:
        """Return the one line of a command that fails and prints nothing else."""
        out, err = self(text, *more, code=code)
        assert out == ""
        return only_line(err)


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(capsys)
