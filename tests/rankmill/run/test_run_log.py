"""The log of a run: text, JSON lines, and what a kill or a full disk may leave of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import ConfigError, DriftAlarm, MalformedLine
from rankmill.run.run_log import LONGEST, RunLog, json_line
from tests import ROOT
from tests.rankmill.run.run_events import RUN_ID, Reports, failed, night, read_lines
from tests.waiting import until

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


def logged(reports: Reports) -> list[dict]:
    return [strict(line) for line in reports.path.read_text("ascii").splitlines(keepends=True)]


def test_every_event_is_a_line_with_the_same_fields(tmp_path: Path) -> None:
    reports = Reports(tmp_path, day=date(2026, 11, 21)).then(*night(), *failed(SystemExit(143), "stopped", 143))
    records = logged(reports)
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
    reports = Reports(tmp_path).then(
        lambda log: log.started(Path("c"), (), died="killed"),
        lambda log: log.failed("ingest", error),
        lambda log: log.failed("bin", DriftAlarm("f1 moved")),
        lambda log: log.ended("stopped", 130),
        lambda log: log.ended("failed", 10),
        lambda log: log.ended("gate not passed", 11),
        lambda log: log.ended("drift", 12),
        lambda log: log.ended("unchanged", 0),
    )
    records = logged(reports)
    levels = ["warning", "error", "warning", "warning", "error", "warning", "warning", "info"]
    assert [record["level"] for record in records] == levels
    assert records[1]["error"]["kind"] == "MalformedLine"
    assert records[1]["error"]["message"].startswith("caf\\udce9.txt:3:1: expected a number, found 'xxx")
    assert len(records[1]["error"]["message"]) == LONGEST


# ---- text ------------------------------------------------------------------------------------------------------------


def test_every_stage_says_what_it_does_why_and_what_came_out(tmp_path: Path) -> None:
    assert Reports(tmp_path).then(*night()).lines == [
        "ingest: ingest it (not done yet)",
        "ingest: done: 1,200 documents, 60 queries, 12 features, 1 rejected rows [1.5 s]",
        "bin: bin it (not done yet)",
        "bin: done: largest PSI 0.200, 1 drifted [1.5 s]",
        "train: web (dataset is another)",
        "compiling",
        "train: done: web@7 [3.0 s]",
        "evaluate: evaluate it (not done yet)",
        "evaluate: done: test ndcg@10 0.4125 [1.5 s]",
        "gate: gate it (not done yet)",
        "gate: done: passed, ndcg@10 +0.0100 (-0.0010 to +0.0210) [1.5 s]",
        "promote: promote it (not done yet)",
        "promote: done: production is version 7 [1.5 s]",
        "rerank: rerank it (not done yet)",
        "rerank: done: 45 documents, 9 queries [1.5 s]",
        "report: skipped, nothing has changed",
        "run: done [25.5 s]",
    ]


def test_the_message_of_an_error_is_left_to_the_command(tmp_path: Path) -> None:
    error = OSError(28, "No space left on device", "x")
    assert Reports(tmp_path).then(*failed(error, "failed", 74)).lines == [
        "ingest: 2 files (asked for)",
        "ingest: failed [1.5 s]",
        "run: failed, exit code 74 [4.5 s]",
    ]
    stopped = Reports(tmp_path).then(*failed(SystemExit(143), "stopped", 143)).lines
    assert stopped[1:] == [
        "ingest: stopped; the next run resumes here [1.5 s]",
        "run: stopped, exit code 143 [4.5 s]",
    ]


def test_no_line_breaks_the_terminal(tmp_path: Path) -> None:
    died = "a run of yesterday died at train\n\x1b[2J\r"
    lines = (
        Reports(tmp_path)
        .then(lambda log: log.started(Path("c"), (), died), *failed(ConfigError("a\nb"), "failed", 2))
        .lines
    )
    assert lines[0] == r"a run of yesterday died at train \u001b[2J\u000d"
    assert all(line.isprintable() for line in lines)


# ---- the file --------------------------------------------------------------------------------------------------------


def write_runs(folder: Path, runs: int) -> None:
    for number in range(runs):
        log = RunLog(folder, f"run {number}", write=lambda _line: None)
        log.started(Path("c"), ())
        log.skipped("bin", "nothing has changed")
        log.ended("unchanged", 0)


def test_the_file_has_the_lines_of_one_run_after_another(tmp_path: Path) -> None:
    write_runs(tmp_path, 3)
    records = read_lines(tmp_path / "log.jsonl")
    assert [record["event"] for record in records] == ["run_started", "stage_skipped", "run_ended"] * 3
    assert [record["run_id"] for record in records[::3]] == ["run 0", "run 1", "run 2"]


@pytest.mark.parametrize("torn", [b'{"ts": "20', b"{" * 200_000, b"\x00\x00", b""])
def test_a_torn_last_line_is_left_out_by_a_reader_and_cut_by_the_next_run(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "log.jsonl"
    write_runs(tmp_path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert len(read_lines(path)) == 3
    write_runs(tmp_path, 1)
    assert path.read_bytes().startswith(whole)
    assert [record["event"] for record in read_lines(path)] == ["run_started", "stage_skipped", "run_ended"] * 2
    assert len(path.read_bytes().splitlines()) == 6
    path.write_bytes(torn)  # of the very first line
    write_runs(tmp_path, 1)
    assert len(path.read_bytes().splitlines()) == 3


def test_a_full_disk_leaves_no_part_of_a_line_and_is_said_once(tmp_path: Path, monkeypatch) -> None:
    write_runs(tmp_path, 1)
    path = tmp_path / "log.jsonl"
    whole = path.read_bytes()
    real = os.write

    def half(handle: int, data: bytes) -> int:
        if len(data) > 10:
            return real(handle, data[:10])
        raise OSError(28, "No space left on device", os.fspath(path))

    reports = Reports(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        reports.then(*failed(ConfigError("a"), "failed", 2))
    assert path.read_bytes() == whole
    problem = f"log {path}: {path}: No space left on device; the run continues without it"
    assert [line for line in reports.lines if line.startswith("log")] == [problem]
    reports.then(lambda log: log.skipped("bin", "nothing has changed"))
    assert len(read_lines(path)) == 4


@pytest.mark.slow
def test_killed_while_it_writes_at_most_the_last_line_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    script = f"""
from pathlib import Path
from rankmill.run.run_log import RunLog

log = RunLog(Path({str(tmp_path)!r}), "killed", write=lambda _line: None)
log.started(Path("c"), ())
while True:
    log.said("train", "x" * 9_000)
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    until(lambda: path.exists() and path.stat().st_size >= 200_000, process)
    process.kill()
    process.wait()
    left = path.read_bytes()
    whole = left.count(b"\n")
    assert len(read_lines(path)) == whole > 20
    write_runs(tmp_path, 1)
    assert path.read_bytes()[: left.rindex(b"\n") + 1] == left[: left.rindex(b"\n") + 1]
    assert len(read_lines(path)) == len(path.read_bytes().splitlines()) == whole + 3


def test_an_interrupt_is_not_swallowed_and_a_closed_stderr_ends_nothing(tmp_path: Path) -> None:
    def interrupted(line: str) -> None:
        raise KeyboardInterrupt

    def closed(line: str) -> None:
        raise BrokenPipeError

    with pytest.raises(KeyboardInterrupt):
        RunLog(tmp_path, "a", write=interrupted).skipped("bin", "nothing has changed")
    RunLog(tmp_path, "a", write=closed).skipped("bin", "nothing has changed")
    assert len(read_lines(tmp_path / "log.jsonl")) == 1
