from __future__ import annotations

import errno
import json
import os
import subprocess
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
        "alias", "copy", "export", "gc", "import", "init", "list", "log", "promote", "rollback", "show", "tag", "verify",
    ]  # fmt: skip


@pytest.mark.parametrize("command", sorted(c.name or c.callback.__name__ for c in app.registered_commands))
def test_help_has_an_example(command: str) -> None:
    text = Shell(Path())(command, "--help")
    assert f"Example: rankmill models {command}" in text
    assert "--registry" in text
    assert "--json" in text


def test_list_names_the_models(models: Shell) -> None:
    text = models("list")
    assert "web" in text
    assert "production = 3, shadow = 1" in text
    (web,) = models.json("list")["models"]
    assert (web["versions"], web["aliases"]) == (3, {"production": 3, "shadow": 1})


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


def test_list_of_one_model_names_its_versions(models: Shell) -> None:
    assert "web@3" in models("list", "web")
    assert "valid ndcg@10 0.5123" in models("list", "web")
    assert [v["version"] for v in models.json("list", "web")["versions"]] == [1, 2, 3]


def test_list_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "none")
    for more in ([], ["--json"], ["web"]):
        with refused(InputError, tmp_path / "none", "--registry", "rankmill train"):
            shell("list", *more)
    assert not (tmp_path / "none").exists()


def test_list_says_that_no_version_has_a_tag(models: Shell) -> None:
    assert models("list", "web", "--tag", "season=spring") == "no version of web has the tag season=spring\n"


def test_verify_does_not_call_damaged_what_it_may_not_read(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Disk.read

    def refuse(self: Disk, path: Path, limit: int = -1) -> bytes:
        if "blobs" in path.parts:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(self, path, limit)

    monkeypatch.setattr(Disk, "read", refuse)
    with refused(PermissionError, "not checked"):
        models("verify", "web")


def test_a_second_rollback_is_refused_until_it_names_a_version(models: Shell) -> None:
    models("rollback", "web")
    with refused(InputError, "entry 8", "--to", "version 1"):
        models("rollback", "web")
    models("rollback", "web", "--to", "1")


def test_show_tells_the_lineage(models: Shell, web: Registry) -> None:
    text = models("show", "web")
    version = web.resolve("web@3", bare="latest")
    for told in (version.sha256, "d" * 64, "3: f1, f2, f3", "learning_rate  0.1", "0.5123", "nightly", "production"):
        assert told in text
    facts = models.json("show", "web@production")
    assert facts["manifest"] == version.manifest
    assert (facts["version"], facts["aliases"], facts["size"]) == (3, ["production"], 7)
    assert facts["moves"][0]["change"]["previous"] == 2


def test_log_reads_as_a_history(models: Shell) -> None:
    lines = [line for line in models("log", "web").splitlines() if " on " in line]
    assert [line.split()[0] for line in lines] == list("1234567")
    assert "registered version 1" in lines[0]
    assert "promoted version 3 to production (before: 2)" in lines[5]
    assert "promoted version 1 to shadow (not set before)" in lines[6]
    assert [entry["number"] for entry in models.json("log", "web")["entries"]] == [1, 2, 3, 4, 5, 6, 7]


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


def test_markup_and_control_codes_are_only_text(models: Shell, web: Registry) -> None:
    web.promote("web", 1, reason="[red]not red[/red]")
    assert "[red]not red[/red]" in models("log", "web")
    web.register("odd", b"x", manifest=web.resolve("web@1", bare="latest").manifest | {"note": "a\x1b[2Jb"})
    assert r"a\u001b[2Jb" in models("show", "odd")


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


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    code = "import registry, rankmill.registry.cli, sys; print({'pydantic', 'numpy', 'polars', 'numba'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "set()"


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
