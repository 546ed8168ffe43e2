"""A progress bar on stderr, only where somebody is looking."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


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
