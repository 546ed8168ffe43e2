"""Laws of a cluster: with an engine in memory whose workers come and go, then with Dask's processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankmill.foundation.cluster.duty import Duty, Unwanted, stopped_when, stopper
from rankmill.foundation.cluster.options import ClusterOptions
from rankmill.foundation.cluster.workers import Cluster, open_cluster
from rankmill.foundation.errors import (
    CandidatesRejected,
    ClusterUnavailable,
    InputError,
    InvalidParameter,
    WorkerLost,
)
from rankmill.foundation.options import spelled_for
from tests.clusters import Killed, in_memory, killed_once, look_often, refuse, square
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    look_often(monkeypatch)


def test_every_item_has_its_result_once(tmp_path: Path) -> None:
    for seed, workers in enumerate(("a", "a b", "a b c")):
        cluster, engine = in_memory(workers, seed=seed)
        done = dict(cluster.run(lambda item, _: item * item, iter(range(20)), tmp_path))
        assert done == {number: number * number for number in range(20)}
        assert not engine.running
        assert not list(tmp_path.iterdir())


def test_an_item_is_taken_when_a_worker_is_free(tmp_path: Path) -> None:
    cluster, _ = in_memory("a b")
    waiting = iter(range(9))
    results = cluster.run(lambda item, _: item, waiting, tmp_path)
    next(results)
    assert next(waiting) == 2
    results.close()


@pytest.mark.parametrize("seed", range(3))
def test_tasks_of_lost_workers_run_elsewhere(seed: int, tmp_path: Path) -> None:
    said: list[str] = []
    looks = ["a b c", "a b c", "b c", "", "d", "d e", "e", "f g"]
    cluster, engine = in_memory(*looks, seed=seed, said=said)
    assert dict(cluster.run(lambda item, _: -item, range(30), tmp_path)) == {number: -number for number in range(30)}
    assert len(engine.started) == 30 + len(said)
    assert {"f", "g"} <= {*engine.started}


@pytest.mark.parametrize("seed", range(3))
def test_the_first_failure_in_order_is_raised(seed: int, tmp_path: Path) -> None:
    cluster, engine = in_memory("a b c d", "a b c d", "b c d", seed=seed)
    with refused(CandidatesRejected, "2: see max_rejects"):
        list(cluster.run(refuse, range(40), tmp_path))
    assert len(engine.started) < 20
    assert not list(tmp_path.iterdir())


def test_a_cluster_without_workers_is_given_up(tmp_path: Path) -> None:
    cluster, engine = in_memory("a b", "")
    with refused(WorkerLost, "all workers of memory", "run the same command again"):
        list(cluster.run(lambda item, _: item, range(4), tmp_path))
    assert not engine.running


def test_a_task_that_kills_its_workers_is_given_up(tmp_path: Path) -> None:
    def kill(item: int, threads: int) -> int:
        raise Killed

    cluster, engine = in_memory("a b")
    with refused(WorkerLost, "3 workers of memory", "the same task"):
        list(cluster.run(kill, range(2), tmp_path))
    assert not engine.running


def test_a_task_notices_that_it_is_unwanted() -> None:
    stopper()()
    with stopped_when(lambda: False):
        stopper()()
    with stopped_when(lambda: True), pytest.raises(Unwanted):
        stopper()()
    stopper()()


def test_other_code_libraries_and_folders_are_refused(tmp_path: Path) -> None:
    with Duty.shared(tmp_path) as duty:
        duty.check()
        with refused(InputError, "another rankmill"):
            replace(duty, code="other").check()
        older = tuple((name, "0.1" if name == "pyarrow" else version) for name, version in duty.libraries)
        with refused(InputError, "pyarrow", "0.1"):
            replace(duty, libraries=older).check()
        with refused(InputError, "does not see", str(tmp_path)):
            replace(duty, token="other").check()
    with refused(InputError, "does not see", str(tmp_path)):
        duty.check()


def test_words_that_name_no_cluster_are_refused() -> None:
    for word in ("local", "local:0", "local:9999", "local:two", "10.0.0.5:8786", "tcp://host", "http://host:1"):
        with spelled_for("command line"), refused(InvalidParameter, "--cluster", "local:N", "tcp://HOST:PORT", word):
            ClusterOptions(cluster=word)


def test_an_address_without_a_scheduler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankmill.foundation.cluster.dask_engine._ANSWER_SECONDS", 0.3)
    with (
        refused(ClusterUnavailable, "tcp://127.0.0.1:9", "no Dask scheduler answers"),
        open_cluster("tcp://127.0.0.1:9"),
    ):
        pass


def test_a_scheduler_without_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimpleNamespace(workers=dict, name="tcp://10.0.0.5:8786", close=lambda: None)
    monkeypatch.setattr("rankmill.foundation.cluster.dask_engine.DaskEngine.open", lambda _: engine)
    with refused(ClusterUnavailable, "no workers", f"dask worker {engine.name}"), open_cluster(engine.name):
        pass


def test_without_dask_the_error_names_the_extra() -> None:
    lines = (
        "import sys; sys.modules['distributed'] = None\n"
        "from rankmill.foundation.cluster.workers import open_cluster\n"
        "with open_cluster('local:2'): pass\n"
    )
    ran = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=False)
    assert "MissingLibrary: local:2 needs Dask" in ran.stderr
    assert "pip install 'rankmill[dask]'" in ran.stderr


@pytest.mark.slow
def test_local_workers_are_other_processes(dask: Cluster, tmp_path: Path) -> None:
    assert dask.size == 2
    done = dict(dask.run(square, range(8), tmp_path))
    assert {number: square for number, (square, _) in done.items()} == {number: number**2 for number in range(8)}
    pids = {pid for _, pid in done.values()}
    assert os.getpid() not in pids
    assert len(pids) <= 2


@pytest.mark.slow
def test_a_killed_worker_is_replaced(dask: Cluster, tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(2)]
    done = dict(dask.run(killed_once, paths, tmp_path))
    assert done == {path: path.name for path in paths}


@pytest.mark.slow
def test_errors_of_workers_name_options_as_the_caller_does(dask: Cluster, tmp_path: Path) -> None:
    with spelled_for("command line"), refused(CandidatesRejected, "2: see --max-rejects"):
        list(dask.run(refuse, range(6), tmp_path))


@pytest.mark.slow
def test_local_workers_end_with_their_cluster(tmp_path: Path) -> None:
    with open_cluster("local:1") as cluster:
        ((_, (_, pid)),) = cluster.run(square, [1], tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
