"""Stand between the registry and its disk: every call goes through a function of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from rankmill.foundation.storage.disk import Disk
from rankmill.registry.model_registry import Registry
from tests.registry.model_disk import ROOT, Machine, ModelDisk

CALLS = tuple(name for name, member in vars(Disk).items() if callable(member) and not name.startswith("_"))
"""The system calls that the registry makes, each a method of its disk."""

Around = Callable[..., object]
"""Called with the name of the call, the call and its arguments; what it returns is the answer."""


class Interposed(Disk):
    """Hands each call on ``disk`` to ``around``."""

    def __init__(self, disk: Disk, around: Around) -> None:
        for name in CALLS:
            setattr(self, name, partial(around, name, getattr(disk, name)))


class Killed(BaseException):
    """The process is gone: it catches nothing any more and calls nothing any more."""


class Writer:
    """One process at work on a machine, which makes its next call on the disk when it is asked to and not before."""

    def __init__(
        self,
        machine: Machine | None,
        work: Callable[[Registry], object],
        disk: ModelDisk | None = None,
        opened: Callable[[Around], Registry] | None = None,
    ) -> None:
        self.next = ""
        self.about: object = None
        """The first argument of that call."""
        self.done = False
        self.result: object = None
        self.error: BaseException | None = None
        self._killed = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        if opened is None:
            assert machine is not None
            registry = Registry(ROOT, disk=Interposed(disk or ModelDisk(machine), self._wait))
        else:
            registry = opened(self._wait)
        self._thread = threading.Thread(target=self._run, args=(registry, work), daemon=True)
        self._thread.start()
        self._stopped.acquire()

    def step(self, calls: int = 1) -> bool:
        """Make ``calls`` calls, or as many as there are; return whether there are more."""
        for _ in range(calls):
            if self.done:
                break
            self._go.release()
            self._stopped.acquire()
        return not self.done

    def finish(self) -> None:
        """Make all calls that are left."""
        while self.step():
            pass

    def kill(self) -> None:
        """Die before the next call."""
        self._killed = True
        self.finish()

    def _run(self, registry: Registry, work: Callable[[Registry], object]) -> None:
        try:
            self.result = work(registry)
        except BaseException as error:
            self.error = error
        self.done = True
        self._stopped.release()

    def _wait(self, name: str, call: Callable[..., object], *arguments: object, **named: object) -> object:
        if not self._killed:
            self.next, self.about = name, arguments[0]
            self._stopped.release()
            self._go.acquire()
        if self._killed:
            raise Killed
        return call(*arguments, **named)
