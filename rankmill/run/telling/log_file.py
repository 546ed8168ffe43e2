"""``WORK/log.jsonl``: the JSON lines of the last runs, for whoever comes after the container is gone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankmill.run.events import Event, RunStarted, StageSaid
from rankmill.run.telling.clock import Clock
from rankmill.run.telling.json_lines import RUN_STARTED, Records
from rankmill.run.telling.plain import json_line
from rankmill.run.telling.whole_runs import WholeRuns

BOUND = 16 * 2**20


class LogFile:
    """Observer that appends the lines of `rankmill.run.telling.json_lines` to ``path``.

    The runs before this one go, the oldest first, where the file is above ``bound`` bytes.  A run that takes a quarter of that is
    not written in full: what its stages say is left out from there on, what happens is not.
    """

    def __init__(self, path: Path, clock: Clock | None = None, bound: int = BOUND) -> None:
        self._file = WholeRuns(path, _begins, bound)
        self._records = Records(clock)
        self._room = bound // 4

    def __call__(self, event: Event) -> None:
        """Append what happened."""
        record = self._records.of(event)
        if isinstance(event, RunStarted):
            self._file.drop_old_runs()
        line = json_line(record)
        self._room -= len(line)
        if self._room >= 0 or not isinstance(event, StageSaid):
            self._file.append(line)


def _begins(record: Mapping[str, Any]) -> bool:
    return record.get("event") == RUN_STARTED
