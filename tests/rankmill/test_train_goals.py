"""Goals on the command line: what commands show of them, mistakes, and the command to train again."""

import json
import shlex
import shutil

import pytest

from rankmill.cli import execute
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.registry import Registry
from rankmill.report.page import markdown, page
from tests.trainer.conflicting_goals import dataset_with_goals

QUICK = ["--preset", "defaults-1", "--objective", "lambdamart", "--metric", "ndcg@5", "--n-rounds", "8",
         "--max-leaves", "4", "--n-threads", "1", "--log-every", "0"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("goals")


@pytest.fixture(scope="module")
def dataset(folder):
    return dataset_with_goals(folder).path


def report(registry, reference, out):
    shutil.rmtree(out, ignore_errors=True)
    assert execute(["report", reference, "--registry", str(registry), "-o", str(out)]) == 0
    facts = json.loads((out / "report.json").read_bytes())
    assert page(facts) == (out / "index.html").read_text()
    assert markdown(facts) == (out / "report.md").read_text()
    return facts


def test_the_command_to_train_again_makes_the_same_model(dataset, tmp_path, monkeypatch):
    registry, (one, other, *_) = tmp_path / "models", Dataset.open(dataset).feature_names
    more = ["--goals", "bought:0.25,fresh:0.1", "--feature-weights", f"{one}:0.5"]
    groups = ["--interaction-constraints", f"{one},{other}"]
    common = ["train", str(dataset), "--name", "web", "--registry", str(registry), *QUICK]
    assert execute([*common, *more, *groups]) == 0
    facts = report(registry, "web@1", tmp_path / "out")
    assert {row["metric"] for row in facts["recorded"]} == {
        *("ndcg@5:goals", "ndcg@5", "ndcg@5:bought", "ndcg@5:fresh")
    }
    (command,) = (each["command"] for each in facts["commands"] if each["what"] == "train again")
    again = shlex.split(
        command.replace("DATASET", str(dataset)).replace('"${RANKMILL_REGISTRY:-registry-data}"', "again")
    )
    monkeypatch.chdir(tmp_path)
    assert execute(again[1:]) == 0
    assert Registry(tmp_path / "again").resolve("web@1").sha256 == Registry(registry).resolve("web@1").sha256
