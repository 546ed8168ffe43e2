"""The collector on a disk: what goes, when, and that nobody misses it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from rankmill.foundation.errors import InputError, IntegrityError, UnknownModel
from rankmill.registry import commit_log, retention
from rankmill.registry.blob_store import Blobs, Store
from rankmill.registry.model_registry import Registry
from rankmill.registry.retention import DAY, RetentionRules
from tests import ROOT
from tests.refusals import refused
from tests.registry.conftest import FACTS, OpenRegistry, QuickDisk, opened
from tests.registry.shell import Shell
from tests.registry.test_races import all_at_once
from tests.waiting import LIMIT

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

    monkeypatch.setattr(retention, "clock", clock)
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


def blobs_of(registry: Registry, name: str = "shop") -> Blobs:
    return commit_log.CommitLog(registry._store, name).blobs


def is_there(registry: Registry, sha256: str) -> bool:
    return sha256 in {blob.sha256 for blob in blobs_of(registry).all()}


def test_a_version_is_swept_and_deleted_once_nothing_kept_it_for_the_grace_period(
    shop: Registry, wait: Callable[[float], None]
) -> None:
    log, going = shop.log("shop"), [digest(shop, "shop@1"), digest(shop, "shop@5")]
    wait(6.9)
    assert shop.gc(rules=RULES).freed == 0
    assert shop.log("shop") == log
    wait(0.2)
    before = size_of(shop.root)
    report = shop.gc(rules=RULES)
    assert report.models["shop"].swept == {1: 100, 5: 500}
    assert report.models["shop"].deleted == dict(sorted(zip(going, (100, 500), strict=True)))
    assert report.freed == 600 == before - size_of(shop.root)
    assert not any(is_there(shop, sha256) for sha256 in going)
    assert shop.verify().ok
    assert shop.log("shop")[:-1] == log
    gone = shop.resolve("shop@5", bare="latest")
    assert (gone.manifest["best_round"], gone.swept_in) == (5, 11)
    for use in (gone.read, lambda: shop.promote("shop", 5), lambda: shop.rollback("shop", to=1)):
        with refused(UnknownModel, "swept"):
            use()
    shop.rollback("shop")
    assert shop.resolve("shop", bare="production").read() == bytes([3]) * 300
    again = shop.register("shop", bytes([5]) * 500, manifest=FACTS | {"best_round": 5})
    assert (again.number, again.read()) == (7, bytes([5]) * 500)


def test_a_dry_run_says_what_a_run_does_and_writes_nothing_and_a_second_run_at_once_does_nothing(
    shop: Registry, wait: Callable[[float], None], tree: Tree
) -> None:
    blobs_of(shop).put(b"nobody's")
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
        folders = [shop.root / name for name in ("models", "blobs")]
        before = [tree(folder) for folder in folders]
        assert shop.gc(rules=RULES).freed == 0
        assert [tree(folder) for folder in folders] == before


def test_sixteen_collectors_at_once_do_what_one_does(shop: Registry, wait: Callable[[float], None]) -> None:
    blobs_of(shop).put(b"nobody's")
    for _ in range(4):
        wait(7.1)
        results = all_at_once(16, lambda i: opened(shop).gc(rules=RULES))
        assert not [result for result in results if isinstance(result, BaseException)], results
        assert shop.verify().ok
    assert [v.number for v in shop.versions("shop") if v.swept_in] == [1, 5]
    swept = [entry.change.versions for entry in shop.log("shop") if entry.change.op == "sweep"]
    assert sorted(version for versions in swept for version in versions) == [1, 5]


def test_of_another_model_that_has_the_same_bytes_nothing_is_taken(
    shop: Registry, wait: Callable[[float], None]
) -> None:
    shop.register("other", bytes([5]) * 500, manifest=FACTS)
    for _ in range(3):
        wait(7.1)
        shop.gc(rules=RULES)
    assert shop.resolve("shop@5", bare="latest").swept_in is not None
    assert shop.resolve("other@1", bare="latest").read() == bytes([5]) * 500


def test_named_models_only(shop: Registry, wait: Callable[[float], None]) -> None:
    for number in (1, 2):
        shop.register("other", b"%d" % number, manifest=FACTS)
    wait(7.1)
    assert list(shop.gc("other", rules=RULES).models) == ["other"]
    assert [v.number for v in shop.versions("shop") if v.swept_in] == []
    assert [v.number for v in shop.versions("other") if v.swept_in] == [1]
    with refused(UnknownModel, "'shop'"):
        shop.gc("shopp")


def test_an_unreferenced_blob_is_deleted_when_it_is_old(registry: Registry, wait: Callable[[float], None]) -> None:
    registry.register("web", b"model", manifest=FACTS)
    for name in ("web", "shop"):  # the first registration of shop was killed
        with blobs_of(registry, name).keep([b"nobody's"]):
            pass
    assert registry.gc().freed == 0
    assert registry.names() == ["web"]
    wait(7.1)
    assert registry.gc().freed == 16
    assert registry.verify().ok


def test_of_a_model_whose_log_cannot_be_read_nothing_is_deleted(
    shop: Registry, wait: Callable[[float], None], tree: Tree
) -> None:
    shop.register("web", b"1", manifest=FACTS)
    blobs_of(shop, "web").put(b"nobody's")
    path = shop.root / "models/web/log/00000000000000000001.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-7])
    wait(30)
    before = [tree(shop.root / name) for name in ("models/web", "blobs/web")]
    with refused(IntegrityError, "web", "nothing", "deleted"):
        shop.gc(rules=RULES)
    assert [tree(shop.root / name) for name in ("models/web", "blobs/web")] == before
    assert shop.state("shop").swept  # it came before


class TestLock:
    CODE = """
import sys
from pathlib import Path
from rankmill.registry.blob_store import Blobs, Store
store = Store(Path(sys.argv[1]))
with Blobs(store.storage, store.root, "shop").locked():
    print("held", flush=True)
    sys.stdin.readline()
"""

    def holder(self, shop: Registry) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", self.CODE, str(shop.root)]
        process = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    @pytest.mark.parametrize(("waits", "end"), [("register", "finishes"), ("gc", "is killed")])
    def test_a_collector_and_those_who_store_blobs_wait_for_each_other(
        self, shop: Registry, waits: str, end: str
    ) -> None:
        holder = self.holder(shop)
        try:
            works = {
                "gc": lambda: opened(shop).gc(rules=RULES),
                "register": lambda: opened(shop).register("shop", b"7", manifest=FACTS),
            }
            thread = threading.Thread(target=works[waits])
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
            opened(shop).promote("shop", 3)  # needs no lock
            opened(shop).register("web", b"1", manifest=FACTS)  # has one of its own
            if end == "is killed":
                holder.kill()
            else:
                assert holder.stdin is not None
                holder.stdin.write("\n")
                holder.stdin.flush()
            thread.join(LIMIT)
            assert not thread.is_alive()
        finally:
            holder.kill()
            holder.communicate()

    def test_without_locks_nothing_is_stored_or_deleted(self, shop: Registry, tree: Tree) -> None:
        class NoLocks(QuickDisk):
            def lock(self, path: Path, how: int) -> int:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), str(path))

        registry = OpenRegistry(shop.root, disk=NoLocks())
        before = tree(shop.root / "models"), tree(shop.root / "blobs")
        for write in (lambda: registry.register("shop", b"7", manifest=FACTS), lambda: registry.gc(rules=RULES)):
            with refused(OSError, "no locks", "nothing"):
                write()
        assert (tree(shop.root / "models"), tree(shop.root / "blobs")) == before
        assert registry.promote("shop", 3).change.op == "promote"  # needs none


class TestClocks:
    def test_an_entry_was_written_at_the_later_of_two(self, web: Registry) -> None:
        entries = web.resolve("web@1", bare="latest").log
        now = time.time()
        for seconds, expected in ((-30 * DAY, now), (30 * DAY, now + 30 * DAY)):
            os.utime(entries.path(1), (now + seconds, now + seconds))
            assert retention.dates(entries)(web.log("web")[0]) == pytest.approx(expected, abs=DAY)


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
        reported = models.json("gc", "--keep", "1")
        assert reported["models"]["shop"]["swept"] == {"1": 100, "5": 500}
        assert (reported["freed"], reported["dry_run"]) == (600, False)

    def test_grace_is_a_time(self, shop: Registry) -> None:
        models = Shell(shop.root)
        for grace in ("0", "1.5h", "30m", "7d"):
            assert models.json("gc", "--grace", grace, "--dry-run")["dry_run"]
        for grace in ("", "d", "-1d", "7 weeks", "1e9s"):
            with refused(InputError, "7d"):
                models("gc", f"--grace={grace}")


def test_what_is_no_blob_is_left_alone_and_named(shop: Registry) -> None:
    file = shop.root / "blobs/shop/notes.txt"
    file.write_text("hello")
    os.utime(file, (0, 0))
    assert shop.gc(rules=RetentionRules(grace=0.0)).freed == 0
    assert file.exists()
    assert [finding.partition(": ")[0] for finding in shop.verify().findings] == [str(file)]
