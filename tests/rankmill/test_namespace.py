"""All code is imported as ``rankmill.*``: a user's own ``pipeline.py`` or ``trainer.py`` is never taken for ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("pipeline", "trainer", "scorer", "registry")

EVERY_MODULE = """
import importlib, pkgutil, sys
import rankmill
from rankmill import Ranker
names = [module.name for module in pkgutil.walk_packages(rankmill.__path__, "rankmill.") if not module.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(len(names), *sorted({name.split(".")[1] for name in names} & {ROOMS}))
print(*sorted(set(sys.modules) & {ROOMS}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which somebody has modules of the same names as our folders."""
    for room in ROOMS:
        (tmp_path / f"{room}.py").write_text("raise ImportError('this is not rankmill')\n")
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_is_imported_beside_a_users_own(folder: Path) -> None:
    first, second = run(folder, "-c", EVERY_MODULE.replace("{ROOMS}", repr(set(ROOMS)))).splitlines()
    assert int(first.split()[0]) > 250
    assert first.split()[1:] == sorted(ROOMS)
    assert second == ""


@pytest.mark.slow
def test_commands_work_beside_a_users_own(folder: Path) -> None:
    run(folder, "-m", "rankmill", "data", "synth", "-o", "judgments.txt", "--queries", "30")
    run(folder, "-m", "rankmill", "data", "ingest", "judgments.txt", "-o", "web.dataset")
    run(folder, "-m", "rankmill", "data", "bin", "web.dataset")
    run(folder, "-m", "rankmill", "train", "web.dataset", "--name", "web", "--n-rounds", "3")
    run(folder, "-m", "rankmill", "models", "promote", "web@1", "--force")
    run(folder, "-m", "rankmill", "rerank", "judgments.txt", "--model", "web", "-o", "ranked")
    assert "ndcg@10" in run(folder, "-m", "rankmill", "evaluate", "ranked")
