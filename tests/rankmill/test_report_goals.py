"""The section of the report on a sweep over the weights of goals, and what other commands show of it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.pipeline.dataset import Dataset
from rankmill.registry import Registry
from rankmill.report.goal_section import front
from rankmill.report.page import markdown, page
from tests.trainer.conflicting_goals import dataset_with_goals, written

FLOOR = 0.5
QUICK = ["--preset", "defaults-1", "--objective", "lambdamart", "--metric", "ndcg@5", "--n-rounds", "8",
         "--max-leaves", "4", "--n-threads", "1", "--log-every", "0"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Path:
    return dataset_with_goals(folder).path


@pytest.fixture(scope="module")
def registry(folder: Path, dataset: Path) -> Path:
    """web@1 is chosen by a sweep with a floor, web@2 has the weights of the same, web@3 two goals."""
    models = folder / "models"
    common = ["train", str(dataset), "--name", "web", "--registry", str(models), *QUICK]
    sweep = ["--goal-steps", "4", "--goal-floors", f"ndcg@5:bought={FLOOR}"]
    assert execute([*common, "--goals", "bought", *sweep]) == 0
    assert execute([*common, "--goals", "bought:0.25"]) == 0
    assert execute([*common, "--goals", "bought,fresh", "--goal-steps", "3"]) == 0
    return models


def report(registry: Path, reference: str, out: Path) -> dict:
    shutil.rmtree(out, ignore_errors=True)
    assert execute(["report", reference, "--registry", str(registry), "-o", str(out)]) == 0
    facts = json.loads((out / "report.json").read_bytes())
    assert page(facts) == (out / "index.html").read_text()
    assert markdown(facts) == (out / "report.md").read_text()
    return facts


def test_the_report_has_a_row_and_a_dot_for_every_model(registry: Path, tmp_path: Path, capsys) -> None:
    facts = report(registry, "web@1", tmp_path / "out")
    goals = facts["goals"]
    capsys.readouterr()
    assert execute(["models", "show", "web@1", "--registry", str(registry), "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)["manifest"]["goal_sweep"]
    assert [point["values"] for point in goals["points"]] == [
        {metric: point["metrics"]["valid"][metric] for metric in stored["metrics"]} for point in stored["points"]
    ]
    assert goals["floors"] == {"ndcg@5:bought": FLOOR}
    chosen = goals["points"][goals["chosen"] - 1]
    assert chosen["sha256"] == facts["model"]["sha256"]
    assert chosen["values"]["ndcg@5:bought"] >= FLOOR
    assert "Pareto front" in facts["findings"]["goals"]
    assert "floors" in facts["findings"]["goals"]
    for text in (page(facts), markdown(facts)):
        for point in goals["points"]:
            for value in point["values"].values():
                assert f"{value:.4f}" in text
            assert point["outcome"] in text
    drawn = str(front(goals, "ndcg@5:bought", 820.0))
    assert len(re.findall("<circle", drawn)) == 4
    assert drawn.count('class="dot candidate"') == 1
    assert drawn.count("floor 0.5") == 1
    assert page(facts).count("<h2>" + facts["findings"]["goals"]) == 1


def test_each_goal_has_a_chart(registry: Path, tmp_path: Path) -> None:
    facts = report(registry, "web@3", tmp_path / "out")
    text = page(facts)
    assert facts["goals"]["metrics"] == ["ndcg@5", "ndcg@5:bought", "ndcg@5:fresh"]
    for goal in ("bought", "fresh"):
        assert text.count(f'aria-label="NDCG@5:{goal} and NDCG@5 of each model') == 2  # for windows and for phones
    assert "best mean" in facts["findings"]["goals"]


def test_a_training_without_a_sweep_has_no_such_section(registry: Path, tmp_path: Path) -> None:
    facts = report(registry, "web@2", tmp_path / "out")
    assert facts["goals"] is None
    assert "goals" not in facts["findings"]
    assert {row["metric"] for row in facts["recorded"]} == {"ndcg@5:goals", "ndcg@5", "ndcg@5:bought"}
    assert "Several goals" not in page(facts)


def test_show_and_diff_name_weights_and_metrics(registry: Path, capsys) -> None:
    assert execute(["models", "show", "web@1", "--registry", str(registry)]) == 0
    shown = capsys.readouterr().out
    assert "Pareto front" in shown
    assert shown.count("chosen") == 1
    assert execute(["models", "diff", "web@2", "web@3", "--registry", str(registry), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"]["goals"]["old"] == {"bought": 0.25}
    assert found["metrics"]["valid"]["ndcg@5:bought"]["old"]
    assert execute(["models", "diff", "web@2", "web@3", "--registry", str(registry)]) == 0
    assert "bought" in capsys.readouterr().out


def test_a_sweep_prints_one_object(dataset: Path, tmp_path: Path, capsys) -> None:
    arguments = ["train", str(dataset), "--name", "web", "--registry", str(tmp_path / "models"), *QUICK]
    assert execute([*arguments, "--goals", "bought", "--goal-steps", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [point["goals"] for point in found["goal_sweep"]["points"]] == [{"bought": 0}, {"bought": 1}]
    assert "seeds" not in found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--goals", "bought"], ("--goals", "--goal-steps")),
        (["--goals", "bought:2"], ("--goals", "[0, 1]")),
        (["--goals", "bought", "--goal-steps", "5", "--seeds", "1,2"], ("--goal-steps", "--seeds")),
        (["--goal-floors", "ndcg=0.5"], ("--goal-floors", "--goal-steps")),
        (["--goals", "bought", "--goal-steps", "3", "--goal-floors", "ndcg@5:bought=2"], ("--goal-floors", "closest")),
        (["--goals", "price:0.5"], ("'price'", "bought")),
        (["--goals", "bought:0.5", "--objective", "laplace"], ("--goals", "laplace")),
    ],
)
def test_mistakes_are_one_line_and_register_nothing(dataset: Path, tmp_path: Path, capsys, options, words) -> None:
    quick = [*QUICK[:3], "l2", *QUICK[4:]]
    quick = quick[:2] + quick[4:] if "--objective" in options else quick
    arguments = ["train", str(dataset), "--name", "web", "--registry", str(tmp_path / "models"), *quick]
    assert execute([*arguments, *options]) in {2, 10}
    line = capsys.readouterr().err.strip().split("\n")[-1]
    assert line.startswith("rankmill:")
    for word in words:
        assert word in line
    assert not (tmp_path / "models" / "web").exists()


def test_a_run_sweeps_and_reports(tmp_path: Path, capsys) -> None:
    written(tmp_path)
    text = """
[ingest]
sources = ["rows.parquet"]
goals = ["bought"]
absent = "missing"
split = {train = 0.5, valid = 0.3, test = 0.2}
[train]
name = "web"
preset = "defaults-1"
objective = "lambdamart"
metric = "ndcg@5"
n_rounds = 6
max_leaves = 4
n_threads = 1
goals = ["bought"]
goal_steps = 3
goal_floors = {"ndcg@5:bought" = 0.4}
"""
    config = tmp_path / "rankmill.toml"
    config.write_text(text)
    registry = ["--registry", str(tmp_path / "models")]
    assert execute(["run", str(config), *registry]) == 0
    training = json.loads((tmp_path / "work" / "model" / "training.json").read_bytes())
    assert len(training["goal_sweep"]["points"]) == 3
    facts = json.loads((tmp_path / "work" / "report" / "report.json").read_bytes())
    assert facts["goals"]["floors"] == {"ndcg@5:bought": 0.4}
    assert facts["learning"]["seeds"][0]["chosen"]
    assert execute(["run", str(config), *registry]) == 0  # nothing is trained again
    assert [version.number for version in Registry(tmp_path / "models").versions("web")] == [1]
    capsys.readouterr()
    config.write_text(text.replace("= 0.4}", "= 0.9999}"))
    assert execute(["run", str(config), *registry]) == 2
    assert "closest" in capsys.readouterr().err
    config.write_text(text.replace('goals = ["bought"]\ngoal_steps', "goals = {bought = 0.3}\ngoal_steps"))
    assert execute(["run", str(config), *registry]) == 2
    config.write_text(
        text.replace('goals = ["bought"]\ngoal_steps = 3\n', "goals = {bought = 0.3}\n").split("goal_floors")[0]
    )
    assert execute(["run", str(config), *registry]) == 0


def test_the_command_to_train_again_makes_the_same_model(dataset: Path, tmp_path: Path, monkeypatch) -> None:
    registry, (one, other, *_) = tmp_path / "models", Dataset.open(dataset).feature_names
    forced = {"feature": one, "threshold": 0.5, "left": {"feature": other, "threshold": 0.25}}
    more = ["--goals", "bought:0.25,fresh:0.1", "--forced-splits", json.dumps(forced)]
    groups = ["--interaction-constraints", f"{one},{other}"]
    common = ["train", str(dataset), "--name", "web", "--registry", str(registry), *QUICK]
    assert execute([*common, *more, *groups]) == 0
    command = next(each["command"] for each in report(registry, "web@1", tmp_path / "out")["commands"]
                   if each["what"] == "train again")  # fmt: skip
    again = shlex.split(
        command.replace("DATASET", str(dataset)).replace('"${RANKMILL_REGISTRY:-registry-data}"', "again")
    )
    monkeypatch.chdir(tmp_path)
    assert execute(again[1:]) == 0
    assert Registry(tmp_path / "again").resolve("web@1").sha256 == Registry(registry).resolve("web@1").sha256
