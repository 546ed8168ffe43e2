"""Each call on the disk goes wrong in turn, in each way: what is found after is the old or the new state.

In memory for every way, and on a real file system for some.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from registry import log
from registry.errors import ConflictError, RegistryError
from registry.registry import Registry
from tests.registry.conftest import FACTS, QuickDisk
from tests.registry.faults import CRASHES, LASTING, LOST_ANSWERS, ONCE, Failing, Fault
from tests.registry.interposed import Interposed, Killed
from tests.registry.invariants import Witness, published
from tests.registry.model_disk import ROOT, Machine, ModelDisk
from tests.registry.operations import OPERATIONS, STARTS, Operation, started

WAYS = {"killed": CRASHES, "error once": ONCE, "error from then on": LASTING, "answer lost": LOST_ANSWERS}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LONGEST_PAUSE", 0.0)


def seen(registry: Registry) -> object:
    """All that a reader can learn, without times."""
    return {
        name: (
            [(v.sha256, v.manifest_sha256, v.aliases) for v in registry.versions(name)],
            [entry.change for entry in registry.log(name)],
        )
        for name in registry.names()
    }


def on(machine: Machine) -> Registry:
    return Registry(ROOT, disk=ModelDisk(machine))


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_whatever_goes_wrong_the_state_is_the_old_or_the_new_one(name: str, ways: str) -> None:
    operation = OPERATIONS[name]
    start = started(operation.start)
    done = start.copy()
    operation.work(on(done), "it")
    old, new, files = seen(on(start)), seen(on(done)), published(start) | published(done)
    for way, fault in WAYS[ways].items():
        for at in itertools.count(1):
            failing = Failing(at, fault)
            try:
                fail(start.copy(), operation, failing, old, new, files)
            except Exception as error:
                error.add_note(f"{name}: {way}, in call {at} ({failing.failed_in})")
                raise
            if not failing.failed_in:
                break
        assert at > 5


def fail(machine: Machine, operation: Operation, failing: Failing, old: object, new: object, files: set[str]) -> None:
    witness = Witness()
    registry = Registry(ROOT, disk=Interposed(ModelDisk(machine), failing))
    outcome: BaseException | None = None
    try:
        entry = operation.work(registry, "it")
        if entry is not None:
            witness.saw(operation.model, entry)
    except (Killed, OSError, RegistryError) as error:
        outcome = error
        assert isinstance(error, Killed) or str(error).isprintable()
    witness.check(machine)
    now = seen(on(machine))
    assert now == new or (now == old and outcome is not None)
    assert published(machine) <= files
    if isinstance(outcome, OSError) and not failing.fault.lasting and failing.failed_in not in {"unlink", "create"}:
        assert not ModelDisk(machine).names(ROOT / "tmp")  # (what the call above made or kept, nobody knows of)
    try:  # somebody else tries again, and gets through
        entry = operation.work(on(machine), "it")
        if entry is not None:
            witness.saw(operation.model, entry)
    except ConflictError:
        assert now == new
        assert not operation.repeats
    else:
        machine.power_loss()
    witness.check(machine)
    assert seen(on(machine)) == new
