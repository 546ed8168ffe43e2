"""Each request to a bucket goes wrong in turn, in each way: what is found after is the old or the new state.

In memory, by the operations that meet a failing disk too.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from functools import cache

import pytest

from rankmill.foundation.errors import ConflictError, RankmillError
from rankmill.foundation.storage import staging
from rankmill.registry import bucket_storage, commit_log, disk_storage
from rankmill.registry.stored_records import Entry
from tests.registry.interposed import Killed
from tests.registry.model_bucket import WAYS, FailingRequests, Fault, World, content, on, seen
from tests.registry.operations import COLLECTIONS, OPERATIONS, STARTS, Operation

WORK = OPERATIONS | COLLECTIONS
IMPORTS = {"import a history"}
"""Entries of a new history appear one by one: something in between may be found."""


@pytest.fixture(autouse=True)
def transactions(brisk: None, read_once: None, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """The same work has the same bytes each time; every commit makes a checkpoint; nobody waits."""
    numbers = types.SimpleNamespace(last=0)

    def uuid4() -> types.SimpleNamespace:
        numbers.last += 1
        return types.SimpleNamespace(number=numbers.last, hex=f"transaction {numbers.last}")

    for module in (commit_log, staging, disk_storage, bucket_storage):
        monkeypatch.setattr(module, "uuid", types.SimpleNamespace(uuid4=uuid4))
    drawn = types.SimpleNamespace(token_hex=lambda n: f"{uuid4().number:0{2 * n}x}")
    monkeypatch.setattr(bucket_storage, "secrets", drawn)
    monkeypatch.setattr(commit_log, "_now", lambda: "2026-01-02T03:04:05.678Z")
    monkeypatch.setattr(commit_log, "is_due", lambda head, checkpoint: True)
    monkeypatch.setattr(bucket_storage, "PAUSE", 0.0)
    return numbers


@cache
def started(start: str) -> World:
    world = World()
    STARTS[start](on(world))
    return world


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("name", [name for name in WORK if name != "collect twice"])
def test_whatever_goes_wrong_the_state_is_the_old_or_the_new_one(
    name: str, ways: str, transactions: types.SimpleNamespace
) -> None:
    operation, tried = WORK[name], set[object]()
    transactions.last = 10**6  # the names that are drawn for the start are drawn never again
    start, done, calls = started(operation.start), started(operation.start).copy(), []
    transactions.last = 0

    def around(request: str, call: Callable[..., object], *arguments: object, **named: object) -> object:
        calls.append(request)
        return call(*arguments, **named)

    operation.work(on(done, around), "it")
    old, new = seen(start), seen(done)
    between = operation.steps or name in IMPORTS
    for way, fault in WAYS[ways].items():
        for at in itertools.count(1):
            failing = FailingRequests(at, fault)
            transactions.last = 0
            try:
                fail(start.copy(), operation, failing, (old, new), tried, between=between)
            except Exception as error:
                error.add_note(f"{name}: {way}, in request {at} ({failing.failed_in})")
                raise
            if not failing.failed_in:
                break
        assert at > len(calls) > 3


def fail(
    world: World,
    operation: Operation,
    failing: FailingRequests,
    states: tuple[object, object],
    tried: set[object],
    *,
    between: bool,
) -> None:
    """Let one process fail, look at what it left, let another try the same, and look again."""
    (old, new), outcome = states, None
    entry: Entry | None = None
    try:
        entry = operation.work(on(world, failing), "it")
    except (Killed, OSError, RankmillError) as error:
        outcome = error
    assert isinstance(outcome, Killed) or str(outcome).isprintable()
    failing.arrive()
    now = seen(world)
    assert between or now == new or (now == old and outcome is not None)
    if entry is not None:  # acknowledged
        assert on(world).entry(operation.model, entry.number) == entry
    left = content(world), entry is None
    if left in tried:
        return
    tried.add(left)
    try:
        operation.work(on(world), "it")
    except ConflictError:
        assert now == new
        assert not operation.repeats
    assert operation.steps or seen(world) == new


def test_a_fault_that_is_not_met_would_be_noticed() -> None:
    world = World()
    failing = FailingRequests(1, Fault())
    with pytest.raises(Killed):
        on(world, failing).prepare()
    assert (failing.failed_in, world.objects) == ("names", {})
