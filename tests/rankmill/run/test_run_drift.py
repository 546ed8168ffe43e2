"""Drift in the run: against a dataset or the previous one, what is kept, and what a killed run leaves of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankmill.config import DriftSection
from rankmill.foundation.errors import ConfigError, DatasetFormatError, DriftAlarm, InputError
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.statistics.dataset_drift import compare
from rankmill.run import DRIFT
from rankmill.run.drift import KEPT, NEXT, DriftFound, check_drift, drift_of, keep_for_next
from tests.pipeline.statistics.test_drift import make
from tests.refusals import refused
from tests.written import files_in

PREVIOUS = DriftSection()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    folder: Path = tmp_path_factory.mktemp("data")
    made = {name: make(folder, name, seed, shift=shift) for seed, (name, shift) in enumerate({"a": 0.0, "b": 0.0, "c": 1.0}.items())}  # fmt: skip
    for dataset in made.values():
        bin_dataset(dataset, 63)
    return {name: Dataset.open(dataset.path) for name, dataset in made.items()}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def look(dataset: Dataset, work: Path, rules: DriftSection = PREVIOUS) -> DriftFound:
    return drift_of(dataset, rules, work.parent.joinpath, work)


def test_against_a_dataset_it_is_what_describe_says(data, work):
    rules = DriftSection(against=str(data["a"].path))
    check_drift(rules, work.parent.joinpath, work / "dataset")
    found = look(data["c"], work, rules)
    wanted = json.loads(compare(data["c"], data["a"]).to_json())
    assert {name: value for name, value in found.report.items() if name != "format"} == wanted
    assert json.loads((work / DRIFT).read_text()) == found.report
    assert (found.alarms, found.new) == (("b",), True)
    assert (found.facts.alarms, found.facts.psi_max) == (("b",), found.psi_max)
    before = files_in(work)
    assert not look(data["c"], work, rules).new
    assert files_in(work) == before
    assert look(data["b"], work, rules).new


def test_the_first_run_keeps_what_the_next_one_compares_with(data, work):
    first = look(data["a"], work)
    assert (first.report["against"], first.alarms, first.psi_max) == (None, (), None)
    assert "no previous dataset" in first.line()
    first.require()
    keep_for_next(data["a"], work)
    assert not (work / NEXT).exists()
    second = look(data["b"], work)
    assert (second.report["against"], second.alarms) == (data["a"].digest, ())
    assert second.line() == "drift: of 3 features and the grades none drifted"
    assert {**second.report} == {"format": 1, **json.loads(compare(data["b"], data["a"]).to_json())}
    keep_for_next(data["b"], work)
    third = look(data["c"], work)
    assert (third.report["against"], third.alarms) == (data["b"].digest, ("b",))
    with refused(DriftAlarm, "b", "drift.json"):
        third.require()


def test_a_run_that_does_not_reach_its_end_compares_with_the_same_again(data, work):
    look(data["a"], work)
    keep_for_next(data["a"], work)
    undisturbed = look(data["c"], work)
    before = files_in(work)
    again = look(data["c"], work)  # killed, or ended by its alarm
    assert (again.new, again.report) == (False, undisturbed.report)
    assert files_in(work) == before
    for lost in (DRIFT, NEXT):
        (work / lost).unlink()
        assert look(data["c"], work).new
        assert files_in(work) == before
    look(data["b"], work)  # other data meanwhile
    assert look(data["c"], work).new
    assert files_in(work) == before


def test_what_was_found_stands_after_the_run_went_through(data, work):
    look(data["a"], work)
    keep_for_next(data["a"], work)
    found = look(data["c"], work)
    keep_for_next(data["c"], work)
    keep_for_next(data["c"], work)
    before = files_in(work)
    again = look(data["c"], work)
    assert (again.new, again.alarms) == (False, found.alarms)
    assert files_in(work) == before
    (work / DRIFT).unlink()
    assert look(data["c"], work).alarms == ()


def test_mistakes_are_said_before_anything_is_run(data, work):
    check_drift(PREVIOUS, work.parent.joinpath, work / "dataset")
    with refused(ConfigError, "replaced"):
        check_drift(DriftSection(against="work/dataset"), work.parent.joinpath, work / "dataset")
    with refused(InputError, "nowhere", "rankmill data ingest SRC"):
        check_drift(DriftSection(against="nowhere"), work.parent.joinpath, work / "dataset")


def test_what_is_kept_and_damaged_is_said(data, work):
    look(data["a"], work)
    keep_for_next(data["a"], work)
    (work / KEPT).write_bytes(b"?")
    with refused(DatasetFormatError, "delete"):
        look(data["b"], work)
    (work / KEPT).unlink()
    assert look(data["b"], work).report["against"] is None
