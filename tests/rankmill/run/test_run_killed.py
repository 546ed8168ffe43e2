"""A run that dies at any moment: the next one makes the same bytes, and the registry gets nothing twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankmill.foundation.storage.publish import file_digest
from rankmill.registry import Registry
from rankmill.run import runner
from rankmill.run.runner import run
from rankmill.run.stage import StageRecord
from rankmill.run.stage_choice import WITHOUT_CLICKS
from rankmill.run.work import Work
from tests import ROOT
from tests.rankmill.run.test_run import files_of, write_project
from tests.waiting import until

ARTEFACTS = ("dataset/", "ranked/", "evaluation.json", "gate.json", "model/", "report/")


class Killed(BaseException):
    """Stands for what nobody catches."""


def artefacts(project: Path) -> dict[str, str]:
    """What DESIGN promises to have the same bytes: dataset, bins, scores, metrics; and the models in the registry."""
    work = {name: digest for name, digest in files_of(project / "out").items() if name.startswith(ARTEFACTS)}
    blobs = {path.name: file_digest(path) for path in (project / "registry").rglob("blobs/*/*")}
    return work | blobs


def reported(project: Path) -> list[tuple[str, int | None]]:
    """What happened in the registry: kinds of entries, with the version."""
    entries = Registry(project / "registry").log("web")
    return [(entry.change.op, getattr(entry.change, "version", None)) for entry in entries]


def once(project: Path) -> None:
    run(Work(project / "rankmill.toml", project / "registry"), lambda _line: None)


@pytest.mark.slow
def test_dead_between_what_a_stage_makes_and_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once at every stage: each run resumes where the one before it died."""
    whole, killed = write_project(tmp_path / "whole"), write_project(tmp_path / "killed")
    write_record = runner.write_record
    for stage in WITHOUT_CLICKS:

        def die(folder: Path, record: StageRecord, stage: str = stage) -> None:
            if record.stage == stage:
                raise Killed
            write_record(folder, record)

        with monkeypatch.context() as patched:
            patched.setattr(runner, "write_record", die)
            with pytest.raises(Killed):
                once(killed)
    once(killed)
    once(whole)
    assert artefacts(killed) == artefacts(whole)
    assert reported(killed) == reported(whole) == [("register", 1), ("gate", 1), ("promote", 1)]


MQ2008 = """
work = "out"
[ingest]
sources = [{train}]
valid = ["{data}/S4.txt"]
test = ["{data}/S5.txt"]
buckets = 8
[train]
name = "web"
n_rounds = 400
early_stopping_rounds = 200
[gate]
margin = 0.05
[rerank]
candidates = ["{data}/S5.txt"]
top_k = 10
"""


def mq2008_project(folder: Path, data: Path) -> Path:
    folder.mkdir()
    train = ", ".join(f'"{data}/S{part}.txt"' for part in (1, 2, 3))
    (folder / "rankmill.toml").write_text(MQ2008.format(data=data, train=train))
    return folder


def start(project: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rankmill", "run", "rankmill.toml", "--registry", "registry"]
    path = os.fspath(ROOT)
    with (project / "err.txt").open("ab") as err:
        return subprocess.Popen(
            command, cwd=project, stdout=subprocess.DEVNULL, stderr=err, env=os.environ | {"PYTHONPATH": path}
        )


def wait_for_the_lease(project: Path, process: subprocess.Popen[bytes]) -> None:
    until((project / "out" / "lease").exists, process)


def whole_run(tmp_path: Path, test_data: Path) -> tuple[Path, float, float]:
    """A run that nothing disturbs: its project, and its seconds until it had the lease and after that."""
    whole = mq2008_project(tmp_path / "whole", test_data / "mq2008")
    process, began = start(whole), time.monotonic()
    wait_for_the_lease(whole, process)
    start_up = time.monotonic() - began
    assert process.wait() == 0
    return whole, start_up, time.monotonic() - began - start_up


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path, test_data: Path, capsys) -> None:
    whole, start_up, seconds = whole_run(tmp_path, test_data)
    expected, story = artefacts(whole), reported(whole)
    assert story == [("register", 1), ("gate", 1), ("promote", 1)]
    draw = random.Random(2008)
    died_at: dict[str, int] = {}
    trial = 0
    while sum(died_at.values()) < 12:
        trial += 1
        killed = mq2008_project(tmp_path / f"killed-{trial}", test_data / "mq2008")
        process = start(killed)
        wait_for_the_lease(killed, process)  # before it, nothing is done that could be undone
        try:
            process.wait(draw.uniform(0.0, seconds))
            continue  # it was faster than the first one
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
        left = (killed / "out" / "lease").read_text()
        stage = json.loads(left)["stage"] if left else "none: it was at its end"
        died_at[stage] = died_at.get(stage, 0) + 1
        assert start(killed).wait() == 0, (killed / "err.txt").read_text()
        assert artefacts(killed) == expected
        assert reported(killed) == story
    began = time.monotonic()
    assert start(killed).wait() == 0
    unchanged = time.monotonic() - began
    last = json.loads((killed / "out" / "last_run.json").read_text())
    assert last["outcome"] == "unchanged"
    with capsys.disabled():
        print(
            f"\na whole run {seconds:.1f} s beyond start-up ({start_up:.1f} s), an unchanged one {unchanged:.1f} s in all"
        )
        print(f"killed at stage: {died_at}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_stopped_at_random_moments(tmp_path: Path, test_data: Path, kind: signal.Signals) -> None:
    """SIGTERM and SIGINT leave with 143 and 130, soon, and what comes of the rerun is the same."""
    whole, _, seconds = whole_run(tmp_path, test_data)
    expected, story = artefacts(whole), reported(whole)
    draw = random.Random(15)
    for trial in range(3):
        stopped = mq2008_project(tmp_path / f"stopped-{trial}", test_data / "mq2008")
        process = start(stopped)
        wait_for_the_lease(stopped, process)
        time.sleep(draw.uniform(0.0, seconds))
        asked = time.monotonic()
        process.send_signal(kind)
        code = process.wait()
        assert code in {0, 128 + kind}
        assert time.monotonic() - asked < 10 + seconds  # a busy machine needs longer for both
        if code:
            last = json.loads((stopped / "out" / "last_run.json").read_text())
            assert (last["outcome"], last["exit_code"]) == ("stopped", 128 + kind)
            assert (stopped / "out" / "lease").read_text() == ""
        assert start(stopped).wait() == 0
        assert artefacts(stopped) == expected
        assert reported(stopped) == story
