"""On a full disk nothing breaks, and a rollback goes through: the ballast is thrown off."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmill.registry import disk_storage
from rankmill.registry.blob_store import Store
from rankmill.registry.model_registry import Registry
from tests.refusals import refused
from tests.registry.conftest import FACTS, QuickDisk

ROOT = Path(__file__).parents[2]
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


@pytest.fixture(autouse=True)
def _more_ballast(_little_ballast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_storage, "BALLAST_SIZE", 16 * BLOCK)
    monkeypatch.setattr(disk_storage, "LEAST_BALLAST", BLOCK)


def size(registry: Registry) -> int:
    path = registry.root / "ballast"
    return path.stat().st_size if path.exists() else 0


def staged(registry: Registry) -> list[Path]:
    return list((registry.root / "tmp").iterdir())


def test_the_ballast_is_made_with_the_registry_and_cannot_be_packed(tmp_path: Path) -> None:
    store = Store(tmp_path / "r", QuickDisk())
    store.prepare()
    data = (store.root / "ballast").read_bytes()
    assert len(data) == 16 * BLOCK
    assert len(zlib.compress(data)) >= len(data)
    assert list((store.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_rollback_goes_through_with_nothing_free(web: Registry, number: int) -> None:
    full = SmallDisk(web.root, number=number, files=1)
    assert Registry(web.root, disk=full).rollback("web").change.op == "rollback"
    assert web.resolve("web", bare="production").number == 2
    assert web.verify().ok
    assert 0 < size(web) < 16 * BLOCK
    assert staged(web) == []


def test_several_go_through_before_the_ballast_is_used_up(web: Registry) -> None:
    full, done, refusal = SmallDisk(web.root, files=100), 0, ""
    while not refusal:
        try:
            Registry(web.root, disk=full).promote("web", done % 3 + 1)
            done += 1
        except OSError as error:
            refusal = str(error)
    assert refusal.startswith(f"[Errno {errno.ENOSPC}] the disk is full (No space left on device); nothing was changed")
    assert done >= 4
    assert web.resolve("web", bare="production").number == (done - 1) % 3 + 1
    assert web.verify().ok
    assert staged(web) == []
    Registry(web.root, disk=SmallDisk(web.root, blocks=17, files=2)).rollback("web")  # somebody has made room
    assert size(web) == 16 * BLOCK


def test_without_files_left_one_goes_through(web: Registry) -> None:
    full = SmallDisk(web.root, blocks=100)
    Registry(web.root, disk=full).rollback("web")
    with refused(OSError, "disk", "full"):
        Registry(web.root, disk=full).rollback("web", to=1)
    assert web.resolve("web", bare="production").number == 2
    assert staged(web) == []


def test_a_version_that_does_not_fit_is_refused_and_leaves_the_ballast(web: Registry) -> None:
    with refused(OSError, "disk", "full"):
        Registry(web.root, disk=SmallDisk(web.root)).register("web", bytes(3 * BLOCK), manifest=FACTS)
    assert size(web) == 16 * BLOCK
    assert len(web.versions("web")) == 3
    assert staged(web) == []


def test_where_the_ballast_does_not_fit_the_registry_is_made_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_storage, "LEAST_BALLAST", 2 * BLOCK)
    registry = Registry(tmp_path / "r", disk=SmallDisk(tmp_path / "r", blocks=2, files=2))
    registry.prepare()
    assert size(registry) == 0
    assert staged(registry) == []


ODD: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "empty": Path.touch,
    "too short": lambda path: path.write_bytes(bytes(5 * BLOCK)),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
}


def test_what_lies_in_its_place_is_put_right(web: Registry) -> None:
    for number, odd in enumerate(ODD.values()):
        (web.root / "ballast").unlink()
        odd(web.root / "ballast")
        Registry(web.root, disk=QuickDisk()).promote("web", number % 2 + 1)
        assert size(web) == 16 * BLOCK
        assert not (web.root / "ballast").is_symlink()


def test_a_folder_in_its_place_is_left_alone(web: Registry) -> None:
    (web.root / "ballast").unlink()
    (web.root / "ballast").mkdir()
    Registry(web.root, disk=SmallDisk(web.root, blocks=99, files=9)).promote("web", 1)
    with refused(OSError, "disk", "full"):
        Registry(web.root, disk=SmallDisk(web.root)).promote("web", 2)
    assert (web.root / "ballast").is_dir()


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
told = {"blocks": free.f_bavail, "files": free.f_favail}
try:
    Registry(mount / "r").register("web", bytes(5000), manifest=FACTS)
except OSError as error:
    told["register"] = str(error)
told["rollback"] = Registry(mount / "r").rollback("web").number
told["production"] = Registry(mount / "r").resolve("web", bare="production").number
told["ok"] = Registry(mount / "r").verify().ok
try:
    Registry(mount / "r").promote("web", 2)
    told["again"] = "went through"
except OSError as error:
    told["again"] = str(error)
told["tmp"] = os.listdir(mount / "r" / "tmp")
print(json.dumps(told))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1) to mount where nobody else sees it")
def test_a_rollback_on_a_real_disk_with_no_block_and_no_file_free(tmp_path: Path) -> None:
    command = ["unshare", "-m", sys.executable, "-B", "-c", MOUNTED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"no mounting here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["blocks"], told["files"]) == (0, 0)
    assert "the disk is full" in told["register"]
    assert (told["rollback"], told["production"], told["ok"], told["tmp"]) == (5, 1, True, [])
    assert "the disk is full" in told["again"]  # not a file is left for the ballast
