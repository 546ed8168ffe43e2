"""``rankmill run`` as machines hear of it: stderr that is JSON throughout, the log, the metrics and the lineage of real runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.run.stage_choice import WITHOUT_CLICKS
from tests import naive_openlineage
from tests.naive_prometheus import parse
from tests.rankmill.observers.story import read_lines
from tests.rankmill.test_run import run, write_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("caf\u00e9 'x' "))


def metrics(project: Path) -> dict[str, float]:
    """By name and what tells it apart."""
    found = parse((project / "out" / "metrics.prom").read_text())
    return {" ".join([name, *(text for label, text in labels if label != "model")]): value for (name, labels), value in found.items()}  # fmt: skip


def test_runs_tell_their_story_to_machines(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(project, "--log", "json", "--json") == 0
    out, err = capsys.readouterr()
    records = [json.loads(line) for line in err.splitlines()]
    told = [record for record in records if record["event"] != "said"]
    report = json.loads(out)
    (run_id,) = {record["run_id"] for record in records}
    kept = read_lines(project / "out" / "log.jsonl")
    assert [_without_times(record) for record in kept] == [_without_times(record) for record in told]
    done = {record["stage"]: record for record in told if record["event"] == "stage_done"}
    assert tuple(done) == WITHOUT_CLICKS
    assert told[-1]["outcome"] == "done"
    first = metrics(project)
    gate = done["gate"]["facts"]
    assert first["rankmill_last_run_exit_code"] == 0
    assert first["rankmill_rows ingest"] == done["ingest"]["facts"]["rows"]
    assert first["rankmill_metric ndcg@10 test"] == report["evaluation"]["metrics"]["ndcg@10"]["mean"]
    assert first[f"rankmill_gate_difference_low {gate['against']} production ndcg@10"] == gate["interval"][0]
    assert first["rankmill_alias_version production"] == 1
    assert first["rankmill_rows rerank"] == report["ranked"]["rows_written"]

    assert run(project) == 0
    second = metrics(project)
    assert second["rankmill_last_run_outcome unchanged"] == 1
    assert {name: second[name] for name in first if "_last_" not in name} == {name: value for name, value in first.items() if "_last_" not in name}  # fmt: skip
    capsys.readouterr()

    (project / "judgments" / "c.txt").write_text("not a line\n")
    assert run(project, "--log", "json") == 10
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (records[-1]["event"], records[-1]["level"]) == ("error", "error")
    assert "c.txt:1:" in records[-1]["message"]
    (failure,) = (record for record in records if record["event"] == "stage_failed")
    assert (failure["exit_code"], failure["stage"]) == (10, "ingest")
    assert metrics(project)["rankmill_last_run_exit_code"] == 10
    stamp = "rankmill_last_success_timestamp_seconds"
    assert metrics(project)[stamp] == second[stamp]

    events = read_lines(project / "out" / "lineage.jsonl")
    for event in events:
        naive_openlineage.check(event)
    made = next(event["outputs"][0] for event in events if event["job"]["name"] == "web.ingest" and event["outputs"])
    columns = made["facets"]["schema"]["fields"]
    assert columns[0] == {"name": "qid", "type": "string"}
    assert [column["name"] for column in columns if column["type"] == "float32"] == [f"f{i}" for i in range(1, 13)]
    whole = [event["eventType"] for event in events if event["job"]["name"] == "web"]
    assert whole == ["START", "COMPLETE", "START", "COMPLETE", "START", "FAIL"]
    assert events[0]["run"]["runId"] == run_id


def test_a_mistake_in_the_configuration_is_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", str(tmp_path / "nowhere.toml"), "--log", "json"]) == 2
    (record,) = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (record["event"], record["level"]) == ("error", "error")
    assert "no such file" in record["message"]
    assert execute(["run", str(tmp_path / "nowhere.toml")]) == 2  # and the next command speaks as people do
    assert capsys.readouterr().err.startswith("rankmill: ")


def _without_times(record: dict) -> dict:
    return {name: value for name, value in record.items() if name not in {"ts", "seconds", "peak_memory_bytes"}}
