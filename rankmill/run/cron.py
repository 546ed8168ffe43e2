"""Times of scheduled runs: a cron expression in a time zone.  All datetimes are aware and in UTC.

The library defines the meaning, as in Debian's cron, also when clocks change: an expression with a fixed hour runs once a day,
even if the clocks skip or repeat that hour; one whose minutes or hours begin with ``*`` follows elapsed time.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from rankmill.foundation.errors import ConfigError, InputError

if TYPE_CHECKING:
    import typer

_SECOND = timedelta(seconds=1)


class Ticks:
    """The times of a cron expression with five fields.

    Raises
    ------
    InputError
        The time zone or the expression is invalid.
    """

    def __init__(self, line: str, timezone: str = "UTC") -> None:
        try:
            self.zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise InputError(
                f"--timezone: unknown {timezone!r}; expected a name such as UTC or Europe/Berlin"
            ) from None
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
        past = CronSim(self.line, (moment + _SECOND).astimezone(self.zone), reverse=True)
        return next(tick for tick in (local.astimezone(UTC) for local in past) if tick <= moment)

    def date(self, tick: datetime) -> date:
        """Return the day of ``tick`` in the time zone: the logical date of its run."""
        return tick.astimezone(self.zone).date()

    def spell(self, tick: datetime) -> str:
        """Format ``tick`` in local time of the time zone."""
        return tick.astimezone(self.zone).isoformat(sep=" ", timespec="minutes")


_CHECK = """
import sys
sys.path[:] = sys.argv[2:]
from pathlib import Path
from rankmill.config_file import read_config
from rankmill.foundation.errors import ConfigError, InputError
try:
    read_config(Path(sys.argv[1]))
except (ConfigError, InputError) as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True, slots=True)
class RunCommand:
    """The arguments of ``rankmill run`` without the date."""

    arguments: tuple[str, ...]
    config: str

    @classmethod
    def parse(cls, context: typer.Context) -> RunCommand:
        """Parse the arguments of the schedule that are meant for ``run``.

        Raises
        ------
        click.UsageError
            ``rankmill run`` has no such option or value.
        InputError
            The option is not allowed in a schedule.
        """
        root = context.find_root()
        command = root.command.commands["run"]  # type: ignore[attr-defined]  # the root is a group
        parsed = command.make_context("run", list(context.args), parent=root).params
        for name in ("date", "plan"):
            if parsed.get(name):
                raise InputError(f"--{name} cannot be used with schedule: each run has the date of its scheduled time")
        return cls(tuple(context.args), os.fspath(parsed["config"]))

    def for_date(self, day: date) -> Sequence[str]:
        """Return the arguments of ``rankmill`` for the run of the date ``day``."""
        return ["run", *self.arguments, "--date", day.isoformat()]

    def check_file(self) -> None:
        """Raise InputError if there is no such configuration."""
        if not os.path.isfile(self.config):  # noqa: PTH113  pathlib is no part of a small process
            raise InputError(f"{self.config}: no such file; name the configuration of the runs")

    def check(self) -> None:
        """Check the configuration in a separate process, so that this one stays small.

        Raises
        ------
        ConfigError
            The configuration is invalid; without this check only the first run would report it.
        """
        process = subprocess.run(  # noqa: S603  # our own interpreter
            [sys.executable, "-c", _CHECK, self.config, *sys.path], stderr=subprocess.PIPE, text=True, check=False
        )
        if process.returncode:
            raise ConfigError(process.stderr.strip())


def keyed_delay(most: int, key: str) -> int:
    """Return a delay of 0 to ``most`` seconds that depends only on ``key`` and the host."""
    digest = sha256(f"{socket.gethostname()}\0{key}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") % (most + 1)
