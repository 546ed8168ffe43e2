"""A team of threads that lives for one boosting run and meets at a barrier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from joblib import Parallel, delayed

Result = TypeVar("Result")
Task = Callable[[int], object]

_GATHERING_SECONDS = 10.0


class Team:
    """``size`` workers; the caller is worker 0 and decides, the others wait for the next task.

    The helpers are started by one ``joblib.Parallel`` call for the whole run: such a call costs about 10 ms, a meeting
    at a barrier some 15 us.  A helper that fails aborts the barrier, and :meth:`each` raises its exception.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._task: Task | None = None
        self._failure: BaseException | None = None

    def each(self, task: Task) -> None:
        """Run ``task(worker)`` once for every worker 0 .. size-1 and wait for all of them."""
        if self.size == 1:
            task(0)
            return
        self._task = task
        try:
            self._barrier.wait()
            task(0)
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise self._failure or RuntimeError("a histogram worker stopped unexpectedly") from None

    def share(self, n: int, task: Callable[[int, int, int], object]) -> None:
        """Run ``task(first, last, worker)`` so that the ranges of all workers make up 0 .. n; alone where n is small."""
        if self.size == 1 or n < self.size:
            task(0, n, 0)
        else:
            self.each(lambda worker: task(worker * n // self.size, (worker + 1) * n // self.size, worker))

    def serve(self, worker: int) -> None:
        """Wait for tasks as ``worker`` (1 .. size-1) until the caller dismisses the team."""
        try:
            self._barrier.wait(_GATHERING_SECONDS)  # the gathering: everybody is here
            while True:
                self._barrier.wait()
                if self._task is None:
                    return
                self._task(worker)
                self._barrier.wait()
        except threading.BrokenBarrierError:
            return
        except BaseException as error:
            self._failure = error
            self._barrier.abort()

    def gather(self) -> None:
        """Wait for the helpers; where they cannot start (joblib nested twice runs calls one by one), work alone."""
        try:
            self._barrier.wait(_GATHERING_SECONDS)
        except threading.BrokenBarrierError:
            self.size = 1

    def abort(self) -> None:
        """Send everybody home at once: the caller is about to raise."""
        self._barrier.abort()

    def dismiss(self) -> None:
        """Let the helpers go home."""
        if self.size > 1 and not self._barrier.broken:
            self._task = None
            self._barrier.wait()


def with_team(n_threads: int, run: Callable[[Team], Result]) -> Result:
    """Call ``run(team)`` in this thread with ``n_threads`` workers in all; the same bits for every ``n_threads``."""
    team = Team(n_threads)
    if n_threads == 1:
        return run(team)

    def employ() -> None:
        # with one helper joblib runs it in this very thread, which is what is wanted
        Parallel(n_jobs=n_threads - 1, require="sharedmem")(
            delayed(team.serve)(worker) for worker in range(1, n_threads)
        )

    helpers = threading.Thread(target=employ, name="histogram-workers", daemon=True)
    helpers.start()
    team.gather()
    try:
        result = run(team)
        team.dismiss()
    except BaseException:
        team.abort()
        raise
    finally:
        helpers.join(_GATHERING_SECONDS)
    return result
