"""Several processes at work on one registry, killed at any call, and the plug pulled: nothing acknowledged is lost.

On a file system in memory that forgets, when power is lost, any part of what no fsync has made safe.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rankmill.foundation.errors import ConflictError, UnknownModel
from rankmill.registry.model_registry import Registry
from rankmill.registry.retention import RetentionRules
from rankmill.registry.stored_records import Entry
from tests.registry.conftest import FACTS
from tests.registry.interposed import Writer
from tests.registry.invariants import Witness
from tests.registry.model_disk import Choice, Machine, everything, nothing_new

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
        """Let a new process do this, as far as its first call; whoever was there before is killed."""
        self._kill(slot)
        self.reasons += 1
        reason = f"operation {self.reasons}"

        def told(registry: Registry) -> None:
            try:
                entry = work(registry, reason)
                if entry is not None:
                    self.witness.saw(name, entry)
            except (ConflictError, UnknownModel):
                self.witness.refused.add(reason)

        self.writers[slot] = Writer(self.machine, told)

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
