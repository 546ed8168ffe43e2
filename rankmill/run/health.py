"""Check from the files in a work folder whether its runs succeed: the work of ``rankmill health``.

A run succeeds with exit code 0, even if there was nothing to do, with 11 (the gate failed and the current version
stays) or 12 (drift).  All other codes need attention.  This module loads no heavy library, as health checks run every
few minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from json import dumps
from pathlib import Path

from rankmill.foundation.errors import InputError, Unhealthy
from rankmill.foundation.records import as_json
from rankmill.foundation.units import spell
from rankmill.run import LAST_RUN, LAST_SUCCESS
from rankmill.run.last_run import LastRun
from rankmill.run.run_lock import holder_of, left_behind

WORKED = {0: "done", 11: "gate not passed", 12: "drift"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of the runs of a work folder."""

    work: Path
    max_age: timedelta
    worked: LastRun | None
    """Record of the last successful run; None if there is none."""
    last: LastRun | None
    """Record of the last run that ended."""
    age: timedelta | None
    """Time since the end of the last successful run; negative if the clock was set back since."""
    under_way: str | None = None
    died: str | None = None

    @classmethod
    def of(cls, work: Path, max_age: timedelta, now: datetime) -> Health:
        """Read the records of the runs of ``work``.

        Raises
        ------
        InputError
            The folder does not exist, or a record in it is invalid.
        """
        if not work.is_dir():
            raise InputError(f"{work}: no such folder; name the work folder of the configuration")
        runs = [run for name in (LAST_RUN, LAST_SUCCESS) if (run := LastRun.read(work / name)) is not None]
        worked = max((run for run in runs if run.exit_code in WORKED), key=lambda run: run.ended_at, default=None)
        age = None if worked is None else now - worked.ended_at
        found = cls(work=work, max_age=max_age, worked=worked, last=LastRun.read(work / LAST_RUN), age=age)
        if age is not None and abs(age) <= max_age:  # do not check the lease: that takes the lock for a moment
            return found
        return replace(found, under_way=holder_of(work), died=left_behind(work))

    @property
    def healthy(self) -> bool:
        """Whether the last success is recent enough, or the first run is in progress."""
        return (
            abs(self.age) <= self.max_age if self.age is not None else self.last is None and self.under_way is not None
        )

    def render(self, *, json: bool = False) -> str:
        """Return the result on one line, or as one JSON object."""
        if not json:
            return self._line()
        facts = {
            "healthy": self.healthy,
            "age_seconds": None if self.age is None else self.age.total_seconds(),
            "max_age_seconds": self.max_age.total_seconds(),
            "last_that_worked": self.worked,
            "last_run": self.last,
            "under_way": self.under_way,
            "died": None if self.under_way else self.died,
        }
        return dumps(as_json(facts), sort_keys=True)

    def require(self) -> None:
        """Raise Unhealthy, with the details on one line, if it is not healthy."""
        if not self.healthy:
            raise Unhealthy(self._line())

    def _line(self) -> str:
        if self.worked is None and self.last is None:
            if self.healthy:
                return f"{self.work}: the first run is in progress: {self.under_way}"
            return f"{self.work}: {'; '.join(['no run has ended here yet', *self._now()])}"
        parts = []
        if self.worked is None or self.age is None:
            parts.append("no run has succeeded yet")
        else:
            code = self.worked.exit_code
            parts.append(
                f"the last successful run ended at {self.worked.ended}, {_ago(self.age)} (exit code {code}: "
                f"{WORKED[code]})"
            )
        if not self.healthy:
            if self.age is not None:
                parts[-1] += f", the maximum is {spell(self.max_age)}"
            if self.last is not None and self.last != self.worked:
                error = f": {self.last.error}" if self.last.error else ""
                parts.append(f"the last run ended with exit code {self.last.exit_code} at {self.last.ended}{error}")
            parts += self._now()
        return f"{self.work}: " + "; ".join(parts)

    def _now(self) -> list[str]:
        if self.under_way:
            return [f"in progress: {self.under_way}"]
        return [f"ended without a record (killed?): {self.died}"] if self.died else []


def _ago(age: timedelta) -> str:
    back = "in the future, so the clock was set back since"
    return f"{spell(age)} ago" if age >= timedelta(0) else f"{spell(-age)} {back}"
