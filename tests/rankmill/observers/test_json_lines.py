"""The log as JSON lines, and what a kill or a full disk may leave of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import DriftAlarm, MalformedLine
from rankmill.run import jsonl_file
from rankmill.run.events import Artefact, Event, RunEnded, StageFailed, StageSkipped
from rankmill.run.log_lines import LogFile
from rankmill.run.observers import FanOut
from rankmill.run.plain_json import LONGEST, json_line
from tests.rankmill.observers.story import RUN_ID, Ticking, failed, night, read_lines, stage, started
from tests.waiting import LIMIT, until

ROOT = Path(__file__).resolve().parents[3]
ALWAYS = {"ts", "level", "event", "run_id", "message", "peak_memory_bytes"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=8).map(os.fsdecode),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


def strict(line: str) -> dict:
    """One object in one ASCII line, without the numbers that JSON does not have."""
    assert line.isascii()
    assert line.count("\n") == 1
    assert line.endswith("\n")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(line, parse_constant=refuse)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_whatever_an_event_holds_is_one_line_of_json(record: dict) -> None:
    line = json_line(record)
    found = strict(line)
    assert json.loads(line.encode("ascii").decode("utf-8")) == found
    str(found).encode("utf-8")  # no half of a character


def logged(folder: Path, events: Iterable[Event], ticking: Ticking | None = None) -> list[dict]:
    ticking, path = ticking or Ticking(), folder / "log.jsonl"
    ticking.tell(LogFile(path, ticking.clock), [*events])
    return [strict(line) for line in path.read_text("ascii").splitlines(keepends=True)]


def test_every_event_is_a_line_with_the_same_fields(tmp_path: Path) -> None:
    records = logged(tmp_path, [*night(), *failed(SystemExit(143), stopped=True, code=143)])
    for record in records:
        assert record.keys() >= ALWAYS
        assert record["run_id"] == RUN_ID
        assert ("stage" in record) == (not record["event"].startswith("run_"))
        assert record["peak_memory_bytes"] > 10**6
    assert records[0]["ts"] == "2026-11-21T02:00:00.000Z"
    assert records[1]["ts"] == "2026-11-21T02:00:01.500Z"
    assert records[0]["logical_date"] == "2026-11-21"
    done = records[2]
    assert (done["event"], done["stage"], done["seconds"], done["facts"]["rows"]) == ("stage_done", "ingest", 1.5, 1200)
    assert {record["event"] for record in records} == {
        "run_started", "stage_skipped", "stage_started", "stage_said", "stage_done", "stage_failed", "run_ended",
    }  # fmt: skip
    stopped, ended = records[-2:]
    assert (stopped["level"], stopped["stopped"], stopped["exit_code"]) == ("warning", True, 143)
    assert (ended["outcome"], ended["exit_code"], ended["level"]) == ("stopped", 143, "warning")


def test_levels_say_how_much_somebody_should_care(tmp_path: Path) -> None:
    error = MalformedLine(Path("caf\udce9.txt"), 3, 1, "x" * 90_000, "a number")
    events = (
        started(died="killed"),
        StageFailed(stage="ingest", error=error),
        StageFailed(stage="bin", error=DriftAlarm("f1 moved")),
        RunEnded(outcome="stopped", exit_code=130),
        RunEnded(outcome="failed", exit_code=10),
        RunEnded(outcome="gate not passed", exit_code=11),
        RunEnded(outcome="drift", exit_code=12),
        RunEnded(outcome="unchanged", exit_code=0),
    )
    records = logged(tmp_path, events)
    levels = ["warning", "error", "warning", "warning", "error", "warning", "warning", "info"]
    assert [record["level"] for record in records] == levels
    assert records[1]["error"]["kind"] == "MalformedLine"
    assert records[1]["error"]["message"].startswith("caf\\udce9.txt:3:1: expected a number, found 'xxx")
    assert len(records[1]["error"]["message"]) == LONGEST


def test_a_line_does_not_list_ten_thousand_files(tmp_path: Path) -> None:
    files = tuple(Artefact(kind="file", name=f"{number}") for number in range(10_000))
    record, *_ = logged(tmp_path, stage("ingest", inputs=files))
    assert (len(record["inputs"]), record["inputs_not_listed"]) == (100, 9_900)


# ---- the file --------------------------------------------------------------------------------------------------------


def write_runs(path: Path, runs: int) -> None:
    for number in range(runs):
        tell = LogFile(path, Ticking().clock)
        tell(started(run_id=f"run {number}"))
        tell(StageSkipped(stage="bin", why="nothing has changed"))
        tell(RunEnded(outcome="unchanged", exit_code=0))


def test_the_file_has_the_lines_of_one_run_after_another(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    write_runs(path, 3)
    records = read_lines(path)
    assert [record["event"] for record in records] == ["run_started", "stage_skipped", "run_ended"] * 3
    assert [record["run_id"] for record in records[::3]] == ["run 0", "run 1", "run 2"]


@pytest.mark.parametrize("torn", [b'{"ts": "20', b"{" * 200_000, b"\x00\x00", b""])
def test_a_torn_last_line_is_left_out_by_a_reader_and_cut_by_the_next_run(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "log.jsonl"
    write_runs(path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert len(read_lines(path)) == 3
    write_runs(path, 1)
    assert path.read_bytes().startswith(whole)
    assert [record["event"] for record in read_lines(path)] == ["run_started", "stage_skipped", "run_ended"] * 2
    assert len(path.read_bytes().splitlines()) == 6
    path.write_bytes(torn)  # of the very first line
    write_runs(path, 1)
    assert len(path.read_bytes().splitlines()) == 3


def test_a_line_that_the_disk_has_no_room_for_leaves_nothing_of_itself(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "log.jsonl"
    write_runs(path, 1)
    whole = path.read_bytes()
    real = os.write

    def half(handle: int, data: bytes) -> int:
        if len(data) > 10:
            return real(handle, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jsonl_file.os, "write", half)
    with pytest.raises(OSError, match="No space"):
        write_runs(path, 1)
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_several_processes_write_whole_lines_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    script = f"""
from pathlib import Path
from rankmill.run.events import RunStarted, StageSaid
from rankmill.run.log_lines import LogFile

for number in range(30):
    tell = LogFile(Path({str(path)!r}))
    tell(RunStarted(run_id=f"{{number}}", config=Path("c"), work=Path("w"), stages=()))
    tell(StageSaid(stage="train", line="x" * 100))
"""
    processes = [subprocess.Popen([sys.executable, "-c", script], cwd=ROOT) for _ in range(3)]
    assert [process.wait(LIMIT) for process in processes] == [0, 0, 0]
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(read_lines(path)) == len(lines) == 3 * 30 * 2


@pytest.mark.slow
def test_killed_while_it_writes_at_most_the_last_line_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    script = f"""
from pathlib import Path
from rankmill.run.log_lines import LogFile
from rankmill.run.events import RunStarted, StageSaid

tell = LogFile(Path({str(path)!r}))
tell(RunStarted(run_id="killed", config=Path("c"), work=Path("w"), stages=()))
while True:
    tell(StageSaid(stage="train", line="x" * 9_000))
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    until(lambda: path.exists() and path.stat().st_size >= 200_000, process)
    process.kill()
    process.wait()
    left = path.read_bytes()
    whole = left.count(b"\n")
    assert len(read_lines(path)) == whole > 20
    write_runs(path, 1)
    assert path.read_bytes()[: left.rindex(b"\n") + 1] == left[: left.rindex(b"\n") + 1]
    assert len(read_lines(path)) == len(path.read_bytes().splitlines()) == whole + 3


# ---- one that fails --------------------------------------------------------------------------------------------------


def test_an_observer_that_fails_is_said_once_and_ends_nothing() -> None:
    heard, said = [], []

    def full(event: object) -> None:
        raise OSError(28, "No space left on device", "work/log.jsonl")

    def broken(event: object) -> None:
        raise ZeroDivisionError

    tell = FanOut({"log": full, "metrics": broken, "text": heard.append}, said.append)
    events = night()
    for event in events:
        tell(event)
    assert heard == events
    assert said == [
        "log: work/log.jsonl: No space left on device; the run continues without it",
        "metrics: ZeroDivisionError; the run continues without it",
    ]


def test_an_interrupt_is_not_swallowed_and_a_broken_stderr_is_borne() -> None:
    def interrupted(event: object) -> None:
        raise KeyboardInterrupt

    def broken(line: object) -> None:
        raise BrokenPipeError

    with pytest.raises(KeyboardInterrupt):
        FanOut({"a": interrupted}, broken)(started())
    FanOut({"a": broken}, broken)(started())
