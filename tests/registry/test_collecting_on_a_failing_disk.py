"""Each call of the collector goes wrong in turn: nothing that is needed is lost, and the next run does the rest."""

from __future__ import annotations

import itertools

import pytest

from rankmill.foundation.errors import RankmillError
from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_registry import Registry
from tests.registry.faults import CRASHES, LASTING, LOST_ANSWERS, ONCE, Failing
from tests.registry.interposed import Interposed, Killed
from tests.registry.invariants import look, published
from tests.registry.model_disk import ROOT, Machine, ModelDisk, everything
from tests.registry.operations import AT_ONCE, started

pytestmark = pytest.mark.usefixtures("brisk", "read_once")
WAYS = {
    "killed before": CRASHES["before"],
    "killed after": CRASHES["after"],
    "EIO once": ONCE["EIO"],
    "full from then on": LASTING["ENOSPC"],
    "read-only from then on": LASTING["EROFS"],
    "answer lost": LOST_ANSWERS["EIO"],
}
QUICK = {"killed before", "answer lost"}


def on(machine: Machine) -> Registry:
    return Registry(ROOT, disk=ModelDisk(machine))


def all_there_is_to_do() -> Machine:
    """A version to sweep, another to mark, and a blob of nobody."""
    machine = started("one is marked").copy()
    CommitLog(on(machine)._store, "web").blobs.put(b"nobody's")
    return machine


def blobs(machine: Machine) -> set[str]:
    return {path.rpartition("/")[2] for path, _ in machine.files(ROOT) if "/blobs/" in path}


def collected(machine: Machine) -> None:
    for _ in range(3):
        on(machine).gc(rules=AT_ONCE)


@pytest.mark.parametrize("way", [way if way in QUICK else pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_whatever_goes_wrong_the_next_run_does_the_rest(way: str) -> None:
    start = all_there_is_to_do()
    done = start.copy()
    collected(done)
    new, files = look(done), published(done)
    assert len(blobs(start) - blobs(done)) == 2
    before, histories = start.to_bytes(), []
    for at in itertools.count(1):
        machine, failing = Machine.from_bytes(before), Failing(at, WAYS[way])
        outcome = None
        try:
            Registry(ROOT, disk=Interposed(ModelDisk(machine), failing)).gc(rules=AT_ONCE)
        except (Killed, OSError, RankmillError) as error:
            outcome = error
        assert isinstance(outcome, Killed | None) or str(outcome).isprintable()
        found = look(machine)  # every blob that a log refers to is there and whole
        histories.append(len(found.logs["web"]))
        assert blobs(machine) >= blobs(done), f"call {at} ({failing.failed_in})"
        machine.power_loss(everything)
        collected(machine)
        again = look(machine)
        assert again.models == new.models
        assert published(machine) == files, f"call {at} ({failing.failed_in})"
        if not failing.failed_in:
            break
    assert at > 50
    assert set(histories) == {len(look(start).logs["web"]), len(new.logs["web"])}
