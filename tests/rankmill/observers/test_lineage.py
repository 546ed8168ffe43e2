"""OpenLineage events: the rules of the specification, one START and one end of everything, and what went where."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from rankmill import __version__
from rankmill.foundation.errors import DataRejected, DriftAlarm
from rankmill.run.events import Event
from rankmill.run.openlineage import PRODUCER, LineageFile
from tests import naive_openlineage
from tests.rankmill.observers.story import COLUMNS, RUN_ID, SHA, Ticking, failed, night, read_lines, started


def events_of(folder: Path, *runs: list[Event], **options: Any) -> list[dict[str, Any]]:
    ticking = Ticking()
    for run in runs:
        ticking.tell(LineageFile(folder / "lineage.jsonl", "web", ticking.clock, **options), run)
    found = read_lines(folder / "lineage.jsonl")
    for event in found:
        naive_openlineage.check(event)
    return found


def test_the_run_and_every_stage_that_is_done_start_once_and_end_once(tmp_path: Path) -> None:
    found = events_of(tmp_path, night(tmp_path))
    assert found[0]["eventType"] == "START"
    assert found[-1]["eventType"] == "COMPLETE"
    assert found[0]["run"]["runId"] == found[-1]["run"]["runId"] == RUN_ID
    assert found[0]["job"]["name"] == found[-1]["job"]["name"] == "web"
    kinds: dict[str, list[str]] = {}
    for event in found:
        kinds.setdefault(f"{event['run']['runId']} {event['job']['name']}", []).append(event["eventType"])
    assert set(map(tuple, kinds.values())) == {("START", "COMPLETE")}
    names = {key.split()[1] for key in kinds}
    assert names == {
        "web",
        *(f"web.{stage}" for stage in ("ingest", "bin", "train", "evaluate", "gate", "promote", "rerank")),
    }
    for event in found[1:-1]:
        parent = event["run"]["facets"]["parent"]
        assert parent["run"]["runId"] == RUN_ID
        assert parent["job"] == {"namespace": "rankmill", "name": "web"}
        assert event["run"]["runId"] != RUN_ID
    nominal = {event["run"]["facets"]["nominalTime"]["nominalStartTime"] for event in found}
    assert nominal == {"2026-11-21T00:00:00.000Z"}
    assert f"pkg:generic/rankmill@{__version__}" == PRODUCER


def test_what_was_read_and_made_has_its_place_version_size_and_columns(tmp_path: Path) -> None:
    found = events_of(tmp_path, night(tmp_path))
    ingest = next(event for event in found if event["job"]["name"] == "web.ingest" and event["eventType"] == "COMPLETE")
    (source,), (made,) = ingest["inputs"], ingest["outputs"]
    assert (source["namespace"], source["name"]) == ("file", str(tmp_path / "judgments" / "a.txt"))
    assert source["facets"]["version"]["datasetVersion"] == SHA
    counted = {name: number for name, number in source["inputFacets"]["inputStatistics"].items() if name[0] != "_"}
    assert counted == {"rowCount": 1201, "size": 10}
    assert made["name"] == str(tmp_path / "work" / "dataset")
    assert made["facets"]["schema"]["fields"] == COLUMNS
    assert made["facets"]["rankmill_facts"]["queries"] == 60
    assert made["outputFacets"]["outputStatistics"]["rowCount"] == 1200
    train = next(event for event in found if event["job"]["name"] == "web.train" and event["eventType"] == "COMPLETE")
    (model,) = train["outputs"]
    assert (model["namespace"], model["name"]) == ("rankmill-models", "web")
    assert model["facets"]["version"]["datasetVersion"] == "7"
    assert model["facets"]["rankmill_facts"]["sha256"] == SHA
    whole = found[-1]
    assert [each["name"] for each in whole["inputs"]] == [source["name"]]  # what it made itself comes from nowhere else
    assert [each["name"] for each in whole["outputs"]] == [made["name"], "web"]
    assert whole["run"]["facets"]["rankmill_outcome"]["exitCode"] == 0


@pytest.mark.parametrize(
    ("error", "stopped", "code", "kind"),
    [
        (DataRejected("a.txt:3:1: bad"), False, 10, "FAIL"),
        (DriftAlarm("a.txt:3:1: bad"), False, 12, "FAIL"),
        (SystemExit(143), True, 143, "ABORT"),
    ],
)
def test_a_failure_fails_and_a_stop_aborts_the_stage_and_the_run(
    tmp_path: Path, error: BaseException, stopped: bool, code: int, kind: str
) -> None:
    found = events_of(tmp_path, failed(error, stopped=stopped, code=code))
    assert [event["eventType"] for event in found] == ["START", "START", kind, kind]
    message = found[2]["run"]["facets"].get("errorMessage", {}).get("message")
    assert message == (None if stopped else "a.txt:3:1: bad")
    assert found[3]["run"]["facets"]["rankmill_outcome"]["exitCode"] == code


def test_a_candidate_that_does_not_pass_is_no_failure_of_the_job(tmp_path: Path) -> None:
    found = events_of(tmp_path, night(tmp_path, passed=False, exit_code=11))
    assert found[-1]["eventType"] == "COMPLETE"
    assert found[-1]["run"]["facets"]["rankmill_outcome"]["outcome"] == "gate not passed"


def test_an_id_that_is_no_uuid_stands_for_one_and_the_same(tmp_path: Path) -> None:
    one, other, again = (
        events_of(tmp_path / name, [started(run_id=run_id)])[0]["run"]["runId"]
        for name, run_id in (("a", "night 1"), ("b", "night 2"), ("c", "night 1"))
    )
    assert one == again != other
    assert uuid.UUID(one).version == 5


def test_the_oldest_runs_go_whole(tmp_path: Path) -> None:
    found = events_of(tmp_path, *([night(tmp_path)] * 12), bound=120_000)
    assert (tmp_path / "lineage.jsonl").stat().st_size < 150_000
    assert (found[0]["eventType"], found[0]["job"]["name"]) == ("START", "web")
    starts = sum(event["eventType"] == "START" for event in found)
    assert 0 < starts < 12 * 7
    assert 2 * starts == len(found)
