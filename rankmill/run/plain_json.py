"""Write events as JSON that every reader accepts: one line, ASCII, no NaN, no lone surrogates."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from datetime import UTC, date, datetime
from pathlib import PurePath
from typing import Any

from rankmill.foundation.records import fields_in


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of day, and a monotonic clock."""

    now: Callable[[], datetime] = _now
    """Returns the time of day, in UTC."""
    seconds: Callable[[], float] = time.monotonic
    """Returns seconds of a monotonic clock."""


def rfc3339(moment: datetime) -> str:
    """Format ``moment`` as in RFC 3339, in UTC with milliseconds.

    >>> rfc3339(datetime(2026, 11, 21, 2, 0, 0, 123_999, tzinfo=UTC))
    '2026-11-21T02:00:00.123Z'
    """
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Stopwatch:
    """Measures the duration of the run and its stages."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}

    def start(self, what: str) -> None:
        """Start to measure ``what``."""
        self._began[what] = self._clock.seconds()

    def lasted(self, what: str) -> float:
        """Return the seconds since `start`, 0 without one."""
        return max(0.0, self._clock.seconds() - self._began.get(what, self._clock.seconds()))


LONGEST = 16_384  # characters of a text: an error may quote a long line
_DEEPEST = 12


def plain(value: object, depth: int = 0) -> Any:
    r"""Convert ``value`` to a JSON value; types that JSON lacks become strings.

    Invalid bytes of a file name (Python's lone surrogates) become ``\xNN``, infinite numbers and NaN become null, and texts are
    cut after 16,384 characters.

    >>> plain({"a": float("nan"), "b": PurePath("x"), "c": os.fsdecode(b"caf\xe9")})
    {'a': None, 'b': 'x', 'c': 'caf\\xe9'}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return _text(value)
    if depth > _DEEPEST:
        return _text(str(value))
    if is_dataclass(value) and not isinstance(value, type):
        return plain(fields_in(value), depth)
    if isinstance(value, Mapping):
        return {_text(str(key)): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each, depth + 1) for each in value]
    if isinstance(value, bytes):
        return _text(os.fsdecode(value))
    if isinstance(value, date):
        return value.isoformat()
    if not isinstance(value, PurePath) and hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # a NumPy number
        return plain(value.item(), depth + 1)
    return _text(str(value))


def whole_text(text: str) -> str:
    r"""Return ``text`` as valid Unicode: invalid bytes of file names as ``\xNN``, other surrogates as ``\uNNNN``."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text(text: str) -> str:
    text = whole_text(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def json_line(record: object) -> str:
    """Return ``record``, a record or a mapping, as one line of JSON with a line feed."""
    return json.dumps(plain(record), ensure_ascii=True, allow_nan=False, separators=(", ", ": ")) + "\n"
