"""A bar on the terminal while trials are done.  Elsewhere nothing."""

from __future__ import annotations

from rich.console import Console

from pipeline.progress import TerminalBar
from trainer.tuning.store import Outcome
from trainer.tuning.trial import Task


class TrialsBar(TerminalBar):
    """Context manager that counts trials, and shows the best score so far."""

    def __init__(self, n_trials: int, console: Console | None = None) -> None:
        super().__init__("trial {task.completed:.0f}/{task.total:.0f}", "{task.description}", console)
        self._task = self._progress.add_task("", total=n_trials)
        self._best: tuple[float, int] | None = None

    def update(self, task: Task, outcome: Outcome, *, higher_is_better: bool) -> None:
        """Show that one is done."""
        if outcome.score is not None:
            score = outcome.score if higher_is_better else -outcome.score
            if self._best is None or score > self._best[0]:
                self._best = score, task.trial
        shown = "" if self._best is None else f"{task.measure} {abs(self._best[0]):.4f} by trial {self._best[1]}"
        self._progress.update(self._task, advance=1, description=shown)
