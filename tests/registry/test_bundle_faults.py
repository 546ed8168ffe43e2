"""An export is killed at any call, or its plug is pulled: the file is as it was, or whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmill.foundation.errors import RankmillError
from rankmill.foundation.storage import publish
from rankmill.registry import bundle_export
from rankmill.registry.bundle_import import OpenedBundle
from rankmill.registry.model_registry import Registry
from tests.registry.interposed import Interposed, Killed
from tests.registry.model_disk import ROOT, Machine, ModelDisk, everything, nothing_new
from tests.registry.operations import BESIDE, started
from tests.registry.test_every_fsync import Site, only, sites_of, without

OUT = BESIDE / "web.tar"
OLD = b"what was there"
SITES = [site for module in (bundle_export, publish) for site in sites_of(Path(module.__file__))]


@pytest.fixture(params=[True, False], ids=["replaces", "new"])
def start(request: pytest.FixtureRequest) -> Machine:
    machine = started("three versions").copy()
    if request.param:
        disk = ModelDisk(machine)
        descriptor = disk.create(OUT)
        disk.write(descriptor, memoryview(OLD))
        disk.fsync(descriptor)
        disk.fsync_folder(BESIDE)
    return machine


def found(machine: Machine) -> bytes | None:
    return ModelDisk(machine).read(OUT) if OUT.name in ModelDisk(machine).names(BESIDE) else None


def check(machine: Machine, old: bytes | None, *, acknowledged: bool) -> None:
    """Whatever is lost, the old or the new file is there; once it was acknowledged, the new one."""
    choices = machine.choices()
    for choose in (nothing_new, everything, *(only(choice, lose) for choice in choices for lose in (True, False))):
        after = machine.copy()
        after.power_loss(choose)
        data = found(after)
        if acknowledged or data != old:
            OpenedBundle(ModelDisk(after), OUT)


def export(machine: Machine, around: Callable[..., object]) -> None:
    Registry(ROOT, disk=Interposed(ModelDisk(machine), around)).export("web", OUT, overwrite=True)


def search(start: Machine, site: Site | None) -> None:
    old, calls = found(start), 0
    for at in itertools.count(1):
        machine, left = start.copy(), [at]

        def die(left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Killed

        try:
            export(machine, without(site, die))
        except Killed:
            check(machine, old, acknowledged=False)
            continue
        check(machine, old, acknowledged=True)
        calls = at
        break
    assert calls > 10
    assert [path for path, _ in machine.files(BESIDE) if Path(path).name.startswith(".")] == []


def test_killed_at_any_call_and_without_power_the_file_is_as_it_was_or_whole(start: Machine) -> None:
    search(start, None)


@pytest.mark.parametrize("site", SITES, ids=str)
def test_without_this_fsync_a_loss_of_power_does_damage(site: Site) -> None:
    with pytest.raises((AssertionError, RankmillError)):
        search(started("three versions").copy(), site)


def test_what_fails_leaves_nothing_behind(start: Machine) -> None:
    old = found(start)
    for at in itertools.count(1):
        machine, left = start.copy(), [at]

        def fail(name: str, call: Callable[..., object], *arguments: object, left: list[int] = left) -> object:
            left[0] -= 1
            if not left[0] and name != "unlink":
                raise OSError(28, "No space left on device", str(arguments[0]))
            return call(*arguments)

        try:
            export(machine, fail)
        except (OSError, RankmillError):
            if found(machine) != old:
                OpenedBundle(ModelDisk(machine), OUT)
            assert not [path for path, _ in machine.files(BESIDE) if Path(path).name.startswith(".")]
            continue
        break
