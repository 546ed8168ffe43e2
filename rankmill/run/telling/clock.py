"""The clock that observers look at; tests bring their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """What time it is, and how much of it passes."""

    now: Callable[[], datetime] = _now
    """The time of day, in UTC."""
    seconds: Callable[[], float] = time.monotonic
    """Seconds from some moment on, which nobody sets back."""


def rfc3339(moment: datetime) -> str:
    """Return ``moment`` as RFC 3339 has it, in UTC with milliseconds.

    >>> rfc3339(datetime(2026, 11, 21, 2, 0, 0, 123_999, tzinfo=UTC))
    '2026-11-21T02:00:00.123Z'
    """
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Stopwatch:
    """How long the run and its stages take."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}

    def start(self, what: str) -> None:
        """Begin to measure ``what``."""
        self._began[what] = self._clock.seconds()

    def lasted(self, what: str) -> float:
        """Return the seconds since `start`, 0 without one."""
        return max(0.0, self._clock.seconds() - self._began.get(what, self._clock.seconds()))
