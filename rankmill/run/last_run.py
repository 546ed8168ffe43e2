"""The final record of a run: ``WORK/last_run.json``, and ``WORK/last_success.json`` if its exit code is 0."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError, one_line
from rankmill.foundation.exit_codes import DONE
from rankmill.foundation.records import as_json
from rankmill.foundation.storage.publish import write_atomically
from rankmill.run import LAST_RUN, LAST_SUCCESS

if TYPE_CHECKING:
    from rankmill.run.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """A run that has ended; ``stages`` has the outcome of each stage."""

    run_id: str
    date: str | None
    began: str
    ended: str
    outcome: str
    exit_code: int
    stages: Mapping[str, str]
    error: str | None

    @classmethod
    def read(cls, path: Path) -> LastRun | None:
        """Read the record in ``path``; None if there is none.

        Raises
        ------
        InputError
            The file is not such a record.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            run = cls(**{each.name: content.get(each.name) for each in fields(cls)})
            if isinstance(run.exit_code, int) and run.ended_at:
                return run
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, AttributeError):
            pass
        raise InputError(f"{path}: not a record of a run; is this a work folder?")

    @property
    def ended_at(self) -> datetime:
        """The time of its end."""
        moment = datetime.fromisoformat(self.ended)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class LastRunFile:
    """Observer that writes ``last_run.json``, and ``last_success.json`` for a run with exit code 0."""

    def __init__(self, work: Path, run_id: str, day: date | None, clock: Callable[[], datetime]) -> None:
        self._work, self._run_id, self._day = work, run_id, day
        self._clock, self._began = clock, clock()
        self._stages: dict[str, str] = {}
        self._error: str | None = None

    def __call__(self, event: Event) -> None:
        """Collect outcomes; write the files at the end."""
        from rankmill.run.events import RunEnded, StageDone, StageFailed, StageSkipped

        if isinstance(event, StageSkipped):
            self._stages[event.stage] = f"skipped: {event.why}"
        elif isinstance(event, StageDone):
            self._stages[event.stage] = "done"
        elif isinstance(event, StageFailed):
            self._stages[event.stage] = "stopped" if event.stopped else "failed"
            self._error = None if event.stopped else one_line(event.error)
        elif isinstance(event, RunEnded):
            self._end(event.outcome, event.exit_code)

    def _end(self, outcome: str, exit_code: int) -> None:
        record = LastRun(
            run_id=self._run_id,
            date=None if self._day is None else self._day.isoformat(),
            began=self._began.isoformat(timespec="seconds"),
            ended=self._clock().isoformat(timespec="seconds"),
            outcome=outcome,
            exit_code=exit_code,
            stages=self._stages,
            error=self._error,
        )
        data = (json.dumps(as_json(record), indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        with suppress(OSError):  # if the disk is full, the run fails because of its own output
            write_atomically(self._work / LAST_RUN, data)
            if exit_code == DONE:
                write_atomically(self._work / LAST_SUCCESS, data)
