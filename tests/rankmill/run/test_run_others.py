"""A run after another configuration, or somebody's hands, were in the same work folder or registry: nothing of theirs
passes for its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankmill.foundation.errors import InputError, RankmillError, UnknownModel
from rankmill.gate.gate_rules import GateOptions
from rankmill.gate.recording import gate
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.registry import Registry
from rankmill.run.run_lock import left_behind
from rankmill.run.runner import plan_of, run
from rankmill.run.work import Work
from tests.rankmill.run.test_run import GATE
from tests.rankmill.run.test_run_again import Events, again, edit, forget, of, outcome
from tests.refusals import refused


@pytest.fixture
def project(run_once: Path, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "project"
    shutil.copytree(run_once, folder)
    yield folder
    shutil.rmtree(folder)


def results(events: Events) -> dict[str, Any]:
    (end,) = of("run_ended", events)
    found: dict[str, Any] = end["facts"]
    return found


def question(project: Path, **asked: Any) -> Work:
    return Work(project / "rankmill.toml", project / "registry", **asked)


def test_what_is_not_asked_for_any_more_is_not_reported(project: Path) -> None:
    edit(project, "split = {train = 0.7, valid = 0.15, test = 0.15}\n", "")
    edit(project, GATE, "")
    edit(project, '[rerank]\ncandidates = ["candidates.txt"]\ntop_k = 5\n', "")
    done, events = again(project)
    assert done == ["ingest", "bin", "train"]
    found = results(events)
    assert found["model"]["version"] == "web@2"
    assert (found["evaluate"], found["gate"], found["rerank"]) == (None, None, None)


def test_a_run_prints_what_it_has_blended(project: Path) -> None:
    edit(project, "n_rounds = 12\n", 'n_rounds = 2\nrefit = "none"\n')
    again(project, until="train")
    edit(project, 'n_rounds = 2\nrefit = "none"\nmax_leaves = 8\n', "")
    edit(project, "[evaluate]", '[blend]\nname = "both"\nmodels = ["web@2"]\n[evaluate]')
    lines: list[str] = []
    run(question(project, until="train"), lines.append)
    said = "\n".join(lines)
    assert "blend of trees " in said
    assert "registered both@1" in said
    assert "web@2, alone" in said


def test_who_passed_before_does_not_promote_another(project: Path) -> None:
    """The alias is one that the registry does not protect."""
    edit(project, GATE, f'{GATE}alias = "staging"\n')
    registry = Registry(project / "registry")
    assert again(project, until="gate")[0] == ["gate"]
    dataset = Dataset.open(project / "out" / "dataset")
    gate(registry, "web@1", dataset, "test", asked=GateOptions(alias="staging", margin=0.9))
    assert again(project, until="gate")[0] == ["gate"]  # by the rules of the configuration, once
    assert again(project, until="gate")[0] == []
    edit(project, "n_rounds = 12", "n_rounds = 13")
    again(project, until="evaluate")
    assert registry.state("web").target("staging") is None


def test_a_version_replaced_by_force_is_not_promoted_again(project: Path) -> None:
    edit(project, "n_rounds = 12", "n_rounds = 13")
    again(project)
    registry = Registry(project / "registry")
    assert registry.state("web").target("production") == 2
    registry.promote("web", 1, force=True, reason="the shop is down")
    done, events = again(project)
    assert done == ["rerank"]
    assert outcome(events) == ("gate not passed", 11)
    assert registry.state("web").target("production") == 1


def test_an_alias_without_a_gate_that_was_taken_back_ranks_what_it_means(project: Path) -> None:
    edit(project, GATE, '[promote]\nalias = "staging"\n')
    again(project)
    edit(project, "n_rounds = 12", "n_rounds = 13")
    assert results(again(project)[1])["rerank"]["model"]["number"] == 2
    Registry(project / "registry").rollback("web", alias="staging")
    done, events = again(project)
    assert done == ["rerank"]
    assert outcome(events) == ("gate not passed", 11)
    assert results(events)["rerank"]["model"]["number"] == 1


def test_a_plan_skips_what_the_run_skips(project: Path) -> None:
    assert plan_of(question(project, until="gate"))[-1] == ("gate", "skip", "web@1 is production already")
    edit(project, GATE, "")
    edit(project, "n_rounds = 12", "n_rounds = 13")
    rows = plan_of(question(project))
    assert ("gate", "skip", "the configuration has no [gate]") in rows
    assert ("promote", "skip", "the configuration has neither [gate] nor [promote]") in rows


def test_what_can_be_refused_is_refused_before_the_training(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(project, "n_rounds = 12", 'n_rounds = 13\nbase_model = "wbe"')
    with pytest.raises(UnknownModel, match="wbe"):
        plan_of(question(project))
    monkeypatch.chdir(tmp_path)  # where nothing is looked for
    Path("web").touch()
    Path("b.rankmill").touch()
    edit(project, '"wbe"', '"web"')
    plan_of(question(project))
    edit(project, 'base_model = "web"', 'base_model = "b.rankmill"')
    with pytest.raises((OSError, RankmillError), match=str(project / "b.rankmill")):
        plan_of(question(project))
    edit(project, '\nbase_model = "b.rankmill"', "")
    edit(project, "[gate]", '[report]\nby = ["f1", "market"]\n[gate]')
    with refused(InputError, "[report] by", "'market'"):
        again(project)
    assert len(Registry(project / "registry").state("web").versions) == 1


def test_a_request_to_end_as_a_stage_begins_is_known_of_the_stage(project: Path) -> None:
    def ends(line: str) -> None:
        if line.startswith("bin: "):
            raise SystemExit(143)

    forget(project, "bin")
    with pytest.raises(SystemExit):
        run(question(project, until="bin"), ends)
    kept = json.loads((project / "out" / "last_run.json").read_text())
    assert (kept["outcome"], kept["exit_code"], kept["stages"]["bin"]) == ("stopped", 143, "stopped")
    assert left_behind(project / "out") is None
