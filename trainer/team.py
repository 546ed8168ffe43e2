"""The team of a training: threads of one process that work on one task at a time together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from joblib import Parallel, delayed

from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.interrupts import HeldSignals
from rankmill.foundation.scalars import whole_number
from rankmill.trainer import _kernels

Result = TypeVar("Result")
Task = Callable[[int], object]

LEAST_CELLS = 1_000_000  # rows times features a worker: for less, workers wait for each other longer than they work
CELLS_OF_A_ROW = 30  # gradients, leaves and metrics of a row take as long as so many features
_START_SECONDS = 10.0
_SPINS = 100_000  # spin iterations before letting other threads run: about 50 us, what waking a thread costs
_SPIN_ROUNDS = 40  # such rounds before sleeping between them
_SLEEP_SECONDS = 0.0002
_LINE = 8  # int64 a cache line: every flag has one to itself
_STOPPED = -1
_ABSENT = -2


class Team:
    """``size`` workers; the caller is worker 0 and decides, the others wait for the next task.

    The helpers are started by one ``joblib.Parallel`` call for the whole run, since such a call costs about 10 ms.
    They synchronise by spinning on flags in a kernel without the GIL. On a virtual machine a step of two workers costs
    50 to 100 us. Passing a ``threading.Barrier`` twice costs 150 and more, most of it for waking a thread.  A worker
    that waits for long sleeps, and looks at its flag in between.  A helper that fails raises its exception in
    :meth:`each`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        # flag 0: number of the current task; flag w: number of the last task that worker w has done
        self._flags = np.full(size * _LINE, _ABSENT, dtype=np.int64)
        self._flags[0] = 0
        self._number = 0
        self._task: Task | None = None
        self._busy = size  # workers that have a part in the task
        self._failure: BaseException | None = None
        self.may_spin = size <= available_cores()  # no spinning on a core that another worker needs
        self._spins = _SPINS if self.may_spin else 1
        self.signals = HeldSignals()

    def each(self, task: Task, busy: int | None = None) -> None:
        """Run ``task(worker)`` once for every worker 0 .. busy-1, and wait until they are done.

        By default these are all workers.
        """
        busy = self.size if busy is None else busy
        if busy == 1:
            task(0)
            return
        self.signals.hold()  # until all are done: workers wait for each other inside
        try:
            self._task, self._busy = task, busy
            self._number += 1
            self._post(0, self._number)
            task(0)
            for worker in range(1, self.size):
                if self._next(worker, self._number - 1) == _STOPPED:
                    raise self._failure or RuntimeError("a thread of the team stopped unexpectedly")
        finally:
            self.signals.release()

    def share(self, n: int, least: int, task: Callable[[int, int, int], object]) -> None:
        """Run ``task(first, last, worker)`` so that the ranges make up 0 .. n.

        It uses as many workers as get ``least`` each.
        """
        busy = self.busy(n, least)
        if busy == 1:
            task(0, n, 0)
            return
        self.each(lambda worker: task(worker * n // busy, (worker + 1) * n // busy, worker), busy)

    def busy(self, work: int, least: int) -> int:
        """Return how many workers get ``least`` or more of ``work`` each; 1 if none would."""
        return max(1, min(self.size, work // max(least, 1)))

    def serve(self, worker: int) -> None:
        """Do tasks as ``worker`` (1 .. size-1) until the caller dismisses the team."""
        self._post(worker, 0)
        number = 0
        try:
            while (following := self._next(0, number)) != _STOPPED:
                number = following
                assert self._task is not None  # noqa: S101 - set before its number is posted
                if worker < self._busy:
                    self._task(worker)
                self._post(worker, number)
        except BaseException as error:
            self._failure = error
            self._post(worker, _STOPPED)

    def gather(self) -> None:
        """Wait for the helpers; if they cannot start (joblib nested twice runs calls one by one), work alone."""
        deadline = time.monotonic() + _START_SECONDS
        while any(_kernels.watch(self._flags, worker * _LINE, _ABSENT, 1) == _ABSENT for worker in range(1, self.size)):
            if time.monotonic() > deadline:
                self.dismiss()
                self.size = 1
            time.sleep(_SLEEP_SECONDS)

    def dismiss(self) -> None:
        """Stop the helpers after their current task."""
        self._post(0, _STOPPED)

    def _post(self, worker: int, value: int) -> None:
        _kernels.post(self._flags, worker * _LINE, value)

    def _next(self, worker: int, last: int) -> int:
        """Wait until the flag of ``worker`` differs from ``last`` and return it."""
        rounds = 0
        spins = self._spins
        while (value := int(_kernels.watch(self._flags, worker * _LINE, last, spins))) == last:
            rounds += 1
            spins = self._spins if rounds < _SPIN_ROUNDS else 1
            time.sleep(0.0 if rounds < _SPIN_ROUNDS else _SLEEP_SECONDS)
        return value


def workers_for(n_threads: Any) -> int:
    """Return the number of workers for ``n_threads``; 0: the cores this process may use; InvalidParameter below 0."""
    n_threads = whole_number("n_threads", n_threads)
    if n_threads < 0:
        raise InvalidParameter(f"n_threads must be 0 or more, got {n_threads}")
    return n_threads or available_cores()


def workers_for_rows(n_threads: Any, n_rows: int, n_features: int) -> int:
    """Return the number of workers for a training on so many rows: :func:`workers_for`, or fewer for little work."""
    return max(1, min(workers_for(n_threads), n_rows * (n_features + CELLS_OF_A_ROW) // LEAST_CELLS))


def with_team(n_threads: int, run: Callable[[Team], Result]) -> Result:
    """Call ``run(team)`` in this thread with ``n_threads`` workers in all; the same bits for every ``n_threads``."""
    team = Team(n_threads)
    if n_threads == 1:
        return run(team)

    def employ() -> None:
        # with one helper joblib runs it in this thread, as intended
        Parallel(n_jobs=n_threads - 1, require="sharedmem")(
            delayed(team.serve)(worker) for worker in range(1, n_threads)
        )

    helpers = threading.Thread(target=employ, name="histogram-workers", daemon=True)
    helpers.start()
    try:
        team.gather()
        with team.signals:
            return run(team)
    finally:
        team.dismiss()
        helpers.join(_START_SECONDS)
