"""Small registries, and ways to look at them whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

from rankmill.foundation.storage.disk import Disk
from rankmill.registry import commit_log
from rankmill.registry.model_registry import Registry
from rankmill.registry.stored_records import Entry
from rankmill.registry.version import Version
from tests.registry import model_bucket

FACTS = {
    "features": ["f1", "f2", "f3"],
    "dataset_digest": "d" * 64,
    "parameters": {"learning_rate": 0.1, "max_leaves": 31},
    "metrics": {"valid": {"ndcg@10": 0.5123}, "train": {"ndcg@10": 0.61}},
    "best_round": 120,
}


def outcome(version: int, **facts: Any) -> dict[str, Any]:
    """What a gate may have found of a version of a model."""
    usual: dict[str, Any] = {"alias": "production", "passed": True, "baseline": None, "dataset": "d" * 64}
    usual |= {"split": "test", "metric": "ndcg@10", "convention": "c" * 64, "margin": 0.002}
    return {"version": version, **usual, **facts}


class QuickDisk(Disk):
    """Does not wait for stable storage: no test can pull the plug."""

    def fsync(self, descriptor: int) -> None:
        pass

    def fsync_folder(self, folder: Path) -> None:
        assert folder.is_dir()


class OpenRegistry(Registry):
    """Made, by its first write, without protected aliases."""

    protects_at_first = ()


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not pause before trying again, and let nobody wait for one that was asked to stop in between."""
    monkeypatch.setattr(commit_log, "LONGEST_PAUSE", 0.0)
    for member in vars(Version).values():
        if isinstance(member, cached_property) and hasattr(member, "lock"):  # up to Python 3.11: one for all objects
            monkeypatch.setattr(member, "lock", contextlib.nullcontext())


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make of the same bytes an entry only once: thousands of looks at the same few."""
    monkeypatch.setattr(Entry, "from_bytes", cache(Entry.from_bytes))


@pytest.fixture
def facts() -> dict[str, object]:
    return dict(FACTS)


@pytest.fixture
def kind() -> str:
    """Where the registry of a test is; a module whose laws hold in both places has this fixture with both."""
    return "disk"


def placed(kind: str, tmp_path: Path, of: type[Registry]) -> Registry:
    """An empty registry on the disk, or in a bucket in memory."""
    if kind == "disk":
        return of(tmp_path / "registry", disk=QuickDisk())
    return of(model_bucket.URL, bucket=model_bucket.ModelBucket(model_bucket.World()))


def opened(registry: Registry) -> Registry:
    """The same registry as another process would see it."""
    storage: Any = registry._store.storage
    if storage.kind == "disk":
        return Registry(registry.root, disk=QuickDisk())
    return Registry(registry.root, bucket=storage._given)


def everything(registry: Registry) -> object:
    """All files of the registry: names, bytes and times."""
    storage: Any = registry._store.storage
    if storage.kind == "disk":
        paths = sorted(path for path in registry.root.rglob("*") if path.is_file())
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}
    return dict(storage._given.world.objects)


def lose(registry: Registry, sha256: str) -> None:
    """Take away every file of this blob."""
    storage: Any = registry._store.storage
    for blobs in (log.blobs for log in commit_log.every_log(registry._store)):
        for blob in blobs.all():
            if blob.sha256 == sha256:
                storage.remove(blob.path)


@pytest.fixture
def registry(kind: str, tmp_path: Path) -> Registry:
    """An empty registry in which every alias moves freely."""
    return placed(kind, tmp_path, OpenRegistry)


@pytest.fixture
def web(registry: Registry) -> Registry:
    """Three versions of ``web``; production went 1, 2, 3; shadow is 1."""
    for number in (1, 2, 3):
        registry.register("web", b"model %d" % number, manifest=FACTS | {"best_round": number}, reason="nightly")
        registry.promote("web", number)
    registry.promote("web", 1, alias="shadow")
    return registry


@pytest.fixture
def tree() -> Callable[[Path], dict[str, tuple[int, bytes]]]:
    """Everything below a folder: modification time and bytes of each file, times of the folders."""

    def look(root: Path) -> dict[str, tuple[int, bytes]]:
        paths = [root, *sorted(root.rglob("*"))]
        return {
            str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in paths
        }

    return look
