"""A checkpoint saves work and never decides anything."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.records import canonical_json
from rankmill.registry import commit_log
from rankmill.registry.blob_store import Store
from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_registry import Registry
from rankmill.registry.model_state import State
from rankmill.registry.stored_records import AliasPolicy
from tests.registry.conftest import FACTS, OpenRegistry, QuickDisk, outcome


class CountingDisk(QuickDisk):
    def __init__(self) -> None:
        self.reads = 0

    def read(self, path: Path, limit: int = -1) -> bytes:
        self.reads += 1
        return super().read(path, limit)


def keep(registry: Registry) -> Path:
    """Write a checkpoint of ``web`` as it stands."""
    store = Store(registry.root, QuickDisk())
    commit_log.write_checkpoint(store, "web", registry.state("web"))
    return registry.root / "models" / "web" / "checkpoint.json"


def folded(registry: Registry) -> State:
    state = State()
    CommitLog(Store(registry.root, QuickDisk()), "web").advance(state)
    return state


@pytest.fixture
def busy(web: Registry) -> Registry:
    """Everything that a log can say."""
    web.register("web", b"model 4", manifest=FACTS, attachments={"queries": b"1 2 3"})
    web.tag("web", 4, "status", "candidate")
    web.tag("web", 4, "note", "a b")
    web.tag("web", 4, "note", None)
    web.protect("web", "production", AliasPolicy(metric="ndcg@10", margin=0.01))
    web.record_gate("web", outcome(4, baseline=3), {"difference": 0.01})
    web.promote("web", 4)
    web.promote("web", 2, force=True)
    web.unset("web", "shadow")
    return web


def test_a_checkpoint_holds_all_that_the_fold_holds(busy: Registry) -> None:
    before = folded(busy)
    keep(busy)
    found = commit_log.read_checkpoint(Store(busy.root), "web")
    assert found == before
    assert busy.state("web") == before
    busy.register("web", b"model 5", manifest=FACTS)
    assert busy.state("web") == folded(busy)
    assert busy.versions("web")[3].attachment("queries") == b"1 2 3"
    assert busy.versions("web")[4].attachment("queries") is None
    assert [v.number for v in busy.versions("web")] == [1, 2, 3, 4, 5]
    assert busy.verify().ok


def test_a_damaged_checkpoint_is_not_believed(web: Registry) -> None:
    before, path = web.state("web"), keep(web)
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in (0, 1, 100, -1)]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(0, len(whole), 29)]
    for body in ({}, [], {"format": 1}, {"format": 2, "state": None}, {"format": 2, "state": {"head": 7}}):
        data = canonical_json(body)  # of another program
        damaged.append(b'{"checkpoint":%b,"sha256":"%b"}\n' % (data, hashlib.sha256(data).hexdigest().encode()))
    for data in damaged:
        path.unlink()
        path.write_bytes(data)
        assert commit_log.read_checkpoint(Store(web.root), "web") is None
    assert web.state("web") == before
    assert web.verify().ok
    path.write_bytes(whole)
    assert commit_log.read_checkpoint(Store(web.root), "web") == before


def test_a_checkpoint_of_another_log_is_not_believed(
    web: Registry, tmp_path: Path, tree: Callable[[Path], object]
) -> None:
    other = OpenRegistry(tmp_path / "other", disk=QuickDisk())
    for number in range(7):
        other.register("web", b"other %d" % number, manifest=FACTS)
    foreign, path = keep(other), keep(web)
    path.unlink()
    os.link(foreign, path)
    before = tree(web.root)
    assert web.state("web") == folded(web)
    assert web.resolve("web", bare="production").number == 3
    assert tree(web.root) == before


def test_a_checkpoint_from_before_a_restore_is_not_believed(web: Registry) -> None:
    keep(web)
    last = max((web.root / "models/web/log").iterdir())
    last.unlink()  # the log was put back to an earlier day
    assert web.state("web").head == 6
    web.promote("web", 1, alias="canary")
    assert web.state("web") == folded(web)


def test_an_entry_missing_behind_the_checkpoint_is_noticed(web: Registry) -> None:
    keep(web)
    web.promote("web", 2)
    web.promote("web", 1)
    (web.root / "models/web/log" / f"{8:020d}.json").unlink()
    with pytest.raises(IntegrityError, match="missing"):
        web.state("web")


def test_after_a_checkpoint_few_files_are_read(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "is_due", lambda head, last: False)
    for number in range(60):
        registry.register("web", b"%d" % number, manifest=FACTS)
    registry.promote("web", 60)
    keep(registry)
    registry.promote("web", 59)
    disk = CountingDisk()
    opened = Registry(registry.root, disk=disk)
    assert len(opened.versions("web")) == 60
    assert opened.resolve("web", bare="production").number == 59
    opened.promote("web", 60)
    assert disk.reads < 30


def test_writers_keep_checkpoints_and_readers_write_nothing(registry: Registry, tree: Callable[[Path], object]) -> None:
    path = registry.root / "models/web/checkpoint.json"
    for number in range(101):
        registry.register("web", b"%d" % number, manifest=FACTS)
    found = commit_log.read_checkpoint(registry._store, "web")
    assert found is not None
    assert found.head == 100
    before = tree(registry.root)
    registry.versions("web")
    registry.resolve("web", bare="latest")
    registry.verify()
    assert tree(registry.root) == before
    path.unlink()
    assert len(registry.versions("web")) == 101
    assert not path.exists()


def test_a_checkpoint_that_cannot_be_written_is_no_error(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(QuickDisk):
        def replace(self, source: Path, target: Path) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("rankmill.registry.commit_log.is_due", lambda head, last: True)
    full = Registry(web.root, disk=Full())
    full.promote("web", 1)
    assert web.resolve("web", bare="production").number == 1
    assert list((web.root / "tmp").iterdir()) == []


def test_a_checkpoint_that_tells_another_story_is_named(web: Registry) -> None:
    state = web.state("web")
    state.tags = {1: {"quality": "good"}}
    commit_log.write_checkpoint(web._store, "web", state)
    (finding,) = web.verify().findings
    assert "checkpoint.json" in finding
    assert "remove it" in finding
