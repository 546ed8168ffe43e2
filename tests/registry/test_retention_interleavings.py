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
from functools import partial

import pytest

from rankmill.foundation.errors import RankmillError, UnknownModel
from rankmill.registry import commit_log, leases
from rankmill.registry.model_registry import Registry
from rankmill.registry.version import Version
from tests.registry import model_bucket
from tests.registry.conftest import FACTS
from tests.registry.interposed import Killed, Writer
from tests.registry.model_bucket import World
from tests.registry.model_disk import ROOT, Machine, ModelDisk
from tests.registry.operations import AT_ONCE

SHARED = {"names", "read", "link", "replace", "unlink", "modified", *model_bucket.REQUESTS}
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


Place = Machine | World


def on(place: Place) -> Registry:
    return model_bucket.on(place) if isinstance(place, World) else Registry(ROOT, disk=ModelDisk(place))


def writer_on(place: Place, work: Work) -> Writer:
    if isinstance(place, World):
        return Writer(None, work, opened=partial(model_bucket.on, place))
    return Writer(place, work)


def collect(registry: Registry) -> None:
    registry.gc(rules=AT_ONCE)


def nobodys_blob(machine: Place) -> Place:
    """``web`` has one version; the bytes of what will be its second lie there, and nobody refers to them."""
    registry = on(machine)
    registry.prepare(protected=())
    registry.register("web", b"model 1", manifest=FACTS)
    registry._store.put_blob(b"model 2")
    return machine


def due_to_go(machine: Place) -> Place:
    """The first of two versions of ``web`` is marked, long enough; no alias means any."""
    registry = on(machine)
    registry.prepare(protected=())
    for number in (1, 2):
        registry.register("web", b"model %d" % number, manifest=FACTS)
    collect(registry)
    assert list(registry.state("web").marked) == [1]
    return machine


def twice_promoted(machine: Place) -> Place:
    """Production went 1, 2, 3, 4, 5, and 1 is marked."""
    registry = on(machine)
    registry.prepare(protected=())
    for number in range(1, 6):
        registry.register("web", b"model %d" % number, manifest=FACTS)
        registry.promote("web", number)
    collect(registry)
    return machine


SCENARIOS: dict[str, tuple[Callable[[Place], Place], Work]] = {
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


def advance_to_the_trash(writer: Writer) -> None:
    def is_it() -> bool:
        return writer.next == "replace" or (writer.next == "put" and "/trash/" in str(writer.about))

    while not is_it() and writer.step():
        pass


def advance_to_the_deletion(writer: Writer) -> None:
    def is_it() -> bool:
        blob = "/trash/" if writer.next == "unlink" else "/blobs/"
        return writer.next in {"unlink", "delete"} and blob in str(writer.about)

    while not is_it() and writer.step():
        pass


def finish(machine: Place, writer: Writer) -> None:
    writer.finish()


def die(machine: Place, writer: Writer) -> None:
    writer.kill()


def die_after_the_commit(machine: Place, writer: Writer) -> None:
    """Come as far as the entry, and no further: nobody looks whether the blobs are still in their places."""
    before = entries(machine)
    while entries(machine) == before and writer.step():
        pass
    writer.kill()


def entries(machine: Place) -> list[str]:
    if isinstance(machine, World):
        return [str(url) for url in machine.objects if "/models/" in url.key]
    return [path for path, _ in machine.files(ROOT / "models")]


ENDS = {"finishes": finish, "dies there": die, "dies after its commit": die_after_the_commit}
ORDERS = (
    "one has decided before it began",
    "one runs whole meanwhile",
    "two run whole meanwhile",
    "one is about to delete before it began",
)


def schedules(
    start: Place, work: Work, dead: set[int], strides: tuple[int, int], ends: Iterable[str]
) -> Iterator[tuple[Place, Writer, str]]:
    """Run the schedules, every so manieth call of each; the machine after it, the writer, and what happened."""
    step, stride = strides
    orders = ORDERS[:3] if isinstance(start, Machine) and step > 1 else ORDERS  # the fourth is the bucket's own danger
    for end, order in itertools.product(ends, orders):
        for i in itertools.count(1, step):
            in_time = True
            for j in itertools.count(1 + i % stride, stride):
                machine = start.copy()
                if order == ORDERS[3]:
                    collect(on(machine))  # into the trash
                decided = writer_on(machine, collect)
                if order == ORDERS[0]:
                    advance_to_the_trash(decided)  # into the trash, if there is anything to throw away
                if order == ORDERS[3]:
                    advance_to_the_deletion(decided)
                writer = writer_on(machine, work)
                in_time = advance(writer, i)
                decided.finish()
                late = writer_on(machine, collect)
                late_in_time = advance(late, j)
                for _ in range(ORDERS.index(order) % 3):
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


def check(machine: Place, writer: Writer) -> None:
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


def search(
    name: str,
    dead: set[int],
    strides: tuple[int, int],
    ends: Iterable[str] = ENDS,
    place: Callable[[], Place] = Machine,
) -> int:
    (make, work), done = SCENARIOS[name], 0
    for machine, writer, how in schedules(make(place()), work, dead, strides, ends):
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


@pytest.mark.parametrize("name", SCENARIOS)
def test_so_it_is_in_a_bucket(name: str, dead: set[int]) -> None:
    assert search(name, dead, strides=(7, 29), place=World) > 30


@pytest.mark.slow
@pytest.mark.parametrize("place", [Machine, World])
@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_runs_between_at_nearly_every_call(name: str, place: Callable[[], Place], dead: set[int]) -> None:
    search(name, dead, strides=(1, 5 if place is Machine else 1), place=place)


@pytest.mark.parametrize("place", [Machine, World])
def test_without_leases_something_is_lost(
    place: Callable[[], Place], dead: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "take", lambda store, digests: store.root / "leases" / "none")
    with pytest.raises(AssertionError, match="the blob is missing"):
        search("register", dead, strides=(3, 29), ends=["dies after its commit"], place=place)
