"""The log of real runs, as machines read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankmill.run.stage_choice import WITHOUT_CLICKS
from tests.rankmill.observers.story import read_lines
from tests.rankmill.test_run import run, write_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("caf\u00e9 'x' "))


def test_runs_tell_their_story_to_machines(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = project / "out" / "log.jsonl"
    assert run(project, "--json") == 0
    report, first = json.loads(capsys.readouterr().out), read_lines(log)
    (run_id,) = {record["run_id"] for record in first}
    done = {record["stage"]: record for record in first if record["event"] == "stage_done"}
    assert tuple(done) == WITHOUT_CLICKS
    assert first[-1]["outcome"] == "done"
    assert done["evaluate"]["facts"]["metrics"] == report["evaluation"]["metrics"]
    assert done["rerank"]["facts"]["rows_written"] == report["ranked"]["rows_written"]
    (dataset,) = done["ingest"]["outputs"]
    assert (dataset["kind"], dataset["facts"]["rows"]) == ("dataset", done["ingest"]["facts"]["rows"])

    assert run(project) == 0
    second = read_lines(log)[len(first) :]
    assert (second[-1]["outcome"], second[-1]["exit_code"]) == ("unchanged", 0)
    assert {record["run_id"] for record in second}.isdisjoint({run_id})

    (project / "judgments" / "c.txt").write_text("not a line\n")
    assert run(project) == 10
    (failure,) = (record for record in read_lines(log) if record["event"] == "stage_failed")
    assert (failure["exit_code"], failure["stage"], failure["level"]) == (10, "ingest", "error")
    assert "c.txt:1:" in failure["message"]
