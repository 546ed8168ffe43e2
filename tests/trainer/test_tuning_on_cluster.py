"""A search on a cluster: the same bytes as on one machine, for any workers, any order of completion and any loss."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.foundation.cluster.workers import Cluster
from rankmill.foundation.errors import InputError, InvalidParameter, WorkerLost
from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.options import TuneOptions
from rankmill.trainer.tuning.search import TunePlan, plan_tuning, tune
from rankmill.trainer.tuning.space import space_of
from rankmill.trainer.tuning.trials import Outcome, Task
from tests.clusters import in_memory, look_often, square
from tests.refusals import refused, unnamed
from tests.trainer.small_dataset import SMALL, small_dataset
from tests.written import files_in

BASE = replace(SMALL, n_rounds=8, early_stopping_rounds=0)
SPACE = space_of({"learning_rate": "0.05..0.8:log", "max_leaves": "2..8"}, "test")
OPTIONS = TuneOptions(trials=4, repeat=1, best=2, compare_by="valid")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> TunePlan:
    dataset = small_dataset(tmp_path_factory.mktemp("tuning"))
    return plan_tuning(dataset, BASE, SPACE, replace(OPTIONS, workers=1))


@pytest.fixture(scope="module")
def expected(plan: TunePlan, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("alone") / "t"
    tune(plan, out)
    return files_in(out)


@pytest.mark.parametrize("looks", [["a"], ["a b c"], ["a b c", "a", "", "b", "b c d", "d"]], ids=" / ".join)
def test_any_workers_any_order_and_any_loss(
    plan: TunePlan, expected: dict[str, bytes], looks: list[str], tmp_path: Path, monkeypatch
) -> None:
    look_often(monkeypatch)
    cluster, _ = in_memory(*looks, seed=len(looks))
    tune(replace(plan, cluster_workers=3), tmp_path / "t", cluster=cluster)
    assert files_in(tmp_path / "t") == expected


def test_a_search_that_lost_all_workers_resumes(
    plan: TunePlan, expected: dict[str, bytes], tmp_path: Path, monkeypatch
) -> None:
    look_often(monkeypatch)
    cluster, _ = in_memory("a b", "a b", "a b", "")
    with pytest.raises(WorkerLost):
        tune(plan, tmp_path / "t", cluster=cluster)
    finished = len(list((tmp_path / "t" / "trials").iterdir()))
    assert finished > 0
    cluster, engine = in_memory("a b")
    tune(plan, tmp_path / "t", cluster=cluster)
    assert files_in(tmp_path / "t") == expected
    assert len(engine.started) == len([name for name in expected if name.startswith("trials/")]) - finished


def test_a_dataset_that_is_another_one_there_is_refused(plan: TunePlan, tmp_path: Path) -> None:
    class Other(Dataset):
        digest = "0" * 64  # type: ignore[assignment]

    other = Other.open(plan.dataset.path)
    with pytest.raises(InputError, match="another dataset"):
        tune(replace(plan, dataset=other), tmp_path / "t", cluster=in_memory("a")[0])


@pytest.mark.slow
def test_the_trials_of_a_killed_process_run_again(
    plan: TunePlan, expected: dict[str, bytes], dask: Cluster, tmp_path: Path
) -> None:
    pids = [pid for _, (_, pid) in dask.run(square, range(2), tmp_path)]

    def kill(task: Task, outcome: Outcome) -> None:
        if pids:  # while the other one is in the middle of a trial
            os.kill(pids.pop(), signal.SIGKILL)
            pids.clear()

    tune(replace(plan, cluster_workers=2), tmp_path / "t", cluster=dask, on_trial=kill)
    assert files_in(tmp_path / "t") == expected


@pytest.mark.slow
def test_the_command_writes_the_same_and_refuses_processes_beside(
    plan: TunePlan, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    usual = [
        "tune",
        str(plan.dataset.path),
        "--trials",
        "2",
        "--repeat",
        "0",
        "--n-rounds",
        "3",
        "--vary",
        "max_leaves=2..9",
    ]
    assert execute([*usual, "-o", str(tmp_path / "alone"), "--workers", "1"]) == 0
    assert execute([*usual, "-o", str(tmp_path / "both"), "--cluster", "local:2"]) == 0
    assert "2 in parallel on the cluster" in capfd.readouterr().err
    assert files_in(tmp_path / "both") == files_in(tmp_path / "alone")
    assert execute([*usual, "-o", str(tmp_path / "t"), "--cluster", "local:2", "--workers", "2"]) == 2
    assert not unnamed(capfd.readouterr().err, "--workers", "--cluster")


@pytest.mark.slow
def test_what_is_not_done_in_time_stops_on_workers_too(plan: TunePlan, tmp_path: Path, monkeypatch) -> None:
    look_often(monkeypatch)
    cluster, _ = in_memory("a b")
    long = replace(plan.base, options=replace(plan.base.options, n_rounds=50_000))
    timed = replace(plan, base=long, options=replace(OPTIONS, minutes=1.0), cluster_workers=2)
    begun = time.monotonic()
    with refused(InvalidParameter, "no trial ended in time", "goes on"):
        tune(timed, tmp_path / "t", cluster=cluster, begun=begun - 59.5)
    assert time.monotonic() - begun < 10.0
