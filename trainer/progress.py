"""A bar on the terminal while trees grow: round, metrics, time left.  Elsewhere nothing."""

from __future__ import annotations

from rich.console import Console

from pipeline.progress import TerminalBar
from trainer.history import RoundRecord


class TrainingBar(TerminalBar):
    """Context manager whose ``update`` is an ``on_round`` callback; shows itself on a terminal only."""

    def __init__(self, n_rounds: int, console: Console | None = None) -> None:
        super().__init__("round {task.completed:.0f}/{task.total:.0f}", "{task.description}", console)
        self._task = self._progress.add_task("compiling", total=n_rounds)

    def update(self, record: RoundRecord) -> None:
        """Show the metrics of one round."""
        parts = [
            f"{split} {name} {value:.4f}"
            for split, metrics in record.metrics.items()
            for name, value in metrics.items()
        ]
        self._progress.update(self._task, completed=record.round_number, description="  ".join(parts))
