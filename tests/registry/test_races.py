"""Many writers at once: nobody's acknowledged commit is lost, nobody wins who should not."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from rankmill.foundation.errors import ConflictError
from rankmill.registry import commit_log
from rankmill.registry.model_registry import Registry
from tests import ROOT
from tests.refusals import refused
from tests.registry.conftest import FACTS, opened
from tests.waiting import LIMIT

T = TypeVar("T")


def all_at_once(n: int, work: Callable[[int], T]) -> list[T | BaseException]:
    """Start ``work(0..n-1)`` in as many threads at one moment; results or exceptions."""
    results: list[T | BaseException] = [AssertionError("did not finish")] * n
    gate = threading.Barrier(n)

    def run(i: int) -> None:
        gate.wait()
        try:
            results[i] = work(i)
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture(params=["disk", "bucket"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_of_sixteen_that_expect_the_same_one_wins(registry: Registry) -> None:
    for number in range(1, 18):
        registry.register("web", b"%d" % number, manifest=FACTS)
    registry.promote("web", 17)
    current = 17

    def work(i: int) -> commit_log.Entry:
        return opened(registry).promote("web", (current + i) % 17 + 1, expect=current)

    for _ in range(3):
        results = all_at_once(16, work)
        winners = [result for result in results if not isinstance(result, BaseException)]
        assert len(winners) == 1
        assert all(isinstance(r, ConflictError) for r in results if isinstance(r, BaseException))
        current = registry.resolve("web", bare="production").number
        assert current == winners[0].change.version
    assert registry.verify().ok


def test_no_acknowledged_commit_of_sixteen_writers_is_lost(registry: Registry) -> None:
    for number in range(1, 17):
        registry.register("web", b"%d" % number, manifest=FACTS)

    def work(i: int) -> list[commit_log.Entry]:
        mine = opened(registry)
        return [mine.promote("web", (i + step) % 16 + 1, alias=f"a{i % 3}") for step in range(4)]

    acknowledged: set[str] = set()
    for result in all_at_once(16, work):
        assert not isinstance(result, BaseException), result
        acknowledged |= {entry.txid for entry in result}
    written = {entry.txid for entry in registry.log("web") if entry.change.op == "promote"}
    assert acknowledged == written
    assert registry.verify().ok


def test_the_same_model_from_sixteen_writers_is_one_version(registry: Registry) -> None:
    results = all_at_once(16, lambda i: opened(registry).register("web", b"model", manifest=FACTS))
    assert {getattr(result, "number", result) for result in results} == {1}
    assert len(registry.log("web")) == 1


def test_sixteen_models_from_sixteen_writers_are_sixteen_versions(registry: Registry) -> None:
    results = all_at_once(16, lambda i: opened(registry).register("web", b"%d" % i, manifest=FACTS))
    assert sorted(getattr(result, "number", 0) for result in results) == list(range(1, 17))
    assert registry.verify().ok


def test_two_that_roll_back_at_once_go_back_one_step(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    other, put = opened(web), web._store.storage.put_new

    def late(target: Path, data: bytes) -> bool:
        monkeypatch.undo()
        other.rollback("web")  # comes in between our look and our commit
        return put(target, data)

    monkeypatch.setattr(web._store.storage, "put_new", late)
    with refused(ConflictError, "version 3"):
        web.rollback("web")
    assert web.resolve("web", bare="production").number == 2


def test_a_promotion_overtaken_is_decided_again(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    other, put = opened(web), web._store.storage.put_new

    def late(target: Path, data: bytes) -> bool:
        monkeypatch.undo()
        other.promote("web", 2)
        return put(target, data)

    monkeypatch.setattr(web._store.storage, "put_new", late)
    entry = web.promote("web", 1)
    assert (entry.number, entry.change.model_dump()["previous"]) == (9, 2)


def test_a_writer_that_never_wins_gives_up_with_a_conflict(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web._store.storage, "put_new", lambda target, data: False)
    monkeypatch.setattr(commit_log, "LONGEST_PAUSE", 0.0)
    with refused(ConflictError, "concurrent", "again"):
        web.promote("web", 1)


PROMOTER = """
import sys
from rankmill.registry import Registry
registry, me = Registry(sys.argv[1]), int(sys.argv[2])
for step in range(8):
    print(registry.promote("web", (me + step) % 3 + 1, reason=f"{me}").txid)
"""


@pytest.mark.parametrize("kind", ["disk"])
def test_processes_share_the_log(web: Registry) -> None:
    command = [sys.executable, "-c", PROMOTER, str(web.root)]
    running = [subprocess.Popen([*command, str(me)], stdout=subprocess.PIPE, text=True, cwd=ROOT) for me in range(3)]
    acknowledged = set()
    for process in running:
        out, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 0
        acknowledged |= set(out.split())
    written = {entry.txid for entry in web.log("web")}
    assert acknowledged <= written
    assert {entry.txid for entry in web.log("web") if entry.reason in {"0", "1", "2"}} <= acknowledged
    assert web.verify().ok
