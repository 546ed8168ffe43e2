"""A search and a cross-validation on a cluster: the same as on one machine, for any workers, any order and any loss."""

import os
import signal
import time
from dataclasses import replace
from itertools import groupby

import pytest
from typer.testing import CliRunner

from rankmill.cli import app, execute
from rankmill.foundation.cluster.workers import open_cluster
from rankmill.foundation.errors import InputError, InvalidParameter, TrainingDataRejected, WorkerLost
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.trainer.candidates.train_on_dataset import cross_validate
from rankmill.trainer.cluster.cross_validate_on_cluster import cross_validate_on_cluster
from rankmill.trainer.options import TuneOptions
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.tuning.search import plan_tuning, tune
from rankmill.trainer.tuning.space import space_of
from tests.clusters import in_memory, killing_in, look_often, square
from tests.refusals import refused, unnamed
from tests.trainer.small_dataset import SMALL
from tests.written import files_in

BASE = replace(SMALL, n_rounds=8, early_stopping_rounds=0)
SPACE = space_of({"learning_rate": "0.05..0.8:log", "max_leaves": "2..8"}, "test")
OPTIONS = TuneOptions(trials=4, repeat=1, best=2, compare_by="valid")


@pytest.fixture(scope="module")
def plan(dataset):
    return plan_tuning(dataset, BASE, SPACE, replace(OPTIONS, workers=1))


@pytest.fixture(scope="module")
def expected(plan, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "t"
    tune(plan, out)
    return files_in(out)


@pytest.mark.parametrize("looks", [["a"], ["a b c"], ["a b c", "a", "", "b", "b c d", "d"]], ids=" / ".join)
def test_any_workers_any_order_and_any_loss(plan, expected, looks, tmp_path, monkeypatch):
    look_often(monkeypatch)
    cluster, _ = in_memory(*looks, seed=len(looks))
    tune(replace(plan, cluster_workers=3), tmp_path / "t", cluster=cluster)
    assert files_in(tmp_path / "t") == expected


def test_a_search_that_lost_all_workers_resumes(plan, expected, tmp_path, monkeypatch):
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


def test_a_dataset_that_is_another_one_there_is_refused(plan, tmp_path):
    class Other(Dataset):
        digest = "0" * 64  # type: ignore[assignment]

    other = Other.open(plan.dataset.path)
    with pytest.raises(InputError, match="another dataset"):
        tune(replace(plan, dataset=other), tmp_path / "t", cluster=in_memory("a")[0])


@pytest.mark.slow
def test_the_trials_of_a_killed_process_run_again(plan, expected, dask, tmp_path):
    pids = [pid for _, (_, pid) in dask.run(square, range(2), tmp_path)]

    def kill(task, outcome):
        if pids:  # while the other one is in the middle of a trial
            os.kill(pids.pop(), signal.SIGKILL)
            pids.clear()

    tune(replace(plan, cluster_workers=2), tmp_path / "t", cluster=dask, on_trial=kill)
    assert files_in(tmp_path / "t") == expected


@pytest.mark.slow
def test_the_command_writes_the_same_and_refuses_processes_beside(plan, tmp_path, capfd):
    usual = f"tune {plan.dataset.path} --trials 2 --repeat 0 --n-rounds 3 --vary max_leaves=2..9 -o {tmp_path}/"
    assert execute(f"{usual}alone --workers 1".split()) == 0
    assert execute(f"{usual}both --cluster local:2".split()) == 0
    assert "2 in parallel on the cluster" in capfd.readouterr().err
    assert files_in(tmp_path / "both") == files_in(tmp_path / "alone")
    assert execute(f"{usual}t --cluster local:2 --workers 2".split()) == 2
    assert not unnamed(capfd.readouterr().err, "--workers", "--cluster")


@pytest.mark.slow
def test_what_is_not_done_in_time_stops_on_workers_too(plan, tmp_path, monkeypatch):
    look_often(monkeypatch)
    cluster, _ = in_memory("a b")
    long = replace(plan.base, options=replace(plan.base.options, n_rounds=50_000))
    timed = replace(plan, base=long, options=replace(OPTIONS, minutes=1.0), cluster_workers=2)
    begun = time.monotonic()
    with refused(InvalidParameter, "no trial ended in time", "resumes"):
        tune(timed, tmp_path / "t", cluster=cluster, begun=begun - 59.5)
    assert time.monotonic() - begun < 10.0


# -- cross-validation -------------------------------------------------------------------------------------------------


# folds stop at different rounds, so that the shorter ones are trained on
PARAMETERS = replace(SMALL, n_rounds=30, early_stopping_rounds=3, folds=4)
OF_FOLDS = TrainingOptions(n_threads=1, eval_metrics=["map"])


@pytest.mark.parametrize("looks", [("a",), ("a b", "a b", "b", "b c", "a c")])
def test_any_workers_in_any_order(looks, dataset, monkeypatch):
    look_often(monkeypatch)
    reported = []
    expected = cross_validate(dataset, PARAMETERS, replace(OF_FOLDS, on_round=reported.append))
    assert len(list(groupby(record.fold for record in reported))) > 4  # some folds were resumed
    heard = []
    cluster, _ = in_memory(*looks, seed=len(looks))
    found = cross_validate_on_cluster(dataset, PARAMETERS, replace(OF_FOLDS, on_round=heard.append), cluster)
    assert found == expected
    assert found.to_dict() == expected.to_dict()
    assert sorted((record.fold, record.round_number) for record in heard) == sorted(
        (record.fold, record.round_number) for record in reported
    )
    assert not [path for path in dataset.path.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_a_process_is_killed(dataset):
    with open_cluster("local:2") as cluster, killing_in("_train_fold", cluster) as killed:
        found = cross_validate_on_cluster(dataset, PARAMETERS, OF_FOLDS, cluster)
        assert killed
    assert found.to_dict() == cross_validate(dataset, PARAMETERS, OF_FOLDS).to_dict()


@pytest.mark.slow
def test_the_command_cv(dataset):
    words = ["cv", str(dataset.path), "--folds", "3", "--n-rounds", "4", "--max-leaves", "4", "--json"]
    alone, together = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--cluster", "local:2"]))
    assert alone.exit_code == together.exit_code == 0, together.stderr
    assert alone.stdout == together.stdout


def test_too_many_folds_are_refused(dataset):
    cluster, _ = in_memory("a b")
    with refused(TrainingDataRejected, 1000, "folds"):
        cross_validate_on_cluster(dataset, replace(PARAMETERS, folds=1000), OF_FOLDS, cluster)
