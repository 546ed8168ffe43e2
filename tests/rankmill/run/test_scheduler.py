"""When a schedule begins runs, and what it does between: on clocks that jump, stand still and change over, without
sleeping."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import InputError
from rankmill.run.scheduler import LOOK, Scheduler, Ticks
from tests.refusals import refused

NIGHTLY = "0 2 * * *"
EVENING = datetime(2026, 11, 20, 22, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def times(line: str, zone: str, start: str, n: int) -> list[str]:
    ticks = Ticks(line, zone)
    return [ticks.spell(tick) for tick in islice(ticks.after(datetime.fromisoformat(start).astimezone(UTC)), n)]


def test_a_day_of_changing_clocks_has_one_run_and_every_hour_its_own() -> None:
    for line, start, expected in (
        # Berlin, 29 March 2026: 02:00 becomes 03:00
        ("30 2 * * *", "2026-03-28T12:00+01:00", ["2026-03-29 03:00+02:00", "2026-03-30 02:30+02:00"]),
        ("0,30 2 * * *", "2026-03-28T12:00+01:00", ["2026-03-29 03:00+02:00", "2026-03-30 02:00+02:00"]),  # once
        ("0 * * * *", "2026-03-29T00:30+01:00", ["2026-03-29 01:00+01:00", "2026-03-29 03:00+02:00"]),
        # 25 October 2026: 03:00 becomes 02:00 once more
        ("30 2 * * *", "2026-10-24T12:00+02:00", ["2026-10-25 02:30+02:00", "2026-10-26 02:30+01:00"]),
        ("30 2 * * *", "2026-10-25T02:15+01:00", ["2026-10-26 02:30+01:00"]),  # begun in the second of the two hours
        ("0 * * * *", "2026-10-25T02:30+02:00", ["2026-10-25 02:00+01:00", "2026-10-25 03:00+01:00"]),
    ):
        assert times(line, "Europe/Berlin", start, len(expected)) == expected


@settings(max_examples=40, deadline=None)
@given(
    line=st.sampled_from(
        [NIGHTLY, "30 2 * * *", "*/20 * * * *", "15 1,2,3 * * *", "0 0 1 * *", "5 4 * * SUN", "0 12 29 2 *"]
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    start=st.datetimes(datetime(2025, 1, 1), datetime(2028, 1, 1)),
)
def test_moments_come_later_and_later_and_the_latest_is_among_them(line: str, zone: str, start: datetime) -> None:
    ticks, start = Ticks(line, zone), start.replace(tzinfo=UTC)
    found = list(islice(ticks.after(start), 5))
    assert all(earlier < later for earlier, later in pairwise([start, *found]))
    assert all(tick.tzinfo is UTC and tick.second == 0 for tick in found)
    before = ticks.latest(start)
    assert before <= start
    assert next(ticks.after(before)) == found[0]
    assert ticks.latest(found[0]) == found[0]
    assert ticks.latest(found[1] - timedelta(seconds=1)) == found[0]


def test_a_line_or_a_time_zone_that_is_none_is_refused() -> None:
    for line, zone, message in (
        ("0 2 * *", "UTC", "five fields"),
        ("0 0 2 * * *", "UTC", "6"),
        ("0 25 * * *", "UTC", "hour"),
        ("0 2 30 2 *", "UTC", "day-of-month"),
        ("@daily", "UTC", "five fields"),
        (NIGHTLY, "Berlin", "Berlin"),
        (NIGHTLY, "../etc", "unknown"),
        (NIGHTLY, "", "unknown"),
    ):
        with refused(InputError, message):
            Ticks(line, zone)


class Simulated:
    """A machine whose time passes only while somebody waits, and to which things happen at moments of its own clock."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self.clock, self.passed_seconds = start, 0.0
        self.started: list[tuple[datetime, list[str]]] = []
        self.happening: list[tuple[float, Callable[[], None]]] = []
        self.came: list[int] = []
        self.sent: list[int] = []
        self.code: int | None = None
        self.running = self.killed = False
        self.takes: Callable[[], tuple[timedelta, int]] = lambda: (timedelta(minutes=20), 0)
        self.stops_after: timedelta | None = timedelta(seconds=5)
        self.looks: list[float] = []
        self.at(end - start, lambda: self.came.append(signal.SIGTERM))

    def at(self, after: timedelta, do: Callable[[], None]) -> None:
        self.happening.append((self.passed_seconds + after.total_seconds(), do))

    def jump(self, by: timedelta) -> None:
        self.clock += by

    def now(self) -> datetime:
        return self.clock

    def elapsed(self) -> float:
        return self.passed_seconds

    def wait(self, seconds: float) -> None:
        assert seconds <= LOOK.total_seconds()
        self.looks.append(seconds)
        until = self.passed_seconds + max(0.0, seconds)
        due = min(self.happening, key=lambda row: row[0], default=None)
        if due is not None and due[0] <= until:
            until = max(due[0], self.passed_seconds)
            self.happening.remove(due)
        self.clock += timedelta(seconds=until - self.passed_seconds)
        self.passed_seconds = until
        if due is not None and due not in self.happening:
            due[1]()

    def signals(self) -> Sequence[int]:
        return self.came

    def start(self, arguments: Sequence[str]) -> None:
        assert not self.running, "two runs at once"
        self.started.append((self.clock, list(arguments)))
        self.running = True
        took, code = self.takes()
        number = len(self.started)
        self.at(took, lambda: self.end(number, code))

    def end(self, number: int, code: int) -> None:
        if self.running and number == len(self.started):
            self.running, self.code = False, code

    def ended(self) -> int | None:
        code, self.code = self.code, None
        return code

    def send(self, signum: int) -> None:
        self.sent.append(signum)
        if self.stops_after is not None:
            number = len(self.started)
            self.at(self.stops_after, lambda: self.end(number, 128 + signum))

    def kill(self) -> None:
        self.killed = True
        self.end(len(self.started), -signal.SIGKILL)


class Reported:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    def of(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]


def keep(world: Simulated, line: str = NIGHTLY, **options: Any) -> tuple[int, Reported]:
    reported = Reported()
    at_start = options.pop("at_start", False)
    keeper = Scheduler(Ticks(line), lambda day: ["run", "--date", str(day)], world, reported, **options)
    return keeper.keep(at_start=at_start), reported


def test_a_run_begins_at_every_moment_with_its_date_and_the_clock_is_read_every_minute() -> None:
    world = Simulated(EVENING, EVENING + 3 * DAY)
    code, reported = keep(world)
    assert code == 143
    assert [moment.isoformat() for moment, _ in world.started] == [
        f"2026-11-{day}T02:00:00+00:00" for day in (21, 22, 23)
    ]
    assert [arguments[-1] for _, arguments in world.started] == ["2026-11-21", "2026-11-22", "2026-11-23"]
    assert reported.of("ended with") == [
        f"run of 2026-11-{day} ended with exit code 0: success, or nothing to do after 20 min" for day in (21, 22, 23)
    ]
    assert reported.lines[0] == "next run at 2026-11-21 02:00+00:00"
    assert reported.lines[-1] == "SIGTERM: no run is in progress; exiting"


def test_a_moment_that_comes_while_a_run_is_under_way_is_skipped_and_said() -> None:
    world = Simulated(EVENING, EVENING + 4 * DAY)
    lasting = iter([26 * HOUR, HOUR, HOUR])
    world.takes = lambda: (next(lasting), 0)
    _, reported = keep(world)
    assert [arguments[-1] for _, arguments in world.started] == ["2026-11-21", "2026-11-23", "2026-11-24"]
    assert reported.of("still in progress") == [
        "skipped 2026-11-22 02:00+00:00: the run of 2026-11-21 02:00+00:00 is still in progress"
    ]


def test_however_a_run_ends_it_is_reported_and_the_next_one_begins() -> None:
    ends = {
        75: "75: locked or in conflict: try again",
        11: "11: gate not passed: registered, not promoted",
        -9: "137: killed by SIGKILL, perhaps out of memory",
        -11: "139: killed by SIGSEGV",
        99: "99: unknown",
    }
    world, codes = Simulated(EVENING, EVENING + len(ends) * DAY), iter(ends)
    world.takes = lambda: (HOUR, next(codes))
    _, reported = keep(world)
    for words, line in zip(ends.values(), reported.of("ended with"), strict=True):
        assert words in line


def test_a_run_that_cannot_begin_does_not_end_the_schedule() -> None:
    world = Simulated(EVENING, EVENING + 2 * DAY)

    def refuse(_arguments: Sequence[str]) -> None:
        raise OSError(12, "Cannot allocate memory")

    world.start = refuse  # type: ignore[method-assign]
    code, reported = keep(world)
    assert code == 143
    assert len(reported.of("could not start")) == 2


def test_after_a_sleep_the_last_moment_that_was_missed_is_made_up_for_once() -> None:
    world = Simulated(EVENING, EVENING + HOUR * 8)
    world.at(HOUR, lambda: world.jump(3 * DAY + 6 * HOUR))  # asleep from 23:00 on the 20th to 05:00 on the 24th
    _, reported = keep(world)
    assert [arguments[-1] for _, arguments in world.started] == ["2026-11-24"]
    assert reported.of("scheduled times before") == ["skipped 3 scheduled times before 2026-11-24 02:00+00:00"]
    assert reported.of(" starts")[0].startswith("run of 2026-11-24 starts, 3 h late")


def test_a_clock_that_was_far_ahead_and_is_put_right_does_not_stop_the_runs() -> None:
    world = Simulated(EVENING, EVENING + 2 * DAY)
    world.jump(4000 * DAY)
    world.at(timedelta(minutes=10), lambda: world.jump(-4000 * DAY))
    _, reported = keep(world)
    assert [arguments[-1] for _, arguments in world.started] == ["2026-11-21", "2026-11-22"]
    assert reported.of("set back") == ["the clock was set back by 3999 d 23 h"]


@settings(max_examples=30, deadline=None)
@given(
    jumps=st.lists(st.tuples(st.floats(0, 100), st.floats(-30, 30)), max_size=6),
    lasting=st.lists(st.floats(0.1, 40), min_size=1, max_size=5),
)
def test_on_any_clock_runs_never_overlap_and_none_begins_before_its_moment(
    jumps: list[tuple[float, float]], lasting: list[float]
) -> None:
    world = Simulated(EVENING, EVENING + 5 * DAY)  # `start` asserts that no other run is under way
    for after, by in jumps:
        world.at(after * HOUR, lambda by=by: world.jump(by * HOUR))  # type: ignore[misc]
    world.takes = lambda: (lasting[len(world.started) % len(lasting)] * HOUR, 0)
    code, reported = keep(world, "0 */3 * * *")
    assert code == 143
    assert len(reported.of(" starts")) == len(world.started)
    ticks = Ticks("0 */3 * * *")
    begun = [ticks.latest(moment) for moment, _ in world.started]
    assert [str(ticks.date(tick)) for tick in begun] == [arguments[-1] for _, arguments in world.started]
    if not any(by < 0 for _, by in jumps):
        assert len(set(begun)) == len(begun)  # no moment twice, unless a clock goes back


def test_at_the_start_the_last_run_is_resumed() -> None:
    world = Simulated(EVENING, EVENING + 6 * HOUR)
    keep(world, at_start=True)
    assert [(moment, arguments[-1]) for moment, arguments in world.started] == [
        (EVENING, "2026-11-20"),
        (EVENING + 4 * HOUR, "2026-11-21"),
    ]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_run_which_may_end_in_peace(signum: int) -> None:
    world = Simulated(EVENING, EVENING + 4 * HOUR + timedelta(minutes=3))
    world.happening.clear()
    world.at(4 * HOUR + timedelta(minutes=3), lambda: world.came.append(signum))
    code, reported = keep(world)
    assert code == 128 + signum
    assert world.sent == [signum]
    assert not world.killed
    assert f"ended with exit code {128 + signum}" in reported.of("ended with")[0]


@pytest.mark.parametrize("again", [False, True], ids=["out of time", "asked twice"])
def test_a_run_that_does_not_end_is_killed_when_its_time_is_over_or_the_signal_comes_again(again: bool) -> None:
    begun = 4 * HOUR + timedelta(minutes=3)
    world = Simulated(EVENING, EVENING + begun)
    world.stops_after = None
    if again:
        world.at(begun + timedelta(seconds=2), lambda: world.came.append(signal.SIGTERM))
    code, reported = keep(world, grace=timedelta(seconds=30))
    assert code == 143
    assert world.killed
    assert reported.of("in time: killed") == ["the run did not end in time: killed"]
    assert world.passed_seconds == begun.total_seconds() + (2 if again else 30)
