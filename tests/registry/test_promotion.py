from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rankmill.foundation.errors import ConflictError, InputError, IntegrityError, InvalidName, UnknownModel
from rankmill.registry.model_registry import Registry
from rankmill.registry.stored_records import record_json
from tests.refusals import refused
from tests.registry.conftest import FACTS, OpenRegistry, QuickDisk, everything, lose


@pytest.fixture(params=["disk", "bucket"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def production(registry: Registry) -> int:
    return registry.resolve("web@production", bare="latest").number


def test_the_log_has_each_move(web: Registry) -> None:
    entry = web.rollback("web", reason="slow")
    assert entry == web.log("web")[-1]
    assert record_json(entry.change) == {"op": "rollback", "alias": "production", "version": 2, "previous": 3}
    assert entry.reason == "slow"


def test_a_second_rollback_needs_a_version_and_never_brings_back_what_was_taken_back(web: Registry) -> None:
    web.rollback("web")
    entries = web.log("web")
    with refused(InputError, "web@production", "version 2", "--to", "entry 8", "version 1"):
        web.rollback("web")
    assert web.log("web") == entries
    entry = web.rollback("web", to=3)  # an option asks for it
    assert production(web) == 3
    assert web.rollback("web", to=3) == entry == web.log("web")[-1]


def test_a_rollback_passes_over_versions_that_were_rolled_back_from(web: Registry) -> None:
    web.rollback("web")  # from 3 to 2
    for number in (4, 5):
        web.register("web", f"{number}".encode() * 7, manifest=FACTS)
        web.promote("web", number)
        web.rollback("web")
        assert production(web) == 2
    assert web.state("web").holders("production") == [2, 1]
    web.promote("web", 3)  # again, so that it counts
    web.promote("web", 4)
    web.unset("web", "production")
    web.rollback("web")
    assert production(web) == 4  # what was removed last
    web.promote("web", 5)
    assert web.state("web").holders("production") == [5, 4, 3, 2, 1]
    web.rollback("web", to=1)
    web.promote("web", 5)
    web.rollback("web")
    assert production(web) == 1


def test_promoting_what_stands_returns_the_entry_that_set_it(web: Registry) -> None:
    before, entries = everything(web), web.log("web")
    assert web.promote("web", 3, reason="again") == entries[5]
    assert everything(web) == before


def test_preconditions_hold_or_nothing_happens(web: Registry) -> None:
    entries = web.log("web")
    with refused(ConflictError, "web@production", "version 3", "version 2"):
        web.promote("web", 1, expect=2)
    with refused(ConflictError, "not set"):
        web.promote("web", 3, expect=None)
    with refused(ConflictError, "web@new", "version 1"):
        web.promote("web", 1, alias="new", expect=1)
    with pytest.raises(ConflictError):
        web.rollback("web", expect=2)
    assert web.log("web") == entries
    web.promote("web", 1, expect=3)
    web.promote("web", 1, alias="new", expect=None)
    web.rollback("web", expect=1)
    assert production(web) == 3


def test_what_cannot_be_rolled_back_says_why(web: Registry) -> None:
    with refused(UnknownModel, "web@shadow", "--to"):
        web.rollback("web", alias="shadow")
    with refused(UnknownModel, "'production'"):
        web.rollback("web", alias="prodution")
    with refused(UnknownModel, "version 9"):
        web.rollback("web", to=9)
    with refused(UnknownModel, "version 2", "web@2"):
        web.rollback("web", alias="shadow", to=2)


def test_no_alias_of_a_bad_name(web: Registry) -> None:
    alias = "latest"
    for move in (lambda: web.promote("web", 1, alias=alias), lambda: web.rollback("web", alias=alias)):
        with pytest.raises(InvalidName):
            move()


def test_no_alias_moves_to_damaged_bytes(web: Registry) -> None:
    lose(web, web.resolve("web@2", bare="latest").sha256)
    for move in (lambda: web.promote("web", 2), lambda: web.rollback("web")):
        with pytest.raises(IntegrityError, match="missing"):
            move()
    assert production(web) == 3


class Operators(RuleBasedStateMachine):
    """The registry against the obvious twin: a list of versions and, for each alias, the list of what it meant."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.registry = OpenRegistry(Path(self.folder) / "r", disk=QuickDisk())
        self.models: list[bytes] = []
        self.meant: dict[str, list[int]] = {}
        self.held: dict[str, list[int]] = {}  # without what was rolled back from
        self.moves = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(model=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def register(self, model: bytes) -> None:
        if model not in self.models:
            self.models.append(model)
        version = self.registry.register("web", model, manifest=FACTS)
        assert version.number == self.models.index(model) + 1

    @precondition(lambda self: self.models)
    @rule(alias=st.sampled_from(["production", "shadow"]), data=st.data())
    def promote(self, alias: str, data: st.DataObject) -> None:
        version = data.draw(st.integers(1, len(self.models)))
        self.registry.promote("web", version, alias=alias)
        self._moved(alias, version)

    @precondition(lambda self: self.meant)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        alias = data.draw(st.sampled_from(sorted(self.meant)))
        held = self.held[alias]
        if self.registry.state("web").moves[alias][-1].back:
            with pytest.raises(InputError):
                self.registry.rollback("web", alias=alias)
        elif len(set(held)) > 1:
            self.registry.rollback("web", alias=alias)
            while len(held) > 1 and held[-1] == self.meant[alias][-1]:
                held.pop()
            self._moved(alias, held.pop())
        else:
            with pytest.raises(UnknownModel):
                self.registry.rollback("web", alias=alias)

    def _moved(self, alias: str, version: int) -> None:
        trail = self.meant.setdefault(alias, [])
        if trail[-1:] != [version]:
            trail.append(version)
            self.held.setdefault(alias, []).append(version)
            self.moves += 1

    @invariant()
    def agrees(self) -> None:
        if not self.models:
            return
        assert [version.read() for version in self.registry.versions("web")] == self.models
        for alias, trail in self.meant.items():
            assert self.registry.resolve(f"web@{alias}", bare="latest").number == trail[-1]
        assert len(self.registry.log("web")) == len(self.models) + self.moves
        assert self.registry.verify().ok


Operators.TestCase.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
TestOperators = Operators.TestCase
