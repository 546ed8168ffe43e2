"""Bars on stderr while something runs, only where somebody is looking; those of an ingest."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

Stage = Literal["reading", "writing"]


class TerminalBar:
    """Context manager that shows a bar between two texts and the time left.

    It does nothing where stderr is no terminal, and where it is not to be ``shown``.
    """

    def __init__(self, before: str, after: str, console: Console | None, *, shown: bool = True) -> None:
        console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn(before),
            BarColumn(bar_width=28),
            TextColumn(after),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


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
