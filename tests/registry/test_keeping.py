"""Which versions may go: laws of the decision, on any history."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from rankmill.foundation.errors import InputError, UnknownModel
from rankmill.registry.model_state import State
from rankmill.registry.promotion import rollback
from rankmill.registry.retention import DAY, Plan, RetentionRules, plan
from rankmill.registry.stored_records import Change, Entry, Mark, Move, Register, Sweep, Tag, Unset

NOW = 1000 * DAY
ALIASES = ["production", "shadow"]
STEPS = st.lists(
    st.sampled_from(["register", "register", "register", "promote", "rollback", "unset", "keep", "let go", "retain"]),
    max_size=40,
)


class History:
    """A log in memory whose entries are a tenth of a day apart; the last one is written ``NOW``."""

    def __init__(self) -> None:
        self.state, self.ages = State(), [0.0]

    def append(self, change: Change) -> None:
        state = self.state
        self.state.apply(
            Entry(
                number=state.head + 1, prev=state.digest, txid="t", change=change, time="", actor="", host="", reason=""
            )
        )
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
        return plan(self.state, rules, lambda entry: NOW - self.ages[entry], NOW)

    def collect(self, rules: RetentionRules) -> None:
        """What one run writes."""
        if sweep := self.plan(rules).sweep:
            self.append(Sweep(op="sweep", versions=sweep))
        self.append(Mark(op="mark", versions=self.plan(rules).mark))


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
        elif step in {"keep", "let go"}:
            value = "for ever" if step == "keep" else None
            history.append(Tag(op="tag", version=there[draw(len(there))], key="keep", value=value))
        elif step == "retain":
            history.collect(rules)
    return history


histories = st.builds(
    lambda steps, numbers, rules: (grown(steps, lambda n: next(iter(numbers), 0) % n if n else 0, rules), rules),
    STEPS,
    st.randoms(use_true_random=False).map(lambda random: iter(lambda: random.randrange(10**6), None)),
    st.builds(RetentionRules, keep=st.integers(0, 4), grace=st.sampled_from([0.0, DAY, 7 * DAY])),
)


@given(histories)
def test_what_an_alias_means_or_a_rollback_comes_back_to_stays(drawn: tuple[History, RetentionRules]) -> None:
    history, rules = drawn
    going = {*history.plan(rules).sweep, *history.plan(rules).mark}
    for alias in ALIASES:
        state = history.state
        assert state.target(alias) not in {*going, *state.swept}
        try:
            change = rollback("web", state, alias, None)
        except (InputError, UnknownModel):
            continue
        assert isinstance(change, Move)
        assert change.version not in going


@given(histories)
def test_each_version_stays_goes_or_is_gone(drawn: tuple[History, RetentionRules]) -> None:
    history, rules = drawn
    decided = history.plan(rules)
    everything = [*decided.kept, *decided.sweep, *decided.mark, *history.state.swept]
    assert sorted(everything) == sorted(history.state.versions)


@given(histories)
def test_nothing_goes_that_was_not_marked_a_time_of_grace_before(drawn: tuple[History, RetentionRules]) -> None:
    history, rules = drawn
    for version in history.plan(rules).sweep:
        assert history.ages[history.state.marked[version]] >= rules.grace
        assert history.ages[history.state.versions[version].entry] >= rules.grace


@given(histories)
def test_the_log_takes_what_was_decided_and_then_nothing_is_left_to_do(drawn: tuple[History, RetentionRules]) -> None:
    history, rules = drawn
    history.collect(rules)
    again = history.plan(rules)
    assert set(again.mark) | set(again.sweep) == set(history.state.marked)
    if rules.grace:
        assert not again.sweep


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
    history.append(Tag(op="tag", version=1, key="keep", value="paper"))
    history.wait(8 * DAY)
    history.register()
    decided = history.plan(RetentionRules(keep=2))
    assert decided.kept == {
        1: "tag keep=paper",
        2: "shadow points to it",
        3: "production pointed to it lately",
        4: "production points to it",
        7: "one of the last 2",
        8: "one of the last 2",
    }
    assert decided.mark == (5, 6)
    assert history.plan(RetentionRules(keep=0)).kept[8] == "registered recently"


def test_what_is_kept_again_is_taken_off_the_list_and_waits_anew() -> None:
    history = History()
    history.register(3)
    history.wait(8 * DAY)
    rules = RetentionRules(keep=1)
    history.collect(rules)
    assert set(history.state.marked) == {1, 2}
    history.wait(6 * DAY)
    history.append(Tag(op="tag", version=1, key="keep", value="yes"))
    history.collect(rules)
    history.append(Tag(op="tag", version=1, key="keep", value=None))
    history.collect(rules)
    history.wait(2 * DAY)
    assert history.plan(rules).sweep == (2,)
    history.wait(6 * DAY)
    assert history.plan(rules).sweep == (1, 2)
