"""Each call on a disk, and each request to a bucket, goes wrong in turn, in each way: what is found after is the old or
the new state.

In memory in every way, and on a real file system in some.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import shutil
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from rankmill.foundation.errors import ConflictError, RankmillError
from rankmill.registry import bucket_storage, commit_log, disk_storage, storage
from rankmill.registry.model_registry import Registry
from tests.registry.conftest import QuickDisk
from tests.registry.faults import CRASHES, FEW, IN_BUCKET, LASTING, LOST_ANSWERS, ONCE, Failing, Fault
from tests.registry.interposed import Interposed, Killed
from tests.registry.invariants import State, Witness, look, published, registry_of
from tests.registry.model_bucket import World, content
from tests.registry.model_disk import Machine
from tests.registry.operations import AT_ONCE, COLLECTIONS, OPERATIONS, STARTS, Operation, started

WORK = OPERATIONS | COLLECTIONS
NAMES = [name for name in WORK if name != "collect twice"]
EVERY_ERROR = [fault for faults in (ONCE, LASTING, LOST_ANSWERS) for fault in faults.items()]
THOROUGH = [*CRASHES.items(), *(fault for fault in EVERY_ERROR if fault[0] in (*FEW, "half written"))]
FIRST = [*CRASHES.items(), ("EIO", ONCE["EIO"]), ("ENOSPC", LASTING["ENOSPC"]), ("EIO", LOST_ANSWERS["EIO"])]


@pytest.fixture(autouse=True)
def transactions(brisk: None, read_once: None, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """The same work has the same bytes each time, so that it needs looking at once; every commit packs."""
    numbers = types.SimpleNamespace(last=0)

    def uuid4() -> types.SimpleNamespace:
        numbers.last += 1
        return types.SimpleNamespace(number=numbers.last, hex=f"transaction {numbers.last}")

    for module in (commit_log, storage, disk_storage):
        monkeypatch.setattr(module, "uuid", types.SimpleNamespace(uuid4=uuid4))
    drawn = types.SimpleNamespace(token_hex=lambda n: f"{uuid4().number:0{2 * n}x}")
    monkeypatch.setattr(bucket_storage, "secrets", drawn)
    monkeypatch.setattr(commit_log, "_now", lambda: "2026-01-02T03:04:05.678Z")
    monkeypatch.setattr(commit_log, "is_due", lambda head, packed: True)
    monkeypatch.setattr(bucket_storage, "PAUSE", 0.0)
    return numbers


@cache
def started_in_bucket(start: str) -> World:
    world = World()
    STARTS[start](registry_of(world))
    return world


def collected(state: State) -> State:
    """What three runs of the collector leave."""
    for _ in range(3):
        registry_of(state).gc(rules=AT_ONCE)
    return state


@pytest.mark.parametrize("name", NAMES)
def test_whatever_goes_wrong_on_a_disk_the_state_is_the_old_or_the_new_one(
    name: str, transactions: types.SimpleNamespace
) -> None:
    sweep(name, started(WORK[name].start), THOROUGH if WORK[name].thorough else FIRST, transactions)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_goes_wrong_in_a_bucket_the_state_is_the_old_or_the_new_one(
    name: str, transactions: types.SimpleNamespace
) -> None:
    transactions.last = 10**6  # the names that are drawn for the start are drawn never again
    sweep(name, started_in_bucket(WORK[name].start), [*IN_BUCKET.items()], transactions)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_so_it_is_with_every_error(name: str, transactions: types.SimpleNamespace) -> None:
    sweep(name, started(WORK[name].start), EVERY_ERROR, transactions)


@dataclass
class Expected:
    """What may be found, and where others have tried again already."""

    old: object
    new: object
    collected: State
    between: bool
    files: set[str]
    tried: set[object] = field(default_factory=set)


def sweep(name: str, start: State, faults: list[tuple[str, Fault]], transactions: types.SimpleNamespace) -> None:
    """Let each call of the operation go wrong, until it comes through, with each fault."""
    operation, calls = WORK[name], []
    before = pickle.dumps(start)
    done: State = pickle.loads(before)
    transactions.last = 0

    def around(call_name: str, call: Callable[..., object], *arguments: object, **named: object) -> object:
        calls.append(call_name)
        return call(*arguments, **named)

    operation.work(registry_of(done, around), "it")
    files = set[str]() if isinstance(start, World) else published(start) | published(done)
    between = operation.steps or name == "import a history"  # whose entries appear one by one
    after = collected(pickle.loads(before)) if operation.steps else done
    expected = Expected(look(start).models, look(done).models, after, between, files)
    for way, fault in faults:
        for at in itertools.count(1):
            if fault.written is not None and at <= len(calls) and calls[at - 1] != "write":
                continue
            failing = Failing(at, fault)
            transactions.last = 0
            try:
                fail(pickle.loads(before), operation, failing, expected)
            except Exception as error:
                error.add_note(f"{name}: {way}, in call {at} ({failing.failed_in})")
                raise
            if not failing.failed_in:
                break
        assert at > len(calls) > 3


def fail(state: State, operation: Operation, failing: Failing, expected: Expected) -> None:
    """Let one process fail, look at what it left, let another try the same, and look again."""
    witness, outcome = Witness(), None
    before = {path for path, _ in state.files()} if isinstance(state, Machine) else set()
    try:
        entry = operation.work(registry_of(state, failing), "it")
        if entry is not None:
            witness.saw(operation.model, entry)
    except (Killed, OSError, RankmillError) as error:
        outcome = error
    assert isinstance(outcome, Killed) or str(outcome).isprintable()
    failing.arrive()
    now = witness.check(state).models
    assert expected.between or now == expected.new or (now == expected.old and outcome is not None)
    if isinstance(state, Machine):
        assert published(state) <= expected.files
        if isinstance(outcome, OSError) and not failing.fault.lasting and failing.failed_in not in {"unlink", "create"}:
            left_over = {path for path, _ in state.files() if "/tmp/" in path} - before
            assert not left_over  # (what the call above made or kept, nobody knows of)
    left = (state.to_bytes() if isinstance(state, Machine) else content(state)), outcome is None
    if left in expected.tried:
        return
    expected.tried.add(left)
    try:
        entry = operation.work(registry_of(state), "it")
        if entry is not None:
            witness.saw(operation.model, entry)
    except ConflictError:
        assert now == expected.new
        assert not operation.repeats
    else:
        if isinstance(state, Machine):
            state.power_loss()
    now = witness.check(state).models
    assert operation.steps or now == expected.new
    if operation.steps and isinstance(state, Machine):  # nothing that is needed is lost, and the next runs do the rest
        collected(state)
        assert look(state).models == look(expected.collected).models
        assert published(state) == published(expected.collected)


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
