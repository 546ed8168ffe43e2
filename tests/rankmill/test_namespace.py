"""All code is imported as ``rankmill.*``: a user's own ``pipeline.py`` or ``trainer.py`` is never taken for ours."""

import os
import subprocess
import sys

import pytest

from tests import ROOT

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


@pytest.mark.slow
def test_every_module_is_imported_beside_a_users_own(tmp_path):
    for room in ROOMS:
        (tmp_path / f"{room}.py").write_text("raise ImportError('this is not rankmill')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    command = [sys.executable, "-c", EVERY_MODULE.replace("{ROOMS}", repr(set(ROOMS)))]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert int(first.split()[0]) > 250
    assert first.split()[1:] == sorted(ROOMS)
    assert second == ""
