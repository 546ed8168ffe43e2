from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import (
    ConflictError,
    InputError,
    IntegrityError,
    InvalidName,
    MissingLibrary,
    PromotionRefused,
    RankmillError,
    UnknownModel,
)
from rankmill.foundation.storage.disk import Disk
from rankmill.registry.cli import app
from rankmill.registry.model_registry import Registry
from tests.refusals import refused
from tests.registry.conftest import FACTS
from tests.registry.shell import Shell


@pytest.fixture
def models(web: Registry) -> Shell:
    return Shell(web.root)


def test_exactly_these_commands() -> None:
    assert sorted(c.name or c.callback.__name__ for c in app.registered_commands if c.callback) == [
        "alias", "copy", "export", "gc", "import", "init", "list", "log", "promote", "rollback", "show", "verify",
    ]  # fmt: skip


def test_help_has_an_example() -> None:
    for command in (c.name or c.callback.__name__ for c in app.registered_commands if c.callback):
        text = Shell(Path())(command, "--help")
        assert f"Example: rankmill models {command}" in text
        assert "--registry" in text
        assert "--json" in text


@pytest.mark.parametrize("damage", ["torn", "pipe"])
def test_list_shows_the_other_models_beside_a_damaged_one(models: Shell, damage: str) -> None:
    web = models.json("list")["models"]
    registry = Registry(models.root)
    registry.register("bad", b"model", manifest=FACTS)
    path = models.root / "models/bad/log/00000000000000000001.json"
    path.unlink()
    os.mkfifo(path) if damage == "pipe" else path.write_bytes(b"torn")
    result = CliRunner().invoke(app, ["list", "--json"], env={"RANKMILL_REGISTRY": str(models.root)})
    assert isinstance(result.exception, IntegrityError)
    bad, *others = json.loads(result.stdout)["models"]
    assert others == web
    assert bad["name"] == "bad"
    assert str(path) in bad["fault"]
    with pytest.raises(IntegrityError, match=path.name):
        models("list")
    assert str(path) in "".join(registry.verify().findings)


def test_what_verify_says_steers_no_terminal(models: Shell) -> None:
    (models.root / "models/web/log/\x1b[2J").write_text("")
    with refused(IntegrityError, r"log/\u001b[2J"):
        models("verify")


def test_list_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "none")
    for more in ([], ["--json"], ["web"]):
        with refused(InputError, tmp_path / "none", "--registry", "rankmill train"):
            shell("list", *more)
    assert not (tmp_path / "none").exists()


def test_verify_does_not_call_damaged_what_it_may_not_read(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Disk.read

    def refuse(self: Disk, path: Path, limit: int = -1) -> bytes:
        if "blobs" in path.parts:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(self, path, limit)

    monkeypatch.setattr(Disk, "read", refuse)
    with refused(PermissionError, "not checked"):
        models("verify", "web")


def test_promote_and_roll_back(models: Shell, web: Registry) -> None:
    assert "promoted version 2 to production (before: 3; logged as entry 8)" in models(
        "promote", "web@2", "--reason", "calmer"
    )
    assert "already" in models("promote", "web@2")
    assert models.json("promote", "web@2")["changed"] is False
    assert "rolled production back to version 3 (before: 2; logged as entry 9)" in models("rollback", "web")
    assert models.json("rollback", "web", "--to", "1", "--expect", "3")["entry"]["change"]["version"] == 1
    assert models.json("promote", "web@latest", "--alias", "new", "--expect", "none")["changed"] is True
    assert "calmer" in models("log", "web")
    assert len(web.log("web")) == 11


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["show", "wbe"], UnknownModel, "web"),
        (["show", "web@prodution"], UnknownModel, "production"),
        (["show", "web@9"], UnknownModel, ("versions", "1", "3")),
        (["log", "web@2"], InvalidName, "web"),
        (["promote", "web"], InvalidName, "web@7"),
        (["promote", "web@2", "--alias", "latest"], InvalidName, "moved"),
        (["promote", "web@2", "--expect", "1"], ConflictError, ("version 3", "version 1")),
        (["promote", "web@2", "--expect", "old"], InvalidName, ("number", "version")),
        (["rollback", "web", "--alias", "shadow"], UnknownModel, "earlier version"),
        (["verify", "wbe"], UnknownModel, "web"),
    ],
)
def test_mistakes_raise_one_typed_line(
    models: Shell, words: list[str], error: type[RankmillError], message: str
) -> None:
    with refused(error, message) as caught:
        models(*words)
    assert "\n" not in str(caught.value)


def test_verify_says_all_is_well_or_everything_that_is_not(models: Shell, web: Registry) -> None:
    assert "No problems" in models("verify")
    assert models.json("verify")["ok"] is True
    lost = [web.resolve(f"web@{number}", bare="latest").model_path for number in (1, 2)]
    for path in lost:
        path.unlink()
    for words in (["verify"], ["verify", "web", "--json"]):
        result = CliRunner().invoke(app, words, env={"RANKMILL_REGISTRY": str(web.root)})
        assert isinstance(result.exception, IntegrityError)
        assert "found: 2" in str(result.exception)
        assert all(str(path) in result.stdout for path in lost)
    assert len(json.loads(result.stdout)["findings"]) == 2


def test_the_default_folder_is_registry_data(web: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(web.root.parent)
    monkeypatch.delenv("RANKMILL_REGISTRY", raising=False)
    web.root.rename("registry-data")
    assert "web" in CliRunner().invoke(app, ["list"]).stdout


def test_a_registry_in_a_bucket_needs_obstore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with refused(MissingLibrary, "s3://bucket", "obstore", "pip install 'rankmill[cloud]'"):
        Registry("s3://bucket/models").names()


@pytest.mark.parametrize(
    "url", ["s3://key:secret@bucket/x", "s3://bucket:9000/x", "s4://bucket/x", "s3:/bucket/x", "s3://", "s3://b/../x"]
)
def test_a_malformed_url_is_refused_without_its_secret(url: str) -> None:
    with refused(InputError, "://") as raised:
        Registry(url)
    assert "secret" not in str(raised.value)


def test_export_and_import(web: Registry, tmp_path: Path) -> None:
    here, there, tar = Shell(web.root), Shell(tmp_path / "other"), str(tmp_path / "web.tar")
    assert "wrote " in (said := here("export", "web", "-o", tar))
    assert "3 versions, 7 entries of the log, 2" in said
    with refused(PromotionRefused, "web.tar", "production", "version 3", "--move-aliases"):
        there("import", tar)
    reported = there("import", tar, "--move-aliases").splitlines()
    assert reported[0] == "web: 7 new entries of 7"
    assert reported[-1] == "web: promoted version 1 to shadow (not set before)"
    assert "web: promoted version 3 to production (before: 2)" in reported
    assert there("import", tar) == "web: 0 new entries of 7\n"
    assert there("list").count("web") == 1
    assert there.json("export", "web", "-o", tar, "--overwrite")["entries"] == 7
    web.promote("web", 1)
    here("export", "web", "-o", tar, "--overwrite")
    with refused(PromotionRefused, "production", "version 1"):
        there("import", tar)
    assert Registry(there.root).resolve("web").number == 3
    moves = ["promoted version 1 to production (before: 3)"]
    done = {"name": "web", "added": 1, "head": 8, "version": None, "moves": moves}
    assert there.json("import", tar, "--move-aliases") == done


def test_export_and_import_of_one_version(web: Registry, tmp_path: Path) -> None:
    here, there, tar = Shell(web.root), Shell(tmp_path / "other"), str(tmp_path / "web.tar")
    assert "1 version, 1 entry of the log" in here("export", "web@production", "-o", tar)
    assert there("import", tar, "--as", "shop") == "shop: 1 new entry of 1\n"
    Registry(there.root).register("fair", b"its own", manifest=FACTS)
    assert there("import", tar, "--as", "fair", "--reason", "a trial") == "fair@2: 1 new entry of 2\n"
    assert there("import", tar, "--as", "fair") == "fair@2: 0 new entries of 2\n"
    assert "a trial" in there("log", "fair")
