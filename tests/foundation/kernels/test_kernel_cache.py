"""What the cache of compiled kernels promises; held against the Numba that is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.errors import TypingError

from rankmill.foundation.kernels.compiling import _KernelFiles, sources_digest
from rankmill.foundation.kernels.randoms import uniform
from tests import ROOT
from tests.waiting import until

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
    assert len(kept) == 2  # the code and the lock

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
    {1}: int
    {2}: int

@kernel
def less(pair):
    return pair.left - 2 * pair.right

def twice(x):
    return less({0}(x, 2 * x))
"""


@pytest.mark.slow
def test_a_cache_with_missing_or_damaged_files_is_compiled_again(tmp_path: Path) -> None:
    """Machine code of an older version names its argument types, and a full disk or a crash may leave half a file."""
    kernels = tmp_path / "kernels.py"
    for names in (("Couple", "left", "right"), ("Pair", "left", "right"), ("Pair", "right", "left")):
        kernels.write_text(PAIR.format(*names))
        os.utime(kernels, (1, 1))
        found = call(tmp_path, "3")
        value = -9 if names[1] == "left" else 0
        assert json.loads(found.stdout or found.stderr) == {"values": [value], "compiled": 1}
    (code,) = (tmp_path / "cache").rglob("*.nbc")  # what older sources had left is deleted
    whole = code.read_bytes()
    code.write_bytes(whole[:-20])
    found = call(tmp_path, "3")
    assert json.loads(found.stdout or found.stderr) == {"values": [0], "compiled": 1}
    assert code.read_bytes() == whole


def test_a_file_that_was_damaged_holds_nothing(tmp_path: Path) -> None:
    files = _KernelFiles(str(tmp_path), "kernel", "stamp")
    files.save(1, "code")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (*(whole[:size] for size in range(len(whole))), *(flip(whole, at) for at in range(len(whole)))):
        path.write_bytes(damaged)
        assert files.load(1) is None
    path.write_bytes(whole)
    assert files.load(1) == "code"


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


HELPERS = {
    "kernels.py": "from helper import SCALE\nfrom rankmill.foundation.kernels.compiling import kernel\n"
    "@kernel\ndef twice(x):\n    return x * SCALE\n",
    "helper.py": "import deeper\nfrom rankmill.foundation.kernels.randoms import GOLDEN\nSCALE = deeper.SCALE\n",
    "deeper.py": "SCALE = 2\n",
    "unused.py": "SCALE = 2\n",
}


@pytest.mark.slow
def test_a_constant_of_a_module_that_is_imported_by_an_imported_one_counts(tmp_path: Path) -> None:
    for name, text in HELPERS.items():
        (tmp_path / name).write_text(text)
    answers = []
    for name, text in (("unused.py", "SCALE = 3\n"), ("unused.py", ""), ("deeper.py", "SCALE = 3\n")):
        (tmp_path / name).write_text(text)
        found = call(tmp_path, "2")
        answers.append(json.loads(found.stdout or found.stderr))
    assert answers == [
        {"values": [4], "compiled": 1},
        {"values": [4], "compiled": 0},
        {"values": [6], "compiled": 1},
    ]


IMPORTS = {
    "from made.b import X": True,
    "from made import b": True,
    "from made import (\n    c,  # first\n    b,\n)": True,
    "from made import c, \\\n    b": True,
    "import made.b as other": True,
    "import made.c, made.b": True,
    "if True:\n    from made.b import X": True,
    "from . import b": True,
    "from .b import X": True,
    "from made.c import X": False,
    "import numpy as np": False,
}


@pytest.mark.parametrize("line", IMPORTS)
def test_every_way_to_import_is_seen(tmp_path: Path, line: str) -> None:
    package = tmp_path / "made"
    package.mkdir()
    for name, text in (("__init__", ""), ("a", f"{line}\n"), ("b", "X = 1\n"), ("c", "X = 1\n")):
        (package / f"{name}.py").write_text(text)
    before = sources_digest("made.a", package / "a.py")
    (package / "b.py").write_text("X = 12\n")
    assert (sources_digest("made.a", package / "a.py") != before) is IMPORTS[line]


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


@pytest.mark.slow
def test_an_edit_in_a_shared_file_compiles_its_users_again_and_no_edit_compiles_nothing(tmp_path: Path) -> None:
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
    assert third["compiled"] == ["absolute_sums", "uniform"]
    assert third["value"] == 0.5 * first["value"]
    assert run()["compiled"] == []
    other = package / "trainer" / "_kernels.py"
    other.write_text(other.read_text() + "\nNOT_OF_RANDOMS = 1\n")
    assert run()["compiled"] == ["absolute_sums"]  # and nothing of what it imports


MARKED = """
import sys, time
from numba.core import event
from pathlib import Path
import kernels

marks, waits = Path(sys.argv[1]), float(sys.argv[2])

class Mark(event.Listener):
    def on_start(self, compiling):
        name = compiling.data["dispatcher"].py_func.__name__
        with (marks / name).open("a") as mark:
            mark.write("compiled\\n")
        time.sleep(waits)

    def on_end(self, _):
        pass

with event.install_listener("numba:compile", Mark()):
    print(kernels.outer(3))
"""
CALLING = """
from rankmill.foundation.kernels.compiling import kernel

@kernel
def inner(x):
    return x + 1

@kernel
def factorial(n):
    if n < 2:
        return 1
    return n * factorial(n - 1)

@kernel
def outer(x):
    return inner(x) + factorial(x)
"""


def start(folder: Path, waits: float) -> subprocess.Popen[str]:
    """A process that compiles three kernels, marking each, and waits for ``waits`` seconds before each."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, "-c", MARKED, str(folder / "marks"), str(waits)],
        env={**environment, "NUMBA_CACHE_DIR": str(folder / "cache")},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def called(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(CALLING)
    (tmp_path / "marks").mkdir()
    return tmp_path


def test_processes_that_start_at_once_compile_each_kernel_once(called: Path) -> None:
    started = [start(called, 0.2) for _ in range(2)]
    assert [process.communicate()[0] for process in started] == ["10\n"] * 2
    assert [process.returncode for process in started] == [0, 0]
    marks = {path.name: path.read_text() for path in (called / "marks").iterdir()}
    assert marks == dict.fromkeys(("outer", "inner", "factorial"), "compiled\n")
    assert len(list((called / "cache").rglob("*.nbc"))) == 3


def test_a_process_that_is_killed_while_it_compiles_leaves_the_turn_to_the_next(called: Path) -> None:
    killed, mark = start(called, 60), called / "marks" / "outer"
    until(lambda: mark.exists() and mark.read_text(), killed)
    killed.kill()
    killed.communicate()
    next_one = start(called, 0)
    assert next_one.communicate(timeout=60)[0] == "10\n"
    assert mark.read_text() == "compiled\n" * 2


def test_processes_that_save_at_once_lose_and_mix_nothing(tmp_path: Path) -> None:
    files = _KernelFiles(str(tmp_path), "kernel", "stamp")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: _KernelFiles(str(tmp_path), "kernel", "stamp").save(number, number), range(40)))
    assert [files.load(number) for number in range(40)] == list(range(40))
    assert _KernelFiles(str(tmp_path), "kernel", "another").load(1) is None


def test_machine_code_is_published_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _KernelFiles(str(tmp_path), "kernel", "stamp")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            files.save(1, "code")
    assert files.load(1) is None
    files.save(1, "code")
    assert files.load(1) == "code"
    assert len(list(tmp_path.iterdir())) == 1
