"""A registry in a bucket: what differs from one on a disk."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmill.foundation.errors import ConflictError, IntegrityError
from rankmill.foundation.storage.bucket import StoreError
from rankmill.registry import bucket_storage, commit_log
from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_registry import Registry
from rankmill.registry.retention import RetentionRules
from tests.refusals import refused
from tests.registry.conftest import FACTS
from tests.registry.faults import Failing, Fault
from tests.registry.model_bucket import URL, ModelBucket, World, content, on
from tests.registry.operations import three_versions

DAY = 24 * 3600.0


@pytest.fixture
def world() -> World:
    made = World()
    three_versions(on(made))
    return made


def test_everything_is_below_its_prefix_and_the_format_is_its_own(world: World) -> None:
    assert all(url.key.startswith(f"{URL.key}/") for url in world.objects)
    assert json.loads(world.objects[URL / "FORMAT.json"][0]) == {"format": 5, "kind": "bucket", "protected": []}


def test_an_existing_registry_is_probed_too(world: World) -> None:
    world.ignores_conditions = True
    with refused(OSError, "If-None-Match"):
        on(world).initialise(leave_open=True)


def test_raw_copies_between_disk_and_bucket_are_not_mistaken(world: World, web: Registry) -> None:
    assert isinstance(web.root, Path)
    for url, (data, _) in world.objects.items():
        path = web.root.parent / "copied" / url.relative_to(URL)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with refused(IntegrityError, "FORMAT.json", "registry of a bucket", "models copy"):
        Registry(web.root.parent / "copied").names()
    raw = World()
    for path in web.root.rglob("*"):
        if path.is_file():
            raw.objects[URL / path.relative_to(web.root).as_posix()] = (path.read_bytes(), 0.0)
    with refused(IntegrityError, "FORMAT.json", "registry of a disk", "models copy"):
        on(raw).names()


def test_a_registry_goes_to_a_bucket_and_back_with_its_history(web: Registry, tmp_path: Path) -> None:
    web.register("shop", b"shop 1", manifest=FACTS, attachments={"notes": b"n"})
    world = World()
    there, back = Registry(URL, bucket=ModelBucket(world)), Registry(tmp_path / "back")
    assert [(done.name, done.added) for done in web.copy(there)] == [("shop", 1), ("web", 7)]
    there.promote("web", 2, reason="while it was there")
    assert [(done.name, done.added) for done in there.copy(back)] == [("shop", 1), ("web", 8)]
    for name in ("shop", "web"):
        assert back.log(name)[: len(web.log(name))] == web.log(name)
        assert back.log(name) == there.log(name)
    assert back.verify().ok
    assert back.protected == there.protected == web.protected
    assert back.resolve("shop@1").attachment("notes") == b"n"
    before = content(world)
    assert [done.added for done in back.copy(there)] == [0, 0]
    assert content(world) == before
    web.promote("web", 1)
    with refused(ConflictError, "web", "differs"):
        web.copy(there, ["web"])


def test_a_commit_is_a_few_requests_however_long_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "is_due", lambda head, checkpoint: head - checkpoint >= 100)
    world, counted = World(), Counter[str]()
    registry = on(world)
    registry.prepare(protected=())
    for model in (b"1", b"2"):
        registry.register("web", model, manifest=FACTS)
    for number in range(205):
        registry.promote("web", 1 + number % 2, alias="blue")

    def around(name: str, call: Callable[..., object], *arguments: object, **named: object) -> object:
        counted[name] += 1
        answer = call(*arguments, **named)
        if name == "below":
            counted["listed"] += len(answer)  # type: ignore[arg-type]
        return answer

    on(world, around).promote("web", 1)
    assert counted["put_new"] == 1
    assert counted["get"] < 25
    assert counted["listed"] < 25


def test_grace_is_measured_by_the_clock_of_the_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, rules = on(world), RetentionRules(keep=1, grace=DAY)
    blobs = CommitLog(registry._store, "web").blobs
    orphan = blobs.put(b"nobody's")
    ours = time.time
    monkeypatch.setattr(time, "time", lambda: ours() + 100 * DAY)  # our clock is fast
    assert not registry.gc(rules=rules).freed
    assert blobs.read(orphan) == b"nobody's"
    world.now += 2 * DAY
    assert registry.gc(rules=rules).freed == len(b"nobody's")
    with pytest.raises(IntegrityError, match="missing"):
        blobs.read(orphan)


def test_an_unknown_outcome_is_named_as_such(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_storage, "PAUSE", 0.0)

    def down(name: str, call: Callable[..., object], *arguments: object, **named: object) -> object:
        if name == "put_new":
            raise StoreError(URL, "the store did not answer in time")
        return call(*arguments, **named)

    with refused(OSError, "unknown whether", "models log NAME"):
        on(world, down).promote("web", 1)


def test_a_store_that_fails_is_no_unknown_change_for_a_probe() -> None:
    with refused(StoreError, str(URL), "made") as raised:
        on(World(), Failing(3, Fault(StoreError, lasting=True))).initialise()
    assert "unknown" not in str(raised.value)
