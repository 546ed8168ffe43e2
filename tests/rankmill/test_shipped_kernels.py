"""Kernels that come with a package are used where they are whole and fit, never elsewhere, and never changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankmill.foundation.kernels.compiling import LEVEL, SHIPPED
from rankmill.shipped import collect
from tests import ROOT

KERNELS = """
from rankmill.foundation.kernels.compiling import kernel

@kernel
def half(x):
    return x / 2

@kernel
def twice(x):
    return half(4 * x)
"""

RUN = """
import json, os, sys
from pathlib import Path
import numba
from numba.core import config, event
import rankmill

PACKAGE = Path(rankmill.__path__[0])
SOURCE = PACKAGE / "made" / "_kernels.py"
CODES = sorted((PACKAGE / "compiled").rglob("*.twice.*"))

def answer(number, case):
    config.CACHE_DIR = str(PACKAGE.parent / f"cache-{number}")
    exec(case, globals())
    from rankmill.foundation.kernels import compiling
    said = []
    with event.install_recorder("numba:compile") as compiled, compiling.compilation_announced(said.append):
        from rankmill.made._kernels import twice
        value = twice(3)
    return value, sum(record.is_start for _, record in compiled.buffer), said

for number, case in enumerate(sys.argv[1:]):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(answer(number, case)).encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    print(os.read(reader, 9999).decode() or "[]")
"""
FEATURES = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+sahf,+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
MORE = ["compiling kernels that were not needed here before; they are kept"]
NATIVE = "config.CACHE_DIR = str(PACKAGE.parent / 'native')"
CASES = {
    f"config.CPU_NAME, config.CPU_FEATURES = 'znver5', {FEATURES!r}": (0, False),
    f"config.CPU_NAME, config.CPU_FEATURES = 'znver5', {FEATURES.replace('+fma', '-fma')!r}": (2, False),  # no level v3
    f"{NATIVE}; from rankmill.foundation.kernels import compiling as c; w = c.without_shipped_kernels(); w.__enter__()": (
        2,
        True,
    ),
    "numba.__version__ = '0.1.2'": (2, False),
    "import numpy; numpy.__version__ = numpy.__version__.rpartition('.')[0] + '.77'": (0, False),
    "[code.write_bytes(code.read_bytes()[:-9]) for code in CODES]": (1, True),
    NATIVE: (0, True),  # those of this machine come first
    "SOURCE.write_text(SOURCE.read_text().replace('4 *', '8 *'))": (2, True),
}
"""What is done before the first call, how many of two kernels are compiled then, and whether others of the package are used."""


def run(folder: Path, *cases: str, **settings: str) -> list[tuple[float, int, list[str]]]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *cases],
        cwd=folder,
        env=environment | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of two kernels that are compiled for the level, as in a wheel."""
    package = tmp_path / "rankmill"
    shutil.copytree(ROOT / "foundation", package / "foundation", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "made").mkdir()
    (package / "__init__.py").touch()
    (package / "made" / "__init__.py").touch()
    (package / "made" / "_kernels.py").write_text(KERNELS)
    first = run(tmp_path, "config.CACHE_DIR = ''", NUMBA_CPU_NAME=LEVEL, NUMBA_CPU_FEATURES="")
    assert first[0][:2] == (6, 2)
    assert len(collect(package)) == 2
    return package


def held(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(LEVEL == "generic", reason="levels are those of x86-64")
def test_shipped_kernels_are_used_where_they_fit_and_others_compiled(package: Path) -> None:
    folder, before = package.parent, held(package / "compiled")
    for path in (package / "compiled").rglob("*"):
        path.chmod(path.stat().st_mode & ~0o222)
    found = dict(zip(CASES, run(folder, *CASES), strict=True))
    fits = f"config.CPU_NAME, config.CPU_FEATURES = 'znver5', {FEATURES!r}"
    assert found[fits] == (6, 0, [])
    for case, (compiled, some) in CASES.items():
        value, count, said = found[case]
        assert (value, count) == (12 if "8 *" in case else 6, compiled), case
        assert (said == MORE) == (some and compiled > 0), case
        assert len(said) == (compiled > 0), case
    assert not list((package / "made").rglob("*.nbc"))
    assert before.keys() >= held(package / "compiled").keys()
    assert SHIPPED.name in next(iter(before))
