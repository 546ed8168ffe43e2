"""Start runs at the times of a cron expression, never two at once, until a signal ends it: ``rankmill schedule``.

All datetimes are aware and in UTC.  Clock, signals and processes are those of a `Machine`, which tests replace by one
of their own.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from rankmill.foundation.errors import InputError
from rankmill.foundation.exit_codes import MEANINGS
from rankmill.foundation.units import spell

if TYPE_CHECKING:
    import typer

LOOK = timedelta(minutes=1)
"""Maximum wait between reads of the clock, which may be set, or stop while the machine sleeps."""
ASK_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Ticks:
    """The times of a cron expression with five fields in a time zone; InputError if one of the two is invalid.

    The library defines the meaning, as in Debian's cron, also when clocks change. An expression with a fixed hour runs
    once a day, even if the clocks skip or repeat that hour. One whose minutes or hours begin with ``*`` follows elapsed
    time.
    """

    def __init__(self, line: str, timezone: str = "UTC") -> None:
        try:
            self.zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            expected = "expected a name such as UTC or Europe/Berlin"
            raise InputError(f"--timezone: unknown {timezone!r}; {expected}") from None
        self.line = line
        expected = "expected five fields: minute, hour, day of the month, month, day of the week, such as '0 2 * * *'"
        if (count := len(line.split())) != 5:
            raise InputError(f"--cron {line!r}: {expected}; found {count}")
        try:
            first = next(self.after(datetime(2000, 1, 1, tzinfo=UTC)), None)
        except CronSimError as error:
            raise InputError(f"--cron {line!r}: {expected}; found a {str(error).lower()}") from None
        if first is None:
            raise InputError(f"--cron {line!r}: there is no such day; {expected}")

    def __str__(self) -> str:
        return f"{CronSim(self.line, datetime(2000, 1, 1)).explain()} ({self.zone.key})"

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the times after ``moment``, ascending."""
        last = moment
        # The library computes the next wall clock time: if the clocks repeat an hour it may be in the past, and if they
        # skip one, two times may be equal.
        for local in CronSim(self.line, moment.astimezone(self.zone)):
            tick = local.astimezone(UTC)
            if tick > last:
                yield tick
                last = tick

    def latest(self, moment: datetime) -> datetime:
        """Return the latest time up to and including ``moment``."""
        past = CronSim(self.line, (moment + timedelta(seconds=1)).astimezone(self.zone), reverse=True)
        return next(tick for tick in (local.astimezone(UTC) for local in past) if tick <= moment)

    def date(self, tick: datetime) -> date:
        """Return the day of ``tick`` in the time zone: the logical date of its run."""
        return tick.astimezone(self.zone).date()

    def spell(self, tick: datetime) -> str:
        """Format ``tick`` in local time of the time zone."""
        return tick.astimezone(self.zone).isoformat(sep=" ", timespec="minutes")


def run_command(context: typer.Context) -> tuple[str, Callable[[date], Sequence[str]]]:
    """Return the configuration in the arguments for ``run``, and a function.

    The function turns a date into all arguments of ``rankmill``.

    Raises
    ------
    click.UsageError
        ``rankmill run`` has no such option or value.
    InputError
        The option is not allowed in a schedule, or there is no such configuration.
    """
    root = context.find_root()
    command = root.command.commands["run"]  # type: ignore[attr-defined]  # the root is a group
    parsed = command.make_context("run", list(context.args), parent=root).params
    for name in ("date", "plan"):
        if parsed.get(name):
            raise InputError(f"--{name} cannot be used with schedule: each run has the date of its scheduled time")
    config = os.fspath(parsed["config"])
    if not os.path.isfile(config):  # noqa: PTH113  pathlib is no part of a small process
        raise InputError(f"{config}: no such file; name the configuration of the runs")
    return config, lambda day: ["run", *context.args, "--date", day.isoformat()]


class _Run(NamedTuple):
    tick: datetime
    date: date
    began: float


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
        grace: timedelta = timedelta(minutes=1),
    ) -> None:
        self._ticks, self._command, self._machine, self._log, self._grace = ticks, command, machine, log, grace
        self._run: _Run | None = None
        self._plan()

    def keep(self, *, at_start: bool = False) -> int:
        """Run until a signal arrives; return the exit code, 128 plus its number.

        ``at_start`` begins with the run of the latest past tick, which does nothing if it is complete.
        """
        machine, signals = self._machine, self._machine.signals
        if at_start and not signals():
            self._start(self._ticks.latest(self._seen))
        self._log_next()
        while not signals():
            self._poll()
            machine.wait(min(self._due - self._seen, LOOK).total_seconds())
        signum = signals()[0]
        self._check_ended()
        if self._run is None:
            self._log(f"{signal.Signals(signum).name}: no run is in progress; exiting")
            return 128 + signum
        self._log(f"{signal.Signals(signum).name}: the run of {self._run.date} has {spell(self._grace)} to end")
        machine.send(signum)
        self._wait_for_end(self._grace.total_seconds(), signals=1)
        if self._run is not None:
            self._log("the run did not end in time: killed")
            machine.kill()
            self._check_ended()
            self._wait_for_end(10.0)  # a process that hangs in the kernel cannot be killed
        return 128 + signum

    def _plan(self) -> None:
        self._seen = self._machine.now()
        self._later = self._ticks.after(self._seen)
        self._due = next(self._later)

    def _poll(self) -> None:
        """Handle the end of a run and due ticks; of several that are due, only the last one counts."""
        self._check_ended()
        now = self._machine.now()
        if now < self._seen - LOOK:
            self._log(f"the clock was set back by {spell(self._seen - now)}")
            self._plan()
            self._log_next()
        self._seen = now
        due = []
        while self._due <= now:
            due.append(self._due)
            self._due = next(self._later)
        if len(due) > 1:
            self._log(f"skipped {len(due) - 1} scheduled times before {self._ticks.spell(due[-1])}")
        if due and self._run:
            since = self._ticks.spell(self._run.tick)
            self._log(f"skipped {self._ticks.spell(due[-1])}: the run of {since} is still in progress")
        elif due:
            self._start(due[-1])

    def _start(self, tick: datetime) -> None:
        day, late = self._ticks.date(tick), self._seen - tick
        try:
            self._machine.start(self._command(day))
        except OSError as error:  # no memory or process available: the next tick may succeed
            self._log(f"the run of {day} could not start: {error}")
            return
        self._run = _Run(tick, day, self._machine.elapsed())
        self._log(f"run of {day} starts" + (f", {spell(late)} late" if late > LOOK else ""))

    def _check_ended(self) -> None:
        """If the run has ended, log how."""
        if self._run is None or (code := self._machine.ended()) is None:
            return
        took = timedelta(seconds=self._machine.elapsed() - self._run.began)
        meaning = MEANINGS.get(code, "unknown")
        if code < 0:
            meaning = f"killed by {signal.Signals(-code).name}" + ", perhaps out of memory" * (-code == signal.SIGKILL)
        shown = 128 - code if code < 0 else code
        self._log(f"run of {self._run.date} ended with exit code {shown}: {meaning} after {spell(took)}")
        self._run = None
        if not self._machine.signals():
            self._log_next()

    def _wait_for_end(self, seconds: float, signals: int = sys.maxsize) -> None:
        """Wait for the run to end, and not longer than ``seconds`` or until more ``signals`` have arrived."""
        until = self._machine.elapsed() + seconds
        while self._run and len(self._machine.signals()) <= signals and (left := until - self._machine.elapsed()) > 0:
            self._machine.wait(left)
            self._check_ended()

    def _log_next(self) -> None:
        if self._run is None:
            self._log(f"next run at {self._ticks.spell(self._due)}")


class Machine:
    """Clock, signals and the process of the run; create only one per process."""

    def __init__(self) -> None:
        self._signals: list[int] = []
        self._child: subprocess.Popen[bytes] | None = None
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
        """Sleep until a signal arrives or a process ends, and not longer than ``seconds``."""
        if select.select([self._pipe], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._pipe, 4096):
                    pass

    def signals(self) -> Sequence[int]:
        """Return the signals received."""
        return self._signals

    def start(self, arguments: Sequence[str]) -> None:
        """Start ``rankmill ARGUMENTS`` with the same interpreter, in a new process group.

        Because of the new group, Ctrl-C at a terminal reaches only this process, which passes it on once.
        """
        command = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1], *arguments]
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603  our own

    def ended(self) -> int | None:
        """Return the exit code of the run, once."""
        child = self._child
        if child is None or (code := child.poll()) is None:
            return None
        if code < 0:  # killed, so it could not end its children
            self.kill()
        self._child = None
        return code

    def send(self, signum: int) -> None:
        """Send a signal to the run only, which ends its own children."""
        if self._child is not None:
            self._child.send_signal(signum)

    def kill(self) -> None:
        """Kill the run and its process group."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty
                os.killpg(self._child.pid, signal.SIGKILL)
