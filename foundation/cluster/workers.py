"""Run tasks on the workers of a cluster, again on another worker if one is lost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rankmill.foundation.cluster.duty import Duty
from rankmill.foundation.errors import ClusterUnavailable, WorkerLost
from rankmill.foundation.options import spelled_alike

if TYPE_CHECKING:
    from rankmill.foundation.cluster.dask_engine import DaskEngine
    from rankmill.foundation.cluster.dask_peers import DaskPeers, Join

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOK_SECONDS = 0.5  # between looks at which workers are there
_PATIENCE_SECONDS = 30.0  # without any worker
_MOST_LOSSES = 3  # of workers by one task
_MOST_LOSSES_TOGETHER = 5  # of workers that work together, one after another without progress
_FAREWELL_SECONDS = 2.0  # of the others, when the first has its result
_JOIN_SECONDS = 20.0  # before a worker that joins makes all others start again

TASKS_A_WORKER = 4
"""Tasks of a stage for each worker: enough that waiting for the last one is short."""


@dataclass(frozen=True, slots=True)
class Member(Generic[Item]):
    """One of the peers of :meth:`Cluster.together`, and what all of them are given."""

    group: str
    number: int
    workers: tuple[str, ...]
    join: Join
    item: Item

    def peers(self) -> AbstractContextManager[DaskPeers]:
        """Join the group, in the worker."""
        return self.join(self.group, self.number, self.workers)


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
        engine: DaskEngine,
        name: str,
        on_loss: Callable[[str], object] = lambda _: None,
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._engine, self._name, self._on_loss, self._patience = engine, name, on_loss, patience
        self._calls = count()

    @property
    def engine(self) -> DaskEngine:
        """What runs the calls."""
        return self._engine

    @property
    def size(self) -> int:
        """The number of workers that are there now, but at least 1."""
        return max(1, len(self._engine.workers()))

    @property
    def is_here(self) -> bool:
        """Whether the workers are processes that were started on this machine."""
        return self._name.startswith("local:")

    def workers(self) -> Mapping[str, int]:
        """Return the threads of each present worker, by name; ClusterUnavailable if the scheduler does not answer."""
        return self._engine.workers()

    def run(
        self, function: Callable[[Item, int], Result], items: Iterable[Item], folder: Path, *, resumes: bool = True
    ) -> Generator[tuple[Item, Result], None, None]:
        """Yield every item with ``function(item, threads)`` as it is done; an item is taken when a worker is free.

        A worker has one item at a time; ``threads`` are its own.  If it is lost, the item is given to another:
        ``function`` must allow to be called twice, also at the same time.  After a failure no further items are taken,
        but those before it are finished: the first failure in the order of the items is raised, for any number of
        workers.

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
        running: dict[int, tuple[int, str]] = {}  # by call: the number of the item, and the worker
        with Duty.shared(folder) as duty, _then(resumes=resumes):
            try:
                yield from self._run(spelled_alike(function), iter(items), duty, running)
            finally:
                for call in running:
                    self._engine.forget(call)

    def _run(
        self,
        function: Callable[[Item, int], Result],
        items: Iterator[Item],
        duty: Duty,
        running: dict[int, tuple[int, str]],
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
            busy = {worker for _, worker in running.values()}
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
                running[call] = number, worker
                self._engine.start(call, worker, duty, function, taken[number])
            if not running and not again and (all_taken or failures):
                break
            for end in self._engine.ended(_LOOK_SECONDS):
                if end.call not in running:
                    continue
                number, worker = running.pop(end.call)
                if end.lost:
                    self._lost(number, worker, losses, again)
                    looked = 0.0  # now
                elif end.error is not None:
                    failures[number] = end.error
                else:
                    item: Any = taken[number]
                    taken[number] = None
                    yield item, end.result
            if time.monotonic() - looked >= _LOOK_SECONDS:
                here = self._engine.workers()
                looked = time.monotonic()
                for call, (number, worker) in list(running.items()):
                    if worker not in here:
                        self._engine.forget(call)
                        del running[call]
                        self._lost(number, worker, losses, again)
            empty_since = None if here else empty_since or time.monotonic()
            if empty_since is not None and time.monotonic() - empty_since > self._patience:
                raise WorkerLost(f"all workers of {self._name} are gone")
        if failures:
            raise failures[min(failures)]

    def together(
        self,
        function: Callable[[Member[Item], int], Result],
        item: Callable[[], Item],
        folder: Path,
        on_message: Callable[[bytes], object] = lambda _: None,
        *,
        resumes: bool = True,
    ) -> Result:
        """Call ``function`` on all workers at once, as peers; return the result of the first.

        If a worker is lost, or another one joins, the others are asked to stop, and all present workers then start
        again:
        ``function`` must find what it has done before.

        Parameters
        ----------
        function
            Called with the :class:`Member` that the worker is, and its threads.
        item
            Returns what all members get, whenever they begin; it must be possible to pickle, as ``function``.
        folder
            A folder that all workers must see.
        on_message
            Called with each message of a peer; returns true if it is progress, which sets the count of losses to 0.
        resumes
            As in :meth:`run`.

        Errors as :meth:`run`.
        """
        function, losses = spelled_alike(function), 0
        with _then(resumes=resumes):
            while True:
                here = self._wait_for_workers()
                group = secrets.token_hex(8)
                self._engine.words(group)
                calls: dict[int, int] = {}
                given = item()
                results: dict[int, Result] = {}
                progress = False

                def note(word: bytes) -> None:
                    nonlocal progress
                    progress |= bool(on_message(word))

                with Duty.shared(folder) as duty:
                    try:
                        for number, worker in enumerate(here):
                            member = Member(group, number, tuple(here), self._engine.join(), given)
                            call = next(self._calls)
                            calls[call] = number
                            self._engine.start(call, worker, duty, function, member)
                        failure, lost = self._watch(group, calls, here, results, note)
                    finally:
                        for call in calls:
                            self._engine.forget(call)
                if failure is not None:
                    raise failure
                if not lost:
                    return results[0]
                losses = 1 if progress else losses + 1
                if losses >= _MOST_LOSSES_TOGETHER:
                    raise WorkerLost(
                        f"a worker of {self._name} was lost {losses} times in turn, perhaps for lack of memory"
                    )

    def _watch(
        self,
        group: str,
        calls: dict[int, int],
        here: Mapping[str, int],
        results: dict[int, Result],
        on_message: Callable[[bytes], object],
    ) -> tuple[BaseException | None, bool]:
        """Wait for all calls of a group; return a failure, and whether a worker was lost or has joined."""
        names, began, looked = list(here), time.monotonic(), 0.0
        done: float | None = None  # when the first had its result
        while True:
            ended = self._engine.ended(_LOOK_SECONDS)
            for word in self._engine.words(group):
                on_message(word)
            failures: dict[int, BaseException] = {}
            lost = ""
            for end in ended:
                number = calls.pop(end.call, None)
                if number is None:
                    continue
                if end.lost:
                    lost = f"a worker of {self._name} was lost ({names[number]}); the others continue"
                elif isinstance(end.error, ConnectionError):
                    lost = f"{end.error}; all workers start again"
                elif end.error is not None:
                    failures[number] = end.error
                else:
                    results[number] = end.result
            if 0 in results:  # the others may still clean up
                done = done or time.monotonic()
                if not calls or time.monotonic() - done > _FAREWELL_SECONDS:
                    return None, False
                continue
            if failures:
                return failures[min(failures)], False
            if not lost and time.monotonic() - looked >= _LOOK_SECONDS:
                looked = time.monotonic()
                now = self._engine.workers()
                if gone := [names[number] for number in calls.values() if names[number] not in now]:
                    lost = f"a worker of {self._name} was lost ({', '.join(gone)}); the others continue"
                added = [name for name in now if name not in here]
                if not lost and added and looked - began >= _JOIN_SECONDS:
                    lost = f"{', '.join(added)} joined {self._name}; the work is divided among all workers again"
            if lost:
                self._on_loss(lost)
                return None, True

    def _wait_for_workers(self) -> Mapping[str, int]:
        """Return the workers once there are some; WorkerLost if there are none for long."""
        until = time.monotonic() + self._patience
        while not (here := self._engine.workers()):
            if time.monotonic() > until:
                raise WorkerLost(f"all workers of {self._name} are gone")
            time.sleep(min(_LOOK_SECONDS, 0.1))
        return here

    def _lost(self, number: int, worker: str, losses: dict[int, int], again: list[int]) -> None:
        losses[number] = losses.get(number, 0) + 1
        if losses[number] >= _MOST_LOSSES:
            raise WorkerLost(
                f"{_MOST_LOSSES} workers of {self._name} were lost, one after another, with the same task, perhaps "
                "for lack of memory"
            )
        again.append(number)
        again.sort()
        self._on_loss(f"a worker of {self._name} was lost ({worker}); its task runs again")


@contextmanager
def _then(*, resumes: bool) -> Iterator[None]:
    """Let errors of a cluster that is lost say what to do."""
    try:
        yield
    except (WorkerLost, ClusterUnavailable) as error:
        then = "what is done stays: run the same command again to resume" if resumes else "run the same command again"
        raise type(error)(f"{error}; {then}") from error


@contextmanager
def open_cluster(where: Any, on_loss: Callable[[str], object] = lambda _: None) -> Iterator[Cluster]:
    """Open the cluster ``where``: ``local:N`` or the address of a scheduler.

    Local workers end with the context.

    Or ``where`` is a Dask ``Client`` or an open cluster, which stay open.

    Raises
    ------
    InvalidParameter
        The text names no cluster.
    InputError
        The client is asynchronous, or its workers are threads of this process.
    MissingLibrary
        Dask is not installed.
    ClusterUnavailable
        No scheduler answers, or it has no worker.
    """
    if isinstance(where, Cluster):
        yield where
        return
    from rankmill.foundation.cluster.dask_engine import DaskEngine

    engine = DaskEngine.open(where) if isinstance(where, str) else DaskEngine.of_client(where)
    try:
        if not engine.workers():
            raise ClusterUnavailable(
                f"{engine.name}: the scheduler has no workers; start some with: dask worker {engine.name}"
            )
        yield Cluster(engine, engine.name, on_loss)
    finally:
        engine.close()
