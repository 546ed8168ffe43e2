"""Progress bars: on a terminal, or in the output of a notebook's cell; nowhere else."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rankmill.foundation.terminal import console_on, printed

AFTER, EVERY = 1.0, 0.25
"""Seconds until a bar appears in a notebook, and between two of its states."""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def stderr_console(**options: Any) -> Console:
    """Return a console on stderr, which is a terminal if stderr is one, whatever FORCE_COLOR says.

    A command started by a notebook's cell has a terminal that cannot move the cursor up: it does not count.
    """
    terminal = sys.stderr.isatty() and "JPY_PARENT_PID" not in os.environ
    found: Console = console_on(sys.stderr, force_terminal=terminal, **options)
    return found


def shows_bars(console: Console) -> bool:
    """Return whether a bar can be seen: on a terminal, or in a notebook."""
    return bool(console.is_terminal) or in_notebook()


class TerminalBar:
    """Context manager that shows a bar between two texts and the time left.

    It does nothing unless `shows_bars` is true and it is ``shown``.
    """

    def __init__(self, before: str, after: str, console: Console | None, *, shown: bool = True) -> None:
        console = console or stderr_console()
        kind = _NotebookProgress if shown and in_notebook() else Progress
        self._progress = kind(
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


class _NotebookProgress(Progress):
    """Rewrites one plain output of the cell; at the end it shows only its texts.

    Steps of less than a second show nothing.
    """

    _output: Any = None
    _next = 0.0

    def start(self) -> None:
        self._next = time.monotonic() + AFTER

    def update(self, *task: Any, **changes: Any) -> None:
        super().update(*task, **changes)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self._show()

    def stop(self) -> None:
        if self._output is not None:
            self.columns = tuple(column for column in self.columns if isinstance(column, TextColumn))
            self._show()

    def _show(self) -> None:
        from IPython.display import display

        state = {"text/plain": "\n".join(printed(self.get_renderable(), width=120))}
        if self._output is None:
            self._output = display(state, raw=True, display_id=True)
        else:
            self._output.update(state, raw=True)
