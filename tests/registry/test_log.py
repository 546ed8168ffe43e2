from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.registry import commit_log
from rankmill.registry.blob_store import Store
from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_registry import Registry
from rankmill.registry.model_state import GENESIS, State
from rankmill.registry.stored_records import AliasPolicy, Entry, Register
from tests.refusals import refused
from tests.registry.conftest import FACTS, OpenRegistry, QuickDisk, outcome


def files(registry: Registry, kind: str) -> list[Path]:
    return sorted(path for path in (registry.root / kind).rglob("*") if path.is_file() and path.name != "lock")


def rewrite(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # the file is read-only
    path.write_bytes(data)


def flips(data: bytes, step: int = 1) -> Iterator[bytes]:
    for at in range(0, len(data), step):
        yield data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def test_the_chain_is_what_the_docstring_says(web: Registry) -> None:
    entries = [Entry.from_bytes(path.read_bytes()) for path in files(web, "models")]
    assert [entry.number for entry in entries] == list(range(1, 8))
    assert [entry.prev for entry in entries] == [GENESIS, *(entry.digest for entry in entries[:-1])]
    assert entries == web.log("web")
    assert len({entry.txid for entry in entries}) == 7
    assert files(web, "models")[0].name == "00000000000000000001.json"
    assert web.verify().ok


def test_every_flipped_bit_and_every_truncation_of_an_entry_is_found(web: Registry) -> None:
    data = files(web, "models")[4].read_bytes()
    for damaged in (*flips(data), *(data[:length] for length in range(len(data)))):
        with pytest.raises(IntegrityError):
            Entry.from_bytes(damaged)


def test_verify_finds_a_flipped_byte_in_any_file(web: Registry) -> None:
    for path in files(web, "models") + files(web, "blobs"):
        whole = path.read_bytes()
        for damaged in flips(whole, step=max(1, len(whole) // 4)):
            rewrite(path, damaged)
            report = web.verify()
            assert not report.ok
            assert str(path) in report.findings[0]
        rewrite(path, whole)
    assert web.verify().ok


def test_no_reader_serves_a_damaged_log(web: Registry) -> None:
    path = files(web, "models")[2]
    rewrite(path, next(flips(path.read_bytes())))
    for read in (lambda: web.log("web"), lambda: web.resolve("web", bare="latest"), lambda: web.promote("web", 2)):
        with pytest.raises(IntegrityError, match=path.name):
            read()


def test_a_missing_entry_is_found_by_all(web: Registry) -> None:
    path = files(web, "models")[3]
    path.unlink()
    assert any(path.name in finding and "missing" in finding for finding in web.verify().findings)
    with refused(IntegrityError, path.name, "missing"):
        web.versions("web")


def test_an_entry_forged_with_a_right_checksum_breaks_the_chain(web: Registry) -> None:
    path = files(web, "models")[3]
    entry = Entry.from_bytes(path.read_bytes())
    rewrite(path, entry.model_copy(update={"actor": "somebody else"}).to_bytes())
    (finding,) = web.verify().findings
    assert "00000000000000000005.json" in finding
    assert "chain" in finding


def test_entries_that_cannot_follow_are_refused(web: Registry) -> None:
    state = CommitLog(Store(web.root), "web").state()
    follow = {"number": state.head + 1, "prev": state.digest}
    last = web.log("web")[-1]
    wrong = [
        {"number": state.head + 2},
        {"prev": GENESIS},
        {"change": Register(op="register", version=9, model=GENESIS, size=1, manifest=GENESIS)},
        {"change": last.change.model_copy(update={"version": 9, "previous": 1})},
        {"change": last.change.model_copy(update={"version": 2, "previous": None})},
    ]
    for update in wrong:
        with pytest.raises(IntegrityError):
            state.apply(last.model_copy(update=follow | update))


def test_an_operation_of_a_later_version_is_named_and_other_spellings_are_refused(web: Registry) -> None:
    path = files(web, "models")[-1]
    body = path.read_bytes()[len(b'{"entry":') : -len(b',"sha256":""}\n') - 64]

    def refused_under_a_right_digest(body: bytes, *facts: str) -> None:
        rewrite(path, b'{"entry":%b,"sha256":"%b"}\n' % (body, hashlib.sha256(body).hexdigest().encode()))
        with refused(IntegrityError, "00000000000000000007.json", *facts):
            web.log("web")

    refused_under_a_right_digest(body.replace(b'"promote"', b'"crown"'), "'crown'")
    refused_under_a_right_digest(body.replace(b'"host":', b'"host": '), "changed")


GOLDEN = (
    b'{"entry":{"actor":"ada","change":{"alias":"production","op":"promote","previous":null,"version":1},"host":"vm",'
    b'"number":2,"prev":"' + b"0" * 64 + b'","reason":"caf\xc3\xa9","time":"2026-01-02T03:04:05.678Z","txid":"7"},'
    b'"sha256":"2d702b634b51f3c499bae0731fcae93028556a9b8333321b03751fe468dec2d7"}\n'
)


def test_entries_of_today_stay_readable() -> None:
    entry = Entry.from_bytes(GOLDEN)
    assert (entry.number, entry.reason, entry.change.version) == (2, "café", 1)
    assert entry.to_bytes() == GOLDEN


def test_verify_reports_foreign_files_and_missing_blobs_together(web: Registry) -> None:
    (web.root / "models" / "web" / "log" / "notes.txt").touch()
    lost = web.resolve("web@2", bare="latest").model_path
    lost.unlink()
    findings = web.verify("web").findings
    assert len(findings) == 2
    assert "notes.txt" in findings[0]
    assert str(lost) in findings[1]


def test_an_entry_that_no_reader_would_take_is_not_written(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "LARGEST_ENTRY", 2000)
    before = web.log("web")
    with refused(InputError, "2000"):
        web.promote("web", 1, reason="n" * 2000)
    assert web.log("web") == before


# ---- A pack saves work and never decides anything


def log_of(registry: Registry) -> CommitLog:
    return CommitLog(Store(registry.root, QuickDisk()), "web")


def keep(registry: Registry) -> Path:
    """Pack the log of ``web`` as it stands."""
    log = log_of(registry)
    log.store.storage.put(log.pack_path, b"".join(entry.to_bytes() for entry in registry.log("web")))
    return registry.root / "models" / "web" / "packed.jsonl"


def folded(registry: Registry) -> State:
    state = State()
    log_of(registry).advance(state)
    return state


@pytest.fixture
def busy(web: Registry) -> Registry:
    """Everything that a log can say."""
    web.register("web", b"model 4", manifest=FACTS, attachments={"queries": b"1 2 3"})
    web.protect("web", "production", AliasPolicy(metric="ndcg@10", margin=0.01))
    web.record_gate("web", outcome(4, baseline=3), {"difference": 0.01})
    web.promote("web", 4)
    web.promote("web", 2, force=True)
    web.unset("web", "shadow")
    return web


def test_a_pack_gives_the_state_that_the_log_gives(busy: Registry) -> None:
    before = folded(busy)
    keep(busy)
    assert log_of(busy).packed() == busy.log("web")
    assert busy.state("web") == before
    busy.register("web", b"model 5", manifest=FACTS)
    assert busy.state("web") == folded(busy)
    assert busy.verify().ok


def test_a_damaged_pack_is_not_believed(web: Registry) -> None:
    before, path = web.state("web"), keep(web)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    damaged = [whole[:cut] for cut in (1, 100, -1)] + [b"".join(lines[1:]), b"".join(lines[::-1]), lines[0] * 2]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(0, len(whole), 29)]
    for data in damaged:
        path.unlink()
        path.write_bytes(data)
        assert web.state("web") == before
    assert web.promote("web", 1).number == 8


def test_a_pack_of_another_log_is_not_believed_and_is_named(web: Registry, tmp_path: Path) -> None:
    other = OpenRegistry(tmp_path / "other", disk=QuickDisk())
    for number in range(7):
        other.register("web", b"other %d" % number, manifest=FACTS)
    foreign, path = keep(other), keep(web)
    path.unlink()
    os.link(foreign, path)
    assert web.state("web") == folded(web)
    assert web.resolve("web", bare="production").number == 3
    (finding,) = web.verify().findings
    assert "packed.jsonl" in finding
    assert "remove it" in finding


def test_a_pack_from_before_a_restore_is_not_believed(web: Registry) -> None:
    keep(web)
    last = max((web.root / "models/web/log").iterdir())
    last.unlink()  # the log was put back to an earlier day
    assert web.state("web").head == 6
    web.promote("web", 1, alias="canary")
    assert web.state("web") == folded(web)


def test_an_entry_missing_behind_the_pack_is_noticed(web: Registry) -> None:
    keep(web)
    web.promote("web", 2)
    web.promote("web", 1)
    (web.root / "models/web/log" / f"{8:020d}.json").unlink()
    with pytest.raises(IntegrityError, match="missing"):
        web.state("web")


def test_writers_pack_and_readers_write_nothing(registry: Registry, tree: Callable[[Path], object]) -> None:
    for number in range(101):
        registry.register("web", b"%d" % number, manifest=FACTS)
    assert len(log_of(registry).packed()) == 100
    before = tree(registry.root)
    registry.versions("web")
    registry.resolve("web", bare="latest")
    registry.verify()
    assert tree(registry.root) == before
    (registry.root / "models/web/packed.jsonl").unlink()
    assert len(registry.versions("web")) == 101


def test_a_pack_that_cannot_be_written_is_no_error(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(QuickDisk):
        def replace(self, source: Path, target: Path) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("rankmill.registry.commit_log.is_due", lambda head, packed: True)
    full = Registry(web.root, disk=Full())
    full.promote("web", 1)
    assert list((web.root / "tmp").iterdir()) == []
