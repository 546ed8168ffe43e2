"""The schedule as a process: signals, a run that will not end, and its command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankmill.cli import execute
from tests import ROOT
from tests.waiting import LIMIT, until

# a program that is the schedule, and when it is called with `run` what the schedule begins
PROGRAM = """
import os, signal, subprocess, sys, time
from datetime import timedelta
from pathlib import Path

def run(kind):
    if kind == "polite":
        def leave(signum, frame):
            Path("heard").write_text(signal.Signals(signum).name)
            sys.exit(128 + signum)
        signal.signal(signal.SIGTERM, leave)
        signal.signal(signal.SIGINT, leave)
    elif kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "1000"])
        Path("grandchild").write_text(str(child.pid))
    Path("begun").write_text(str(os.getpid()))
    time.sleep(1000)

if sys.argv[1] == "run":
    run(sys.argv[2])
else:
    from rankmill.run.scheduler import Machine, Scheduler, Ticks
    def report(line):
        print(line, flush=True)
    grace = timedelta(seconds=float(sys.argv[2]))
    keeper = Scheduler(Ticks("0 2 29 2 *"), lambda day: ["run", sys.argv[1]], Machine(), report, grace=grace)
    sys.exit(keeper.keep(at_start=True))
"""


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may end between the opening and the reading
        return False


@contextmanager
def schedule(folder: Path, kind: str, grace: float = LIMIT) -> Iterator[subprocess.Popen[str]]:
    (folder / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "program.py", kind, str(grace)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_goes_to_the_run_and_the_schedule_leaves_after_it(tmp_path: Path, signum: signal.Signals) -> None:
    with schedule(tmp_path, "polite") as process:
        until((tmp_path / "begun").exists, process)
        process.send_signal(signum)
        said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signum
    assert (tmp_path / "heard").read_text() == signum.name
    assert f"ended with exit code {128 + signum}" in said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_run_that_will_not_end_is_killed_with_all_that_it_has_begun(tmp_path: Path) -> None:
    with schedule(tmp_path, "deaf", grace=0.2) as process:
        until((tmp_path / "begun").exists, process)
        process.terminate()
        said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 143
    assert "the run did not end in time: killed" in said
    for name in ("begun", "grandchild"):
        pid = int((tmp_path / name).read_text())
        until(lambda pid=pid: not alive(pid))  # type: ignore[misc]


def line(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = execute(["schedule", *arguments])
    said = capsys.readouterr()
    return code, said.out, " ".join(said.err.split())


@pytest.fixture
def configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("rankmill.toml", "a.toml", "b.toml", "c.toml"):
        Path(name).touch()


@pytest.mark.usefixtures("configurations")
def test_the_next_times_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = line(capsys, "--cron", "30 0 * * *", "--timezone", "Europe/Berlin", "--list", "3", "--json")
    found = json.loads(out)["times"]
    assert code == 0
    assert len(found) == 3
    assert all(time["at"][:10] == time["date"] and time["at"][11:16] == "00:30" for time in found)
    _, plain, _ = line(capsys, "--cron", "30 0 * * *", "--timezone", "Europe/Berlin", "--list", "3")
    assert [row.split("  ")[0] for row in plain.splitlines()] == [time["at"].replace("T", " ") for time in found]


def test_what_would_only_come_to_light_in_the_night_is_said_at_once(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rankmill.toml").write_text('[ingest]\nsources = ["a.txt"]\n[train]\nname = "web"\nn_round = 3\n')
    nightly = ("--cron", "0 2 * * *")
    for arguments, message in (
        ((*nightly, "--no-such-option"), "unknown option '--no-such-option'"),
        ((*nightly, "--date", "2026-01-01"), "--date cannot be used with schedule"),
        ((*nightly, "--plan"), "--plan cannot be used with schedule"),
        ((*nightly, "a.toml", "b.toml"), "unexpected extra argument"),
        (("--cron", "2 o'clock"), "expected five fields"),
        ((*nightly, "--timezone", "Mars"), "unknown 'Mars'"),
        ((*nightly, "nothing.toml"), "nothing.toml: no such file"),
        ((), "missing option '--cron'"),
        (nightly, "rankmill.toml: unknown key 'n_round' in [train]; did you mean 'n_rounds'?"),
    ):
        code, _, said = line(capsys, *arguments)
        assert code == 2
        assert message in said
