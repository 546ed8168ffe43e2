"""The machine under the loop: the clock, the signals, and the one process that is a run.

Fit to be process 1 of a container: whatever process is left to us is waited for when it ends, and signals, which such a
process gets none of unless it asks, are asked for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

ASK_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Machine:
    """A `rankmill.schedule.keeping.World`; there is one in a process, for good."""

    def __init__(self) -> None:
        self._signals: list[int] = []
        self._child: int | None = None
        self._ended: int | None = None
        self._pipe, woken = os.pipe()
        for end in (self._pipe, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for signum in ASK_TO_END:
            if signal.getsignal(signum) is not signal.SIG_IGN or signum == signal.SIGTERM:  # nohup ignores SIGHUP
                signal.signal(signum, lambda number, _frame: self._signals.append(number))
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # only a signal with a handler wakes us

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(UTC)

    def passed(self) -> float:
        """Return the seconds of the clock that nobody sets."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Sleep, and let go of every process that has ended meanwhile."""
        if select.select([self._pipe], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._pipe, 4096):
                    pass
        self._let_go()

    def signals(self) -> Sequence[int]:
        """Return the signals that came."""
        return self._signals

    def start(self, arguments: Sequence[str]) -> None:
        """Begin ``rankmill ARGUMENTS`` the way that this process was begun, in a group of its own.

        A group of its own: what is typed at a terminal reaches us alone, and we pass it on once.
        """
        command = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1], *arguments]
        self._child = os.posix_spawn(
            sys.executable,
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            setpgroup=0,
            setsigdef=[*ASK_TO_END, signal.SIGCHLD],
        )

    def ended(self) -> int | None:
        """Return the exit code of the run, once."""
        self._let_go()
        code, self._ended = self._ended, None
        return code

    def send(self, signum: int) -> None:
        """Send a signal to the run alone: what it has begun is its own to end."""
        if self._child is not None:
            os.kill(self._child, signum)

    def kill(self) -> None:
        """Kill the run and whatever is in its group."""
        if self._child is not None:
            _kill_group(self._child)

    def _let_go(self) -> None:
        """Wait for what has ended: the run, and orphans, which are ours where we are process 1."""
        with contextlib.suppress(ChildProcessError):
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = done
                if pid == self._child:
                    self._child, self._ended = None, os.waitstatus_to_exitcode(status)
                    if self._ended < 0:  # killed, it could not end what it had begun
                        _kill_group(pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in it
        os.killpg(pid, signal.SIGKILL)
