"""Each call on the disk goes wrong in turn, in each way: what is found after is the old or the new state.

In memory in every way, and on a real file system in some.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rankmill.foundation.errors import ConflictError, RankmillError
from rankmill.foundation.storage import staging
from rankmill.registry import commit_log, disk_storage
from rankmill.registry.model_registry import Registry
from tests.registry.conftest import QuickDisk
from tests.registry.faults import CRASHES, FEW, LASTING, LOST_ANSWERS, ONCE, Failing, Fault
from tests.registry.interposed import Interposed, Killed
from tests.registry.invariants import Witness, look, published
from tests.registry.model_disk import ROOT, Machine, ModelDisk
from tests.registry.operations import COLLECTIONS, OPERATIONS, STARTS, Operation, started

WAYS = {"killed": CRASHES, "error once": ONCE, "error from then on": LASTING, "answer lost": LOST_ANSWERS}
WORK = OPERATIONS | COLLECTIONS


@pytest.fixture(autouse=True)
def transactions(brisk: None, read_once: None, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """The same work has the same bytes each time, so that it needs looking at once; every commit makes a checkpoint."""
    numbers = types.SimpleNamespace(last=0)

    def uuid4() -> types.SimpleNamespace:
        numbers.last += 1
        return types.SimpleNamespace(number=numbers.last, hex=f"transaction {numbers.last}")

    for module in (commit_log, staging, disk_storage):
        monkeypatch.setattr(module, "uuid", types.SimpleNamespace(uuid4=uuid4))
    monkeypatch.setattr(disk_storage, "os", types.SimpleNamespace(urandom=bytes))
    monkeypatch.setattr(commit_log, "_now", lambda: "2026-01-02T03:04:05.678Z")
    monkeypatch.setattr(commit_log, "is_due", lambda head, checkpoint: True)
    return numbers


def on(machine: Machine) -> Registry:
    return Registry(ROOT, disk=ModelDisk(machine))


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("name", [name for name in WORK if name != "collect twice"])
def test_whatever_goes_wrong_the_state_is_the_old_or_the_new_one(
    name: str, ways: str, transactions: types.SimpleNamespace
) -> None:
    every = WORK[name].thorough
    faults = {way: fault for way, fault in WAYS[ways].items() if every or fault.error in {None, *FEW}}
    sweep(name, faults, transactions)


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("name", ["register the first", "promote", "roll back"])
def test_so_it_is_where_files_get_their_names_by_renames(
    name: str, ways: str, transactions: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(disk: ModelDisk, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(source), None, str(target))

    monkeypatch.setattr(ModelDisk, "link", link)
    sweep(name, WAYS[ways], transactions)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, operation in WORK.items() if not operation.thorough])
def test_so_it_is_with_every_error(name: str, transactions: types.SimpleNamespace) -> None:
    sweep(name, ONCE | LASTING | LOST_ANSWERS, transactions)


def sweep(name: str, faults: dict[str, Fault], transactions: types.SimpleNamespace) -> None:
    """Let each call of the operation go wrong, until it comes through, with each fault."""
    operation = WORK[name]
    start, done, calls = started(operation.start), started(operation.start).copy(), []

    def around(name: str, call: Callable[..., object], *arguments: object) -> object:
        calls.append(name)
        return call(*arguments)

    operation.work(Registry(ROOT, disk=Interposed(ModelDisk(done), around)), "it")
    expected = Expected(look(start).models, look(done).models, published(start) | published(done))
    before = start.to_bytes()
    for way, fault in faults.items():
        for at in itertools.count(1):
            if fault.written is not None and at <= len(calls) and calls[at - 1] != "write":
                continue
            failing = Failing(at, fault)
            transactions.last = 0
            try:
                fail(Machine.from_bytes(before), operation, failing, expected)
            except Exception as error:
                error.add_note(f"{name}: {way}, in call {at} ({failing.failed_in})")
                raise
            if not failing.failed_in:
                break
        assert at > len(calls) > 5


@dataclass
class Expected:
    """What may be found, and where others have tried again already."""

    old: object
    new: object
    files: set[str]
    tried: set[tuple[bytes, bool]] = field(default_factory=set)


def fail(machine: Machine, operation: Operation, failing: Failing, expected: Expected) -> None:
    """Let one process fail, look at what it left, let another try the same, and look again."""
    witness = Witness()
    registry = Registry(ROOT, disk=Interposed(ModelDisk(machine), failing))
    outcome: BaseException | None = None
    try:
        entry = operation.work(registry, "it")
        if entry is not None:
            witness.saw(operation.model, entry)
    except (Killed, OSError, RankmillError) as error:
        outcome = error
    assert isinstance(outcome, Killed) or str(outcome).isprintable()
    now = witness.check(machine).models
    assert operation.steps or now == expected.new or (now == expected.old and outcome is not None)
    assert published(machine) <= expected.files
    if isinstance(outcome, OSError) and not failing.fault.lasting and failing.failed_in not in {"unlink", "create"}:
        assert not ModelDisk(machine).names(ROOT / "tmp")  # (what the call above made or kept, nobody knows of)
    left = machine.to_bytes(), outcome is None
    if left in expected.tried:
        return
    expected.tried.add(left)
    try:
        entry = operation.work(on(machine), "it")
        if entry is not None:
            witness.saw(operation.model, entry)
    except ConflictError:
        assert now == expected.new
        assert not operation.repeats
    else:
        machine.power_loss()
    now = witness.check(machine).models
    assert operation.steps or now == expected.new


class Descriptors(QuickDisk):
    """Closes the files of a process that is gone."""

    def __init__(self) -> None:
        self.open: set[int] = set()

    def create(self, path: Path, mode: int = 0o444) -> int:
        descriptor = super().create(path, mode)
        self.open.add(descriptor)
        return descriptor

    def lock(self, path: Path, how: int) -> int:
        descriptor = super().lock(path, how)
        self.open.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self.open.remove(descriptor)

    def end(self) -> None:
        for descriptor in list(self.open):
            self.close(descriptor)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param("register the first", CRASHES["before"], id="the first, killed"),
        pytest.param("promote", LOST_ANSWERS["EIO"], id="promote, answer lost"),
        pytest.param("register another", CRASHES["half written"], id="another, killed", marks=pytest.mark.slow),
        pytest.param("register another", LOST_ANSWERS["EIO"], id="another, answer lost", marks=pytest.mark.slow),
    ],
)
def test_so_it_is_on_a_real_file_system(name: str, fault: Fault, tmp_path: Path) -> None:
    operation, start, done = OPERATIONS[name], tmp_path / "start", tmp_path / "done"
    STARTS[operation.start](Registry(start, disk=QuickDisk()))
    copy(start, done)
    operation.work(Registry(done, disk=QuickDisk()), "it")
    old, new = seen(start), seen(done)
    for at in itertools.count(1):
        root, disk, failing = tmp_path / f"try {at}", Descriptors(), Failing(at, fault)
        copy(start, root)
        acknowledged = False
        with contextlib.suppress(Killed, OSError):
            operation.work(Registry(root, disk=Interposed(disk, failing)), "it")
            acknowledged = True
        disk.end()
        assert seen(root) == new or (seen(root) == old and not acknowledged), f"call {at} ({failing.failed_in})"
        operation.work(Registry(root, disk=QuickDisk()), "it")
        assert seen(root) == new
        shutil.rmtree(root)
        if not failing.failed_in:
            break


def seen(root: Path) -> object:
    registry = Registry(root, disk=QuickDisk())
    assert registry.verify().ok
    return {
        name: [(v.sha256, v.manifest_sha256, v.aliases, v.read()) for v in registry.versions(name)]
        for name in registry.names()
    }


def copy(source: Path, target: Path) -> None:
    if source.exists():
        shutil.copytree(source, target)
