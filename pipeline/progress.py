"""Bars on stderr while an ingest runs."""

from __future__ import annotations

from typing import Literal

from rich.console import Console
from rich.progress import TaskID

from rankmill.foundation.progress import TerminalBar

Stage = Literal["reading", "writing"]


class IngestBars(TerminalBar):
    """A bar for each pass of an ingest; says lines above them."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, soft_wrap=True, highlight=False)
        super().__init__("{task.description}", "{task.fields[amount]}", self._console)
        self._tasks: dict[Stage, TaskID] = {}

    def update(self, stage: Stage, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` bytes are read, or so many documents written."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, amount="")
        amount = (
            f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if stage == "reading" else f"{done:,} of {total:,} documents"
        )
        task = self._tasks[stage]
        self._progress.update(task, completed=done, total=total, amount=amount)

    def say(self, line: str) -> None:
        """Write ``line``."""
        self._console.print(line, markup=False)
