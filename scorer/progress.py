"""A progress bar on stderr, only where somebody is looking: documents a second and the time left."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class DocumentBar:
    """Context manager that shows how much of the input is used up; does nothing where stderr is no terminal.

    ``total`` is the size of the whole input in the unit that ``update``'s ``at`` counts in.
    """

    def __init__(self, what: str, total: float, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[documents]:,} documents, {task.fields[rate]:,.0f}/s"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(what, total=total, documents=0, rate=0.0)
        self._since = time.monotonic()

    def __enter__(self) -> DocumentBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, documents: int, at: float) -> None:
        """Say that ``documents`` are done in all and the input is used up to ``at``."""
        rate = documents / max(time.monotonic() - self._since, 1e-9)
        self._progress.update(self._task, completed=at, documents=documents, rate=rate)
