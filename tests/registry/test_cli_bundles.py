"""``rankmill models export`` and ``import``, as typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmill.foundation.errors import ConflictError, IntegrityError, PromotionRefused
from rankmill.registry.model_registry import Registry
from tests.refusals import refused
from tests.registry.conftest import QuickDisk
from tests.registry.shell import Shell


def test_there_and_back(web: Registry, tmp_path: Path) -> None:
    here, there, tar = Shell(web.root), Shell(tmp_path / "other"), str(tmp_path / "web.tar")
    assert "wrote " in (said := here("export", "web", "-o", tar))
    assert "3 versions, 7 entries of the log, 2" in said
    with refused(PromotionRefused, "web.tar", "production", "version 3", "--move-aliases"):
        there("import", tar)
    told = there("import", tar, "--move-aliases").splitlines()
    assert told[0] == "imported web as web: 7 new entries of 7"
    assert told[-1] == "web: promoted version 1 to shadow (not set before)"
    assert "web: promoted version 3 to production (before: 2)" in told
    assert there("import", tar) == "nothing to do: web has all of it, and 7 entries\n"
    assert there("list").count("web") == 1
    assert there.json("export", "web", "-o", tar, "--overwrite")["head"] == web.log("web")[-1].digest
    web.promote("web", 1)
    here("export", "web", "-o", tar, "--overwrite")
    with refused(PromotionRefused, "production", "version 1"):
        there("import", tar)
    assert Registry(there.root).resolve("web").number == 3
    assert there.json("import", tar, "--move-aliases") == {
        "kind": "history",
        "name": "web",
        "origin": "web",
        "changed": True,
        "added": 1,
        "head": 8,
        "version": None,
        "mended": 0,
        "moves": ["promoted version 1 to production (before: 3)"],
    }


def test_one_version(web: Registry, tmp_path: Path) -> None:
    here, there, tar = Shell(web.root), Shell(tmp_path / "other"), str(tmp_path / "web.tar")
    assert "1 version, 1 entry of the log" in here("export", "web@production", "-o", tar)
    assert there("import", tar, "--as", "shop", "--reason", "a trial") == "imported web@3 as shop@1\n"
    assert there("import", tar, "--as", "shop") == "nothing to do: web@3 exists here as shop@1\n"
    assert "a trial" in there("log", "shop")


def test_what_goes_wrong_is_raised(web: Registry, tmp_path: Path) -> None:
    here, tar = Shell(web.root), tmp_path / "web.tar"
    here("export", "web", "-o", str(tar))
    other = Registry(tmp_path / "other", disk=QuickDisk())
    other.register("web", b"x", manifest=web.resolve("web", bare="latest").manifest)
    with pytest.raises(ConflictError, match=r"--as web-imported"):
        Shell(other.root)("import", str(tar))
    tar.unlink()
    tar.write_bytes(bytes(10240))
    with refused(IntegrityError, "web.tar", "bundle", "contents.json"):
        Shell(other.root)("import", str(tar))
