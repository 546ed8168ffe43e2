"""How far a search is: a bar on a terminal; elsewhere, or where it is asked for, a line on stderr now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from rankmill.foundation.progress import TerminalBar
from rankmill.trainer.progress import Ticker
from rankmill.trainer.tuning.store import Outcome
from rankmill.trainer.tuning.trial import Task


class TrialsProgress(TerminalBar):
    """Context manager that counts trials and shows the best score so far; arguments as `rankmill.trainer.progress.TrainingProgress`."""

    def __init__(
        self,
        n_trials: int,
        *,
        log_every: int | None = None,
        say: Callable[[str], object] | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        console = console or Console(stderr=True)
        shown = log_every is None and console.is_terminal
        super().__init__("trial {task.completed:.0f}/{task.total:.0f}", "{task.description}", console, shown=shown)
        self._task = self._progress.add_task("", total=n_trials)
        self._ticker = Ticker(0 if shown else log_every, say, clock)
        self._n_trials, self._done = n_trials, 0
        self._best: tuple[float, int] | None = None

    def update(self, task: Task, outcome: Outcome, *, higher_is_better: bool) -> None:
        """Take note that a trial is done."""
        self._done += 1
        if outcome.score is not None:
            score = outcome.score if higher_is_better else -outcome.score
            if self._best is None or score > self._best[0]:
                self._best = score, task.trial
        best = "" if self._best is None else f"{task.measure} {abs(self._best[0]):.4f} by trial {self._best[1]}"
        self._progress.update(self._task, advance=1, description=best)
        this = "failed" if outcome.score is None else f"{outcome.score:.4f}"
        self._ticker.step(
            self._done,
            self._n_trials,
            self._n_trials - self._done,
            lambda: (
                f"trial {task.trial}, {self._done} of {self._n_trials}: {this}" + (f"; best {best}" if best else "")
            ),
        )
