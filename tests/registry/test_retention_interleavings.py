"""Collectors between the calls of writers, and writers killed at any call: no blob that a log refers to is lost.

All processes work on one file system in memory, one call at a time.  Each schedule is the meanest that the argument of
``rankmill.registry.garbage`` has to stand: a collector that has decided before the writer began goes on in its middle, others run
whole, and one more has looked at everything before the writer commits and deletes after.  No time of grace helps.
"""

from __future__ import annotations

import itertools
import threading
import types
from collections.abc import Callable, Iterable, Iterator

import pytest

from rankmill.foundation.errors import RankmillError, UnknownModel
from rankmill.registry import commit_log, leases
from rankmill.registry.model_registry import Registry
from rankmill.registry.version import Version
from tests.registry.conftest import FACTS
from tests.registry.interposed import Killed, Writer
from tests.registry.model_disk import ROOT, Machine, ModelDisk
from tests.registry.operations import AT_ONCE

SHARED = {"names", "read", "link", "replace", "unlink", "modified"}
"""Calls before which it matters what others do: those that see or change what others see."""
Work = Callable[[Registry], object]


@pytest.fixture(autouse=True)
def dead(brisk: None, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Each thread is a process; the numbers of those that were killed."""
    killed: set[int] = set()
    monkeypatch.setattr(leases, "os", types.SimpleNamespace(getpid=process_number))
    monkeypatch.setattr(leases, "_world", lambda: "model")
    monkeypatch.setattr(leases, "_started", lambda pid: "" if pid in killed else "1")
    monkeypatch.setattr(leases, "_is_gone", lambda pid: pid in killed)
    monkeypatch.setattr(commit_log, "LONGEST_PAUSE", 0.0)
    return killed


NUMBERS = itertools.count(1)


def process_number(thread: threading.Thread | None = None) -> int:
    thread = thread or threading.current_thread()
    if not hasattr(thread, "number"):
        thread.number = next(NUMBERS)
    return int(thread.number)


def on(machine: Machine) -> Registry:
    return Registry(ROOT, disk=ModelDisk(machine))


def collect(registry: Registry) -> None:
    registry.gc(rules=AT_ONCE)


def nobodys_blob() -> Machine:
    """``web`` has one version; the bytes of what will be its second lie there, and nobody refers to them."""
    machine = Machine()
    registry = on(machine)
    registry.prepare(protected=())
    registry.register("web", b"model 1", manifest=FACTS)
    registry._store.put_blob(b"model 2")
    return machine


def due_to_go() -> Machine:
    """The first of two versions of ``web`` is marked, long enough; no alias means any."""
    machine = Machine()
    registry = on(machine)
    registry.prepare(protected=())
    for number in (1, 2):
        registry.register("web", b"model %d" % number, manifest=FACTS)
    collect(registry)
    assert list(registry.state("web").marked) == [1]
    return machine


def twice_promoted() -> Machine:
    """Production went 1, 2, 3, 4, 5, and 1 is marked."""
    machine = Machine()
    registry = on(machine)
    registry.prepare(protected=())
    for number in range(1, 6):
        registry.register("web", b"model %d" % number, manifest=FACTS)
        registry.promote("web", number)
    collect(registry)
    return machine


SCENARIOS: dict[str, tuple[Callable[[], Machine], Work]] = {
    "register": (nobodys_blob, lambda r: r.register("web", b"model 2", manifest=FACTS)),
    "register elsewhere": (nobodys_blob, lambda r: r.register("shop", b"model 2", manifest=FACTS)),
    "promote": (due_to_go, lambda r: r.promote("web", 1)),
    "register what is swept": (due_to_go, lambda r: r.register("web", b"model 1", manifest=FACTS)),
    "roll back": (twice_promoted, lambda r: r.rollback("web", to=1)),
}


def advance(writer: Writer, calls: int) -> bool:
    """Make calls up to the next shared one, so many times; tell whether the writer got that far."""
    for _ in range(calls):
        while writer.step() and writer.next not in SHARED:
            pass
    return not writer.done


def advance_to(writer: Writer, call: str) -> None:
    while writer.next != call and writer.step():
        pass


def finish(machine: Machine, writer: Writer) -> None:
    writer.finish()


def die(machine: Machine, writer: Writer) -> None:
    writer.kill()


def die_after_the_commit(machine: Machine, writer: Writer) -> None:
    """Come as far as the entry, and no further: nobody looks whether the blobs are still in their places."""
    before = entries(machine)
    while entries(machine) == before and writer.step():
        pass
    writer.kill()


def entries(machine: Machine) -> list[str]:
    return [path for path, _ in machine.files(ROOT / "models")]


ENDS = {"finishes": finish, "dies there": die, "dies after its commit": die_after_the_commit}
ORDERS = ("one has decided before it began", "one runs whole meanwhile", "two run whole meanwhile")


def schedules(
    start: Machine, work: Work, dead: set[int], strides: tuple[int, int], ends: Iterable[str]
) -> Iterator[tuple[Machine, Writer, str]]:
    """Run the schedules, every so manieth call of each; the machine after it, the writer, and what happened."""
    step, stride = strides
    for end, order in itertools.product(ends, ORDERS):
        for i in itertools.count(1, step):
            in_time = True
            for j in itertools.count(1 + i % stride, stride):
                machine = start.copy()
                decided = Writer(machine, collect)
                if order == ORDERS[0]:
                    advance_to(decided, "replace")  # into the trash, if there is anything to throw away
                writer = Writer(machine, work)
                in_time = advance(writer, i)
                decided.finish()
                late = Writer(machine, collect)
                late_in_time = advance(late, j)
                for _ in range(ORDERS.index(order)):
                    collect(on(machine))
                if end != "finishes":
                    dead.add(process_number(writer._thread))
                ENDS[end](machine, writer)
                late.finish()
                for collector in (decided, late):
                    assert collector.error is None, (collector.error, end, order, i, j)
                yield machine, writer, f"the writer makes {i} calls and {end}; {order}; the late collector makes {j}"
                if not (in_time and late_in_time):
                    break
            if not in_time:
                break


def check(machine: Machine, writer: Writer) -> None:
    for _ in range(3):
        registry = on(machine)
        report = registry.verify()
        assert report.ok, report.findings
        for version in registry.versions("web"):
            if version.aliases:
                assert version.read()
        collect(registry)
    if writer.error is not None:
        assert isinstance(writer.error, Killed | UnknownModel), writer.error
        return
    if isinstance(writer.result, Version):
        version = on(machine).resolve(str(writer.result), bare="latest")
        assert version.swept_in or version.read()


def search(name: str, dead: set[int], strides: tuple[int, int], ends: Iterable[str] = ENDS) -> int:
    (make, work), done = SCENARIOS[name], 0
    for machine, writer, how in schedules(make(), work, dead, strides, ends):
        try:
            check(machine, writer)
        except (AssertionError, RankmillError) as error:
            error.add_note(f"{name}: {how}")
            raise
        done += 1
    return done


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_runs_between_nothing_needed_is_lost(name: str, dead: set[int]) -> None:
    assert search(name, dead, strides=(3, 53)) > 30


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_runs_between_at_nearly_every_call(name: str, dead: set[int]) -> None:
    search(name, dead, strides=(1, 5))


def test_without_leases_something_is_lost(dead: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "take", lambda store, digests: ROOT / "leases" / "none")
    with pytest.raises(AssertionError, match="the blob is missing"):
        search("register", dead, strides=(3, 29), ends=["dies after its commit"])
