"""What a person sees of an ingest while it runs, on stderr, and only where somebody is looking."""

from __future__ import annotations

from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

Stage = Literal["reading", "writing"]


class IngestBars:
    """Context manager with a bar for each pass; says lines above them."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, soft_wrap=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[amount]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[Stage, int] = {}

    def __enter__(self) -> IngestBars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, stage: Stage, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` bytes are read, or so many documents written."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, amount="")
        amount = (
            f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if stage == "reading" else f"{done:,} of {total:,} documents"
        )
        task = self._tasks[stage]
        self._progress.update(task, completed=done, total=total, amount=amount)  # type: ignore[arg-type]

    def say(self, line: str) -> None:
        """Write ``line``."""
        self._console.print(line, markup=False)
