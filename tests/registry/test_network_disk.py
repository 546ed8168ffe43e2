"""Several hosts on one network file system: what each sees lags behind, answers are lost, handles go stale.

What is sent to the server is true: a link made there fails where the name is taken.  What a client knows by itself may
be old: it remembers which names were not there, and what a folder held, until it opens the folder.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmill.foundation.errors import ConflictError, RankmillError, UnknownModel
from rankmill.registry.model_registry import Registry
from rankmill.registry.stored_records import Entry
from tests.registry.conftest import FACTS
from tests.registry.interposed import Writer
from tests.registry.invariants import Witness
from tests.registry.model_disk import ROOT, Machine, ModelDisk

pytestmark = pytest.mark.usefixtures("brisk")


class Client(ModelDisk):
    """One host's way to the server."""

    def __init__(self, machine: Machine, chance: random.Random, trouble: float) -> None:
        super().__init__(machine)
        self._chance, self._trouble = chance, trouble
        self._absent: set[Path] = set()
        self._held: dict[Path, list[str]] = {}

    def read(self, path: Path, limit: int = -1) -> bytes:
        self._stale(path)
        if path in self._absent:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        try:
            return super().read(path, limit)
        except FileNotFoundError:
            self._absent.add(path)
            raise

    def names(self, folder: Path) -> list[str]:
        return self._held.setdefault(folder, super().names(folder))

    def link(self, source: Path, target: Path) -> None:
        self._stale(target)
        self._absent.discard(target)
        super().link(source, target)
        self._lose_the_answer(target)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._lose_the_answer(path)

    def fsync_folder(self, folder: Path) -> None:
        self._stale(folder)
        super().fsync_folder(folder)
        self._absent = {path for path in self._absent if path.parent != folder}
        self._held.pop(folder, None)

    def _stale(self, path: Path) -> None:
        if self._chance.random() < self._trouble:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    def _lose_the_answer(self, path: Path) -> None:
        if self._chance.random() < self._trouble:
            number = self._chance.choice([errno.EIO, errno.EEXIST, errno.ENOENT])  # sent twice: done already
            raise OSError(number, os.strerror(number), str(path))


class Host:
    """A process of one host that does one thing after another, each by a client that remembers what was seen before."""

    def __init__(self, machine: Machine, chance: random.Random, witness: Witness, trouble: float, number: int) -> None:
        self.machine, self.witness, self.chance, self.number = machine, witness, chance, number
        self.disk = Client(machine, chance, trouble)
        self.writer: Writer | None = None
        self.count = 0

    def step(self, calls: int) -> None:
        """Make some calls of what is being done, or begin something."""
        if self.writer is None:
            self.count += 1
            self.writer = Writer(self.machine, self._work(f"{self.number}.{self.count}"), self.disk)
        if not self.writer.step(calls):
            if self.writer.error is not None:
                raise self.writer.error
            self.writer = None

    def _work(self, reason: str) -> Callable[[Registry], None]:
        version, alias, way = self.chance.randint(1, 3), self.chance.choice(["blue", "green"]), self.chance.random()

        def work(registry: Registry) -> None:
            before = len(truth(self.machine))
            try:
                entry = move(registry)
            except (ConflictError, UnknownModel):
                self.witness.refused.add(reason)
            except (OSError, RankmillError):
                return  # done or not, nobody knows
            else:
                self.witness.saw("web", entry)
                later = truth(self.machine)[entry.number : before] if hasattr(entry.change, "alias") else []
                moved = [other for other in later if getattr(other.change, "alias", None) == alias]
                assert not moved, f"was told that {entry} stands, after {moved}"

        def move(registry: Registry) -> Entry:
            if way < 0.7:
                return registry.promote("web", version, alias=alias, reason=reason)
            if way < 0.9:
                return registry.rollback("web", alias=alias, reason=reason)
            return registry.register("web", b"%d" % version, manifest=FACTS, reason=reason).registered

        return work


def truth(machine: Machine) -> list[Entry]:
    """The log as the server has it."""
    return Registry(ROOT, disk=ModelDisk(machine)).log("web")


@pytest.mark.parametrize("trouble", [0.0, 0.02], ids=["lag", "lag, stale handles, lost answers"])
@pytest.mark.parametrize("seed", range(6))
def test_hosts_whose_view_lags_behind_agree(seed: int, trouble: float) -> None:
    chance, machine, witness = random.Random(seed), Machine(), Witness()
    registry = Registry(ROOT, disk=ModelDisk(machine))
    registry.prepare(protected=())
    for version in (1, 2, 3):
        registry.register("web", b"%d" % version, manifest=FACTS)
        for alias in ("blue", "green"):
            registry.promote("web", version, alias=alias)
    hosts = [Host(machine, chance, witness, trouble, number) for number in range(3)]
    for _ in range(100):
        chance.choice(hosts).step(chance.randint(1, 30))
    for host in hosts:
        if host.writer is not None:
            host.writer.kill()
    witness.check(machine)
    assert len(witness.acknowledged) > 5
