"""The final record of a run: ``WORK/last_run.json``, and ``WORK/last_success.json`` if its exit code is 0."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from rankmill.foundation.errors import InputError
from rankmill.foundation.exit_codes import DONE
from rankmill.foundation.records import as_json
from rankmill.foundation.storage.publish import write_atomically
from rankmill.run import LAST_RUN, LAST_SUCCESS


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

    def write(self, work: Path) -> None:
        """Write the record to the work folder ``work``; OSError if that fails."""
        data = (json.dumps(as_json(self), indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        write_atomically(work / LAST_RUN, data)
        if self.exit_code == DONE:
            write_atomically(work / LAST_SUCCESS, data)
