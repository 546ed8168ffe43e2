"""What lies in a registry in place of a file or folder of ours is damage: it is neither followed, nor waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmill.foundation.errors import IntegrityError
from rankmill.registry import blob_store
from rankmill.registry.model_registry import Registry
from rankmill.registry.retention import RetentionRules
from tests.refusals import refused
from tests.registry.conftest import FACTS, QuickDisk


def opened(web: Registry) -> Registry:
    return Registry(web.root, disk=QuickDisk())


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as file:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket must be short
        try:
            file.bind(path.name)
        finally:
            os.chdir(here)


def make_link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(b"")
    path.symlink_to("elsewhere")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "socket": make_socket,
    "link": make_link,
    "loop": make_loop,
    "link to nothing": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_in_place_of_a_file(web: Registry, odd: Callable[[Path], object]) -> None:
    """Of a model, an entry, the next entry and the format."""
    model = web.resolve("web@2", bare="latest").model_path
    entry, next_entry = (web.root / "models" / "web" / "log" / f"{number:020d}.json" for number in (5, 8))
    form = web.root / "FORMAT.json"
    uses: dict[Path, list[Callable[[Registry], object]]] = {
        model: [
            lambda r: r.resolve("web@2", bare="latest").read(),
            lambda r: r.promote("web", 2),
            lambda r: r.register("web", b"model 2", manifest=FACTS),
        ],
        entry: [lambda r: r.log("web"), lambda r: r.resolve("web", bare="production"), lambda r: r.promote("web", 2)],
        next_entry: [lambda r: r.promote("web", 2)],
        form: [lambda r: r.names(), lambda r: r.prepare(), lambda r: r.promote("web", 2)],
    }
    for path, of_path in uses.items():
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        odd(path)
        for use in of_path:
            with refused(IntegrityError, path.name):
                use(opened(web))
        if path in {model, entry}:
            assert any(finding.startswith(str(path)) for finding in opened(web).verify().findings)
        if path == model:
            assert opened(web).resolve("web", bare="production").read() == b"model 3"
        path.rmdir() if path.is_dir() else path.unlink()
        path.with_name("elsewhere").unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(before)
    path = web.root / "models" / "web" / "checkpoint.json"  # which nobody needs
    path.unlink(missing_ok=True)
    odd(path)
    assert opened(web).promote("web", 2).number == 8
    assert opened(web).resolve("web", bare="production").read() == b"model 2"


@pytest.mark.parametrize("pattern", ["blobs", "blobs/web", "models", "models/web", "models/web/log"])
def test_a_linked_folder_is_neither_read_nor_written_through(
    web: Registry, tree: Callable[[Path], object], tmp_path: Path, pattern: str
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    model = web.resolve("web", bare="production").model_path
    for folder in sorted(web.root.glob(pattern)):
        folder.rename(away / folder.name)
        folder.symlink_to(away / folder.name)
    before = tree(away)
    for use in (
        lambda r: r.resolve("web", bare="production").read(),
        lambda r: r.promote("web", 2),
        lambda r: r.rollback("web"),
        lambda r: r.register("web", b"model 3", manifest=FACTS),
    ):
        with refused(IntegrityError, "symbolic link"):
            use(opened(web))
    assert model.read_bytes() == b"model 3"  # it is there, and was not looked at
    assert tree(away) == before


def test_a_linked_tmp_is_not_written_through(web: Registry, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (web.root / "tmp").rmdir()
    (web.root / "tmp").symlink_to(tmp_path / "away")
    with refused(IntegrityError, "tmp", "symbolic link"):
        opened(web).promote("web", 2)
    assert list((tmp_path / "away").iterdir()) == []


@pytest.mark.parametrize("name", ["blobs/web", "models/web"])
def test_what_collects_goes_through_no_link(
    web: Registry, tree: Callable[[Path], object], tmp_path: Path, name: str
) -> None:
    web.resolve("web@2", bare="latest").model_path.with_name("0" * 64).write_bytes(b"nobody's")
    (web.root / name).rename(tmp_path / "away")
    (web.root / name).symlink_to(tmp_path / "away")
    before, away = tree(web.root), tree(tmp_path / "away")
    with refused(IntegrityError, name, "symbolic link"):
        opened(web).gc(rules=RetentionRules(keep=1, grace=0.0))
    after = tree(web.root)
    assert {path: found[1] for path, found in after.items()} == {path: found[1] for path, found in before.items()}
    assert tree(tmp_path / "away") == away


def test_the_registry_itself_may_be_reached_by_a_link(web: Registry, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(web.root)
    linked = Registry(tmp_path / "link", disk=QuickDisk())
    assert linked.resolve("web", bare="production").read() == b"model 3"
    assert linked.promote("web", 2).number == 8


def grow(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, 1 << 40)


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="needs files with holes")
def test_a_file_that_has_grown_beyond_all_bounds_is_not_read_whole(
    web: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_store, "LARGEST_BLOB", 1 << 20)
    manifest = opened(web).resolve("web@1", bare="latest").manifest_sha256
    grow(web.root / "blobs/web" / manifest)
    with pytest.raises(IntegrityError, match=manifest):
        opened(web).resolve("web@1", bare="latest").manifest  # noqa: B018 (reads)
    model = web.resolve("web@2", bare="latest").model_path
    grow(model)
    with pytest.raises(IntegrityError, match=model.name):
        opened(web).resolve("web@2", bare="latest").read()
    with pytest.raises(IntegrityError, match=model.name):
        opened(web).register("web", b"model 2", manifest=FACTS)
    assert [finding for finding in opened(web).verify().findings if str(model) in finding]
    entry = web.root / "models" / "web" / "log" / f"{5:020d}.json"
    grow(entry)
    with refused(IntegrityError, entry.name, "bytes"):
        opened(web).log("web")
    grow(web.root / "FORMAT.json")
    with refused(IntegrityError, "FORMAT.json", "at most"):
        opened(web).names()
