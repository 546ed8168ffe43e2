"""A progress bar on stderr, only where somebody is looking: documents a second and the time left."""

from __future__ import annotations

import time

from rich.console import Console

from rankmill.foundation.progress import TerminalBar


class DocumentBar(TerminalBar):
    """Context manager that shows how much of the input is used up; does nothing where stderr is no terminal.

    ``total`` is the size of the whole input in the unit that ``update``'s ``at`` counts in; ``done`` documents were done by
    an earlier run.
    """

    def __init__(self, what: str, total: float, console: Console | None = None, *, done: int = 0) -> None:
        super().__init__(
            "{task.description}", "{task.fields[documents]:,} documents, {task.fields[rate]:,.0f}/s", console
        )
        self._task = self._progress.add_task(what, total=total, documents=0, rate=0.0)
        self._since, self._done = time.monotonic(), done

    def update(self, documents: int, at: float) -> None:
        """Say that ``documents`` are done in all and the input is used up to ``at``."""
        rate = (documents - self._done) / max(time.monotonic() - self._since, 1e-9)
        self._progress.update(self._task, completed=at, documents=documents, rate=rate)
