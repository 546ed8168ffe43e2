"""The one line about compilation comes when it is true, and once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from numba import njit

from trainer.compiling import MESSAGE, compilation_announced


def test_the_first_compilation_is_announced_and_no_other():
    said: list[str] = []

    @njit
    def one(x):
        return x + 1

    @njit
    def two(x):
        return x + 2

    with compilation_announced(said.append):
        assert said == []
        assert one(1) + two(1) == 5
        assert one(1.0) == 2.0  # another type: compiled again
    assert said == [MESSAGE]
    said.clear()
    with compilation_announced(said.append):
        assert one(1) == 2  # compiled already
    assert said == []
    assert two(1.0) == 3.0  # outside: nobody is told
    assert said == []


TURNS = """
import fcntl, sys
from pathlib import Path
from numba.core.caching import IndexDataCacheFile
from trainer.compiling import guard_cache

def free(self):
    with open(Path(self._cache_path, "turns.lock"), "ab") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True

seen = []
IndexDataCacheFile.load = lambda self, key: seen.append(("load", free(self)))
IndexDataCacheFile.save = lambda self, key, data: seen.append(("save", free(self)))
guard_cache()
guard_cache()
file = IndexDataCacheFile(sys.argv[1], "kernel", None)
file.save(1, b"")
file.load(1)
assert seen == [("save", False), ("load", False)], seen
assert free(file)
"""


def test_files_of_compiled_kernels_are_written_and_read_in_turn(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", TURNS, str(tmp_path)], check=True, cwd=Path(__file__).parents[2])
