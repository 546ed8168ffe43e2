"""Lines for a person on stderr: what each stage does and why, how long it took, what came out."""

from __future__ import annotations

from collections.abc import Callable

from rankmill.run.events import (
    Event,
    RunEnded,
    RunStarted,
    StageDone,
    StageFailed,
    StageSaid,
    StageSkipped,
    StageStarted,
)
from rankmill.run.telling.clock import Clock, Stopwatch
from rankmill.run.telling.words import lasting, message, one_line

_RUN = "run"


class TextLines:
    """Observer that calls ``write`` with one line, without its line feed, for each thing that happens.

    What an error says is left to whoever ends the process.
    """

    def __init__(self, write: Callable[[str], None], clock: Clock | None = None) -> None:
        self._write = write
        self._watch = Stopwatch(clock or Clock())

    def __call__(self, event: Event) -> None:
        """Write what happened."""
        match event:
            case RunStarted():
                self._watch.start(_RUN)
                if event.died is not None:
                    self._write(one_line(event.died))
            case StageSkipped():
                self._write(f"{event.stage}: skipped, {message(event)}")
            case StageSaid():
                self._write(message(event))
            case StageStarted():
                self._watch.start(event.stage)
                self._write(f"{event.stage}: {message(event)}")
            case StageDone():
                self._write(f"{event.stage}: {message(event)} [{self._lasted(event.stage)}]")
            case StageFailed():
                what = message(event) if event.stopped else "failed"
                self._write(f"{event.stage}: {what} [{self._lasted(event.stage)}]")
            case RunEnded():
                self._write(f"run: {message(event)} [{self._lasted(_RUN)}]")

    def _lasted(self, what: str) -> str:
        return lasting(self._watch.lasted(what))
