"""Registries that earlier versions wrote are read, and written on, for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from registry.registry import Registry
from tests.registry.conftest import FACTS, QuickDisk
from tests.registry.golden.write import seen

GOLDEN = sorted(path for path in (Path(__file__).parent / "golden").iterdir() if (path / "FORMAT.json").exists())


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def told_of(golden: Path) -> object:
    return json.loads(golden.with_suffix(".json").read_text(encoding="utf-8"))


def test_the_formats_that_were_ever_written_are_here() -> None:
    assert {path.name for path in GOLDEN} >= {"format1"}


def test_a_reader_is_told_what_it_was_told_then(golden: Path) -> None:
    assert seen(golden) == told_of(golden)
    assert Registry(golden).verify().ok
    for name, model in seen(golden).items():
        for version in model["versions"]:
            assert (
                len(Registry(golden).resolve(f"{name}@{version['version']}", bare="latest").read()) == version["size"]
            )


def test_it_is_written_on(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "r")
    registry = Registry(tmp_path / "r", disk=QuickDisk())
    before = seen(golden)["web"]["log"]
    assert registry.register("web", b"more", manifest=FACTS).number == 4
    registry.promote("web", 2, alias="canary")
    registry.rollback("web", alias="production", to=3)
    assert registry.verify().ok
    assert [entry.digest for entry in registry.log("web")][: len(before)] == before
    again = registry.resolve("web@2", bare="latest")
    assert registry.register("web", again.read(), manifest=again.manifest).number == 2
