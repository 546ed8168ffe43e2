"""Delay interrupts and termination signals while workers wait for each other.

Python runs the handlers of signals in the main thread, between any two of its steps: an exception there could leave the
other workers of a team waiting for ever in a kernel.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class HeldSignals:
    """Context manager; between :meth:`hold` and :meth:`release` signals are delayed, and their handlers run at the release.

    Signals without a Python handler are not affected.  In other threads than the main one nothing is done, since no handler
    runs there.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._holding = False
        self._waiting: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            # a handler that was installed meanwhile stays
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)

    def hold(self) -> None:
        """Delay signals from now on."""
        self._holding = True

    def release(self) -> None:
        """Deliver the delayed signals."""
        self._holding = False
        while self._waiting:
            number = self._waiting.pop(0)
            self._handlers[number](number, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._holding:
            self._waiting.append(number)
        else:
            self._handlers[number](number, frame)
