"""Run tasks on the workers of a cluster, again on another worker if one is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from rankmill.foundation.cluster.duty import Duty
from rankmill.foundation.cluster.engine import Engine
from rankmill.foundation.cluster.options import cluster_address
from rankmill.foundation.errors import ClusterUnavailable, WorkerLost

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOK_SECONDS = 0.5  # between looks at which workers are there
_PATIENCE_SECONDS = 30.0  # without any worker
_MOST_LOSSES = 3  # of workers by one task


@dataclass(slots=True)
class _Running:
    number: int
    worker: str


class Cluster:
    """The workers of an engine.

    Parameters
    ----------
    engine
        Runs the calls.
    name
        What the user calls the cluster.
    on_loss
        Called with a line about each worker that was lost with a task.
    patience
        Seconds to wait for a worker if there is none.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        on_loss: Callable[[str], object] = lambda _: None,
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._engine, self._name, self._on_loss, self._patience = engine, name, on_loss, patience
        self._calls = count()

    @property
    def size(self) -> int:
        """The number of workers that are there now, but at least 1."""
        return max(1, len(self._engine.workers()))

    def run(
        self, function: Callable[[Item, int], Result], items: Iterable[Item], folder: Path, *, resumes: bool = True
    ) -> Generator[tuple[Item, Result], None, None]:
        """Yield every item with ``function(item, threads)`` as it is done; an item is taken when a worker is free.

        A worker has one item at a time; ``threads`` are its own.  If it is lost, the item is given to another: ``function`` must
        allow to be called twice, also at the same time.  After a failure no further items are taken, but those before it are
        finished: the first failure in the order of the items is raised, for any number of workers.

        Parameters
        ----------
        function, items
            Must be possible to pickle.
        folder
            A folder for output, which all workers must see.
        resumes
            Whether a later run has no need to do again what is done; only errors say it.

        Raises
        ------
        InputError
            A worker has other code or libraries, or does not see ``folder``.
        WorkerLost
            All workers were lost, or one item was lost with several of them.
        ClusterUnavailable
            The cluster does not answer any more.
        """
        duty = Duty.begin(folder)
        running: dict[int, _Running] = {}
        try:
            yield from self._run(function, iter(items), duty, running)
        except (WorkerLost, ClusterUnavailable) as error:
            then = (
                "what is done stays: run the same command again to resume" if resumes else "run the same command again"
            )
            raise type(error)(f"{error}; {then}") from error
        finally:
            duty.end()
            for call in running:
                self._engine.forget(call)

    def _run(
        self, function: Callable[[Item, int], Result], items: Iterator[Item], duty: Duty, running: dict[int, _Running]
    ) -> Generator[tuple[Item, Result], None, None]:
        taken: list[Item | None] = []  # None: done
        losses: dict[int, int] = {}
        again: list[int] = []
        failures: dict[int, BaseException] = {}
        all_taken = False
        here = self._engine.workers()
        looked = time.monotonic()
        empty_since: float | None = None
        while True:
            again = [number for number in again if number < min(failures, default=len(taken))]
            busy = {each.worker for each in running.values()}
            for worker in here:
                if worker in busy:
                    continue
                if again:
                    number = again.pop(0)
                elif all_taken or failures:
                    break
                else:
                    try:
                        taken.append(next(items))
                    except StopIteration:
                        all_taken = True
                        break
                    number = len(taken) - 1
                call = next(self._calls)
                running[call] = _Running(number, worker)
                self._engine.start(call, worker, duty, function, taken[number])
            if not running and not again and (all_taken or failures):
                break
            for end in self._engine.ended(_LOOK_SECONDS):
                each = running.pop(end.call, None)
                if each is None:
                    continue
                if end.lost:
                    self._lost(each, losses, again)
                    looked = 0.0  # now
                elif end.error is not None:
                    failures[each.number] = end.error
                else:
                    item: Any = taken[each.number]
                    taken[each.number] = None
                    yield item, end.result
            if time.monotonic() - looked >= _LOOK_SECONDS:
                here = self._engine.workers()
                looked = time.monotonic()
                for call, each in list(running.items()):
                    if each.worker not in here:
                        self._engine.forget(call)
                        del running[call]
                        self._lost(each, losses, again)
            empty_since = None if here else empty_since or time.monotonic()
            if empty_since is not None and time.monotonic() - empty_since > self._patience:
                raise WorkerLost(f"all workers of {self._name} are gone")
        if failures:
            raise failures[min(failures)]

    def _lost(self, each: _Running, losses: dict[int, int], again: list[int]) -> None:
        losses[each.number] = losses.get(each.number, 0) + 1
        if losses[each.number] >= _MOST_LOSSES:
            raise WorkerLost(
                f"{_MOST_LOSSES} workers of {self._name} were lost, one after another, with the same task, perhaps for lack of"
                " memory"
            )
        again.append(each.number)
        again.sort()
        self._on_loss(f"a worker of {self._name} was lost ({each.worker}); its task runs again")


@contextmanager
def open_cluster(word: str, on_loss: Callable[[str], object] = lambda _: None) -> Iterator[Cluster]:
    """Open the cluster that ``word`` names, ``local:N`` or the address of a scheduler; local workers end with the context.

    Raises
    ------
    InvalidParameter
        ``word`` names no cluster.
    MissingLibrary
        Dask is not installed.
    ClusterUnavailable
        No scheduler answers, or it has no worker.
    """
    address = cluster_address(word)
    from rankmill.foundation.cluster.dask_engine import DaskEngine

    engine = DaskEngine.open(address)
    try:
        if not engine.workers():
            raise ClusterUnavailable(f"{address}: the scheduler has no workers; start some with: dask worker {address}")
        yield Cluster(engine, str(address), on_loss)
    finally:
        engine.close()
