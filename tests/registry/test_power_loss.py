"""Several processes at work on one registry, killed at any call, and the plug pulled: nothing acknowledged is lost.

On a file system in memory that forgets, when power is lost, any part of what no fsync has made safe.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rankmill.foundation.errors import ConflictError, RankmillError, UnknownModel
from rankmill.registry.model_registry import Registry
from rankmill.registry.retention import RetentionRules
from rankmill.registry.stored_records import Entry
from tests.registry.conftest import FACTS
from tests.registry.interposed import Writer
from tests.registry.invariants import Witness
from tests.registry.model_disk import ROOT, Choice, Machine, ModelDisk, everything, nothing_new

pytestmark = pytest.mark.usefixtures("brisk", "read_once")


def some(seed: int) -> Callable[[Choice], int]:
    """Let chance say what is lost."""
    chance = random.Random(seed)
    return lambda choice: chance.randrange(choice.options)


LOSSES = st.just(nothing_new) | st.just(everything) | st.integers(0, 2**32 - 1).map(some)
NAMES, VERSIONS, ALIASES = st.sampled_from(["web", "shop"]), st.integers(1, 3), st.sampled_from(["blue", "green"])
SLOTS = st.integers(0, 2)


class Writers(RuleBasedStateMachine):
    """Three processes that are born, make some calls, and end well or are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.machine, self.witness = Machine(), Witness()
        self.writers: dict[int, Writer] = {}
        self.reasons = 0
        self.changed = False

    def _begin(self, slot: int, name: str, work: Callable[[Registry, str], Entry | None]) -> None:
        """Let a new process do this, as far as its first call; the process that was there before is killed."""
        self._kill(slot)
        self.reasons += 1
        reason = f"operation {self.reasons}"

        def reported(registry: Registry) -> None:
            try:
                entry = work(registry, reason)
                if entry is not None:
                    self.witness.saw(name, entry)
            except (ConflictError, UnknownModel):
                self.witness.refused.add(reason)

        self.writers[slot] = Writer(self.machine, reported)

    def _end(self, slot: int) -> None:
        writer = self.writers.pop(slot)
        self.changed = True
        if writer.error is not None and not writer._killed:
            raise writer.error

    def _kill(self, slot: int) -> None:
        if slot in self.writers:
            self.writers[slot].kill()
            self._end(slot)

    @initialize()
    def a_registry_with_something_in_it(self) -> None:
        self.register(0, "web", 1)
        self.finish(0)

    @rule(slot=SLOTS, name=NAMES, model=VERSIONS)
    def register(self, slot: int, name: str, model: int) -> None:
        facts = FACTS | {"best_round": model}
        self._begin(slot, name, lambda r, why: r.register(name, b"%d" % model, manifest=facts, reason=why).registered)

    @rule(slot=SLOTS, name=NAMES, version=VERSIONS, alias=ALIASES)
    def promote(self, slot: int, name: str, version: int, alias: str) -> None:
        self._begin(slot, name, lambda r, why: r.promote(name, version, alias=alias, reason=why))

    @rule(slot=SLOTS, name=NAMES, version=VERSIONS, alias=ALIASES, expect=st.none() | VERSIONS)
    def promote_if(self, slot: int, name: str, version: int, alias: str, expect: int | None) -> None:
        self._begin(slot, name, lambda r, why: r.promote(name, version, alias=alias, expect=expect, reason=why))

    @rule(slot=SLOTS, name=NAMES, alias=ALIASES)
    def roll_back(self, slot: int, name: str, alias: str) -> None:
        self._begin(slot, name, lambda r, why: r.rollback(name, alias=alias, reason=why))

    @rule(slot=SLOTS)
    def collect(self, slot: int) -> None:
        def work(registry: Registry, reason: str) -> None:
            registry.gc(rules=RetentionRules(keep=1, grace=0.0))

        self._begin(slot, "web", work)

    @precondition(lambda self: self.writers)
    @rule(slot=SLOTS, calls=st.integers(1, 40))
    def step(self, slot: int, calls: int) -> None:
        if slot in self.writers and not self.writers[slot].step(calls):
            self._end(slot)

    @precondition(lambda self: self.writers)
    @rule(slot=SLOTS)
    def finish(self, slot: int) -> None:
        if slot in self.writers:
            self.writers[slot].finish()
            self._end(slot)

    @precondition(lambda self: self.writers)
    @rule(slot=SLOTS)
    def kill(self, slot: int) -> None:
        self._kill(slot)

    @rule(loss=LOSSES)
    def lose_power(self, loss: Callable[[Choice], int]) -> None:
        for slot in list(self.writers):
            self._kill(slot)
        self.machine.power_loss(loss)
        self.changed = True

    @invariant()
    def all_is_well(self) -> None:
        if self.changed:
            self.witness.check(self.machine)
            self.changed = False

    def teardown(self) -> None:
        """Whatever happened, the next writer gets through."""
        for slot in list(self.writers):
            self._kill(slot)
        self.register(0, "web", 3)
        self.finish(0)
        self.promote(0, "web", 1, "blue")
        self.finish(0)
        self.machine.power_loss(nothing_new)
        self.witness.check(self.machine)


Writers.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestWriters = Writers.TestCase


# ---- Several hosts on one network file system: what each sees lags behind, answers are lost, handles go s


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
                assert not moved, f"was answered that {entry} stands, after {moved}"

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
