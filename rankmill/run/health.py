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
    """The health of the runs of a work folder.

    Attributes
    ----------
    worked, last
        Records of the last successful run, and of the last run that ended; None if there is none.
    age
        Time since the end of the last successful run; negative if the clock was set back since.
    under_way, died
        The run that has the lease, and the last one in it that has not reported its end.
    """

    work: Path
    max_age: timedelta
    worked: LastRun | None
    last: LastRun | None
    age: timedelta | None
    under_way: str | None = None
    died: str | None = None

    @classmethod
    def of(cls, work: Path, max_age: timedelta, now: datetime) -> Health:
        """Read the records of the runs of ``work``; InputError if it does not exist, or a record in it is invalid."""
        if not work.is_dir():
            raise InputError(f"{work}: no such folder; name the work folder of the configuration")
        last, success = (LastRun.read(work / name) for name in (LAST_RUN, LAST_SUCCESS))
        runs = [run for run in (last, success) if run is not None and run.exit_code in WORKED]
        worked = max(runs, key=lambda run: run.ended_at, default=None)
        age = None if worked is None else now - worked.ended_at
        found = cls(work=work, max_age=max_age, worked=worked, last=last, age=age)
        if age is not None and abs(age) <= max_age:  # do not check the lease: that takes the lock for a moment
            return found
        return replace(found, under_way=holder_of(work), died=left_behind(work))

    @property
    def healthy(self) -> bool:
        """Whether the last success is recent enough, or the first run is in progress."""
        first = self.last is None and self.under_way is not None
        return first if self.age is None else abs(self.age) <= self.max_age

    def to_json(self) -> str:
        """Return the result as one JSON object."""
        age = None if self.age is None else self.age.total_seconds()
        facts = {"healthy": self.healthy, "age_seconds": age, "max_age_seconds": self.max_age.total_seconds()}
        runs = {"last_that_worked": self.worked, "last_run": self.last, "under_way": self.under_way}
        died = None if self.under_way else self.died
        return dumps(as_json({**facts, **runs, "died": died}), sort_keys=True)

    def render(self) -> str:
        """Return the result on one line: the last success, and unless that is enough, what has happened since."""
        if self.worked is None or self.age is None:
            parts = ["no run has succeeded yet" if self.last is not None else "no run has ended here yet"]
        else:
            code, ago = self.worked.exit_code, f"{spell(abs(self.age))} ago"
            if self.age < timedelta(0):
                ago = f"{spell(-self.age)} in the future, so the clock was set back since"
            result = f"exit code {code}: {WORKED[code]}"
            limit = "" if self.healthy else f", the maximum is {spell(self.max_age)}"
            parts = [f"the last successful run ended at {self.worked.ended}, {ago} ({result}){limit}"]
        if self.age is None and self.healthy:
            return f"{self.work}: the first run is in progress: {self.under_way}"
        if not self.healthy:
            if self.last is not None and self.last != self.worked:
                error = f": {self.last.error}" if self.last.error else ""
                parts.append(f"the last run ended with exit code {self.last.exit_code} at {self.last.ended}{error}")
            if self.under_way:
                parts.append(f"in progress: {self.under_way}")
            elif self.died:
                parts.append(f"ended without a record (killed?): {self.died}")
        return f"{self.work}: {'; '.join(parts)}"

    def require(self) -> None:
        """Raise Unhealthy, with the details on one line, if it is not healthy."""
        if not self.healthy:
            raise Unhealthy(self.render())
