"""An engine whose workers are threads that work together, and that can be lost at any step of what they do together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rankmill.foundation.cluster.duty import Duty, Ended, Unwanted
from rankmill.foundation.cluster.workers import Cluster, Member


class Lost(BaseException):
    """This worker is gone."""


class _Group:
    def __init__(self, size: int) -> None:
        self.given: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)


class ThreadPeers:
    """Peers of one thread; ``at_step(worker, step)`` is called before and after every exchange and may raise Lost."""

    seconds_waited = 0.0

    def __init__(self, engine: Threads, group: _Group, number: int, workers: Sequence[str], name: str) -> None:
        self.number, self.size = number, len(workers)
        self._engine, self._group, self._worker, self._name = engine, group, workers[number], name
        self.exchanges, self.bytes_sent, self._step = 0, 0, 0

    def notify(self, word: bytes) -> None:
        self._engine.reported.setdefault(self._name, queue.SimpleQueue()).put(word)

    def gather(self, values: np.ndarray) -> list[np.ndarray]:
        self._reach()
        self.exchanges += 1
        self._group.given[self.number] = values.copy()
        self._meet()
        found = list(self._group.given)
        self._meet()
        self._reach()
        return found

    def add_up(self, values: np.ndarray) -> None:
        values[:] = np.sum(self.gather(values), axis=0)

    def _reach(self) -> None:
        step, self._step = self._step, self._step + 1
        self._engine.at_step(self._worker, step)

    def _meet(self) -> None:
        try:
            self._group.barrier.wait(60)
        except threading.BrokenBarrierError:
            raise Unwanted from None


class Threads:
    """An engine in memory; workers are lost when ``at_step`` raises Lost in them."""

    def __init__(self, *workers: str, at_step: Callable[[str, int], object] = lambda _, __: None) -> None:
        self.here, self.at_step = list(workers), at_step
        self.groups: dict[str, _Group] = {}
        self.reported: dict[str, queue.SimpleQueue[bytes]] = {}
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._calls: dict[int, tuple[_Group, threading.Thread]] = {}
        self.started: list[tuple[str, ...]] = []

    def workers(self) -> dict[str, int]:
        return dict.fromkeys(self.here, 1)

    def join(self) -> Callable[[str, int, Sequence[str]], Any]:
        @contextmanager
        def joined(name: str, number: int, workers: Sequence[str]) -> Iterator[ThreadPeers]:
            yield ThreadPeers(self, self.groups[name], number, workers, name)

        return joined

    def words(self, group: str) -> list[bytes]:
        heard = self.reported.setdefault(group, queue.SimpleQueue())
        return [heard.get() for _ in range(heard.qsize())]

    def start(self, call: int, worker: str, duty: Duty, function: Callable[[Any, int], Any], item: Any) -> None:
        assert isinstance(item, Member)
        group = self.groups.setdefault(item.group, _Group(len(item.workers)))
        if item.number == 0:
            self.started.append(item.workers)

        def work() -> None:
            try:
                self._ended.put(Ended(call, function(item, 1)))
            except Lost:
                self.here.remove(worker)
                self._ended.put(Ended(call, lost=True))
            except Unwanted:
                pass
            except Exception as error:
                self._ended.put(Ended(call, error=error))

        thread = threading.Thread(target=work)
        self._calls[call] = group, thread
        thread.start()

    def ended(self, seconds: float) -> list[Ended]:
        try:
            return [self._ended.get(timeout=max(seconds, 0.01))]
        except queue.Empty:
            return []

    def forget(self, call: int) -> None:
        if call in self._calls:
            group, thread = self._calls.pop(call)
            group.barrier.abort()
            thread.join()

    def is_asked_to_stop(self) -> bool:
        """Whether a group was given up."""
        return any(group.barrier.broken for group in list(self.groups.values()))

    def close(self) -> None:
        pass


def in_threads(
    *workers: str, at_step: Callable[[str, int], object] = lambda _, __: None, said: list[str] | None = None
) -> tuple[Cluster, Threads]:
    """Return a cluster of threads, and its engine."""
    engine = Threads(*workers, at_step=at_step)
    return Cluster(engine, "threads", (lambda _: None) if said is None else said.append, patience=0.1), engine
