"""Goals on the command line: what commands show of them, mistakes, and the command to train again."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.pipeline.dataset import Dataset
from rankmill.registry import Registry
from rankmill.report.page import markdown, page
from tests.trainer.conflicting_goals import dataset_with_goals

FLOOR = 0.5
QUICK = ["--preset", "defaults-1", "--objective", "lambdamart", "--metric", "ndcg@5", "--n-rounds", "8",
         "--max-leaves", "4", "--n-threads", "1", "--log-every", "0"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("goals")


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Path:
    return dataset_with_goals(folder).path


@pytest.fixture(scope="module")
def registry(folder: Path, dataset: Path) -> Path:
    """web@1 has one goal, web@2 has two."""
    models = folder / "models"
    common = ["train", str(dataset), "--name", "web", "--registry", str(models), *QUICK]
    assert execute([*common, "--goals", "bought:0.25"]) == 0
    assert execute([*common, "--goals", "bought:0.25,fresh:0.1"]) == 0
    return models


def report(registry: Path, reference: str, out: Path) -> dict:
    shutil.rmtree(out, ignore_errors=True)
    assert execute(["report", reference, "--registry", str(registry), "-o", str(out)]) == 0
    facts = json.loads((out / "report.json").read_bytes())
    assert page(facts) == (out / "index.html").read_text()
    assert markdown(facts) == (out / "report.md").read_text()
    return facts


def test_the_report_has_the_metrics_of_goals(registry: Path, tmp_path: Path) -> None:
    facts = report(registry, "web@1", tmp_path / "out")
    assert {row["metric"] for row in facts["recorded"]} == {"ndcg@5:goals", "ndcg@5", "ndcg@5:bought"}


def test_diff_names_weights_and_metrics(registry: Path, capsys) -> None:
    assert execute(["models", "diff", "web@1", "web@2", "--registry", str(registry), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"]["goals"]["old"] == {"bought": 0.25}
    assert found["metrics"]["valid"]["ndcg@5:bought"]["old"]
    assert execute(["models", "diff", "web@1", "web@2", "--registry", str(registry)]) == 0
    assert "bought" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--goals", "bought"], ("--goals", "NAME:WEIGHT")),
        (["--goals", "bought:2"], ("--goals", "[0, 1]")),
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


def test_the_command_to_train_again_makes_the_same_model(dataset: Path, tmp_path: Path, monkeypatch) -> None:
    registry, (one, other, *_) = tmp_path / "models", Dataset.open(dataset).feature_names
    more = ["--goals", "bought:0.25,fresh:0.1", "--feature-weights", f"{one}:0.5"]
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
