"""End a command in two seconds when it is asked to, and delay that while workers wait for each other.

Python runs the handlers of signals in the main thread, between any two of its steps.  So a handler alone does not end a
command that waits in a library. A thread watches for signals and interrupts running databases. It ends the process if
it still runs after a while.  And an exception between two steps could leave the other workers of a team waiting for
ever in a kernel: there signals are delayed.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self
from weakref import WeakSet

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 1.5
"""Seconds from a signal until the process is ended in any case."""
LAST = 1.7
"""The same where a library keeps the interpreter's lock meanwhile."""
_AGAIN = 0.05  # seconds between two interrupts of databases: one that has just begun would miss the first
_INTERRUPTIBLE: WeakSet[Any] = WeakSet()
_asked: list[int] = []  # exit codes: of a command that has ended, or of the signals


def end_at_once_on_signals() -> None:
    """Let SIGINT and SIGTERM end this process at once, with 130 and 143, as long as there is nothing to remove."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: os._exit(128 + number))


def end_on_signals() -> None:
    """Let SIGINT and SIGTERM end this process in two seconds, with 130 and 143; called in the main thread.

    The stack is unwound by SystemExit, so that temporary files are removed.  If that takes longer than `GRACE`, the
    process is ended: what it has published is complete, and what it was writing is recognised by the next command.
    SIGINT is heeded in the background, too, where a shell without job control has it ignored.
    """
    if signal.getsignal(signal.SIGTERM) is _end:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True).start()
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, _end)


def interruptible(connection: Any) -> None:
    """Have ``connection`` to a database, with a method ``interrupt``, interrupted by a signal, as long as it lives."""
    _INTERRUPTIBLE.add(connection)


def leave(code: int) -> NoReturn:
    """Exit after a command that has ended with ``code``; if a signal has ended it, with the code of that.

    A later signal changes nothing.  After an earlier one the interpreter is not finalised: threads of libraries may
    still run, and libraries whose calls were interrupted would print what they have left.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if not _asked:
        sys.exit(code)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(_asked[0])


def was_asked_to_end() -> bool:
    """Return whether a signal has arrived; an error after it may be only its effect on a library."""
    return bool(_asked)


def stop_if_asked() -> None:
    """Raise SystemExit if a signal has arrived; for loops of other threads, which no handler interrupts."""
    if _asked:
        raise SystemExit(_asked[0])


def _end(number: int, _frame: FrameType | None) -> None:
    """Unwind the stack, quietly; signals meanwhile are ignored."""
    if not _asked:
        _asked.append(128 + number)
        _exit_soon(128 + number)
        sys.unraisablehook = threading.excepthook = _ignore
    elif _is_unwinding():
        return
    stop_if_asked()


def _ignore(_error: object) -> None:
    """Do not print the exception of a finaliser or a thread."""


def _watch(pipe: int) -> None:
    """Wait for a signal, and end the process soon after it."""
    while (number := os.read(pipe, 1)[0]) not in SIGNALS:
        pass
    end = time.monotonic() + GRACE
    _exit_soon(128 + number)
    while (left := end - time.monotonic()) > 0:
        for connection in list(_INTERRUPTIBLE):
            with suppress(Exception):  # closed meanwhile
                connection.interrupt()
        time.sleep(min(left, _AGAIN))
        if not _is_unwinding():  # a library has caught the exception, or the handler has not run yet
            _thread.interrupt_main(signal.Signals(number))
    os._exit(_asked[0] if _asked else 128 + number)


def _is_unwinding() -> bool:
    """Return whether the main thread has not handled a SystemExit yet."""
    found: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)  # noqa: SLF001 - there is no public name
    error = found[1] if isinstance(found, tuple) else found  # Python 3.11: type, error and traceback
    while error is not None and not isinstance(error, SystemExit):
        error = error.__context__
    return error is not None


def _exit_soon(code: int) -> None:
    """Have a timer of the C library end the process, if the library has timers.

    Python threads do not run while a library holds the interpreter's lock.
    """
    with suppress(AttributeError, OSError):
        library, timer = ctypes.CDLL(None), ctypes.c_void_p()
        end = ctypes.cast(library["_exit"], ctypes.c_void_p).value
        # struct sigevent: the value, no signal, SIGEV_THREAD, the function to call with the value, and what is not used
        event = struct.pack("qiiP40x", code, 0, 2, end)
        if library.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)) == 0:
            whole, part = divmod(int(LAST * 1e9), 10**9)
            library.timer_settime(timer, 0, struct.pack("4l", 0, 0, whole, part), None)


class HeldSignals:
    """Context manager that delays signals between :meth:`hold` and :meth:`release`.

    Their handlers run at the release.

    Signals without a Python handler are not affected.  In other threads than the main one nothing is done, since no
    handler runs there.
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
