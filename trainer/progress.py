"""A bar on the terminal while trees grow: round, metrics, time left.  Elsewhere nothing."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from trainer.history import RoundRecord


class TrainingBar:
    """Context manager whose ``update`` is an ``on_round`` callback; shows itself on a terminal only."""

    def __init__(self, n_rounds: int, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=28),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("compiling", total=n_rounds)

    def __enter__(self) -> TrainingBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, record: RoundRecord) -> None:
        """Show the metrics of one round."""
        parts = [
            f"{split} {name} {value:.4f}"
            for split, metrics in record.metrics.items()
            for name, value in metrics.items()
        ]
        self._progress.update(self._task, completed=record.round_number, description="  ".join(parts))
