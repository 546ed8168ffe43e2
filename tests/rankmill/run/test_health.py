"""Whether runs work: from what they leave, at any time of the clock."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmill.cli import execute
from rankmill.foundation.errors import InputError, Unhealthy
from rankmill.foundation.units import parse_span, spell
from rankmill.run import LAST_RUN, LAST_SUCCESS
from rankmill.run.health import WORKED, Health
from rankmill.run.run_lock import hold
from tests.refusals import only_line, refused, unnamed

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
DAY = timedelta(hours=26)


def leave(work: Path, hours_ago: float, code: int, error: str | None = None) -> None:
    """What a run leaves that ended ``hours_ago`` with ``code``."""
    ended = (NOW - timedelta(hours=hours_ago)).isoformat()
    reported: dict[str, Any] = {
        "run_id": "r",
        "date": None,
        "began": ended,
        "ended": ended,
        "outcome": "",
        "stages": {},
    }
    text = json.dumps(reported | {"exit_code": code, "error": error})
    (work / LAST_RUN).write_text(text)
    if code == 0:
        (work / LAST_SUCCESS).write_text(text)


def test_a_run_that_worked_counts_for_as_long_as_is_allowed(tmp_path: Path) -> None:
    for code, hours in itertools.product((0, 2, 10, 11, 12, 13, 74, 75, 143), (-5, 1, 25.9, 26.1, 500)):
        leave(tmp_path, hours, code)
        assert Health.of(tmp_path, DAY, NOW).healthy == (code in {0, 11, 12} and hours <= 26), (code, hours)
        (tmp_path / LAST_SUCCESS).unlink(missing_ok=True)


def test_a_run_that_failed_leaves_the_success_before_it_to_age(tmp_path: Path) -> None:
    leave(tmp_path, 24, 0)
    leave(tmp_path, 0.1, 74, "disk: No space left on device")
    assert Health.of(tmp_path, DAY, NOW).healthy
    when = "2026-11-20T08:00:00+00:00, 1 d 3 h", "2026-11-21T07:54:00+00:00"
    with refused(Unhealthy, tmp_path, when, "code 0", "1 d 2 h", "code 74", "disk"):
        Health.of(tmp_path, DAY, NOW + timedelta(hours=3)).require()


def test_a_folder_without_runs_is_unhealthy_until_the_first_is_under_way(tmp_path: Path) -> None:
    found = Health.of(tmp_path, DAY, NOW)
    assert not found.healthy
    assert not unnamed(found.render(), tmp_path, "no run")
    with hold(tmp_path, "first-run") as lease:
        lease.at("train")
        found = Health.of(tmp_path, DAY, NOW)
        assert found.healthy
        assert "the first run is in progress: run first-run" in found.render()
        assert "at stage train" in found.render()


def test_a_run_that_died_without_a_word_is_reported(tmp_path: Path) -> None:
    leave(tmp_path, 30, 0)
    with hold(tmp_path, "killed") as lease:
        lease.at("rerank")
        assert "; in progress: run killed" in Health.of(tmp_path, DAY, NOW).render()
    assert (
        "; ended without a record (killed?): run killed" in Health.of(tmp_path, DAY, NOW).render()
    )  # nobody said how it ended
    with hold(tmp_path, "in peace") as lease:
        lease.end()
    assert "without a word" not in Health.of(tmp_path, DAY, NOW).render()


@pytest.mark.parametrize("failed", [False, True])
def test_a_run_from_the_future_does_not_count_for_ever(tmp_path: Path, failed: bool) -> None:
    """A machine whose clock was years ahead when it ran, and was set right."""
    leave(tmp_path, -24 * 1500, 0)
    if failed:
        leave(tmp_path, 1, 74)
    with refused(Unhealthy, tmp_path, "in the future", "clock"):
        Health.of(tmp_path, DAY, NOW).require()
    leave(tmp_path, 1, 0)
    assert Health.of(tmp_path, DAY, NOW).healthy


def test_a_file_that_no_run_has_left_is_no_health(tmp_path: Path) -> None:
    odd = '{"exit_code": 0, "ended": "yesterday"}', '{"exit_code": "0", "ended": "2026-11-21"}'
    for text in ("", "[]", "{}", *odd):
        (tmp_path / LAST_RUN).write_text(text)
        with refused(InputError, "record"):
            Health.of(tmp_path, DAY, NOW)


def test_the_command_says_it_by_code_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["health", str(tmp_path)]) == 75
    assert not unnamed(only_line(capsys.readouterr().err), tmp_path, "no run")
    leave(tmp_path, 24 * 3000, 11)
    assert execute(["health", str(tmp_path), "--json"]) == 75
    assert json.loads(capsys.readouterr().out)["healthy"] is False
    assert execute(["health", str(tmp_path), "--max-age", "90000d", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is True
    assert found["last_that_worked"]["exit_code"] == 11
    assert execute(["health", str(tmp_path), "--max-age", "90000d"]) == 0
    assert not unnamed(capsys.readouterr().out, "exit code 11")
    assert execute(["health", str(tmp_path / "nowhere")]) == 2
    assert set(WORKED) == {0, 11, 12}


@given(st.integers(1, 10_000_000))
def test_a_span_is_printed_to_within_its_second_unit(seconds: int) -> None:
    reported = 0.0
    size = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
    words = spell(timedelta(seconds=seconds)).split()
    for number, unit in zip(words[::2], words[1::2], strict=True):
        reported += int(number) * size[unit]
    smallest = {"s": 1, "min": 1, "h": 60, "d": 3600}[words[1]]
    assert seconds - smallest < reported <= seconds


def test_what_is_no_span_is_refused() -> None:
    for text in ("", "26", "h", "-1h", "0h", "0", "1e3h", "26 hours", "1h 30m", "9999999d"):
        with pytest.raises(InputError, match="--max-age"):
            parse_span(text, "--max-age")
