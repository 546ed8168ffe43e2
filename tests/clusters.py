"""Clusters for tests: an engine in memory whose workers come and go, and tasks, which workers import by name."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from rankmill.foundation.cluster.duty import Duty, Ended
from rankmill.foundation.cluster.workers import Cluster
from rankmill.foundation.errors import CandidatesRejected
from rankmill.foundation.options import spelled
from tests import ROOT


def square(number: int, threads: int) -> tuple[int, int]:
    return number * number, os.getpid()


def killed_once(path: Path, threads: int) -> str:
    """Kill the worker, but not a second time."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return path.name
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def refuse(number: int, threads: int) -> int:
    if number in {2, 3}:
        raise CandidatesRejected(f"{number}: see {spelled('max_rejects')}")
    return number


class Killed(Exception):
    """A task has killed its worker."""


class Memory:
    """Workers that do a call when it is asked for; ``looks`` has the workers of each look, the last one for ever."""

    def __init__(self, looks: Sequence[Sequence[str]], seed: int = 0) -> None:
        self._looks = itertools.chain(looks, itertools.repeat(looks[-1]))
        self._random = random.Random(seed)
        self._here: Sequence[str] = ()
        self.running: dict[int, tuple[str, Callable[[Any, int], Any], Any]] = {}
        self.started: list[str] = []

    def workers(self) -> dict[str, int]:
        self._here = next(self._looks)
        return dict.fromkeys(self._here, 1)

    def start(self, call: int, worker: str, duty: Duty, function: Callable[[Any, int], Any], item: Any) -> None:
        assert worker not in {other for other, *_ in self.running.values()}, "a worker has one call at a time"
        self.running[call] = worker, function, item
        self.started.append(worker)

    def ended(self, seconds: float) -> list[Ended]:
        time.sleep(0.01)
        able = [call for call, (worker, *_) in self.running.items() if worker in self._here]
        if not able:
            return []
        call = self._random.choice(able)
        _, function, item = self.running.pop(call)
        try:
            return [Ended(call, function(item, 1))]
        except Killed:
            return [Ended(call, lost=True)]
        except Exception as error:
            return [Ended(call, error=error)]

    def forget(self, call: int) -> None:
        self.running.pop(call, None)

    def close(self) -> None:
        pass


def lose_each_call_once(engine: Memory) -> set[Any]:
    """Let every call be done, lost and done again; return the functions and numbers of the calls that were lost."""
    start, lost = engine.start, set()

    def losing(call: int, worker: str, duty: Duty, function: Callable[[Any, int], Any], item: Any) -> None:
        def work(item: Any, threads: int) -> Any:
            result = function(item, threads)
            if (function, item.number) not in lost:
                lost.add((function, item.number))
                raise Killed
            return result

        start(call, worker, duty, work, item)

    engine.start = losing  # type: ignore[method-assign]
    return lost


def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a cluster look after every call which workers are there."""
    monkeypatch.setattr("rankmill.foundation.cluster.workers._LOOK_SECONDS", 0.0)


def in_memory(*looks: str, seed: int = 0, said: list[str] | None = None) -> tuple[Cluster, Memory]:
    engine = Memory([look.split() for look in looks], seed)
    return Cluster(engine, "memory", (lambda _: None) if said is None else said.append, patience=0.1), engine


@contextmanager
def on(module: str, *looks: str, seed: int = 0) -> Iterator[Memory]:
    """Let ``module`` open a cluster in memory, whatever it asks for."""
    cluster, engine = in_memory(*looks, seed=seed)
    with opened_by(module, cluster):
        yield engine


@contextmanager
def opened_by(module: str, cluster: Cluster) -> Iterator[None]:
    """Let ``module`` open ``cluster``, whatever it asks for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{module}.open_cluster", lambda *_: nullcontext(cluster))
        yield


@contextmanager
def killing_in(function_name: str, cluster: Cluster) -> Iterator[list[int]]:
    """Kill a process of ``cluster`` after the first result of the stage of this function; yield its number, and that of
    others."""
    run, killed = cluster.run, []

    def killing(function, items, folder, **others):  # type: ignore[no-untyped-def]
        results = run(function, items, folder, **others)
        if function.__name__ == function_name and not killed:
            killed.extend(pid for _, (_, pid) in run(square, range(2), folder))
            yield next(results)
            os.kill(killed[0], signal.SIGKILL)
        yield from results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "run", killing)
        yield killed


@contextmanager
def joined_and_killed(
    at_step: int, process: int, once: Path, token: str, number: int, addresses: Sequence[str]
) -> Iterator[Any]:
    """Join a group of Dask workers; process ``process`` kills itself at a step, unless the file ``once`` exists
    already.

    A step is before, or after, an exchange with the others.
    """
    from rankmill.foundation.cluster.dask_peers import joined

    with joined(token, number, addresses) as peers:
        steps = itertools.count()

        def reach() -> None:
            if next(steps) == at_step and number == process and not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        gather, add_up = peers.gather, peers.add_up

        def gather_between(values: Any) -> Any:
            reach()
            found = gather(values)
            reach()
            return found

        def add_up_between(values: Any) -> None:
            reach()
            add_up(values)
            reach()

        peers.gather, peers.add_up = gather_between, add_up_between  # type: ignore[method-assign]
        yield peers


UNPROFILED = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}


@contextmanager
def dask(*arguments: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of Dask, such as ``scheduler``, with ``more`` in its environment."""
    command = [sys.executable, "-m", "dask", *arguments, "--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths, **more}, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
