"""The file system in memory that the tests of failure stand on: programs see what they would see on a real one."""

from __future__ import annotations

import itertools
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
    st.tuples(st.sampled_from(["make_folder", "unlink", "names", "read", "is_folder"]), PATHS, st.none())
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


@settings(max_examples=80, deadline=None)
@given(STEPS)
def test_a_program_cannot_distinguish_it_from_a_real_one(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    real, model, there = Disk(), ModelDisk(Machine()), tmp_path_factory.mktemp("real")
    for step in steps:
        name, path, _ = step
        if name in {"unlink", "link"} and model.is_folder(HOME / path):
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


def test_what_is_not_flushed_may_be_found_in_every_torn_form_and_subset(disk: ModelDisk) -> None:
    """Bytes are safe after fsync of the file, names after that of the folder, and what lies in a lost folder is
    lost."""
    put(disk, HOME / "one", b"1234", fsync=False)
    put(disk, HOME / "two", b"5678", fsync=True)
    outcomes = set()
    for one, two, form in itertools.product(range(2), range(2), range(5)):
        picks = {"the name /srv/one": one, "the name /srv/two": two, "the bytes of /srv/one": form}
        outcomes.add(tuple(sorted(found(disk, lambda choice, picks=picks: picks[choice.what]).items())))
    ones = [{}, *({"/srv/one": data} for data in (b"", b"12", b"123", b"1234", bytes(4)))]
    assert outcomes == {tuple(sorted((one | two).items())) for one in ones for two in ({}, {"/srv/two": b"5678"})}
    disk.fsync_folder(HOME)
    assert found(disk, nothing_new) == {"/srv/one": b"", "/srv/two": b"5678"}
    disk.make_folder(HOME / "folder")
    put(disk, HOME / "folder" / "file", b"1", fsync=True)
    disk.fsync_folder(HOME / "folder")
    assert found(disk, nothing_new).keys() == {"/srv/one", "/srv/two"}
    assert found(disk, everything)["/srv/folder/file"] == b"1"


def test_a_file_that_is_moved_is_never_lost(disk: ModelDisk) -> None:
    for folder in ("from", "to"):
        disk.make_folder(HOME / folder)
    disk.fsync_folder(HOME)
    put(disk, HOME / "from" / "file", b"1", fsync=True)
    disk.fsync_folder(HOME / "from")
    disk.replace(HOME / "from" / "file", HOME / "to" / "file")
    for flushed, old, new in itertools.product((None, "to", "from"), range(2), range(2)):
        after = ModelDisk(disk.machine.copy())
        if flushed:
            after.fsync_folder(HOME / flushed)
        picks = {"the name /srv/from/file": old, "the name /srv/to/file": new}
        assert set(found(after, lambda choice, picks=picks: picks[choice.what]).values()) == {b"1"}
