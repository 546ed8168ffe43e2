"""What a second run does: only what has changed, and never what somebody has undone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from rankmill.cli import execute
from rankmill.foundation.cluster.workers import open_cluster
from rankmill.foundation.errors import InputError, RunUnderWay
from rankmill.registry import Registry
from rankmill.run.run_lock import hold, holder_of
from rankmill.run.runner import PlannedStage, plan_of, run
from rankmill.run.stage import differences, read_record
from rankmill.run.stage_choice import WITHOUT_CLICKS
from rankmill.run.stage_facts import BinFacts, TrainFacts
from rankmill.run.work import Work
from tests.clusters import on, opened_by
from tests.rankmill.run.run_events import read_lines
from tests.rankmill.run.test_run import files_of, write_project
from tests.refusals import refused, unnamed


@pytest.fixture
def project(run_once: Path, tmp_path: Path) -> Iterator[Path]:
    """A project that has been run once; times and inodes of its files are those of a copy."""
    folder = tmp_path / "project"
    shutil.copytree(run_once, folder, symlinks=True)
    again(folder)
    yield folder
    shutil.rmtree(folder)


Events = list[dict[str, Any]]


def forget(project: Path, *stages: str) -> None:
    """Remove the records of ``stages``, so that the next run executes them."""
    for stage in stages:
        (project / "out" / "stages" / f"{stage}.json").unlink()


def again(project: Path, **asked) -> tuple[list[str], Events]:
    """Run once more, without the report if nothing else is asked; return the stages that were executed, and the events
    of the log."""
    asked.setdefault("until", "rerank")
    log = project / "out" / "log.jsonl"
    before = len(read_lines(log))
    run(Work(project / "rankmill.toml", project / "registry", **asked), lambda _line: None)
    events = read_lines(log)[before:]
    return [event["stage"] for event in of("stage_started", events)], events


def of(name: str, events: Events) -> Events:
    return [event for event in events if event["event"] == name]


def outcome(events: Events) -> tuple[str, int]:
    (end,) = of("run_ended", events)
    return end["outcome"], end["exit_code"]


def edit(project: Path, old: str, new: str) -> None:
    path = project / "rankmill.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_nothing_is_done_where_nothing_has_changed(project: Path) -> None:
    before = files_of(project)
    stages, events = again(project, until="report")
    assert stages == []
    assert outcome(events) == ("unchanged", 0)
    assert [event["stage"] for event in of("stage_skipped", events)] == list(WITHOUT_CLICKS)
    assert files_of(project) == before
    reported = json.loads((project / "out" / "last_success.json").read_text())
    assert reported == json.loads((project / "out" / "last_run.json").read_text())
    assert (reported["outcome"], reported["exit_code"]) == ("unchanged", 0)


def test_a_touched_file_has_not_changed_and_the_same_data_from_other_bytes_are_not_learnt_again(project: Path) -> None:
    for path in project.glob("judgments/*"):
        os.utime(path, (1, 1))
    assert again(project)[0] == []
    for path in project.glob("judgments/*.txt"):
        path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")
    assert again(project)[0] == ["ingest"]


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({"max_bin = 63": "max_bin = 31"}, ["bin", "train", "evaluate", "gate", "promote", "rerank"]),
        ({'["ndcg@10", "map"]': '["map"]', "top_k = 5": "top_k = 4"}, ["evaluate", "rerank"]),
        ({"top_k = 5": 'top_k = 5\nmemory = "1GB"', "buckets = 4": 'buckets = 4\nthreads = 1\nmemory = "1GB"'}, []),
    ],
)
def test_an_option_moves_what_it_decides(project: Path, changes: dict[str, str], stages: list[str]) -> None:
    for old, new in changes.items():
        edit(project, old, new)
    done, events = again(project)
    assert done == stages
    assert outcome(events) == (("done" if stages else "unchanged"), 0)
    assert again(project)[0] == []


def test_a_cluster_makes_the_same_and_is_no_reason_to_make_it_again(project: Path) -> None:
    before = files_of(project / "out")
    edit(project, 'work = "out"\n', 'work = "out"\n[cluster]\naddress = "local:2"\n')
    assert again(project)[0] == []
    forced = ("ingest", "bin", "rerank")
    forget(project, *forced)
    modules = (
        "rankmill.pipeline.ingest.run_ingest",
        "rankmill.pipeline.bins.binning",
        "rankmill.scorer.rerank.on_cluster",
    )
    shutil.rmtree(project / "out" / "dataset" / "_bins")  # they are not made again while they are there
    with on(modules[0], "a b") as ingesting, on(modules[1], "a b") as binning, on(modules[2], "a b") as reranking:
        assert again(project)[0] == list(forced)
    assert all(engine.started for engine in (ingesting, binning, reranking))
    assert files_of(project / "out") == before
    assert again(project)[0] == []


@pytest.mark.slow
def test_a_training_on_a_cluster_makes_the_same_model(project: Path) -> None:
    edit(project, 'name = "web"\n', 'name = "web"\npreset = "defaults-1"\n')
    again(project, until="train")
    alone = Registry(project / "registry").resolve("web@latest").sha256
    edit(project, 'work = "out"\n', 'work = "out"\n[cluster]\naddress = "local:2"\nstages = ["train"]\n')
    shutil.rmtree(project / "out" / "model")
    with open_cluster("local:2") as cluster, opened_by("rankmill.run.model_stages", cluster):
        together, calls = cluster.together, []
        cluster.together = lambda *given, **more: calls.append(given) or together(*given, **more)
        assert again(project, until="train")[0] == ["train"]
    assert calls
    assert Registry(project / "registry").resolve("web@latest").sha256 == alone


def test_a_first_stage_says_what_is_ranked_and_its_bytes_decide(project: Path) -> None:
    lines = [line.split() for line in (project / "candidates.txt").read_text().splitlines()]
    listed = [f"{words[1].removeprefix('qid:')} Q0 {words[-1]} 1 2 x\n" for words in lines]
    (project / "first.run").write_text("".join(listed[::2]))
    edit(project, "[rerank]\n", '[rerank]\nrun = ["*.run"]\n')
    for lacking, run_lines in ((0, listed[::2]), (0, listed[:40]), (1, [*listed[:3], "q Q0 nobody 1 2 x\n"])):
        (project / "first.run").write_text("".join(run_lines))
        if lacking:
            edit(project, "[rerank]\n", '[rerank]\nlacking = "drop"\n')
        done, events = again(project)
        assert (done, outcome(events)) == (["rerank"], ("done", 0))
        facts = json.loads((project / "out" / "stages" / "rerank.json").read_text())["facts"]
        assert (facts["rows"], facts["lacking"]) == (len(run_lines) - lacking, lacking)
        assert again(project)[0] == []


@pytest.mark.parametrize(
    ("gone", "stages"),
    [
        (["evaluation.json", "ranked/part-00000.parquet"], ["evaluate", "rerank"]),
        (["stages/bin.json", "stages/train.json"], ["bin", "train"]),
        (["gate.json", "digests.json", "last_run.json"], []),  # the version is production: there is nothing to decide
    ],
)
def test_missing_outputs_are_made_again_with_the_same_bytes(project: Path, gone: list[str], stages: list[str]) -> None:
    before = files_of(project)
    for name in gone:
        (project / "out" / name).unlink()
    assert again(project)[0] == stages
    after = files_of(project)
    assert after == {name: digest for name, digest in before.items() if name in after}
    assert before.keys() - after.keys() <= {"out/gate.json"}  # whose result is in the registry


def test_what_others_have_changed_is_made_again(project: Path) -> None:
    before = files_of(project)
    (project / "out" / "evaluation.json").write_text("{}")
    (project / "out" / "report" / "index.html").unlink()
    shutil.rmtree(project / "out" / "dataset")
    assert again(project, until="report")[0] == ["ingest", "bin", "evaluate", "report"]
    assert files_of(project) == before


def test_new_judgments_make_a_new_version(project: Path) -> None:
    first = sorted(project.glob("judgments/*.txt"))[0]
    (project / "judgments" / "c.txt").write_text(first.read_text().replace("qid:a", "qid:c"))
    done, events = again(project)
    assert done == list(WITHOUT_CLICKS[:-1])
    (started,) = [event for event in of("stage_started", events) if event["stage"] == "ingest"]
    assert started["why"] == "sources judgments/c.txt is new"
    assert Registry(project / "registry").state("web").target("production") == 2


def test_what_was_rolled_back_is_not_promoted_again(project: Path, capsys) -> None:
    edit(project, "n_rounds = 12", "n_rounds = 13")
    again(project)
    registry = Registry(project / "registry")
    assert registry.state("web").target("production") == 2
    registry.rollback("web")
    head = registry.state("web").head
    done, events = again(project)
    assert done == ["rerank"]  # by the version that stands
    assert outcome(events) == ("gate not passed", 11)
    assert (
        execute(["run", str(project / "rankmill.toml"), "--registry", str(project / "registry"), "--until", "rerank"])
        == 11
    )
    assert not unnamed(capsys.readouterr().err.splitlines()[-1], "web@2", "production", "entry")
    assert registry.state("web").head == head
    edit(project, "n_rounds = 13", "n_rounds = 14")
    assert again(project)[0] == ["train", "evaluate", "gate", "promote", "rerank"]
    assert registry.state("web").target("production") == 3


def test_a_run_may_end_early_and_a_stage_be_repeated(project: Path, capsys) -> None:
    forget(project, "evaluate")
    assert again(project)[0] == ["evaluate"]
    edit(project, "n_rounds = 12", "n_rounds = 13")
    assert again(project, until="bin")[0] == []
    assert again(project, until="train")[0] == ["train"]
    assert execute(["run", str(project / "rankmill.toml"), "--until", "trian"]) == 2
    assert not unnamed(capsys.readouterr().err, "--until", "trian", "ingest, bin")


def test_a_plan_says_what_the_run_then_does(project: Path, capsys) -> None:
    def plan() -> list[PlannedStage]:
        return plan_of(Work(project / "rankmill.toml", project / "registry"))

    assert [what for _, what, _ in plan()] == ["skip"] * len(WITHOUT_CLICKS)
    edit(project, "n_rounds = 12", "n_rounds = 13")
    before = files_of(project)
    rows = plan()
    assert files_of(project) == before
    assert [what for _, what, _ in rows[:4]] == ["skip", "skip", "run", "open"]
    assert rows[2][2] == "n_rounds was 12 and is 13"
    command = ["run", str(project / "rankmill.toml"), "--registry", str(project / "registry"), "--plan"]
    assert execute(command) == 0
    assert "train     run   n_rounds was 12 and is 13" in capsys.readouterr().out.splitlines()
    fresh = write_project(project / "fresh")
    assert execute(["run", str(fresh / "rankmill.toml"), "--registry", str(fresh / "registry"), "--plan"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "ingest    run   not done yet"
    assert not (fresh / "out").exists()
    assert not (fresh / "registry").exists()


def test_one_run_at_a_time(project: Path, capsys) -> None:
    assert holder_of(project / "out") is None
    with hold(project / "out", "the-first") as lease:
        lease.at("train")
        assert "run the-first" in (holder_of(project / "out") or "")
        with refused(RunUnderWay, "the-first", f"process {os.getpid()}", "stage train"):
            again(project)
        assert execute(["run", str(project / "rankmill.toml"), "--registry", str(project / "registry")]) == 75
        assert not unnamed(capsys.readouterr().err, "the-first")
        lease.end()
    assert again(project)[0] == []


def test_the_next_run_reports_one_that_died(project: Path) -> None:
    with hold(project / "out", "the-first") as lease:
        lease.at("train")
    _, events = again(project)
    (started,) = of("run_started", events)
    assert "run the-first" in started["died"]
    _, events = again(project)
    (started,) = of("run_started", events)
    assert "died" not in started


def test_the_logical_date_is_part_of_names(project: Path, capsys) -> None:
    (project / "judgments").rename(project / "2026-11-21")
    edit(project, "judgments/*.txt", "{date}/*.txt")
    with refused(InputError, "ingest.sources", "--date"):
        again(project)
    assert again(project, day=date(2026, 11, 21))[0] == ["ingest"]  # the files have other names, and the same data
    with pytest.raises(InputError, match="2026-11-22"):
        again(project, day=date(2026, 11, 22))
    assert execute(["run", str(project / "rankmill.toml"), "--date", "yesterday"]) == 2


def test_a_record_of_another_stage_or_a_damaged_one_is_none(project: Path) -> None:
    stages = project / "out" / "stages"
    assert read_record(stages, "bin", BinFacts) is not None
    shutil.copy(stages / "bin.json", stages / "train.json")
    assert read_record(stages, "train", TrainFacts) is None
    text = (stages / "bin.json").read_text()
    (stages / "bin.json").write_text(text.replace('"code": "', '"code": "0'))
    assert read_record(stages, "bin", BinFacts) is None
    (stages / "bin.json").write_text(text[:-20])
    assert read_record(stages, "bin", BinFacts) is None
    assert again(project)[0] == ["bin", "train"]


def test_differences_are_reported_by_name() -> None:
    assert differences({"code": "a"}, {"code": "b"}) == "the code has changed"
    many = {f"sources {name}": "1" for name in "abcdef"}
    assert differences({}, many) == "sources a is new, sources b is new, sources c is new and 3 more"
    assert differences({"dataset": "1"}, {"dataset": "2"}) == "dataset has changed"


def test_lists_may_lie_elsewhere(project: Path) -> None:
    edit(project, "top_k = 5", 'top_k = 5\nout = "../lists.run"')
    done, events = again(project)
    assert done == ["rerank"]
    assert outcome(events) == ("done", 0)
    assert again(project)[0] == []
