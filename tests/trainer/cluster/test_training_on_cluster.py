"""A training on a cluster has the bytes of one machine, whatever worker is lost at whatever step."""

import itertools
import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rankmill.cli import execute
from rankmill.foundation.cluster.workers import open_cluster
from rankmill.foundation.errors import ClusterUnavailable, InvalidParameter, WorkerLost
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.cluster.train_on_cluster import train_on_cluster
from rankmill.trainer.rounds.checkpoints import Checkpoints
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests.clusters import UNPROFILED, dask, joined_and_killed, look_often, square
from tests.refusals import refused, unnamed
from tests.trainer.small_dataset import SMALL
from tests.waiting import until
from tests.workers_in_threads import Lost, in_threads

SHORT = replace(SMALL, n_rounds=3, early_stopping_rounds=0)
OPTIONS = TrainingOptions(n_threads=1)


@pytest.fixture(scope="module")
def expected(dataset):
    return train(dataset, SHORT, OPTIONS)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch):
    look_often(monkeypatch)


def check_same(found, expected):
    assert found.forest.to_bytes() == expected.forest.to_bytes()
    assert found.history == expected.history
    assert found.best_round == expected.best_round
    for name, measures in expected.by_query.items():
        for measure, values in measures.items():
            assert np.array_equal(found.by_query[name][measure].values, values.values, equal_nan=True)


@pytest.mark.parametrize("workers", ["a", "a b", "a b c"])
def test_any_number_of_workers_and_the_progress_of_one_machine(workers, dataset, expected):
    reported = []
    options = replace(OPTIONS, on_round=reported.append)
    cluster, engine = in_threads(*workers.split())
    check_same(train_on_cluster(dataset, SHORT, options, None, cluster, "key"), expected)
    assert tuple(reported) == expected.history
    assert engine.started == [tuple(workers.split())]
    assert not [path for path in dataset.path.iterdir() if path.name.startswith(".")]


def test_early_stopping_and_resuming(dataset):
    longer = replace(SMALL, n_rounds=40, early_stopping_rounds=2)
    whole, short = train(dataset, longer, OPTIONS), train(dataset, SHORT, OPTIONS)
    cluster, _ = in_threads("a", "b")
    check_same(train_on_cluster(dataset, longer, OPTIONS, None, cluster, "key"), whole)
    resumed = replace(OPTIONS, resume=StartingModel(short.forest))
    check_same(
        train_on_cluster(dataset, replace(SHORT, n_rounds=6), resumed, None, cluster, "key"),
        train(dataset, replace(SHORT, n_rounds=6), OPTIONS),
    )


def steps_of(dataset, worker):
    """Return how many steps a worker takes: one before and one after every exchange."""
    seen = []
    cluster, _ = in_threads("a", "b", at_step=lambda who, step: seen.append(step) if who == worker else None)
    train_on_cluster(dataset, SHORT, OPTIONS, None, cluster, "key")
    return max(seen) + 1


@pytest.mark.parametrize("worker", ["a", "b"])
@pytest.mark.parametrize("every", [67, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_is_lost_before_and_after_every_exchange(every, worker, dataset, expected):
    n_steps = steps_of(dataset, worker)
    assert n_steps > 60
    for lost_at in range(0, n_steps, every):
        said = []

        def lose(who, step, lost_at=lost_at):
            if who == worker and step == lost_at:
                raise Lost

        cluster, engine = in_threads("a", "b", at_step=lose, said=said)
        check_same(train_on_cluster(dataset, SHORT, OPTIONS, None, cluster, "key"), expected)
        finished = worker == "b" and lost_at == n_steps - 1  # the first worker may have returned the result already
        assert [len(each) for each in engine.started] == [2, 1] or finished
        assert finished or len(said) == 1
        assert finished or worker in said[0]


def test_a_worker_that_joins_gets_its_share(dataset, expected, monkeypatch):
    monkeypatch.setattr("rankmill.foundation.cluster.workers._JOIN_SECONDS", 0.0)

    def add(who, step):
        if step == 40 and "c" not in engine.here:
            engine.here.append("c")
            until_true(engine.is_asked_to_stop, 30.0)

    cluster, engine = in_threads("a", "b", at_step=add)
    # a key of its own: all threads keep rounds in one place, those of workers that were lost, too
    check_same(train_on_cluster(dataset, SHORT, OPTIONS, None, cluster, "joined"), expected)
    assert engine.started[0] == ("a", "b")
    assert engine.started[-1] == ("a", "b", "c")


@pytest.mark.slow
def test_when_all_workers_are_lost_the_checkpoint_stays(dataset, expected, tmp_path):
    lost = set()

    def lose(who, step):
        if step == 70 or lost - {who}:  # the other one, even if it is about to begin again with fewer steps
            lost.add(who)
            raise Lost

    checkpoints = Checkpoints(tmp_path, "k" * 64, every=0.0)
    cluster, _ = in_threads("a", "b", at_step=lose)
    with pytest.raises(WorkerLost, match="resume"):
        train_on_cluster(dataset, SHORT, OPTIONS, checkpoints, cluster, "lost")
    lost.clear()
    cluster, _ = in_threads("a", "b", at_step=lose)
    with pytest.raises(WorkerLost, match=r"run the same command again$"):
        train_on_cluster(dataset, SHORT, OPTIONS, None, cluster, "nothing is kept")
    kept = checkpoints.of("whole").read()
    assert kept is not None
    assert kept.n_rounds >= 1
    seen = []
    cluster, _ = in_threads("a", at_step=lambda _, step: seen.append(step))
    check_same(train_on_cluster(dataset, SHORT, OPTIONS, checkpoints, cluster, "again"), expected)
    assert len(seen) < steps_of(dataset, "a")


def test_workers_that_cannot_reach_each_other_start_again(dataset, expected):
    said = []

    def cut_off(who, step):
        if who == "b" and step == 20 and not said:
            raise ConnectionError("worker b cannot reach a")

    cluster, engine = in_threads("a", "b", at_step=cut_off, said=said)
    check_same(train_on_cluster(dataset, SHORT, OPTIONS, None, cluster, "key"), expected)
    assert engine.started == [("a", "b")] * 2
    assert said == ["worker b cannot reach a; all workers start again"]


def test_a_failure_of_a_worker_is_that_of_the_caller(dataset):
    def fail(who, step):
        if who == "b" and step == 20:
            raise InvalidParameter("a failure of b")

    cluster, _ = in_threads("a", "b", at_step=fail)
    with refused(InvalidParameter, "a failure of b"):
        train_on_cluster(dataset, SHORT, OPTIONS, None, cluster, "key")


@pytest.fixture(scope="module")
def processes():
    with open_cluster("local:2") as cluster:
        yield cluster


@contextmanager
def at_most(seconds):
    """Kill this process if the block takes longer: a training that hangs would otherwise never end."""
    timer = threading.Timer(seconds, os._exit, [3])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def until_true(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def pids_of(cluster, folder):
    return [pid for _, (_, pid) in cluster.run(square, range(2), folder)]


@pytest.mark.slow
def test_processes_that_are_killed(dataset, expected, processes, tmp_path, monkeypatch):
    for at_step, process in [(0, 1), (41, 0)]:
        killing = partial(joined_and_killed, at_step, process, tmp_path / f"{at_step}-{process}")
        monkeypatch.setattr("rankmill.foundation.cluster.dask_engine.DaskEngine.join", lambda _, way=killing: way)
        with at_most(120):
            check_same(train_on_cluster(dataset, SHORT, OPTIONS, None, processes, f"{at_step}"), expected)
        assert (tmp_path / f"{at_step}-{process}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, 1])
def test_a_process_is_killed_before_and_after_every_exchange(process, dataset, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("rankmill.foundation.cluster.workers._LOOK_SECONDS", 0.2)
    short = replace(SHORT, n_rounds=1)
    alone = train(dataset, short, OPTIONS)
    seen = []
    counting, _ = in_threads("a", "b", at_step=lambda _, step: seen.append(step))
    train_on_cluster(dataset, short, OPTIONS, None, counting, "key")
    steps = iter(range(max(seen) + 1))
    while (at_step := next(steps, None)) is not None:
        with open_cluster("local:2") as cluster:
            # Dask's nanny does not always start another process after some kills: then in a new cluster.  Both are
            # asked, as the scheduler still lists a process for a moment after its end.
            while at_step is not None and until_true(lambda: len(set(pids_of(cluster, tmp_path))) == 2, 10.0):
                once = tmp_path / str(at_step)
                killing = partial(joined_and_killed, at_step, process, once)
                monkeypatch.setattr(
                    "rankmill.foundation.cluster.dask_engine.DaskEngine.join", lambda _, way=killing: way
                )
                with at_most(120):
                    check_same(train_on_cluster(dataset, short, OPTIONS, None, cluster, f"{at_step}"), alone)
                assert once.exists()
                at_step = next(steps, None)
            steps = iter(()) if at_step is None else itertools.chain([at_step], steps)


@pytest.mark.slow
def test_a_process_is_stopped_for_a_while(dataset, expected, processes, tmp_path):
    pid = pids_of(processes, tmp_path)[1]

    def stop(record):
        if record.round_number == 1:
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(1.0, os.kill, [pid, signal.SIGCONT]).start()

    with at_most(120):
        options = replace(OPTIONS, on_round=stop)
        check_same(train_on_cluster(dataset, SHORT, options, None, processes, "stopped"), expected)


@pytest.mark.slow
def test_an_interrupt_leaves_no_worker_busy(dataset, processes, tmp_path):
    def interrupt(_):
        raise KeyboardInterrupt

    long = replace(SHORT, n_rounds=100_000)
    with at_most(120):
        with pytest.raises(KeyboardInterrupt):
            train_on_cluster(dataset, long, replace(OPTIONS, on_round=interrupt), None, processes, "interrupted")
        assert len(pids_of(processes, tmp_path)) == 2


@pytest.mark.slow
def test_the_command_registers_the_same_model_and_says_what_it_costs(dataset, tmp_path, capfd):
    usual = ["train", str(dataset.path), "--name", "web", "--json", "--n-rounds", "3", "--refit", "none"]
    assert execute([*usual, "--registry", str(tmp_path / "alone")]) == 0
    alone = json.loads(capfd.readouterr().out)
    assert execute([*usual, "--registry", str(tmp_path / "both"), "--cluster", "local:2"]) == 0
    found = capfd.readouterr()
    assert json.loads(found.out) | {"registry": ""} == alone | {"registry": ""}
    assert not unnamed(found.err, "on 2 workers", "MB a round", "exchanges", "one process is faster", "each sent")
    assert execute([*usual, "--registry", str(tmp_path / "no"), "--cluster", "local:2", "--bootstrap", "goss"]) == 2
    assert not unnamed(capfd.readouterr().err, "--bootstrap goss", "cluster", "gradients of all documents")
    assert execute([*usual, "--registry", str(tmp_path / "no"), "--cluster", "local:2", "--model", "net"]) == 2
    assert not unnamed(capfd.readouterr().err, "--cluster", "--model net")


@pytest.mark.slow
def test_when_the_scheduler_is_killed_the_checkpoint_stays(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("rankmill.foundation.cluster.workers._LOOK_SECONDS", 0.2)
    long = replace(SHORT, n_rounds=300)
    checkpoints, file = Checkpoints(tmp_path, "k" * 64, every=0.0), tmp_path / "scheduler.json"
    with at_most(300), dask("scheduler", "--port", "0", "--scheduler-file", str(file)) as scheduler:
        until(lambda: file.exists() and file.read_text(), scheduler)
        address = json.loads(file.read_text())["address"]
        one, other = (dask("worker", address, "--nthreads", "1", **UNPROFILED) for _ in range(2))
        with one, other:

            def n_workers():
                try:
                    with open_cluster(address) as cluster:
                        return cluster.size
                except ClusterUnavailable:
                    return 0

            until(lambda: n_workers() == 2, scheduler)

            def kill(record):
                if record.round_number == 20:
                    scheduler.kill()

            with open_cluster(address) as cluster, refused(ClusterUnavailable, address, "the same command"):
                train_on_cluster(dataset, long, replace(OPTIONS, on_round=kill), checkpoints, cluster, "killed")
    kept = checkpoints.of("whole").read()
    assert kept is not None
    assert kept.n_rounds >= 10
    cluster, _ = in_threads("a", "b")
    check_same(train_on_cluster(dataset, long, OPTIONS, checkpoints, cluster, "again"), train(dataset, long, OPTIONS))
