"""Collectors between the requests of writers in a bucket, and writers killed at any request: no blob that a log refers
to is lost.

All processes work on one store in memory, one request at a time, as a bucket has no locks.  A writer commits within the
grace period.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from math import inf

import pytest

from rankmill.foundation.errors import RankmillError, UnknownModel
from rankmill.registry import retention
from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_registry import Registry
from rankmill.registry.retention import RetentionRules
from rankmill.registry.stored_records import Entry
from rankmill.registry.version import Version
from tests.registry.conftest import FACTS
from tests.registry.interposed import Killed, Writer
from tests.registry.model_bucket import URL, World, on

pytestmark = pytest.mark.usefixtures("brisk", "read_once")
RULES = RetentionRules(keep=1, grace=600.0)
Work = Callable[[Registry], object]


@pytest.fixture(autouse=True)
def dated_by_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the store is far behind, so that it counts."""

    def dates(log: CommitLog) -> Callable[[Entry], float]:
        modified = {stored.path: stored.modified for stored in log.store.storage.files(log.folder)}
        return lambda entry: modified.get(log.path(entry.number), inf)

    monkeypatch.setattr(retention, "dates", dates)


def collect(registry: Registry) -> None:
    registry.gc(rules=RULES)


def nobodys_blob(world: World) -> None:
    """``web`` has one version; the bytes of what will be its second lie there since long, and nobody refers to them."""
    registry = on(world)
    registry.prepare(protected=())
    registry.register("web", b"model 1", manifest=FACTS)
    CommitLog(registry._store, "web").blobs.put(b"model 2")


def due_to_go(world: World) -> None:
    """Nothing keeps the first of two versions of ``web``, since long."""
    registry = on(world)
    registry.prepare(protected=())
    for number in (1, 2):
        registry.register("web", b"model %d" % number, manifest=FACTS)


def twice_promoted(world: World) -> None:
    """Production went 1, 2, 3, 4, 5."""
    registry = on(world)
    registry.prepare(protected=())
    for number in range(1, 6):
        registry.register("web", b"model %d" % number, manifest=FACTS)
        registry.promote("web", number)


SCENARIOS: dict[str, tuple[Callable[[World], None], Work]] = {
    "register": (nobodys_blob, lambda r: r.register("web", b"model 2", manifest=FACTS)),
    "promote": (due_to_go, lambda r: r.promote("web", 1)),
    "register what is swept": (due_to_go, lambda r: r.register("web", b"model 1", manifest=FACTS)),
    "register it with other facts": (due_to_go, lambda r: r.register("web", b"model 1", manifest=FACTS | {"x": 1})),
    "roll back": (twice_promoted, lambda r: r.rollback("web", to=1)),
}


def search(name: str, *, stride: int, kill: bool) -> int:
    """A collector has made some requests before the writer begins and does the rest in its middle; another runs whole
    then."""
    make, work = SCENARIOS[name]
    start, tried = World(), 0
    make(start)
    start.now += 1000.0
    for i in itertools.count(0):
        for j in itertools.count(i % stride, stride):
            world = start.copy()
            early = Writer(None, collect, opened=partial(on, world))
            early_in_time = early.step(j)
            writer = Writer(None, work, opened=partial(on, world))
            in_time = writer.step(i)
            early.finish()
            collect(on(world))
            if kill:
                writer.kill()
            else:
                writer.finish()
            try:
                check(world, early, writer)
            except (AssertionError, RankmillError) as error:
                error.add_note(f"{name}: the writer had made {i} requests, the collector {j}, kill: {kill}")
                raise
            tried += 1
            if not early_in_time:
                break
        if not in_time:
            return tried
    raise AssertionError


def check(world: World, early: Writer, writer: Writer) -> None:
    assert early.error is None, early.error
    if writer.error is not None:
        assert isinstance(writer.error, Killed | UnknownModel), writer.error
    if isinstance(writer.result, Version):
        version = on(world).resolve(str(writer.result), bare="latest")
        assert version.swept_in or version.read()
    for _ in range(3):
        registry = on(world)
        report = registry.verify()
        assert report.ok, report.findings
        for version in registry.versions("web"):
            if version.aliases:
                assert version.read()
        world.now += 1000.0
        collect(registry)


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_runs_between_nothing_needed_is_lost(name: str, kill: bool) -> None:
    assert search(name, stride=11, kill=kill) > 20


def test_within_no_time_of_grace_something_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.registry.test_retention_interleavings.RULES", RetentionRules(keep=1, grace=0.0))
    with pytest.raises((AssertionError, RankmillError), match="the blob is missing"):
        search("register", stride=3, kill=False)


def test_of_several_objects_of_one_blob_the_newest_stays() -> None:
    world = World()
    nobodys_blob(world)
    registry = on(world)
    registry.register("web", b"model 2", manifest=FACTS)
    registry.promote("web", 1)
    world.now += 1000.0
    there = {str(url) for url in world.objects if "/blobs/" in url.key}
    registry.gc(rules=RULES)
    left = {str(url) for url in world.objects if "/blobs/" in url.key}
    assert (len(there), len(left)) == (5, 3)
    assert registry.verify().ok
    assert str(URL) in next(iter(left))
