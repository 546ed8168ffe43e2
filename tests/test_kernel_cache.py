"""What the cache of compiled kernels promises; held against the Numba that is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.errors import TypingError

from rankmill.foundation.kernels.compiling import _LockedFiles
from rankmill.foundation.kernels.randoms import uniform

KERNELS = """
from rankmill.foundation.kernels.compiling import kernel

@kernel
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

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("foundation", "pipeline", "scorer", "trainer")

# root may write everywhere: it is a test only without that right
WITHOUT_RIGHTS = ["setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []


def call(folder: Path, *values: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(ROOT)])
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*WITHOUT_RIGHTS, sys.executable, "-c", CALL, *values],
        env={**clean, "NUMBA_CACHE_DIR": str(folder / "cache")},
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
    first = call(tmp_path, "1")
    assert json.loads(first.stdout or first.stderr) == {"values": [2], "compiled": 1}
    kept = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert len(kept) == 3  # an index, the code and the lock

    for path in (*(tmp_path / "cache").rglob("*"), tmp_path / "cache", tmp_path):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        read = call(tmp_path, "4", "1.5")
    finally:
        for path in (tmp_path, tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
    assert json.loads(read.stdout or read.stderr) == {"values": [8, 3.0], "compiled": 1}
    assert {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()} == kept


ARRAYS = """
import numpy as np
from rankmill.foundation.kernels.compiling import kernel

@kernel(allocates=True)
def made(n):
    return np.zeros(n)

@kernel
def part(array, k):
    return array[k:], k

@kernel(inline="always")
def part_of(array, k):
    return array[k:]

@kernel
def twice(x):
    return part_of(np_array, 1)[0] * x

np_array = np.array([1, 2, 3])
"""


@pytest.mark.parametrize("name", ["made(3)", "part(np_array, 1)"])
def test_no_kernel_returns_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Kernels count no references, so that they would never free what another one returned."""
    (tmp_path / "returning.py").write_text(ARRAYS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "returning", raising=False)
    import returning

    assert returning.twice(3) == 6
    with pytest.raises((TypeError, TypingError), match="array"):
        eval(f"returning.{name}", {"returning": returning, "np_array": returning.np_array})


PAIR = """
from typing import NamedTuple
from rankmill.foundation.kernels.compiling import kernel

class {0}(NamedTuple):
    left: int
    right: int

@kernel
def add(pair):
    return pair.left + pair.right

def twice(x):
    return add({0}(x, x))
"""


def test_a_cache_that_names_what_is_gone_or_was_cut_off_is_compiled_anew(tmp_path: Path) -> None:
    """The index of an older version names its argument types, and a full disk or a crash may leave half a file."""
    kernels = tmp_path / "kernels.py"
    for number, name in enumerate(("Couple", "Pair")):
        kernels.write_text(PAIR.format(name))
        os.utime(kernels, (number, number))
        found = call(tmp_path, "3")
        assert json.loads(found.stdout or found.stderr) == {"values": [6], "compiled": 1}
    kept = call(tmp_path, "3")
    assert json.loads(kept.stdout or kept.stderr) == {"values": [6], "compiled": 0}
    for ending in ("nbi", "nbc"):
        for path in (tmp_path / "cache").rglob(f"*.{ending}"):
            path.write_bytes(path.read_bytes()[:-20])
        found = call(tmp_path, "3")
        assert json.loads(found.stdout or found.stderr) == {"values": [6], "compiled": 1}


COMPILED = """
import json, sys
from numba.core import event
from rankmill.foundation.kernels.randoms import uniform
from rankmill.trainer import _kernels
import numpy as np
with event.install_recorder("numba:compile") as compiled:
    out = np.zeros(3)
    _kernels.absolute_sums(np.ones(3), 1, 0, 3, out)
    value = uniform(np.uint64(7))
functions = {record.data["dispatcher"].py_func for _, record in compiled.buffer}
names = sorted(f.__name__ for f in functions if f.__module__.startswith("rankmill."))
print(json.dumps({"value": value, "compiled": names}))
"""


def test_an_edit_in_a_shared_file_compiles_those_anew_that_use_it_and_no_edit_compiles_nothing(tmp_path: Path) -> None:
    package = tmp_path / "rankmill"
    package.mkdir()
    (package / "__init__.py").touch()
    for room in ROOMS:
        shutil.copytree(ROOT / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))

    def run() -> dict[str, Any]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", COMPILED],
            env={**environment, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    first, second = run(), run()
    assert first == {"value": uniform(np.uint64(7)), "compiled": ["absolute_sums", "uniform"]}
    assert second == {**first, "compiled": []}
    shared = package / "foundation" / "kernels" / "randoms.py"
    shared.write_text(shared.read_text().replace(") + 0.5) *", ") + 0.25) *"))
    third = run()
    assert third["compiled"] == ["absolute_sums", "uniform"]  # one key for all: simple, and never wrong
    assert third["value"] == 0.5 * first["value"]
    assert run()["compiled"] == []


TURNS = """
import sys, time
import numpy as np
from rankmill.foundation.kernels.compiling import _LockedFiles

files = _LockedFiles(sys.argv[1], "kernel", "stamp")
for number in range(int(sys.argv[2]), 40, 4):
    files.save(number, number)
"""


def test_processes_that_save_at_once_lose_and_mix_nothing(tmp_path: Path) -> None:
    savers = [subprocess.Popen([sys.executable, "-c", TURNS, str(tmp_path), str(k)], cwd=ROOT) for k in range(4)]
    assert [saver.wait() for saver in savers] == [0] * 4
    files = _LockedFiles(str(tmp_path), "kernel", "stamp")
    assert [files.load(number) for number in range(40)] == list(range(40))
    assert _LockedFiles(str(tmp_path), "kernel", "another").load(1) is None


def test_machine_code_is_there_before_the_index_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _LockedFiles(str(tmp_path), "kernel", "stamp")

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_save_index", killed)
    with pytest.raises(KeyboardInterrupt):
        files.save(1, "code")
    assert files.load(1) is None
