"""The file system in memory that the tests of failure stand on: programs see what they would see on a real one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.storage.disk import Disk
from tests.registry.interposed import CALLS
from tests.registry.model_disk import Choice, Machine, ModelDisk, everything, nothing_new

HOME = Path("/srv")
PATHS = st.sampled_from(["a", "b", "a/c", "b/c", "a/d"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["make_folder", "unlink", "names", "read", "link_count", "is_folder"]), PATHS, st.none())
    | st.tuples(st.just("link"), PATHS, PATHS)
    | st.tuples(st.just("write"), PATHS, st.binary(min_size=1, max_size=3)),
    max_size=25,
)


def test_every_call_is_modelled() -> None:
    assert set(CALLS) <= set(vars(ModelDisk))


def do(disk: Disk, home: Path, step: tuple[str, str, object]) -> object:
    """Make one step; what a program learns of it."""
    name, path, other = step
    try:
        if name == "write":
            descriptor = disk.create(home / path)
            disk.write(descriptor, memoryview(other))
            disk.close(descriptor)
            return None
        arguments = [home / path] + ([home / str(other)] if name == "link" else [])
        return getattr(disk, name)(*arguments)
    except OSError as error:
        return error.errno


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_a_program_cannot_tell_it_from_a_real_one(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    real, model, there = Disk(), ModelDisk(Machine()), tmp_path_factory.mktemp("real")
    for step in steps:
        name, path, _ = step
        if name in {"unlink", "link", "link_count"} and model.is_folder(HOME / path):
            continue  # the kernels differ in what they say of folders, and the registry does not ask
        assert do(model, HOME, step) == do(real, there, step), step


def put(disk: ModelDisk, path: Path, data: bytes, *, fsync: bool) -> None:
    descriptor = disk.create(path)
    disk.write(descriptor, memoryview(data))
    if fsync:
        disk.fsync(descriptor)
    disk.close(descriptor)


@pytest.fixture
def disk() -> ModelDisk:
    return ModelDisk(Machine())


def found(disk: ModelDisk, choose: Callable[[Choice], int]) -> dict[str, bytes]:
    """What lies there after power was lost."""
    machine = disk.machine.copy()
    machine.power_loss(choose)
    return {path: file.data for path, file in machine.files()}


def test_bytes_are_safe_after_fsync_and_names_after_that_of_the_folder(disk: ModelDisk) -> None:
    put(disk, HOME / "both", b"1234", fsync=True)
    put(disk, HOME / "name", b"1234", fsync=False)
    disk.fsync_folder(HOME)
    put(disk, HOME / "bytes", b"1234", fsync=True)
    assert found(disk, nothing_new) == {"/srv/both": b"1234", "/srv/name": b""}
    assert found(disk, everything) == dict.fromkeys(["/srv/both", "/srv/name", "/srv/bytes"], b"1234")


def test_every_torn_form_and_every_subset_may_be_found(disk: ModelDisk) -> None:
    put(disk, HOME / "one", b"1234", fsync=False)
    put(disk, HOME / "two", b"5678", fsync=True)
    outcomes = set()
    for one in range(2):
        for two in range(2):
            for form in range(5):
                picks = {"the name /srv/one": one, "the name /srv/two": two, "the bytes of /srv/one": form}
                outcomes.add(tuple(sorted(found(disk, lambda choice, picks=picks: picks[choice.what]).items())))
    ones = [{}, *({"/srv/one": data} for data in (b"", b"12", b"123", b"1234", bytes(4)))]
    assert outcomes == {tuple(sorted((one | two).items())) for one in ones for two in ({}, {"/srv/two": b"5678"})}


def test_what_lies_in_a_lost_folder_is_lost(disk: ModelDisk) -> None:
    disk.make_folder(HOME / "folder")
    put(disk, HOME / "folder" / "file", b"1", fsync=True)
    disk.fsync_folder(HOME / "folder")
    assert found(disk, nothing_new) == {}
    disk.fsync_folder(HOME)
    assert found(disk, nothing_new) == {"/srv/folder/file": b"1"}


def test_a_file_that_is_moved_is_never_lost(disk: ModelDisk) -> None:
    for folder in ("from", "to"):
        disk.make_folder(HOME / folder)
    disk.fsync_folder(HOME)
    put(disk, HOME / "from" / "file", b"1", fsync=True)
    disk.fsync_folder(HOME / "from")
    disk._rename(HOME / "from" / "file", HOME / "to" / "file")
    for flushed in (None, "to", "from"):
        after = ModelDisk(disk.machine.copy())
        if flushed:
            after.fsync_folder(HOME / flushed)
        for old in range(2):
            for new in range(2):
                picks = {"the name /srv/from/file": old, "the name /srv/to/file": new}
                there = found(after, lambda choice, picks=picks: picks[choice.what])
                assert set(there.values()) == {b"1"}
    assert found(after, nothing_new) == {"/srv/to/file": b"1"}


def test_errors_name_the_path(disk: ModelDisk) -> None:
    with pytest.raises(FileNotFoundError, match="/srv/none") as caught:
        disk.read(HOME / "none")
    assert caught.value.errno == errno.ENOENT
