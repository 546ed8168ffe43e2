"""The laws of a place that keeps a registry, for a folder on a disk and a prefix of a bucket alike."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rankmill.foundation.errors import InputError
from rankmill.registry.blob_store import Store
from tests.refusals import refused
from tests.registry.conftest import QuickDisk
from tests.registry.model_bucket import URL, ModelBucket, World
from tests.registry.test_races import all_at_once

DAY = 24 * 3600.0


class Careless(QuickDisk):
    """Replaces what is there, and says that all is well."""

    def link(self, source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        super().link(source, target)


@pytest.fixture(params=["disk", "bucket"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def store(kind: str, world: World, tmp_path: Path) -> Store:
    return Store(tmp_path / "r", QuickDisk()) if kind == "disk" else Store(URL, bucket=ModelBucket(world))


@pytest.fixture
def storage(store: Store) -> Any:
    store.prepare()
    return store.storage


def test_a_file_is_written_once_and_read_whole_or_in_part(storage: Any) -> None:
    path = storage.root / "models" / "web" / "log" / "1"
    with pytest.raises(FileNotFoundError):
        storage.read(path, 10)
    assert storage.put_new(path, b"first")
    assert storage.put_new(path, b"first")  # it holds these bytes
    assert not storage.put_new(path, b"second")
    assert storage.read(path, 10) == b"first"
    assert storage.read(path, 3) == b"fir"
    assert {*storage.names(storage.root)} - {"tmp"} == {"FORMAT.json", "models"}


def test_a_cache_may_be_replaced_and_files_removed(storage: Any) -> None:
    path = storage.root / "models" / "web" / "packed"
    storage.put_new(storage.root / "models" / "web" / "other", b"")
    for data in (b"one", b"two and more"):
        storage.put(path, data)
        assert storage.read(path, 99) == data
    storage.remove(path)
    assert storage.names(storage.root / "models" / "web") == ["other"]


def test_names_and_files_are_listed(storage: Any) -> None:
    folder = storage.root / "blobs" / "web"
    assert storage.names(folder) == storage.files(folder) == []
    for number in range(3):
        storage.put_new(folder / f"{number}", bytes(number))
    assert sorted(storage.names(folder)) == ["0", "1", "2"]
    assert "2" in storage.names(folder, after="1")
    assert sorted((file.path, file.size) for file in storage.files(folder)) == [(folder / f"{n}", n) for n in range(3)]
    assert {storage.modified(file.path) for file in storage.files(folder)} == {
        f.modified for f in storage.files(folder)
    }


def test_of_sixteen_that_take_one_name_one_wins(storage: Any) -> None:
    for step in range(5):
        path = storage.root / "models" / f"{step}"
        results = all_at_once(16, lambda i, path=path: storage.put_new(path, b"%d" % i))
        assert sorted(map(repr, results)) == ["False"] * 15 + ["True"]
        assert storage.read(path, 9) == b"%d" % results.index(True)


def test_now_is_the_earlier_of_two_clocks_and_leaves_nothing(storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    for days in (30, -30):
        monkeypatch.setattr(time, "time", lambda days=days: now + days * DAY)
        assert storage.now() < now + DAY
    assert storage.now() == now - 30 * DAY
    assert storage.names(storage.root / "tmp") == []


def test_files_of_killed_writers_are_deleted_after_a_day(kind: str, storage: Any, world: World) -> None:
    for name, age in {"young": 0.9 * DAY, "old": 1.1 * DAY}.items():
        path, then = storage.root / "tmp" / name, time.time() - age
        if kind == "bucket":
            world.objects[path] = (b"", then)
        else:
            path.touch()
            os.utime(path, (then, then))
    storage.sweep()
    assert storage.names(storage.root / "tmp") == ["young"]


def test_a_place_with_something_else_is_refused_and_left_alone(kind: str, store: Store, world: World) -> None:
    if kind == "bucket":
        world.objects[URL / "notes.txt"] = (b"mine", 0.0)
    else:
        Path(str(store.root)).mkdir()
        (Path(str(store.root)) / "notes.txt").touch()
    with refused(InputError, "'notes.txt'"):
        store.prepare()
    assert store.storage.names(store.root) == ["notes.txt"]


def test_a_place_that_replaces_files_is_found_out_and_left_empty(kind: str, tmp_path: Path) -> None:
    world = World(ignores_conditions=True)
    store = Store(tmp_path / "r", Careless()) if kind == "disk" else Store(URL, bucket=ModelBucket(world))
    with refused(OSError, str(store.root), "same name" if kind == "disk" else "If-None-Match") as caught:
        store.prepare()
    assert caught.value.errno == errno.EOPNOTSUPP
    assert list(tmp_path.iterdir()) == []
    assert world.objects == {}
