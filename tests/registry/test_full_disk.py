"""On a full disk nothing breaks: what does not fit is refused in one line, and nothing is changed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankmill.registry.model_registry import Registry
from tests import ROOT
from tests.refusals import refused
from tests.registry.conftest import FACTS, QuickDisk, everything

BLOCK = 4096


class SmallDisk(QuickDisk):
    """A disk of so many blocks and files below ``root``, all of them in use at first; a name takes no room."""

    def __init__(self, root: Path, *, number: int = errno.ENOSPC, blocks: int = 0, files: int = 0) -> None:
        self.root, self.number = root, number
        self.blocks, self.files = self._used(), self._files()
        self.blocks += blocks
        self.files += files

    def _all(self) -> list[os.stat_result]:
        return [path.stat() for path in self.root.rglob("*") if path.is_file()]

    def _used(self) -> int:
        return sum({found.st_ino: -(-found.st_size // BLOCK) for found in self._all()}.values())

    def _files(self) -> int:
        return len({found.st_ino for found in self._all()})

    def create(self, path: Path, mode: int = 0o444) -> int:
        if self._files() >= self.files:
            raise OSError(self.number, os.strerror(self.number), str(path))
        return super().create(path, mode)

    def allocate(self, descriptor: int, size: int) -> None:
        if self._used() + -(-size // BLOCK) > self.blocks:
            raise OSError(self.number, os.strerror(self.number))
        super().allocate(descriptor, size)


def staged(registry: Registry) -> list[Path]:
    return list((registry.root / "tmp").iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("room", [{"blocks": 100}, {"files": 100}], ids=["no file", "no block"])
def test_what_does_not_fit_changes_nothing_and_succeeds_once_there_is_space(
    web: Registry, number: int, room: dict[str, int]
) -> None:
    full = Registry(web.root, disk=SmallDisk(web.root, number=number, **room))
    before = everything(web)
    for write in (lambda r: r.rollback("web"), lambda r: r.register("web", bytes(3 * BLOCK), manifest=FACTS)):
        with refused(OSError, "disk", "nothing was changed") as caught:
            write(full)
        assert caught.value.errno == number
        assert everything(web) == before
        assert staged(web) == []
    roomy = Registry(web.root, disk=SmallDisk(web.root, blocks=100, files=100))
    assert roomy.rollback("web").change.op == "rollback"
    assert web.resolve("web", bare="production").number == 2
    assert web.verify().ok


MOUNTED = """
import errno, json, os, subprocess, sys
from pathlib import Path
from rankmill.registry.model_registry import Registry
from tests.registry.conftest import FACTS
mount = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=64", "small", mount], check=True)
registry = Registry(mount / "r")
registry.prepare(protected=())
for model in (b"1", b"2"):
    registry.register("web", model, manifest=FACTS)
    registry.promote("web", int(model))
with (mount / "filler").open("wb", buffering=0) as file:
    while True:
        try:
            file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
            break
n = 0
while True:
    try:
        (mount / f"file{n}").touch()
    except OSError as error:
        assert error.errno == errno.ENOSPC
        break
    n += 1
free = os.statvfs(mount)
reported = {"blocks": free.f_bavail, "files": free.f_favail}
try:
    Registry(mount / "r").register("web", bytes(5000), manifest=FACTS)
except OSError as error:
    reported["register"] = str(error)
try:
    Registry(mount / "r").rollback("web")
except OSError as error:
    reported["rollback"] = str(error)
(mount / "filler").unlink()
(mount / "file0").unlink()  # here a second name takes a file, too
reported["again"] = Registry(mount / "r").rollback("web").number
reported["production"] = Registry(mount / "r").resolve("web", bare="production").number
reported["ok"] = Registry(mount / "r").verify().ok
reported["tmp"] = os.listdir(mount / "r" / "tmp")
print(json.dumps(reported))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1) to mount where nobody else sees it")
def test_on_a_real_disk_with_no_block_and_no_file_free(tmp_path: Path) -> None:
    command = ["unshare", "-m", sys.executable, "-B", "-c", MOUNTED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"no mounting here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert (reported["blocks"], reported["files"]) == (0, 0)
    assert "the disk is full" in reported["register"]
    assert "the disk is full" in reported["rollback"]
    assert (reported["again"], reported["production"], reported["ok"], reported["tmp"]) == (5, 1, True, [])
