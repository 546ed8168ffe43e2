"""The plug is pulled, or the disk fails, at the k-th call for every k: what is seen after is the old or the new state."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.errors import RegistryError
from registry.registry import Registry
from tests.registry.conftest import FACTS, QuickDisk

CALLS = {name for name in vars(QuickDisk) | vars(QuickDisk.__base__) if not name.startswith("_")}
Operation = Callable[[Registry], object]
OPERATIONS: dict[str, Operation] = {
    "register the first": lambda r: r.register("shop", b"shop 1", manifest=FACTS),
    "register another name": lambda r: r.register("shop", b"shop 1", manifest=FACTS),
    "register another": lambda r: r.register("web", b"model 4", manifest=FACTS),
    "promote": lambda r: r.promote("web", 2),
    "promote a new alias": lambda r: r.promote("web", 2, alias="canary"),
    "roll back": lambda r: r.rollback("web", expect=3),
}


class Crash(BaseException):
    """The process is gone."""


class FaultyDisk(QuickDisk):
    """Fails at call number ``at``, before anything is done, or half-way through a write, and maybe from then on.

    (A crash after a call is a crash before the next one.)
    """

    def __init__(self, at: int, fault: Callable[[], BaseException], *, lasting: bool) -> None:
        self._at, self._fault, self._lasting = at, fault, lasting
        self._count, self.failed_in = 0, ""
        self.open: set[int] = set()

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self.open.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self.open.remove(descriptor)

    def __getattribute__(self, name: str) -> object:
        method = super().__getattribute__(name)
        return self._guarded(name, method) if name in CALLS else method

    def _guarded(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            self._count += 1
            if self._count < self._at or (self._count > self._at and not self._lasting):
                return method(*arguments)
            if self._count == self._at:
                self.failed_in = name
                if name == "write":
                    descriptor, data = arguments
                    os.write(descriptor, data[: len(data) // 2])
            raise self._fault()

        return call


def seen(root: Path) -> object:
    """All that a reader can learn, without times."""
    registry = Registry(root, disk=QuickDisk())
    assert registry.verify().ok
    return {
        name: [(v.sha256, v.manifest_sha256, v.aliases, v.read()) for v in registry.versions(name)]
        for name in registry.names()
    }


def published(root: Path) -> set[str]:
    """Files outside tmp/."""
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.parent != root / "tmp"}


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest) -> Operation:
    return OPERATIONS[request.param]


@pytest.fixture
def start(operation: Operation, web: Registry) -> Path:
    if operation is OPERATIONS["register the first"]:
        shutil.rmtree(web.root)
    return web.root


def sweep(start: Path, operation: Operation, disk_at: Callable[[int], FaultyDisk], tmp_path: Path) -> int:
    """Run ``operation`` on copies of ``start``, failing at call 1, 2, .. until it comes through; the calls it made."""
    done = tmp_path / "done"
    copy(start, done)
    operation(Registry(done, disk=QuickDisk()))
    old, new, files = seen(start), seen(done), published(done)
    assert old != new
    for k in itertools.count(1):
        root, disk = tmp_path / f"try{k}", disk_at(k)
        copy(start, root)
        outcome: BaseException | None = None
        try:
            operation(Registry(root, disk=disk))
        except (Crash, OSError, RegistryError) as error:
            outcome = error
        for descriptor in disk.open:  # the end of a process closes its files
            os.close(descriptor)
        now = seen(root)
        assert now in (old, new), f"call {k} ({disk.failed_in}): neither old nor new"
        assert len(published(root)) <= len(files)
        if outcome is None:
            assert now == new, f"call {k} ({disk.failed_in}): acknowledged, and not there"
        if isinstance(outcome, OSError) and not disk._lasting and disk.failed_in != "unlink":
            assert not list((root / "tmp").glob("*")), f"call {k} ({disk.failed_in}): left a staged file"
        if not (now == new and operation is OPERATIONS["roll back"]):  # its precondition holds no longer
            operation(Registry(root, disk=QuickDisk()))  # whoever tries again gets through
        assert seen(root) == new
        shutil.rmtree(root)
        if not disk.failed_in:
            return k - 1
    raise AssertionError


def copy(source: Path, target: Path) -> None:
    if source.exists():
        shutil.copytree(source, target)


def test_a_crash_at_any_call(start: Path, operation: Operation, tmp_path: Path) -> None:
    calls = sweep(start, operation, lambda k: FaultyDisk(k, Crash, lasting=True), tmp_path)
    assert calls > 15


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_a_full_disk_at_any_call(start: Path, operation: Operation, lasting: bool, tmp_path: Path) -> None:
    def fault() -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sweep(start, operation, lambda k: FaultyDisk(k, fault, lasting=lasting), tmp_path)
