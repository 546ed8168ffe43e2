"""Spans of time in the words of a person, read and written."""

from __future__ import annotations

import re
from datetime import timedelta

from rankmill.errors import InputError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_span(text: str, option: str) -> timedelta:
    """Return ``26h``, ``90m``, ``3600s`` or ``2d`` as a span; ``option`` is whose value it is.

    Raises
    ------
    InputError
        It is none, or nothing at all.

    >>> parse_span("26h", "--max-age") == timedelta(days=1, hours=2)
    True
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*([smhd])", text.strip())
    if found is None or float(found[1]) == 0:
        raise InputError(f"{option}: expected a number with s, m, h or d, such as 26h; found {text!r}")
    return timedelta(**{_UNITS[found[2]]: float(found[1])})


def spell(span: timedelta) -> str:
    """Return a span in its two largest units.

    >>> [spell(timedelta(seconds=seconds)) for seconds in (7, 90, 3600, 180_000)]
    ['7 s', '1 min 30 s', '1 h', '2 d 2 h']
    """
    seconds = round(span.total_seconds())
    for size, small, names in ((86_400, 3600, "d h"), (3600, 60, "h min"), (60, 1, "min s")):
        if seconds >= size:
            large, less = names.split()
            left = seconds % size // small
            return f"{seconds // size} {large}" + (f" {left} {less}" if left else "")
    return f"{seconds} s"
