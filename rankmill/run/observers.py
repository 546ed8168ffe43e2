"""Choose the observers of a run: lines of text on stderr, and the log file of ``[tell]``.

Each observer (`rankmill.run.events`) is independent of the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.run.events import Event, Observer
from rankmill.run.log_lines import LogFile, TextLines, error_line

if TYPE_CHECKING:
    from rankmill.config import Config

LOG_NAME = "log.jsonl"


def observer_of(config: Config, folder: Path) -> FanOut:
    """Return the observer of a run, which writes to stderr and to the log; relative paths in ``config`` start at ``folder``."""
    observers: dict[str, Observer] = {"stderr": TextLines(write_line)}
    log = log_of(config, folder)
    if log is not None:
        observers[f"log {log}"] = LogFile(log)
    return FanOut(observers, write_line)


def log_of(config: Config, folder: Path) -> Path | None:
    """Return the log of ``[tell]``: by default in the work folder; None if it is ``""``, which disables it."""
    given = config.tell.log
    if given is None:
        return folder / config.work / LOG_NAME
    return folder / given if given else None


def write_line(line: str) -> None:
    """Write ``line`` to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class FanOut:
    """Observer that passes every event to all ``observers`` (by name), in order.

    ``complain`` reports the first error of each; the observer is still called for later events, as a full disk may have
    space again.  Interrupts and signals to exit are raised.
    """

    def __init__(self, observers: Mapping[str, Observer], complain: Callable[[str], None]) -> None:
        self._observers = dict(observers)
        self._complain = complain
        self._reported: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Pass ``event`` to all observers."""
        for name, observer in self._observers.items():
            try:
                observer(event)
            except Exception as error:  # any error: a failing observer must not stop the run
                if name not in self._reported:
                    self._reported.add(name)
                    with suppress(Exception):
                        self._complain(f"{name}: {error_line(error)}; the run continues without it")
