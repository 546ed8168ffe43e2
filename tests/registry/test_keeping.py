"""Which versions may go: laws of the decision, on any history."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from rankmill.foundation.errors import InputError, UnknownModel
from rankmill.registry.model_state import State
from rankmill.registry.promotion import rollback
from rankmill.registry.retention import DAY, Plan, RetentionRules, plan, reasons
from rankmill.registry.stored_records import Change, Entry, Move, Register, Sweep, Unset

NOW = 1000 * DAY
ALIASES = ["production", "shadow"]
STEPS = st.lists(
    st.sampled_from(["register", "register", "register", "promote", "rollback", "unset", "collect"]), max_size=40
)


class History:
    """A log in memory with the age of each entry; the last one is written ``NOW``."""

    def __init__(self) -> None:
        self.state, self.ages = State(), [0.0]

    def append(self, change: Change) -> None:
        texts = {"txid": "t", "actor": "", "host": "", "reason": "", "time": "2026-01-02T03:04:05.678Z"}
        self.state.apply(Entry(number=self.state.head + 1, prev=self.state.digest, change=change, **texts))
        self.ages.append(0.0)

    def register(self, n: int = 1) -> None:
        for _ in range(n):
            version = len(self.state.versions) + 1
            digest = f"{version:064x}"
            self.append(Register(op="register", version=version, model=digest, size=version, manifest=digest))

    def promote(self, version: int, alias: str = "production") -> None:
        self.append(Move(op="promote", alias=alias, version=version, previous=self.state.target(alias)))

    def wait(self, seconds: float) -> None:
        self.ages = [age + seconds for age in self.ages]

    def plan(self, rules: RetentionRules) -> Plan:
        return plan(self.state, rules, lambda entry: NOW - self.ages[entry.number], NOW)

    def collect(self, rules: RetentionRules) -> None:
        if sweep := self.plan(rules).sweep:
            self.append(Sweep(op="sweep", versions=sweep))


def grown(steps: list[str], draw: Callable[[int], int], rules: RetentionRules) -> History:
    """A history that does ``steps`` as far as they can be done."""
    history = History()
    for step in steps:
        state = history.state
        there = [version for version in state.versions if version not in state.swept]
        alias = ALIASES[draw(len(ALIASES))]
        history.wait(draw(30) / 10 * DAY)
        if step == "register" or not there:
            history.register()
        elif step == "promote":
            history.promote(there[draw(len(there))], alias)
        elif step == "rollback":
            try:
                change = rollback("web", state, alias, None)
            except (InputError, UnknownModel):
                continue
            assert isinstance(change, Move)
            assert change.version not in state.swept  # whatever was swept before
            history.append(change)
        elif step == "unset" and (target := state.target(alias)) is not None:
            history.append(Unset(op="unset", alias=alias, previous=target))
        elif step == "collect":
            history.collect(rules)
    history.wait(draw(100) / 10 * DAY)
    return history


histories = st.builds(
    lambda steps, numbers, rules: (grown(steps, lambda n: next(iter(numbers), 0) % n if n else 0, rules), rules),
    STEPS,
    st.randoms(use_true_random=False).map(lambda random: iter(lambda: random.randrange(10**6), None)),
    st.builds(RetentionRules, keep=st.integers(1, 4), grace=st.sampled_from([0.0, DAY, 7 * DAY])),
)


@given(histories)
def test_what_an_alias_means_or_a_rollback_comes_back_to_stays(drawn: tuple[History, RetentionRules]) -> None:
    history, rules = drawn
    going, state = history.plan(rules).sweep, history.state
    for alias in ALIASES:
        assert state.target(alias) not in {*going, *state.swept}
        try:
            change = rollback("web", state, alias, None)
        except (InputError, UnknownModel):
            continue
        assert isinstance(change, Move)
        assert change.version not in going


@given(histories)
def test_exactly_what_no_rule_kept_within_the_grace_goes_and_then_nothing_more(
    drawn: tuple[History, RetentionRules],
) -> None:
    """Against the obvious twin: every state that was the current one at some moment of the grace period."""
    history, rules = drawn
    entries, state, kept = history.state.entries, State(), set[int]()
    for entry, age_of_next in zip(entries, [*history.ages[2:], 0.0], strict=False):
        state.apply(entry)
        if entry is entries[-1] or age_of_next < rules.grace:
            kept |= reasons(state, rules.keep).keys()
    decided = history.plan(rules)
    assert set(decided.sweep) == history.state.versions.keys() - kept - history.state.swept.keys()
    everything = [*decided.kept, *decided.sweep, *history.state.swept]
    assert sorted(everything) == sorted(history.state.versions)
    history.collect(rules)
    assert history.plan(rules).sweep == ()


@given(histories, st.integers(0, 5))
def test_keeping_more_lets_nothing_more_go(drawn: tuple[History, RetentionRules], more: int) -> None:
    history, rules = drawn
    wider = RetentionRules(rules.keep + more, rules.grace + more * DAY)
    assert set(history.plan(rules).kept) <= set(history.plan(wider).kept)


def test_the_reason_is_the_strongest() -> None:
    history = History()
    history.register(7)
    for version in (1, 2, 3, 4):
        history.promote(version)
    history.promote(2, "shadow")
    history.wait(8 * DAY)
    history.register()
    decided = history.plan(RetentionRules(keep=2))
    assert decided.kept == {
        2: "shadow points to it",
        3: "production pointed to it lately",
        4: "production points to it",
        6: "needed within the grace period",
        7: "one of the last 2",
        8: "one of the last 2",
    }
    assert decided.sweep == (1, 5)


def test_what_is_let_go_waits_for_the_grace_period() -> None:
    history, rules = History(), RetentionRules(keep=1)
    history.register(5)
    for version in (1, 2, 3):
        history.promote(version)
    history.wait(30 * DAY)
    assert history.plan(rules).sweep == (4,)
    history.promote(4)
    history.wait(6.9 * DAY)
    assert history.plan(rules).sweep == ()
    history.wait(0.2 * DAY)
    assert history.plan(rules).sweep == (1,)
