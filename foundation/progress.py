"""Progress bars: on a terminal, nowhere else."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rankmill.foundation.terminal import console_on


def stderr_console(**options: Any) -> Console:
    """Return a console on stderr, which is a terminal if stderr is one, whatever FORCE_COLOR says.

    A command started by a notebook's cell has a terminal that cannot move the cursor up: it does not count.
    """
    terminal = sys.stderr.isatty() and "JPY_PARENT_PID" not in os.environ
    found: Console = console_on(sys.stderr, force_terminal=terminal, **options)
    return found


class TerminalBar:
    """Context manager that shows a bar between two texts and the time left.

    It does nothing unless ``console`` is a terminal and it is ``shown``.
    """

    def __init__(self, before: str, after: str, console: Console | None, *, shown: bool = True) -> None:
        console = console or stderr_console()
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
