"""Style is part of the tests, and types, which take a minute or more, of the slow ones.  `make lint` checks both."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import ROOT

FOLDERS = ("rankmill", "pipeline", "trainer", "scorer", "registry", "foundation", "tests", "benchmarks")


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "--quiet", *FOLDERS),
        ("ruff", "format", "--check", "--quiet", *FOLDERS),
        pytest.param(("mypy",), marks=pytest.mark.slow),
    ],
    ids=["style", "format", "types"],
)
def test_the_rules_of_the_code_hold(command: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
