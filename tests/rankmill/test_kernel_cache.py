"""A cache of kernels in a folder that nobody may write is read; held against the Numba that is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = """
from numba import njit

@njit(cache=True)
def twice(x):
    return x + x
"""

CALL = """
import json, sys
from numba.core import event
with event.install_recorder("numba:compile") as compiled:
    from kernels import twice
    values = [twice(eval(text)) for text in sys.argv[1:]]
print(json.dumps({"values": values, "compiled": sum(record.is_start for _, record in compiled.buffer)}))
"""

# root may write everywhere: it is a test only without that right
WITHOUT_RIGHTS = ["setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []


def call(folder: Path, *values: str, locator: bool) -> subprocess.CompletedProcess[str]:
    names = {"NUMBA_CACHE_LOCATOR_CLASSES": "rankmill.kernel_cache.ReadableCacheLocator"} if locator else {}
    path = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[2])])
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*WITHOUT_RIGHTS, sys.executable, "-c", CALL, *values],
        env={**clean, "NUMBA_CACHE_DIR": str(folder / "cache"), **names},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root without setpriv may always write"
)
def test_a_cache_that_may_not_be_written_is_read_and_what_it_lacks_is_compiled_without_being_kept(
    tmp_path: Path,
) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    first = call(tmp_path, "1", locator=True)
    assert json.loads(first.stdout or first.stderr) == {"values": [2], "compiled": 1}
    kept = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert len(kept) == 2  # an index and the code

    for path in (*(tmp_path / "cache").rglob("*"), tmp_path / "cache", tmp_path):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        refused = call(tmp_path, "1", locator=False)
        read = call(tmp_path, "4", "1.5", locator=True)
    finally:
        for path in (tmp_path, tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
    assert "no locator available" in refused.stderr  # the day that Numba does it by itself, our module may go
    assert json.loads(read.stdout or read.stderr) == {"values": [8, 3.0], "compiled": 1}
    assert {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()} == kept
