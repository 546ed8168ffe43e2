"""The file of metrics: the format by its definition, and what stays when a run fails or has nothing to do."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.run import log_lines, prometheus
from rankmill.run.events import Event, RunEnded, StageDone, StageSkipped
from rankmill.run.prometheus import PrometheusFile, Sample, exposition, read_exposition
from tests.naive_prometheus import Series, parse
from tests.rankmill.observers.story import NIGHT, SHA, STAGES, Ticking, failed, night, started

UNCHANGED = [started(), *(StageSkipped(stage=name, why="nothing has changed") for name in STAGES), RunEnded(outcome="unchanged", exit_code=0)]  # fmt: skip


def after(path: Path, *runs: list[Event], model: str = "web", later: float = 0) -> dict[Series, float]:
    ticking = Ticking(passed=later)
    for events in runs:
        ticking.tell(PrometheusFile(path, model, ticking.clock), events)
    return parse(path.read_text())


def value(found: dict[Series, float], name: str, model: str = "web", **labels: str) -> float:
    return found[name, tuple(sorted({"model": model, **labels}.items()))]


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["up", "a_total:x"]), st.text(st.characters(codec="utf-8"), max_size=8)),
        st.floats(),
        min_size=1,
        max_size=6,
    ),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
)
def test_text_has_the_format_and_reads_back(samples: dict[tuple[str, str], float], words: str) -> None:
    given_samples = [Sample.of(name, number, {"of": label, "b": "1"}) for (name, label), number in samples.items()]
    text = exposition(given_samples, dict.fromkeys(["a_total:x", "up"], words))
    found = parse(text)
    back = {(sample.name, tuple(sorted(sample.labels))): sample.value for sample in read_exposition(text)}
    assert found.keys() == back.keys() == {(s.name, tuple(sorted(s.labels))) for s in given_samples}
    for sample in given_samples:
        for numbers in (found, back):
            number = numbers[sample.name, tuple(sorted(sample.labels))]
            assert number == sample.value or (math.isnan(number) and math.isnan(sample.value))


def test_a_night_is_told(tmp_path: Path) -> None:
    path = tmp_path / "text" / "metrics.prom"
    found = after(path, night())
    ended = NIGHT.timestamp() + 25.5
    assert value(found, "rankmill_last_success_timestamp_seconds") == ended
    assert value(found, "rankmill_last_run_timestamp_seconds") == ended
    assert value(found, "rankmill_last_run_exit_code") == 0
    assert value(found, "rankmill_last_run_outcome", outcome="done") == 1
    assert value(found, "rankmill_last_run_outcome", outcome="failed") == 0
    assert value(found, "rankmill_last_run_duration_seconds") == 25.5
    assert value(found, "rankmill_last_run_stages") == 7
    assert value(found, "rankmill_last_run_peak_memory_bytes") > 10**6
    assert value(found, "rankmill_stage_duration_seconds", stage="train") == 3.0
    assert value(found, "rankmill_rows", stage="ingest") == 1200
    assert value(found, "rankmill_queries", stage="rerank") == 9
    assert value(found, "rankmill_rejected_rows", stage="ingest") == 1
    assert value(found, "rankmill_metric", metric="ndcg@10", split="test") == 0.4125
    assert value(found, "rankmill_gate_passed", alias="production") == 1
    of = {"alias": "production", "metric": "ndcg@10", "against": "web@6"}
    names = ("rankmill_gate_difference", "rankmill_gate_difference_low", "rankmill_gate_difference_high")
    assert [value(found, name, **of) for name in names] == [0.01, -0.001, 0.021]
    assert value(found, "rankmill_drift_psi_max") == 0.2
    assert value(found, "rankmill_drift_alarms") == 1
    assert value(found, "rankmill_model_version") == 7
    assert value(found, "rankmill_model_info", version="7", sha256=SHA) == 1
    assert value(found, "rankmill_alias_version", alias="production") == 7
    assert value(found, "rankmill_previous_run_died") == 0
    assert all(dict(labels)["model"] == "web" for _, labels in found)
    assert [each.name for each in path.parent.iterdir()] == ["metrics.prom"]


def test_a_failed_run_does_not_overwrite_the_last_success_nor_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    before = after(path, night())
    found = after(path, failed(OSError("gone")), later=86_400)
    assert value(found, "rankmill_last_run_timestamp_seconds") == NIGHT.timestamp() + 86_400 + 4.5
    assert value(found, "rankmill_last_run_exit_code") == 74
    assert value(found, "rankmill_last_run_outcome", outcome="failed") == 1
    assert value(found, "rankmill_last_run_outcome", outcome="done") == 0
    stays = {series: number for series, number in before.items() if "_last_run_" not in series[0]}
    assert {series: found[series] for series in stays} == stays


@pytest.mark.parametrize("code", [10, 11, 12, 13, 74, 75, 143])
def test_only_a_run_that_left_0_is_a_success(tmp_path: Path, code: int) -> None:
    found = after(tmp_path / "m.prom", [started(died="killed"), RunEnded(outcome="failed", exit_code=code)])
    assert "rankmill_last_success_timestamp_seconds" not in {name for name, _ in found}
    assert value(found, "rankmill_previous_run_died") == 1


def test_a_run_with_nothing_to_do_is_a_success_and_says_again_what_is(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    before = after(path, night())
    found = after(path, UNCHANGED, later=86_400)
    assert value(found, "rankmill_last_success_timestamp_seconds") > NIGHT.timestamp() + 86_400
    assert value(found, "rankmill_last_run_stages") == 0
    assert found.keys() == before.keys()
    assert value(found, "rankmill_metric", metric="ndcg@10", split="test") == 0.4125


def test_a_new_version_takes_the_place_of_the_former_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    after(path, night())
    changed = [
        event
        if not isinstance(event, StageDone) or event.stage != "train"
        else replace(event, facts=replace(event.facts, model="web@8", sha256="cd" * 32))
        for event in night(passed=False, exit_code=11)
    ]
    found = after(path, changed)
    versions = [dict(labels)["version"] for name, labels in found if name == "rankmill_model_info"]
    assert versions == ["8"]
    assert value(found, "rankmill_gate_passed", alias="production") == 0
    assert value(found, "rankmill_alias_version", alias="production") == 7  # nobody has moved it


@pytest.mark.parametrize("before", [b"", b"\xff\xfe", b"rankmill_metric{model=", b"# HELP x y\nx 1\n", b"a b c\n\n"])
def test_whatever_lies_there_is_replaced(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "metrics.prom"
    path.write_bytes(before)
    assert value(after(path, night()), "rankmill_last_run_exit_code") == 0


def test_series_of_another_model_do_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    after(path, night())
    found = after(path, UNCHANGED, model='a "b"\\\n')
    assert {dict(labels)["model"] for _, labels in found} == {'a "b"\\\n'}


def test_the_documentation_names_every_metric_and_every_event() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "formats" / "run-files.md").read_text(encoding="utf-8")
    short = {"rankmill_gate_difference_low": "`.._low`", "rankmill_gate_difference_high": "`.._high`"}
    missing = [name for name in prometheus._HELP if short.get(name, f"`{name}`") not in text]
    missing += [name for name in log_lines._NAMES.values() if f"`{name}`" not in text]
    assert not missing
    alerts = (Path(__file__).resolve().parents[3] / "docker" / "prometheus-rules.yaml").read_text(encoding="utf-8")
    assert {*re.findall(r"rankmill_\w+", alerts)} <= {*prometheus._HELP}
