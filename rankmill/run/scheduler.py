"""The loop of ``rankmill schedule``: start runs at their times, never two at once, until a signal ends it.

Time, waiting and processes go through a `Machine`, which tests replace by one with a clock of their own.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from rankmill.foundation.exit_codes import MEANINGS
from rankmill.foundation.units import spell
from rankmill.run.cron import Ticks

LOOK = timedelta(minutes=1)
"""Maximum wait between reads of the clock, which may be set, or stop while the machine sleeps."""


@dataclass(slots=True)
class _Run:
    tick: datetime
    date: date
    begun: float


class Scheduler:
    """Starts ``rankmill run`` at every tick.

    Parameters
    ----------
    ticks
        The times.
    command
        The arguments of ``rankmill`` for a logical date.
    machine
        The clock, the signals and the processes.
    log
        Receives what happens, a line of text each.
    delay
        Delay of each run after its tick.
    grace
        Time that a run has to end after a signal.
    """

    def __init__(
        self,
        ticks: Ticks,
        command: Callable[[date], Sequence[str]],
        machine: Machine,
        log: Callable[[str], None],
        *,
        delay: timedelta = timedelta(0),
        grace: timedelta = timedelta(minutes=1),
    ) -> None:
        self._ticks, self._command, self._machine, self._log = ticks, command, machine, log
        self._delay, self._grace = delay, grace
        self._run: _Run | None = None
        self._seen = machine.now()
        self._later, self._due = self._plan_next()

    def keep(self, *, at_start: bool = False) -> int:
        """Run until a signal arrives; return the exit code, 128 plus its number.

        ``at_start`` begins with the run of the latest past tick, which does nothing if it is complete.
        """
        if at_start and not self._machine.signals():
            self._start(self._ticks.latest(self._seen - self._delay))
        self._log_next()
        while not self._machine.signals():
            self._poll()
            self._machine.wait(min(self._due + self._delay - self._seen, LOOK).total_seconds())
        return 128 + self._shut_down()

    def _poll(self) -> None:
        """Handle the end of a run and due ticks."""
        self._check_ended()
        now = self._machine.now()
        if now < self._seen - LOOK:
            back = self._seen - now
            self._log(f"the clock was set back by {spell(back)}")
            self._seen = now
            self._later, self._due = self._plan_next()
            self._log_next()
        self._seen = now
        tick, left_out = None, -1
        while self._due + self._delay <= now:
            tick, left_out = self._due, left_out + 1
            self._due = next(self._later)
        if tick is None:
            return
        if left_out:
            self._log(f"skipped {left_out} scheduled times before {self._ticks.spell(tick)}")
        if self._run:
            since = self._ticks.spell(self._run.tick)
            self._log(f"skipped {self._ticks.spell(tick)}: the run of {since} is still in progress")
            self._log_next()
        else:
            self._start(tick)

    def _start(self, tick: datetime) -> None:
        day, late = self._ticks.date(tick), self._seen - self._delay - tick
        behind = f", {spell(late)} late" if late > LOOK else ""
        try:
            self._machine.start(self._command(day))
        except OSError as error:  # no memory or process available: the next tick may succeed
            self._log(f"the run of {day} could not start: {error}")
            return
        self._run = _Run(tick, day, self._machine.elapsed())
        self._log(f"run of {day} starts{behind}")

    def _check_ended(self) -> None:
        """If the run has ended, log how."""
        if self._run is None or (code := self._machine.ended()) is None:
            return
        took = timedelta(seconds=self._machine.elapsed() - self._run.begun)
        self._log(f"run of {self._run.date} ended with exit code {_code(code)} after {spell(took)}")
        self._run = None
        if not self._machine.signals():
            self._log_next()

    def _shut_down(self) -> int:
        """Stop the current run, and return the signal that caused it."""
        signum = self._machine.signals()[0]
        name = signal.Signals(signum).name
        self._check_ended()
        if self._run is None:
            self._log(f"{name}: no run is in progress; exiting")
            return signum
        self._log(f"{name}: the run of {self._run.date} has {spell(self._grace)} to end")
        self._machine.send(signum)
        until = self._machine.elapsed() + self._grace.total_seconds()
        while self._run and len(self._machine.signals()) < 2 and (left := until - self._machine.elapsed()) > 0:
            self._machine.wait(left)
            self._check_ended()
        if self._run:
            self._log("the run did not end in time: killed")
            self._machine.kill()
            self._check_ended()
            for _ in range(10):  # a process that hangs in the kernel cannot be killed
                if self._run:
                    self._machine.wait(1)
                    self._check_ended()
        return signum

    def _plan_next(self) -> tuple[Iterator[datetime], datetime]:
        """Return the coming times, and the first of them."""
        later = self._ticks.after(self._seen - self._delay)
        return later, next(later)

    def _log_next(self) -> None:
        if self._run is None:
            at = self._due + self._delay
            self._log(f"next run at {self._ticks.spell(at)}")


def _code(code: int) -> str:
    if code < 0:
        perhaps = ", perhaps out of memory" if -code == signal.SIGKILL else ""
        return f"{128 - code}: killed by {signal.Signals(-code).name}{perhaps}"
    return f"{code}: {MEANINGS.get(code, 'unknown')}"


ASK_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Machine:
    """Clock, signals and the process of the run; create only one per process.

    It works as process 1 of a container: it reaps orphaned processes, and installs handlers for signals, which such a process
    does not get otherwise.
    """

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
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # only a signal with a handler interrupts the wait

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(UTC)

    def elapsed(self) -> float:
        """Return the seconds of the monotonic clock."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Sleep, and reap every process that has ended meanwhile."""
        if select.select([self._pipe], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._pipe, 4096):
                    pass
        self._reap()

    def signals(self) -> Sequence[int]:
        """Return the signals received."""
        return self._signals

    def start(self, arguments: Sequence[str]) -> None:
        """Start ``rankmill ARGUMENTS`` with the same interpreter, in a new process group.

        Because of the new group, Ctrl-C at a terminal reaches only this process, which passes it on once.
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
        self._reap()
        code, self._ended = self._ended, None
        return code

    def send(self, signum: int) -> None:
        """Send a signal to the run only, which ends its own children."""
        if self._child is not None:
            os.kill(self._child, signum)

    def kill(self) -> None:
        """Kill the run and its process group."""
        if self._child is not None:
            _kill_group(self._child)

    def _reap(self) -> None:
        """Reap ended processes: the run and, as process 1, orphans."""
        with contextlib.suppress(ChildProcessError):
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = done
                if pid == self._child:
                    self._child, self._ended = None, os.waitstatus_to_exitcode(status)
                    if self._ended < 0:  # killed, so it could not end its children
                        _kill_group(pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(pid, signal.SIGKILL)
