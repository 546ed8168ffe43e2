"""When runs begin: a cron line in a time zone.  All moments in and out are aware datetimes in UTC.

What a line means is for the library to say (Debian's cron, its days of changing clocks among it): a line with an hour of its
own comes once a day, even where the clocks skip that hour or show it twice; one whose minutes or hours begin with ``*`` goes by
the time that passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from rankmill.foundation.errors import InputError

_SECOND = timedelta(seconds=1)


class Ticks:
    """The moments that a cron line of five fields names.

    Raises
    ------
    InputError
        There is no such time zone, or the line names no moment.
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
        """Yield the moments after ``moment``, each later than the one before."""
        last = moment
        # The library asks for the next wall clock time: where the clocks show an hour twice that may lie behind us, and
        # where they skip one, two times become the same.
        for local in CronSim(self.line, moment.astimezone(self.zone)):
            tick = local.astimezone(UTC)
            if tick > last:
                yield tick
                last = tick

    def latest(self, moment: datetime) -> datetime:
        """Return the last of the moments up to ``moment``, itself among them."""
        past = CronSim(self.line, (moment + _SECOND).astimezone(self.zone), reverse=True)
        return next(tick for tick in (local.astimezone(UTC) for local in past) if tick <= moment)

    def date(self, tick: datetime) -> date:
        """Return the day of ``tick`` in the time zone of the line: the logical date of its run."""
        return tick.astimezone(self.zone).date()

    def spell(self, tick: datetime) -> str:
        """Return ``tick`` as the clocks of the time zone show it."""
        return tick.astimezone(self.zone).isoformat(sep=" ", timespec="minutes")
