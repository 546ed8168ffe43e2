"""Each call of fsync in the registry is needed: without any one of them a loss of power at some moment does damage.

The calls are found in the source.  For each, a bounded search pulls the plug before every call of every operation, and
after it, also where another process was killed half-way through before; with all calls in place it finds nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import rankmill
from rankmill.foundation.errors import RankmillError
from rankmill.registry.model_registry import Registry
from tests.registry.interposed import Interposed, Killed
from tests.registry.invariants import Witness
from tests.registry.model_disk import ROOT, Choice, Machine, ModelDisk, everything, nothing_new
from tests.registry.operations import COLLECTIONS, OPERATIONS, started

pytestmark = pytest.mark.usefixtures("brisk", "read_once")

FOLDERS = [Path(rankmill.__file__).parent / name for name in ("registry", "foundation/storage")]
FSYNCS = {"fsync", "fsync_folder"}
FLUSHES = FSYNCS | {"flush"}
TWO = [  # the first is killed before each of its calls in turn, then the second does all of its own
    ("register the first", "register the first"),
    ("register another", "register another"),
    ("register another", "promote"),
    ("promote", "promote"),
    ("protect", "protect"),
    ("record a gate", "record a gate"),
    ("collect", "collect twice"),
    ("register what is nobody's", "collect twice"),
    ("import a history", "import a history"),
    ("import a history", "promote what was imported"),
    ("import a history", "import what follows"),
]
WORK = OPERATIONS | COLLECTIONS


class Site(NamedTuple):
    """A call in the source that makes something durable."""

    file: str
    function: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{Path(self.file).stem}.{self.function}:{self.first}"

    def is_among(self, lines: set[tuple[str, int]]) -> bool:
        return any((self.file, line) in lines for line in range(self.first, self.last + 1))


def callers() -> set[tuple[str, int]]:
    """The lines of the registry and the storage below it that the present call on the disk comes from."""
    lines, frame = set(), sys._getframe(1)
    while (caller := frame.f_back) is not None:
        if caller.f_code.co_filename.startswith(tuple(map(str, FOLDERS))):
            lines.add((caller.f_code.co_filename, caller.f_lineno))
        frame = caller
    return lines


def sites() -> Iterator[Site]:
    for path in sorted(path for folder in FOLDERS for path in folder.rglob("*.py")):
        if path.name != "disk.py":
            yield from sites_of(path)


def sites_of(path: Path) -> Iterator[Site]:
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                if node.func.attr in FLUSHES and ast.unparse(node.func.value) != "DISK":  # that one is no registry's
                    yield Site(str(path), function.name, node.lineno, node.end_lineno or node.lineno)


def without(site: Site | None, each: Callable[[], object]) -> Callable[..., object]:
    """Call ``each`` before every call on the disk, and leave out those that ``site`` makes."""

    def around(name: str, call: Callable[..., object], *arguments: object) -> object:
        each()
        if site is not None and name in FSYNCS and site.is_among(callers()):
            return None
        return call(*arguments)

    return around


class Search:
    """Looks for a loss of power that does damage."""

    def __init__(self, site: Site | None) -> None:
        self.site = site
        self.looked: set[object] = set()
        self.before = b""

    def alone(self, name: str) -> None:
        """Pull the plug before every call of one operation, and after it."""
        operation = OPERATIONS[name]
        machine, witness = started(operation.start).copy(), Witness()
        registry = Registry(
            ROOT, disk=Interposed(ModelDisk(machine), without(self.site, lambda: self.pull(machine, witness)))
        )
        witness.saw(operation.model, operation.work(registry, "it") or registry.log(operation.model)[-1])
        self.pull(machine, witness)

    def after_one_was_killed(self, first: str, second: str) -> None:
        """Kill one process before every call in turn, let another do its work, and pull the plug."""
        start = started(WORK[first].start)
        for at in range(1000):
            machine, witness, left = start.copy(), Witness(), [at]

            def die(left: list[int] = left) -> None:
                if not left[0]:
                    raise Killed
                left[0] -= 1

            try:
                WORK[first].work(Registry(ROOT, disk=Interposed(ModelDisk(machine), without(self.site, die))), "1")
                done = True
            except Killed:
                done = False
            registry = Registry(ROOT, disk=Interposed(ModelDisk(machine), without(self.site, lambda: None)))
            model = WORK[second].model
            entry = WORK[second].work(registry, "2")
            if entry is not None or second in OPERATIONS:
                witness.saw(model, entry or registry.log(model)[-1])
            self.pull(machine, witness)
            if done:
                return
        raise AssertionError("never done")

    def pull(self, machine: Machine, witness: Witness) -> None:
        """Check what is found after a loss of all, of nothing, of each thing alone, and of all but one thing."""
        now = machine.to_bytes()
        if now == self.before and not witness.acknowledged:  # that call changed nothing
            return
        self.before, choices = now, machine.choices()
        for choose in (nothing_new, everything, *(only(choice, lose) for choice in choices for lose in (True, False))):
            found = Machine.from_bytes(now)
            found.power_loss(choose)
            seen = (frozenset((path, file.data) for path, file in found.files()), len(witness.acknowledged))
            if seen not in self.looked:
                witness.check(found)
                self.looked.add(seen)


def only(that: Choice, lose: bool) -> Callable[[Choice], int]:
    """Lose ``that`` and keep everything else, or the other way round."""
    return lambda choice: nothing_new(choice) if (choice.what == that.what) == lose else everything(choice)


@cache
def lines_of(first: str, second: str) -> set[tuple[str, int]]:
    """The lines from which two operations, or one, flush."""
    lines: set[tuple[str, int]] = set()

    def around(name: str, call: Callable[..., object], *arguments: object) -> object:
        if name in FSYNCS:
            lines.update(callers())
        return call(*arguments)

    names = [name for name in (first, second) if name]
    machine = started(WORK[names[0]].start).copy()
    for name in names:
        WORK[name].work(Registry(ROOT, disk=Interposed(ModelDisk(machine), around)), name)
    return lines


def search(site: Site | None, pairs: list[tuple[str, str]], names: list[str]) -> None:
    """Raise what the first loss of power that does damage makes the checks raise."""
    looking = Search(site)
    for first, second in reversed(pairs):  # the last ones are there for what little else shows
        if site is None or site.is_among(lines_of(first, second)):
            looking.after_one_was_killed(first, second)
    for name in names:
        if site is None or site.is_among(lines_of("", name)):
            looking.alone(name)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_with_every_fsync_in_place_no_loss_of_power_does_damage(step: int) -> None:
    search(None, TWO[::step], [*OPERATIONS][::step])


@pytest.mark.parametrize("site", list(sites()), ids=str)
def test_without_this_fsync_a_loss_of_power_does_damage(site: Site) -> None:
    with pytest.raises((AssertionError, RankmillError)):
        search(site, TWO, [*OPERATIONS])
