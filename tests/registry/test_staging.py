"""A file is written once and flushed once before it is named, and what writers leave behind goes, but not too early."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path

import pytest

from rankmill.foundation.storage.staging import Staging
from rankmill.registry.blob_store import Store
from tests.registry.conftest import QuickDisk

HOUR = 3600.0


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Recorder(QuickDisk):
    """Remembers which file each call was about; the first ``times`` calls of ``failing`` go wrong."""

    def __init__(self, failing: str = "", number: int = errno.EIO, times: int = 1) -> None:
        self.failing, self.number, self.times = failing, number, times
        self.calls: list[tuple[str, Path]] = []
        self.files: dict[int, Path] = {}

    def _note(self, call: str, path: Path) -> None:
        self.calls.append((call, path))
        if call == self.failing and self.times:
            self.times -= 1
            raise error(self.number)

    def create(self, path: Path, mode: int = 0o444) -> int:
        descriptor = super().create(path, mode)
        self.files[descriptor] = path
        self._note("create", path)
        return descriptor

    def allocate(self, descriptor: int, size: int) -> None:
        self._note("allocate", self.files[descriptor])
        super().allocate(descriptor, size)

    def write(self, descriptor: int, data: memoryview) -> int:
        self._note("write", self.files[descriptor])
        return super().write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._note("fsync", self.files[descriptor])

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self._note("close", self.files[descriptor])

    def told(self, call: str) -> list[Path]:
        return [path for name, path in self.calls if name == call]


def staging(tmp_path: Path, disk: QuickDisk) -> Staging:
    return Staging(tmp_path / "tmp", disk)


@pytest.mark.parametrize("call", ["write", "fsync", "close"])
def test_a_file_that_could_not_be_flushed_is_never_flushed_again_and_twice_is_too_often(
    tmp_path: Path, call: str
) -> None:
    disk = Recorder(call)
    staged = staging(tmp_path, disk).write(b"bytes")
    first, second = disk.told("create")
    assert first != second == staged
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == [staged.name]
    assert staged.read_bytes() == b"bytes"
    staged.unlink()
    twice = Recorder(call, times=2)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        staging(tmp_path, twice).write(b"bytes")
    assert len(twice.told("create")) == 2
    assert list((tmp_path / "tmp").iterdir()) == []
    for each in (disk, twice):
        assert len(each.told("fsync")) == len(set(each.told("fsync")))


def test_no_room_shows_before_the_bytes_are_written_and_is_not_tried_again(tmp_path: Path) -> None:
    disk = Recorder("allocate", errno.ENOSPC)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        staging(tmp_path, disk).write(b"bytes")
    assert [call for call, _ in disk.calls] == ["create", "allocate", "close"]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_file_system_that_allocates_nothing_is_written_to_all_the_same(tmp_path: Path) -> None:
    for number in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
        assert staging(tmp_path, Recorder("allocate", number)).write(b"bytes").read_bytes() == b"bytes"
    for data in (b"", b"x", bytes(100_000)):
        staged = staging(tmp_path, QuickDisk()).write(data)
        assert staged.read_bytes() == data
        assert staged.stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o750), (0o002, 0o770), (0o077, 0o700)])
def test_those_who_may_not_write_may_not_look_at_what_is_being_written(tmp_path: Path, umask: int, mode: int) -> None:
    old = os.umask(umask)
    try:
        staging(tmp_path, QuickDisk()).write(b"")
    finally:
        os.umask(old)
    assert (tmp_path / "tmp").stat().st_mode & 0o777 == mode


def test_a_name_that_is_taken_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("target", "link"):
        with pytest.raises(FileExistsError):
            QuickDisk().create(tmp_path / name)
    assert (tmp_path / "target").read_text() == "precious"


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    descriptor = QuickDisk().create(tmp_path / "new")
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_only_what_the_dead_have_left_is_swept(tmp_path: Path) -> None:
    store = Store(tmp_path, QuickDisk())
    store.prepare()
    here, dead, alive = socket.gethostname(), 2**22 + 1, os.getpid()  # no process has such a number
    ages = {
        f"{here}.{dead}.young": 23 * HOUR,
        f"{here}.{dead}.old": 25 * HOUR,
        f"{here}.{alive}.ancient": 9000 * HOUR,
        f"{here}.1.ancient": 9000 * HOUR,  # somebody else's, and alive
        f"far.{here}.{dead}.old": 25 * HOUR,
        f"far.{here}.{dead}.older": 169 * HOUR,
        f"far.{alive}.older": 169 * HOUR,
        f"far.{alive}.old": 167 * HOUR,
        "unknown.old": 167 * HOUR,
        "unknown.older": 169 * HOUR,
        f"{here}.{10**30}.old": 25 * HOUR,
    }
    for name, age in ages.items():
        path = store.root / "tmp" / name
        path.touch()
        os.utime(path, (0, time.time() - age))
    for folder in (f"{here}.{dead}.import", f"{here}.{alive}.import"):
        (store.root / "tmp" / folder).mkdir()
        (store.root / "tmp" / folder / "entry").touch()
        os.utime(store.root / "tmp" / folder, (0, 0))
    store.storage.sweep()
    assert {path.name for path in (store.root / "tmp").iterdir()} == {
        f"{here}.{dead}.young",
        f"{here}.{alive}.ancient",
        f"{here}.1.ancient",
        f"far.{here}.{dead}.old",
        f"far.{alive}.old",
        "unknown.old",
        f"{here}.{alive}.import",
    }
