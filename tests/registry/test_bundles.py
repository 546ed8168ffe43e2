"""What leaves a registry in a bundle arrives in another as it was: laws of export and import."""

from __future__ import annotations

import errno
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import (
    ConflictError,
    InputError,
    IntegrityError,
    InvalidName,
    PromotionRefused,
    UnknownModel,
)
from rankmill.foundation.records import as_json
from rankmill.registry import archive, blob_store
from rankmill.registry.commit_log import CommitLog, entry_name
from rankmill.registry.model_registry import Registry
from rankmill.registry.stored_records import Sweep
from tests.refusals import refused
from tests.registry.conftest import FACTS, QuickDisk
from tests.registry.histories import HISTORIES, STEPS, Step, play, seen


def fresh(root: Path) -> Registry:
    return Registry(root, disk=QuickDisk())


@pytest.fixture
def other(tmp_path: Path) -> Registry:
    return fresh(tmp_path / "other")


def logs(registry: Registry, name: str = "web") -> list[bytes]:
    return [entry.to_bytes() for entry in registry.log(name)]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(HISTORIES, st.lists(STEPS, max_size=6), st.booleans())
def test_export_import_export_gives_the_same_bytes_and_importing_twice_is_importing_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], more: list[Step], further_models: bool
) -> None:
    """And what follows is taken in, and what is behind changes nothing."""
    place = tmp_path_factory.mktemp("bundles")
    here, there = fresh(place / "here"), fresh(place / "there")
    play(here, steps)
    if further_models:
        play(there, steps[::-1], "shop")
    here.export("web", place / "one.tar")
    first = there.import_(place / "one.tar", move_aliases=True)
    assert (first.name, first.added, first.head) == ("web", len(logs(here)), len(logs(here)))
    assert seen(there.root)["web"] == seen(here.root)["web"]
    assert logs(there) == logs(here)
    assert there.verify().ok
    there.export("web", place / "two.tar")
    assert (place / "two.tar").read_bytes() == (place / "one.tar").read_bytes()
    before = seen(there.root)
    assert there.import_(place / "one.tar", move_aliases=True).added == 0
    assert seen(there.root) == before
    assert not list((there.root / "tmp").iterdir())
    renamed = there.import_(place / "one.tar", name="web-of-berlin", move_aliases=True)
    assert (renamed.added, logs(there, "web-of-berlin")) == (first.added, logs(here))
    play(here, more)
    here.export("web", place / "new.tar")
    assert there.import_(place / "new.tar", move_aliases=True).added == len(logs(here)) - first.added
    assert logs(there) == logs(here)
    assert there.verify().ok
    assert there.import_(place / "one.tar", move_aliases=True).added == 0
    assert logs(there) == logs(here)


def test_a_bundle_is_a_registry_in_a_plain_tar(web: Registry, tmp_path: Path) -> None:
    reported = as_json(web.export("web", tmp_path / "web.tar"))
    size = (tmp_path / "web.tar").stat().st_size
    assert reported == {
        "bundle": str(tmp_path / "web.tar"), "name": "web", "versions": [1, 2, 3], "entries": 7, "bytes": size
    }  # fmt: skip
    with tarfile.open(tmp_path / "web.tar", "r:") as tar:
        for member in tar:
            assert (member.isreg(), member.mode, member.mtime, member.uid, member.uname) == (True, 0o444, 0, 0, "")
        tar.extractall(tmp_path / "unpacked", filter="data")
    unpacked = Registry(tmp_path / "unpacked")
    assert unpacked.log("web") == web.log("web")
    assert unpacked.verify().ok
    assert [version.read() for version in unpacked.versions("web")] == [b"model 1", b"model 2", b"model 3"]


def test_one_version_becomes_the_next_of_the_model(web: Registry, other: Registry, tmp_path: Path) -> None:
    web.register("web", b"model 4", manifest=FACTS, attachments={"notes": b"n", "data": b"\0" * 5000}, reason="best")
    assert web.export("web@4", tmp_path / "v.tar").versions == (4,)
    other.register("web", b"its own", manifest=FACTS)
    other.promote("web", 1, alias="blue")
    done = other.import_(tmp_path / "v.tar")
    assert as_json(done) == {"name": "web", "added": 1, "head": 3, "version": 2, "moves": []}
    taken = other.resolve("web@2", bare="latest")
    assert (taken.read(), taken.manifest, taken.aliases) == (b"model 4", FACTS, ())
    assert (taken.attachment("notes"), taken.attachment("data")) == (b"n", b"\0" * 5000)
    assert taken.registered.reason == "imported: web@4: best"
    before = seen(other.root)
    again = other.import_(tmp_path / "v.tar", reason="once more")
    assert (again.added, again.version) == (0, 2)
    assert seen(other.root) == before
    assert other.verify().ok


def test_one_version_may_be_the_first_of_a_model(web: Registry, other: Registry, tmp_path: Path) -> None:
    original = web.resolve("web@shadow", bare="latest").registered
    web.export("web@shadow", tmp_path / "v.tar")
    for added in (1, 0):
        done = other.import_(tmp_path / "v.tar", name="shop")
        assert (done.added, done.head, done.version) == (added, 1, None)
    (entry,) = other.log("shop")
    assert (entry.reason, entry.time, entry.actor) == ("web@1: nightly", original.time, original.actor)
    assert other.resolve("shop", bare="latest").read() == b"model 1"


def test_another_history_is_left_alone(web: Registry, other: Registry, tmp_path: Path) -> None:
    web.export("web", tmp_path / "web.tar")
    other.import_(tmp_path / "web.tar", move_aliases=True)
    other.promote("web", 2, alias="blue")
    web.promote("web", 1)
    web.export("web", tmp_path / "newer.tar")
    before = seen(other.root)
    with refused(ConflictError, "newer.tar", "entry 8", "--as"):
        other.import_(tmp_path / "newer.tar", move_aliases=True)
    assert seen(other.root) == before
    assert other.import_(tmp_path / "newer.tar", name="web-2", move_aliases=True).added == 8
    assert other.import_(tmp_path / "web.tar", move_aliases=True).added == 0  # the beginning of both


def test_what_is_damaged_is_not_exported(web: Registry, tmp_path: Path) -> None:
    path = web.resolve("web@2", bare="latest").model_path
    path.unlink()
    for damage in ("missing", "changed"):
        if damage == "changed":
            path.write_bytes(b"model 9")
        for reference in ("web", "web@2"):
            with refused(IntegrityError, path.name):
                web.export(reference, tmp_path / "web.tar")
    assert not [p for p in tmp_path.iterdir() if p.is_file()]


def test_a_file_is_replaced_only_when_asked_and_in_one_step(
    web: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "web.tar"
    path.write_text("precious")
    with refused(InputError, "web.tar", "--overwrite"):
        web.export("web", path)

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(archive, "publish_file", broken)
        with pytest.raises(OSError, match="No space"):
            web.export("web", path, overwrite=True)
    assert path.read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["web.tar"]
    web.export("web", path, overwrite=True)
    assert web.import_(path).added == 0


def test_what_cannot_be_written_or_read_is_named(web: Registry, tmp_path: Path) -> None:
    for out in (tmp_path, tmp_path / "none" / "web.tar"):
        with pytest.raises(InputError, match=str(out.parent if out != tmp_path else out)):
            web.export("web", out)
    for file in (tmp_path, tmp_path / "none.tar"):
        with refused(InputError, "tar", "bundle"):
            web.import_(file, move_aliases=True)
    with pytest.raises(UnknownModel):
        web.export("shop", tmp_path / "x.tar")
    with pytest.raises(UnknownModel):
        web.export("web@9", tmp_path / "x.tar")
    web.export("web", tmp_path / "web.tar")
    with pytest.raises(InvalidName):
        web.import_(tmp_path / "web.tar", name="../web", move_aliases=True)
    (tmp_path / "link.tar").symlink_to(tmp_path / "web.tar")
    assert web.import_(tmp_path / "link.tar", move_aliases=True).added == 0


def swept(registry: Registry) -> Path:
    """Sweep the second version of ``web``; the path at which its bytes were."""
    log = CommitLog(registry._store, "web")
    log.commit(lambda _: Sweep(op="sweep", versions=(2,)))
    path = registry.resolve("web@2", bare="latest").model_path
    path.unlink()
    return path


def test_a_version_without_its_bytes_travels_in_a_history_only_and_stays_swept(
    web: Registry, other: Registry, tmp_path: Path
) -> None:
    web.export("web", tmp_path / "whole.tar")
    path = swept(web)
    with refused(UnknownModel, "web@2", "entry 8", "web"):
        web.export("web@2", tmp_path / "v.tar")
    assert web.export("web", tmp_path / "web.tar").versions == (1, 3)
    assert other.import_(tmp_path / "web.tar", move_aliases=True).added == 8
    assert other.verify().ok
    assert [other.resolve(f"web@{number}", bare="latest").read() for number in (1, 3)] == [b"model 1", b"model 3"]
    assert other.resolve("web@2", bare="latest").manifest["best_round"] == 2
    assert web.import_(tmp_path / "whole.tar", move_aliases=True).added == 0
    assert not path.exists()


def test_an_import_that_meets_another_writer_looks_again(web: Registry, tmp_path: Path) -> None:
    """Somebody writes the next entry before we do, in turn the same one and another."""
    web.export("web", tmp_path / "start.tar")
    web.promote("web", 2)
    web.export("web", tmp_path / "web.tar")
    for same in (True, False):
        root = tmp_path / f"there {same}"
        fresh(root).import_(tmp_path / "start.tar", move_aliases=True)

        class Meets(QuickDisk):
            met = False

            def link(self, source: Path, target: Path, root: Path = root, same: bool = same) -> None:
                if target.name == entry_name(8) and not Meets.met:
                    Meets.met = True
                    if same:
                        CommitLog(fresh(root)._store, "web").append(web.log("web")[-1])
                    else:
                        fresh(root).promote("web", 1, force=True)
                super().link(source, target)

        registry = Registry(root, disk=Meets())
        if same:
            registry.import_(tmp_path / "web.tar", move_aliases=True)
            assert registry.log("web") == web.log("web")
        else:
            with refused(ConflictError, "entry 8"):
                registry.import_(tmp_path / "web.tar", move_aliases=True)
        assert Meets.met
        assert registry.verify().ok
        assert not list((root / "tmp").iterdir())


def test_a_long_history_comes_with_a_pack(web: Registry, other: Registry, tmp_path: Path) -> None:
    for number in range(120):
        web.promote("web", 1 + number % 2, alias="blue")
    web.export("web", tmp_path / "long.tar")
    other.import_(tmp_path / "long.tar", name="shop", move_aliases=True)
    assert CommitLog(other._store, "shop").packed() == web.log("web")
    assert other.state("shop") == web.state("web")


def test_models_too_large_for_a_tar_member_are_named(
    web: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGEST", 6)
    with refused(InputError, "bytes", "6"):
        web.export("web", tmp_path / "web.tar")


def test_a_model_larger_than_any_other_blob_may_be_travels(
    registry: Registry, other: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How large a model is, the log says; of other blobs nobody does, so they have a limit that registering knows,
    too."""
    monkeypatch.setattr(blob_store, "LARGEST_BLOB", 4000)
    monkeypatch.setattr("rankmill.registry.model_registry.LARGEST_BLOB", 4000)
    registry.register("web", bytes(5000), manifest=FACTS)
    registry.export("web", tmp_path / "web.tar")
    other.import_(tmp_path / "web.tar", move_aliases=True)
    assert other.resolve("web", bare="latest").read() == bytes(5000)
    with refused(InputError, "notes", "4000", "4001"):
        registry.register("web", b"small", manifest=FACTS, attachments={"notes": bytes(4001)})
    assert len(registry.versions("web")) == 1


def test_what_a_log_takes_a_bundle_takes(registry: Registry, other: Registry, tmp_path: Path) -> None:
    registry.register("web", b"model", manifest=FACTS)
    registry.promote("web", 1, reason="n" * (1 << 21))
    registry.export("web", tmp_path / "web.tar")
    other.import_(tmp_path / "web.tar", move_aliases=True)
    assert other.log("web") == registry.log("web")


@pytest.mark.parametrize(
    ("code", "reported"), [(errno.ENOSPC, ("disk", "full")), (errno.EACCES, ("nothing", "written"))]
)
def test_an_export_names_the_folder_that_takes_no_file(
    web: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, reported: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tarfile.TarFile, "addfile", refuse)
    with refused(OSError, reported) as caught:
        web.export("web", tmp_path / "web.tar")
    assert caught.value.filename == str(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("FORMAT.json", 2),
        ("models/../log/00000000000000000000.json", 1),
        ("models/a\0b/log/00000000000000000000.json", 1),
        (f"models/{'a' * 300}/log/00000000000000000000.json", 1),
        (f"blobs/../{'a' * 64}", 1),
    ],
)
def test_members_that_no_registry_has_are_refused(other: Registry, tmp_path: Path, name: str, times: int) -> None:
    with tarfile.open(tmp_path / "b.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for _ in range(times):
            tar.addfile(tarfile.TarInfo(name))
    with refused(IntegrityError, "b.tar", "damaged"):
        other.import_(tmp_path / "b.tar")


def test_a_time_that_no_file_can_have_is_refused(other: Registry, tmp_path: Path) -> None:
    member = tarfile.TarInfo("FORMAT.json")
    member.mtime = 1 << 80
    with tarfile.open(tmp_path / "b.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(member)
    with refused(IntegrityError, "b.tar", "damaged"):
        other.import_(tmp_path / "b.tar")


def test_what_is_refused_leaves_no_registry_behind(web: Registry, tmp_path: Path) -> None:
    web.export("web", tmp_path / "web.tar")
    with refused(PromotionRefused, "web.tar", "production", "--move-aliases"):
        Registry(tmp_path / "new").import_(tmp_path / "web.tar")
    assert not (tmp_path / "new").exists()
    web.resolve("web@2", bare="latest").model_path.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        web.copy(Registry(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_history_that_is_here_already_mends_what_was_lost(
    registry: Registry, other: Registry, tmp_path: Path
) -> None:
    registry.register("web", b"model", manifest=FACTS)
    registry.export("web", tmp_path / "web.tar")
    assert other.import_(tmp_path / "web.tar", move_aliases=True).added == 1
    other.resolve("web", bare="latest").model_path.unlink()
    again = other.import_(tmp_path / "web.tar", move_aliases=True)
    assert again.added == 0
    assert other.verify().ok
