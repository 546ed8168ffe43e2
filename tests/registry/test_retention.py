"""The collector on a disk: what goes, when, and that nobody misses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from rankmill.foundation.errors import InputError, IntegrityError, UnknownModel
from rankmill.registry import commit_log, garbage, leases
from rankmill.registry.blob_store import Store
from rankmill.registry.model_registry import Registry
from rankmill.registry.retention_rules import DAY, RetentionRules
from tests.refusals import refused
from tests.registry.conftest import FACTS, OpenRegistry, QuickDisk
from tests.registry.shell import Shell
from tests.registry.test_races import all_at_once, opened

RULES = RetentionRules(keep=1)
Tree = Callable[[Path], object]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let days go by for the collector, and for entries written from then on."""
    days = 0.0

    def clock(store: Store, *, look_only: bool = False) -> float:
        return time.time() + days * DAY

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(days=days)

    def forward(more: float) -> None:
        nonlocal days
        days += more

    monkeypatch.setattr(garbage, "clock", clock)
    monkeypatch.setattr(commit_log, "datetime", Later)
    return forward


@pytest.fixture
def shop(registry: Registry) -> Registry:
    """Six versions of ``shop``, of 100, 200, .. bytes; production went 1, 2, 3, 4."""
    for number in range(1, 7):
        registry.register("shop", bytes([number]) * 100 * number, manifest=FACTS | {"best_round": number})
    for number in (1, 2, 3, 4):
        registry.promote("shop", number)
    return registry


def size_of(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and "models" not in path.parts)


def digest(registry: Registry, reference: str) -> str:
    return registry.resolve(reference, bare="latest").sha256


def is_there(registry: Registry, sha256: str) -> bool:
    return registry._store.has_blob(sha256)


def test_a_version_is_marked_swept_thrown_away_and_deleted(shop: Registry, wait: Callable[[float], None]) -> None:
    going = [digest(shop, "shop@1"), digest(shop, "shop@5")]
    assert shop.gc(rules=RULES).models["shop"].marked == {}
    wait(7.1)
    report = shop.gc(rules=RULES)
    assert (report.models["shop"].marked, report.trashed, report.freed) == ({1: 100, 5: 500}, {}, 0)
    wait(6.9)
    assert shop.gc(rules=RULES).trashed == {}
    wait(0.2)
    report = shop.gc(rules=RULES)
    assert report.models["shop"].swept == {1: 100, 5: 500}
    assert report.trashed == dict(zip(going, (100, 500), strict=True))
    assert (report.freed, [is_there(shop, sha256) for sha256 in going]) == (0, [False, False])
    wait(6.9)
    assert shop.gc(rules=RULES).freed == 0
    wait(0.2)
    before = size_of(shop.root)
    report = shop.gc(rules=RULES)
    assert report.freed == 600 == before - size_of(shop.root)
    assert shop._store.storage.trash_items() == []
    assert shop.verify().ok


def test_the_history_of_a_swept_version_stays(shop: Registry, wait: Callable[[float], None]) -> None:
    before = shop.log("shop")
    for _ in range(4):
        wait(7.1)
        shop.gc(rules=RULES)
    assert shop.log("shop")[: len(before)] == before
    assert [entry.change.op for entry in shop.log("shop")[len(before) :]] == ["mark", "sweep"]
    gone = shop.resolve("shop@5", bare="latest")
    assert (gone.manifest["best_round"], gone.swept_in is not None) == (5, True)
    for use in (
        gone.read,
        lambda: shop.promote("shop", 5),
        lambda: shop.rollback("shop", to=1),
    ):
        with refused(UnknownModel, "swept"):
            use()
    shop.rollback("shop")
    assert shop.resolve("shop", bare="production").read() == bytes([3]) * 300
    again = shop.register("shop", bytes([5]) * 500, manifest=FACTS | {"best_round": 5})
    assert (again.number, again.read()) == (7, bytes([5]) * 500)


def test_a_dry_run_says_what_a_run_does_and_writes_nothing(
    shop: Registry, wait: Callable[[float], None], tree: Tree
) -> None:
    shop._store.put_blob(b"nobody's")
    shop._store.storage.move_to_trash(digest(shop, "shop@2"), time.time())
    leases.take(shop._store, [])
    for day in range(6):
        wait(5.3)
        if day == 3:
            shop.register("shop", b"new", manifest=FACTS)
        before = tree(shop.root)
        foreseen = shop.gc(rules=RULES, dry_run=True).to_json()
        assert tree(shop.root) == before
        size = size_of(shop.root)
        done = shop.gc(rules=RULES).to_json()
        assert foreseen | {"dry_run": False} == done
        assert size - size_of(shop.root) == done["freed"]


def test_a_second_run_at_once_does_nothing(shop: Registry, wait: Callable[[float], None], tree: Tree) -> None:
    for _ in range(5):
        wait(7.1)
        shop.gc(rules=RULES)
        folders = [shop.root / name for name in ("models", "blobs", "trash") if (shop.root / name).exists()]
        before = [tree(folder) for folder in folders]
        again = shop.gc(rules=RULES)
        assert (again.put_back, again.trashed, again.deleted) == ({}, {}, {})
        assert [tree(folder) for folder in folders] == before


def test_sixteen_collectors_at_once_do_what_one_does(shop: Registry, wait: Callable[[float], None]) -> None:
    shop._store.put_blob(b"nobody's")
    for _ in range(4):
        wait(7.1)
        results = all_at_once(16, lambda i: opened(shop).gc(rules=RULES))
        assert not [result for result in results if isinstance(result, BaseException)], results
        assert shop.verify().ok
    assert [v.number for v in shop.versions("shop") if v.swept_in] == [1, 5]
    assert shop._store.storage.trash_items() == []
    swept = [entry.change.versions for entry in shop.log("shop") if entry.change.op == "sweep"]
    assert sorted(version for versions in swept for version in versions) == [1, 5]


def test_of_another_model_that_has_the_same_bytes_nothing_is_taken(
    shop: Registry, wait: Callable[[float], None]
) -> None:
    shop.register("other", bytes([5]) * 500, manifest=FACTS)
    for _ in range(3):
        wait(7.1)
        report = shop.gc(rules=RULES)
    assert shop.resolve("shop@5", bare="latest").swept_in is not None
    assert report.freed == 100
    assert shop.resolve("other@1", bare="latest").read() == bytes([5]) * 500


def test_named_models_only(shop: Registry, wait: Callable[[float], None]) -> None:
    for number in (1, 2):
        shop.register("other", b"%d" % number, manifest=FACTS)
    wait(7.1)
    assert list(shop.gc("other", rules=RULES).models) == ["other"]
    assert [v.number for v in shop.versions("shop") if v.marked_in] == []
    assert [v.number for v in shop.versions("other") if v.marked_in] == [1]
    with refused(UnknownModel, "'shop'"):
        shop.gc("shopp")


def test_what_comes_to_be_used_again_is_let_go(shop: Registry, wait: Callable[[float], None]) -> None:
    wait(7.1)
    shop.gc(rules=RULES)
    shop.promote("shop", 5, alias="canary")
    wait(7.1)
    with shop.lease(shop.resolve("shop@1", bare="latest")):
        report = shop.gc(rules=RULES)
    assert (report.models["shop"].swept, report.models["shop"].unmarked) == ({}, [1, 5])
    assert [v.number for v in shop.versions("shop") if v.marked_in] == []


def test_a_blob_of_nobody_is_deleted_when_it_is_old(registry: Registry, wait: Callable[[float], None]) -> None:
    registry.register("web", b"model", manifest=FACTS)
    orphan = registry._store.put_blob(b"nobody's")
    assert registry.gc().trashed == {}
    with leases.lease(registry._store, [orphan]):
        wait(7.1)
        assert registry.gc().trashed == {}
    assert registry.gc().trashed == {orphan: 8}
    assert registry._store.read_blob(orphan) == b"nobody's"  # for readers without a lease
    wait(7.1)
    assert registry.gc().freed == 8
    with pytest.raises(IntegrityError, match="missing"):
        registry._store.read_blob(orphan)


def test_what_is_needed_comes_back_from_the_trash(shop: Registry, wait: Callable[[float], None]) -> None:
    sha256 = digest(shop, "shop@4")
    shop._store.storage.move_to_trash(sha256, time.time() - 100 * DAY)
    assert not is_there(shop, sha256)
    assert shop.resolve("shop", bare="production").read() == bytes([4]) * 400
    assert shop.verify().ok
    assert list(shop.gc().put_back) == [sha256]
    assert is_there(shop, sha256)
    assert shop._store.storage.trash_items() == []


def test_a_damaged_blob_does_not_come_back_and_a_whole_one_beside_it_does(shop: Registry) -> None:
    store, sha256 = shop._store, digest(shop, "shop@4")
    store.storage.move_to_trash(sha256, time.time() - 100 * DAY)
    whole = store.storage.trash_items()[0].path
    damaged = whole.with_name(f"{sha256}.20200101T000000Z.00000000")
    damaged.write_bytes(b"damaged")
    assert list(shop.gc().put_back) == [sha256]
    assert shop.resolve("shop", bare="production").read() == bytes([4]) * 400
    assert not damaged.exists()  # a spare


def test_what_is_referred_to_is_not_deleted_though_it_cannot_be_put_back(shop: Registry) -> None:
    store, sha256 = shop._store, digest(shop, "shop@4")
    store.storage.move_to_trash(sha256, time.time() - 100 * DAY)
    damaged = store.storage.trash_items()[0].path
    damaged.chmod(0o644)
    damaged.write_bytes(b"damaged")
    report = shop.gc()
    assert (report.put_back, report.freed, list(report.waiting)) == ({}, 0, [damaged.name])


def test_while_a_log_cannot_be_read_nothing_is_deleted(
    shop: Registry, wait: Callable[[float], None], tree: Tree
) -> None:
    shop.register("other", b"1", manifest=FACTS)
    shop._store.put_blob(b"nobody's")
    path = shop.root / "models/other/log/00000000000000000001.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-7])
    wait(30)
    before = [tree(shop.root / name) for name in ("models", "blobs")]
    with refused(IntegrityError, "nothing", "collected"):
        shop.gc(rules=RULES)
    assert [tree(shop.root / name) for name in ("models", "blobs")] == before


def test_what_entries_in_quarantine_refer_to_stays(registry: Registry, wait: Callable[[float], None]) -> None:
    registry.register("web", b"model", manifest=FACTS)
    orphan = registry._store.put_blob(b"of a lost entry")
    folder = registry.root / "quarantine/now/models/web/log"
    folder.mkdir(parents=True)
    (folder / "00000000000000000002.json").write_text(json.dumps({"model": orphan}))
    wait(30)
    assert registry.gc(rules=RULES).trashed == {}


class TestLeases:
    def test_while_it_is_held_its_file_is_there(self, web: Registry) -> None:
        version = web.resolve("web@1", bare="latest")
        with web.lease(version):
            (path,) = (web.root / "leases").iterdir()
            assert leases.leased(web._store, time.time()) == {version.sha256}
            assert not leases.read_lease(web._store, path).is_dead(time.time() + 1000 * DAY)  # we live
        assert not list((web.root / "leases").iterdir())

    def test_where_nothing_can_be_written_there_is_none_and_no_error(self, web: Registry) -> None:
        class ReadOnly(QuickDisk):
            def create(self, path: Path, mode: int = 0o444) -> int:
                raise OSError(30, "Read-only file system", str(path))

            def make_folder(self, folder: Path, mode: int = 0o777) -> None:
                raise OSError(30, "Read-only file system", str(folder))

        readers = OpenRegistry(web.root, disk=ReadOnly())
        with readers.lease(readers.resolve("web@1", bare="latest")) as nothing:
            assert nothing is None
        assert not list(web.root.glob("leases/*"))

    @pytest.mark.parametrize("how", ["gone", "another process has its number", "elsewhere, expired"])
    def test_one_of_the_dead_is_reaped(self, web: Registry, how: str) -> None:
        path = leases.take(web._store, ["a" * 64])
        record = json.loads(path.read_bytes())
        if how == "gone":
            ended = subprocess.Popen([sys.executable, "-c", ""])
            ended.wait()
            record["pid"] = ended.pid
        elif how == "elsewhere, expired":
            record |= {"host": "elsewhere", "expires": (datetime.now(UTC) - timedelta(seconds=1)).isoformat()}
        else:
            record["started"] = "1"
        path.unlink()
        path.write_text(json.dumps(record))
        assert leases.leased(web._store, time.time()) == set()
        assert web.gc().leases_reaped == 1
        assert not path.exists()

    @pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"world": ""}, {"world": "another container"}])
    def test_one_that_nobody_can_judge_holds_until_it_expires(self, web: Registry, change: dict[str, str]) -> None:
        path = leases.take(web._store, ["a" * 64])
        record = json.loads(path.read_bytes()) | change | {"pid": 2**22 + 1}
        path.unlink()
        path.write_text(json.dumps(record))
        assert leases.leased(web._store, time.time()) == {"a" * 64}
        assert leases.leased(web._store, time.time() + 7.1 * DAY) == set()
        assert web.gc().leases_reaped == 0

    def test_a_child_that_ended_and_was_not_asked_for_its_code_holds_nothing(self, web: Registry) -> None:
        code = f"""
import os
from pathlib import Path
from rankmill.registry import leases
from rankmill.registry.blob_store import Store
leases.take(Store(Path({str(web.root)!r})), ["b" * 64])
os._exit(0)
"""
        child = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        try:
            assert len(list((web.root / "leases").iterdir())) == 1
            assert leases.leased(web._store, time.time()) == set()
        finally:
            child.wait()

    def test_rubbish_hinders_nobody(self, web: Registry) -> None:
        leases.give_up(web._store, leases.take(web._store, []))
        (web.root / "leases" / "torn.json").write_bytes(b"{")
        assert leases.leased(web._store, time.time()) == set()
        assert web.gc().leases_reaped == 0  # it is young
        web.register("web", b"another", manifest=FACTS)


class TestClocks:
    def test_now_is_the_earlier_of_two(self, web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 30 * DAY)
        assert garbage.clock(web._store) < now + DAY
        monkeypatch.setattr(time, "time", lambda: now - 30 * DAY)
        assert garbage.clock(web._store) == now - 30 * DAY
        assert not list((web.root / "tmp").iterdir())

    def test_an_entry_was_written_at_the_later_of_two(self, web: Registry) -> None:
        entries = web.resolve("web@1", bare="latest").log
        now = time.time()
        for seconds, expected in ((-30 * DAY, now), (30 * DAY, now + 30 * DAY)):
            os.utime(entries.path(1), (now + seconds, now + seconds))
            assert garbage.written(entries, 1) == pytest.approx(expected, abs=DAY)


class TestCommand:
    def test_says_what_would_be_done_and_why(self, shop: Registry, wait: Callable[[float], None], tree: Tree) -> None:
        models = Shell(shop.root)
        wait(7.1)
        before = tree(shop.root)
        text = models("gc", "shop", "--keep", "1", "--dry-run")
        for words in (
            "version of shop",
            "nothing keeps it",
            "500 B",
            "production pointed to it lately",
            "the last version",
        ):
            assert words in text
        assert "nothing was changed" in text
        assert tree(shop.root) == before
        told = models.json("gc", "--keep", "1")
        assert (told["models"]["shop"]["marked"], told["freed"], told["dry_run"]) == ({"1": 100, "5": 500}, 0, False)

    def test_grace_is_a_time(self, shop: Registry) -> None:
        models = Shell(shop.root)
        for grace in ("0", "1.5h", "30m", "7d"):
            assert models.json("gc", "--grace", grace, "--dry-run")["dry_run"]
        for grace in ("", "d", "-1d", "7 weeks", "1e9s"):
            with refused(InputError, "7d"):
                models("gc", f"--grace={grace}")

    def test_where_no_registry_is_it_says_so(self, tmp_path: Path) -> None:
        for command in ("gc", "fsck"):
            with refused(InputError, "registry"):
                Shell(tmp_path / "nowhere")(command)
        assert not (tmp_path / "nowhere").exists()


def test_a_blob_in_the_trash_gets_its_place_again_where_its_folder_is_gone(shop: Registry) -> None:
    """Registries are copied by programs that leave empty folders behind."""
    version = shop.resolve("shop@4", bare="latest")
    shop._store.storage.move_to_trash(version.sha256, time.time())
    version.model_path.parent.rmdir()
    assert list(shop.gc(rules=RULES).put_back) == [version.sha256]
    assert version.model_path.exists()
    assert shop.fsck().ok


def test_what_is_no_blob_is_left_to_fsck(shop: Registry) -> None:
    file = shop.root / "blobs/sha256/no/notes.txt"
    file.parent.mkdir()
    file.write_text("hello")
    os.utime(file, (0, 0))
    assert shop.gc(rules=RetentionRules(grace=0.0)).trashed == {}
    assert file.exists()


def test_what_came_and_was_marked_since_it_looked_is_swept_and_told(
    shop: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a look at the log and the sweep others register versions, and another collector marks them."""
    rules, commit = RetentionRules(keep=1, grace=0.0), garbage.CommitLog.commit

    def late(self: commit_log.CommitLog, *arguments: object) -> object:
        monkeypatch.setattr(garbage.CommitLog, "commit", commit)
        for number in (7, 8):
            opened(shop).register("shop", bytes([number]) * 700, manifest=FACTS | {"best_round": number})
        opened(shop).gc(rules=rules)
        return commit(self, *arguments)

    shop.gc(rules=rules)
    monkeypatch.setattr(garbage.CommitLog, "commit", late)
    report = shop.gc(rules=rules).models["shop"]
    assert report.swept[7] == 700
    assert shop.state("shop").swept.keys() >= report.swept.keys()
    assert shop.verify().ok
