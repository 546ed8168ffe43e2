"""Registries that earlier versions wrote are read, and written on, for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest

from rankmill.registry.model_registry import Registry
from rankmill.registry.stored_records import Change, record_json
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
    assert {path.name for path in GOLDEN} >= {"format1", "format2"}


def test_a_reader_is_told_what_it_was_told_then(golden: Path) -> None:
    assert seen(golden) == told_of(golden)
    assert Registry(golden).verify().ok
    for name, model in seen(golden).items():
        for version in (version for version in model["versions"] if "swept" not in version):
            assert (
                len(Registry(golden).resolve(f"{name}@{version['version']}", bare="latest").read()) == version["size"]
            )


def test_it_is_written_on(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "r")
    registry = Registry(tmp_path / "r", disk=QuickDisk())
    before = seen(golden)["web"]["log"]
    assert registry.register("web", b"more", manifest=FACTS).number == len(seen(golden)["web"]["versions"]) + 1
    registry.promote("web", 2, alias="blue")
    registry.rollback("web", alias="production", to=3)
    assert registry.verify().ok
    assert [entry.digest for entry in registry.log("web")][: len(before)] == before
    again = registry.resolve("web@2", bare="latest")
    assert registry.register("web", again.read(), manifest=again.manifest).number == 2


@pytest.mark.parametrize("kind", ["history", "version"])
def test_a_bundle_is_taken_in_as_it_was_then(kind: str, tmp_path: Path) -> None:
    bundle, registry = GOLDEN[0].parent / f"{kind}1.tar", Registry(tmp_path / "r", disk=QuickDisk())
    done = registry.import_(bundle, move_aliases=True)
    assert registry.verify().ok
    if kind == "history":
        assert seen(registry.root)["web"] == seen(GOLDEN[0])["web"]
        registry.export("web", tmp_path / "again.tar")
        assert (tmp_path / "again.tar").read_bytes() == bundle.read_bytes()
    else:
        assert (done.origin, done.version) == ("web@3", 1)
        assert registry.resolve("web@1", bare="latest").sha256 == seen(GOLDEN[0])["web"]["versions"][2]["sha256"]


def test_the_newest_golden_registry_says_everything_that_a_log_can_say() -> None:
    """A new kind of entry, or field of one, wants a new golden registry."""
    said: dict[str, set[str]] = {}
    for name in Registry(GOLDEN[-1]).names():
        for entry in Registry(GOLDEN[-1]).log(name):
            said.setdefault(entry.change.op, set()).update(record_json(entry.change))
    known = {op for record in get_args(get_args(Change)[0]) for op in get_args(record.model_fields["op"].annotation)}
    assert said.keys() == known
    for record in get_args(get_args(Change)[0]):
        fields = set().union(*(said[op] for op in get_args(record.model_fields["op"].annotation)))
        assert fields == set(record.model_fields), record
