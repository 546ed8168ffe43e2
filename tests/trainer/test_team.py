"""The team: everybody works, failures surface, nested use does not dead-lock."""

import threading
import time

import pytest
from joblib import Parallel, delayed

from rankmill.trainer import team as workers
from rankmill.trainer.team import with_team, workers_for_rows


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_worker_runs_every_task_once(size):
    done = []
    lock = threading.Lock()

    def run(team):
        for number in range(20):

            def task(worker, number=number):
                with lock:
                    done.append((number, worker))

            team.each(task)
            assert len(done) == (number + 1) * size  # nobody is left behind
        return "result"

    assert with_team(size, run) == "result"
    assert sorted(done) == [(number, worker) for number in range(20) for worker in range(size)]


def test_little_work_has_few_workers(monkeypatch):
    monkeypatch.setattr(workers, "LEAST_CELLS", 1_000_000)
    assert [workers_for_rows(8, n, 20) for n in (1, 13_000, 20_000, 60_000, 10**7)] == [1, 1, 1, 3, 8]
    assert workers_for_rows(1, 10**9, 500) == 1


@pytest.mark.parametrize(("size", "busy"), [(1, 1), (3, 1), (3, 2), (5, 3)])
def test_a_task_for_some_workers_leaves_the_others_out(size, busy):
    def run(team):
        done = []
        for only in (busy, None, busy):
            found = []
            team.each(found.append, only)
            done.append(sorted(found))
        return done

    assert with_team(size, run) == [list(range(busy)), list(range(size)), list(range(busy))]


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_failure_of_any_worker_reaches_the_caller(culprit):
    def task(worker):
        if worker == culprit:
            raise ZeroDivisionError("worker")

    with pytest.raises(ZeroDivisionError, match="worker"):
        with_team(3, lambda team: team.each(task))
    assert not [t for t in threading.enumerate() if t.name == "histogram-workers"]


@pytest.mark.parametrize(("size", "n"), [(1, 10), (2, 10), (3, 10), (3, 2), (3, 5), (4, 7), (5, 9), (2, 0)])
def test_shares_make_up_the_whole(size, n):
    def run(team):
        shares = []
        team.share(n, 2, lambda first, last, _: shares.append((first, last)))
        return sorted(shares)

    shares = with_team(size, run)
    assert len(shares) == max(1, min(size, n // 2))  # as many as get 2 each, not one if not all do
    assert [row for first, last in shares for row in range(first, last)] == list(range(n))


def test_a_worker_that_waits_for_long_still_gets_messages():
    def run(team):
        heard = []
        for pause in (0.0, 0.05, 0.3):
            time.sleep(pause)
            team.each(heard.append)
        return sorted(heard)

    assert with_team(2, run) == [0, 0, 0, 1, 1, 1]


def test_helpers_that_do_not_come_leave_the_caller_working_alone(monkeypatch):
    monkeypatch.setattr(workers, "_START_SECONDS", 0.05)
    monkeypatch.setattr(workers, "Parallel", lambda **_: lambda _tasks: None)
    assert with_team(3, lambda team: team.size) == 1


def test_nested_in_joblib_it_finishes():
    def fold(_):
        seen = []
        with_team(2, lambda team: team.each(seen.append))
        return sorted(seen)

    assert Parallel(n_jobs=2, require="sharedmem")(delayed(fold)(i) for i in range(3)) == [[0, 1]] * 3
