"""The team: everybody works, failures surface, nested use does not dead-lock."""

from __future__ import annotations

import threading

import pytest
from joblib import Parallel, delayed

from trainer import workers
from trainer.workers import Team, with_team


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_worker_runs_every_task_once(size):
    done: list[tuple[int, int]] = []
    lock = threading.Lock()

    def run(team: Team) -> str:
        for number in range(20):

            def task(worker: int, number: int = number) -> None:
                with lock:
                    done.append((number, worker))

            team.each(task)
            assert len(done) == (number + 1) * size  # nobody is left behind
        return "result"

    assert with_team(size, run) == "result"
    assert sorted(done) == [(number, worker) for number in range(20) for worker in range(size)]


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_failure_of_any_worker_reaches_the_caller(culprit):
    def task(worker: int) -> None:
        if worker == culprit:
            raise ZeroDivisionError("worker")

    with pytest.raises(ZeroDivisionError, match="worker"):
        with_team(3, lambda team: team.each(task))
    assert not [t for t in threading.enumerate() if t.name == "histogram-workers"]


def test_helpers_that_do_not_come_leave_the_caller_working_alone(monkeypatch):
    monkeypatch.setattr(workers, "_GATHERING_SECONDS", 0.05)
    monkeypatch.setattr(workers, "Parallel", lambda **_: lambda _tasks: None)
    assert with_team(3, lambda team: team.size) == 1


def test_nested_in_joblib_it_finishes():
    def fold(_: int) -> list[int]:
        seen: list[int] = []
        with_team(2, lambda team: team.each(seen.append))
        return sorted(seen)

    assert Parallel(n_jobs=2, require="sharedmem")(delayed(fold)(i) for i in range(3)) == [[0, 1]] * 3
