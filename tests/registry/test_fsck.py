"""Damage done to a registry is found, and a repair loses nothing that is not said to be lost."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.disk import Disk
from rankmill.registry import commit_log, fsck, leases
from rankmill.registry.model_registry import Registry
from rankmill.registry.model_state import State
from rankmill.registry.retention_rules import DAY, RetentionRules
from tests.refusals import refused
from tests.registry.conftest import FACTS
from tests.registry.faults import CRASHES, Failing
from tests.registry.interposed import Interposed, Killed
from tests.registry.model_disk import ROOT, Machine, ModelDisk, everything, nothing_new
from tests.registry.shell import Shell
from tests.registry.test_races import all_at_once, opened

Harm = Callable[[Registry], object]


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def entry(registry: Registry, number: int) -> Path:
    return registry.root / f"models/web/log/{number:020d}.json"


def blob(registry: Registry, version: int) -> Path:
    return registry.resolve(f"web@{version}", bare="latest").model_path


def tear(path: Path) -> None:
    overwrite(path, path.read_bytes()[:-9])


def to_trash(registry: Registry, version: int) -> None:
    registry._store.storage.move_to_trash(blob(registry, version).name, time.time())


def damage_beside_a_copy(registry: Registry) -> None:
    data, path = blob(registry, 3).read_bytes(), blob(registry, 3)
    to_trash(registry, 3)
    path.write_bytes(data[::-1])
    path.chmod(0o444)


DAMAGE: dict[str, Harm] = {
    "a torn entry": lambda r: tear(entry(r, 4)),
    "an empty entry": lambda r: overwrite(entry(r, 4), b""),
    "a gap": lambda r: entry(r, 4).unlink(),
    "the first entry is gone": lambda r: entry(r, 1).unlink(),
    "an entry of another place": lambda r: overwrite(entry(r, 4), entry(r, 3).read_bytes()),
    "a foreign file in a log": lambda r: (entry(r, 1).parent / "notes.txt").write_text("hello"),
    "a damaged blob beside a copy": damage_beside_a_copy,
}
FOR_GOOD: dict[str, Harm] = {
    "a blob is gone": lambda r: blob(r, 2).unlink(),
    "a damaged blob": lambda r: tear(blob(r, 2)),
    "a damaged manifest": lambda r: tear(r._store.blob_path(r.resolve("web@2", bare="latest").manifest_sha256)),
}


def write_old(registry: Registry) -> None:
    path = registry.root / "tmp" / "elsewhere.1.ab"
    path.write_bytes(b"half")
    os.utime(path, (time.time() - 8 * DAY,) * 2)


def die_with_a_lease(registry: Registry) -> None:
    path = leases.take(registry._store, [])
    record = json.loads(path.read_bytes()) | {"started": "1"}
    path.unlink()
    path.write_text(json.dumps(record))


REMARKS: dict[str, Harm] = {
    "in the trash": lambda r: to_trash(r, 3),
    "writable": lambda r: blob(r, 3).chmod(0o644),
    "a stale lease": die_with_a_lease,
    "no lease": lambda r: ((r.root / "leases").mkdir(exist_ok=True), (r.root / "leases/x.json").write_text("{")),
    "staged by the dead": write_old,
    "a foreign file in the trash": lambda r: ((r.root / "trash").mkdir(), (r.root / "trash/x").write_text("hello")),
    "a foreign file among the blobs": lambda r: (blob(r, 3).parent / "notes.txt").write_text("hello"),
    "a foreign folder among the models": lambda r: (r.root / "models/Web").mkdir(),
    "a torn checkpoint": lambda r: (r.root / "models/web/checkpoint.json").write_text("{"),
}


def files(root: Path) -> set[bytes]:
    """What lies anywhere, by content."""
    return {path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "checkpoint.json"}


def test_in_a_healthy_registry_there_is_nothing_to_find(
    web: Registry, tree: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "is_due", lambda head, checkpoint: True)
    web.promote("web", 2, alias="canary")
    assert (web.root / "models/web/checkpoint.json").exists()
    before = tree(web.root)
    report = web.fsck()
    assert (report.findings, report.models, report.entries, report.blobs) == ([], 1, 8, 6)
    assert web.fsck(repair=True).findings == []
    assert tree(web.root) == before


@pytest.mark.parametrize("harm", DAMAGE | FOR_GOOD | REMARKS)
def test_looking_writes_nothing_and_finds_one_thing(web: Registry, harm: str, tree: Callable[[Path], object]) -> None:
    (DAMAGE | FOR_GOOD | REMARKS)[harm](web)
    before = tree(web.root)
    report = web.fsck()
    assert tree(web.root) == before
    (finding,) = [f for f in report.findings if "nothing refers to it" not in f.wrong]
    assert Path(finding.file).is_relative_to(web.root)
    assert (finding.damage, report.ok) == (harm not in REMARKS, harm in REMARKS)
    assert not finding.repaired
    assert report.ok or harm == "a foreign file in a log" or not web.verify().ok


@pytest.mark.parametrize("harm", DAMAGE | REMARKS)
def test_a_repair_leaves_nothing_to_find_and_loses_no_file(web: Registry, harm: str) -> None:
    (DAMAGE | REMARKS)[harm](web)
    before = files(web.root)
    report = web.fsck(repair=True)
    assert report.ok
    lost = before - files(web.root)
    assert bool(lost) == (harm in {"a stale lease", "staged by the dead"})
    again = web.fsck()
    assert [f for f in again.findings if "nothing refers to it" not in f.wrong] == []
    assert web.verify().ok
    web.register("web", b"another", manifest=FACTS)  # writers are let in again


@pytest.mark.parametrize("harm", FOR_GOOD)
def test_what_cannot_be_repaired_stays_damage_and_a_whole_one_can_be_put_again(web: Registry, harm: str) -> None:
    data = blob(web, 2).read_bytes()
    FOR_GOOD[harm](web)
    before = files(web.root)
    assert not web.fsck(repair=True).ok
    assert files(web.root) == before
    assert not web.fsck(repair=True).ok
    web.register("other", data, manifest=FACTS | {"best_round": 2})
    assert web.fsck().ok


@pytest.mark.parametrize(("broken", "left"), [(1, 0), (3, 2), (7, 6)])
def test_of_a_broken_log_the_longest_beginning_stays_and_what_is_lost_is_said(
    web: Registry, broken: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "is_due", lambda head, checkpoint: True)
    web.register("web", b"model 4", manifest=FACTS)
    entries = web.log("web")
    entry(web, 8).unlink()
    tear(entry(web, broken))
    with pytest.raises(IntegrityError):
        web.log("web")
    (finding,) = [f for f in web.fsck().findings if f.damage]
    assert f"{broken} to 7" in finding.wrong or broken == 7
    assert f"{broken} unreadable" in finding.wrong
    for number in range(broken + 1, 8):
        assert f"{number} {entries[number - 1].change.op}" in finding.wrong
    web.fsck(repair=True)
    opened = Registry(web.root)
    assert (opened.log("web") if left else opened.names()) == entries[:left]
    quarantined = {path.name for path in (web.root / "quarantine").rglob("*.json")}
    assert quarantined == {entry(web, number).name for number in range(broken, 8)}


def test_a_checkpoint_that_tells_another_story_is_removed(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankmill.registry.commit_log import checkpoint_path, write_checkpoint

    state = web.state("web")
    state.tags[1] = {"made": "up"}
    write_checkpoint(web._store, "web", state)
    (finding,) = web.fsck().findings
    assert finding.file == str(checkpoint_path(web._store, "web"))
    assert web.fsck(repair=True).ok
    assert web.fsck().findings == []


def test_a_file_that_cannot_be_read_is_no_damage(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, limit: int = -1) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(web._store.disk, "read", denied)
    with pytest.raises(PermissionError):
        web.fsck(repair=True)
    assert not (web.root / "quarantine").exists()


def test_a_repair_that_is_killed_at_any_call_is_done_by_the_next(brisk: None) -> None:
    start = Machine()
    registry = Registry(ROOT, disk=ModelDisk(start))
    registry.prepare(protected=())
    for number in (1, 2, 3):
        registry.register("web", b"model %d" % number, manifest=FACTS)
        registry.promote("web", number)
    for path in (entry(registry, 4), blob(registry, 1)):
        file = start.find(path)
        file.data = file.safe = file.data[:-1]
    held = {file.data for path, file in start.files(ROOT) if not path.endswith("/ballast")}
    before = start.to_bytes()
    for at in itertools.count(1):
        machine = Machine.from_bytes(before)
        failing = Failing(at, CRASHES["before"])
        with contextlib.suppress(Killed):
            Registry(ROOT, disk=Interposed(ModelDisk(machine), failing)).fsck(repair=True)
        machine.power_loss(everything if at % 2 else nothing_new)
        again = Registry(ROOT, disk=ModelDisk(machine))
        again.fsck(repair=True)
        left = [finding.wrong for finding in again.fsck().findings if finding.damage]
        assert left == ["missing: the model of web@1"]
        assert len(again.log("web")) == 3
        assert held <= {file.data for _, file in machine.files(ROOT)}
        if not failing.failed_in:
            break
    assert at > 30


def test_a_look_while_others_work_finds_nothing(web: Registry) -> None:
    def work(i: int) -> None:
        mine = opened(web)
        for step in range(6):
            if i == 0:
                mine.gc(rules=RetentionRules(keep=1, grace=0.0))
            elif i == 1:
                mine.register("web", b"new %d" % step, manifest=FACTS)
            else:
                assert [finding for finding in mine.fsck().findings if finding.damage] == []

    assert all_at_once(4, work) == [None] * 4


def test_an_entry_of_a_later_version_is_not_cut_off(web: Registry) -> None:
    """What follows it was acknowledged to somebody, and production moved by it."""
    path, state = entry(web, 8), web.state("web")
    told = web.log("web")[-1].to_json() | {"number": 8, "prev": state.digest, "change": {"op": "crown", "version": 1}}
    body = canonical_json(told)
    path.write_bytes(b'{"entry":%b,"sha256":"%b"}\n' % (body, hashlib.sha256(body).hexdigest().encode()))
    before = files(web.root)
    for repair in (False, True):
        report = web.fsck(repair=repair)
        assert not report.ok
        assert "use the version that wrote it" in report.findings[0].wrong
        assert "--repair" not in report.findings[0].cure
    assert files(web.root) == before


def test_what_comes_and_goes_while_it_looks_is_no_damage(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is done with its staged file; one collector takes a blob away, and another puts one back."""
    look, here = web._store.disk.names, blob(web, 1)

    def stale(folder: Path) -> list[str]:
        gone = {"tmp": ["elsewhere.1.ab"], "blobs": [], here.parent.name: [here.parent.name + "0" * 62]}
        return [name for name in look(folder) if name != here.name] + gone.get(folder.name, [])

    monkeypatch.setattr(web._store.disk, "names", stale)
    assert web.fsck().ok


def test_a_repair_leaves_alone_what_was_registered_since_it_looked(
    web: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = web._store.storage.blobs

    def late() -> dict[str, Path]:
        found = look()
        opened(web).register("web", b"new", manifest=FACTS | {"best_round": 9})
        return found

    monkeypatch.setattr(web._store.storage, "blobs", late)
    web.fsck(repair=True)
    assert not (web.root / "quarantine").exists()
    assert web.verify().ok


def test_a_checkpoint_that_came_while_it_looked_is_no_damage(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "is_due", lambda head, checkpoint: True)
    read = fsck._Check._checkpoint

    def late(self: fsck._Check, of: commit_log.CommitLog) -> State | None:
        opened(web).promote("web", 2, alias="canary")
        return read(self, of)

    monkeypatch.setattr(fsck._Check, "_checkpoint", late)
    assert web.fsck().findings == []


class TestCommand:
    def test_says_what_is_wrong_and_leaves_with_13_until_it_is_repaired(self, web: Registry) -> None:
        models = Shell(web.root)
        assert "No damage" in models("fsck")
        tear(entry(web, 4))
        with refused(IntegrityError, "damage", "1"):
            models("fsck")
        text = models("fsck", "--repair")
        assert "damage: " in text
        assert "repaired" in text
        assert models.json("fsck")["ok"]


def test_whoever_may_not_look_at_staged_files_is_told_of_the_rest(
    web: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Disk.names

    def guarded(self: Disk, folder: Path) -> list[str]:
        if folder.name == "tmp":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return names(self, folder)

    monkeypatch.setattr(Disk, "names", guarded)
    told = Shell(web.root).json("fsck")
    assert told["ok"]
    assert [(finding["file"], finding["damage"]) for finding in told["findings"]] == [(str(web.root / "tmp"), False)]
