"""A run of several seeds, and one whose data have moved: what is registered, what is reported, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.registry import Registry
from tests.rankmill.run.test_run import CONFIG, files_of, write_project
from tests.refusals import unnamed

SEEDS = CONFIG.replace('name = "web"', 'name = "web"\nseeds = [1, 2]\nrow_fraction = 0.5').replace(
    "n_rounds = 12", "n_rounds = 6"
)


WHOLE = ("--until", "report")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path)


def run(project: Path, text: str, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict, str]:
    (project / "rankmill.toml").write_text(text)
    capsys.readouterr()
    where = [str(project / "rankmill.toml"), "--registry", str(project / "registry")]
    command = ["run", *where, "--json", *(options or ("--until", "rerank"))]
    code = execute(command)
    assert code != 1, capsys.readouterr().err
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def test_seeds_are_kept_and_the_way_to_choose_costs_no_training(project: Path, capsys) -> None:
    code, best, _ = run(project, SEEDS, capsys)
    assert code == 0
    reported = json.loads((project / "out" / "model" / "training.json").read_text())
    assert [each["seed"] for each in reported["seeds"]] == [1, 2]
    assert reported["model"] == best["model"]["version"] == "web@1"
    chosen = next(each for each in reported["seeds"] if each["seed"] == reported["chosen"])
    assert chosen["sha256"] == best["model"]["sha256"]
    kept = {name: digest for name, digest in files_of(project / "out" / "model").items() if name != "training.json"}
    code, average, err = run(project, SEEDS.replace("seeds =", 'choose = "average"\nseeds ='), capsys)
    assert code == 0
    assert 'choose was "best" and is "average"' in err
    reported = json.loads((project / "out" / "model" / "training.json").read_text())
    assert (reported["chosen"], reported["model"]) == (None, "web@2")
    assert average["model"]["sha256"] not in {each["sha256"] for each in reported["seeds"]}
    after = files_of(project / "out" / "model")
    assert {name: after[name] for name in kept} == kept
    facts = Registry(project / "registry").resolve("web@2", bare="latest").manifest
    assert facts["seeds"]["choose"] == "average"


@pytest.mark.slow
def test_drift_is_reported_once_and_overrides_the_gate(project: Path, capsys) -> None:
    text = CONFIG + "[drift]\n"  # a dataset is kept for the next run when a run has reached its end
    code, _, err = run(project, text, capsys, *WHOLE)
    assert code == 0
    assert not unnamed(err, "previous dataset")
    for path in project.glob("judgments/*.txt"):
        lines = path.read_text().splitlines()
        path.write_text("".join(line.replace(" 1:", " 1:9") + "\n" for line in lines))
    worse = text.replace("margin = 0.2", "margin = 0.0").replace("n_rounds = 12", "n_rounds = 1\nmax_depth = 1")
    assert run(project, worse, capsys, "--until", "bin")[0] == 12  # not the end: the whole run reports it as well
    code, report, err = run(project, worse, capsys, *WHOLE)
    assert code == 12  # the gate was not passed either
    assert not report["gate"]["passed"]
    assert report["bin"]["drift"]["alarms"] == ["f1"]
    assert not unnamed(err.splitlines()[-1], "drifted", "f1")
    assert json.loads((project / "out" / "drift.json").read_text())["alarms"] == ["f1"]
    code, report, _ = run(project, worse, capsys, *WHOLE)
    assert code == 11  # the drift was reported; the version still stands before the gate
    assert report["bin"]["drift"]["alarms"] == ["f1"]


def test_drift_ends_the_run_before_the_training_where_it_is_asked_to(project: Path, capsys) -> None:
    text = CONFIG + "[drift]\nstop = true\n"
    assert run(project, text, capsys, *WHOLE)[0] == 0
    for path in project.glob("judgments/*.txt"):
        path.write_text("".join(line.replace(" 1:", " 1:9") + "\n" for line in path.read_text().splitlines()))
    for _ in range(2):  # it stays so until somebody has looked
        code, _, err = run(project, text, capsys)
        assert code == 12
        assert "train:" not in err
    assert len(Registry(project / "registry").versions("web")) == 1
