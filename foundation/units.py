"""Sizes and spans of time as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from rankmill.foundation.errors import InputError

MIN_MEMORY = 512 * 10**6  # minimum bytes of a command, libraries and compiled kernels included

_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(text: str, option: str) -> int:
    """Read a number of bytes such as ``2GB``, ``512MiB`` or ``65536``; InputError names ``option``.

    >>> parse_size("1.5GB", "--memory"), parse_size("64 KiB", "--block-size")
    (1500000000, 65536)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _BYTES:
        raise InputError(f"{option}: expected a size such as 2GB or 512MiB, found {text!r}")
    return int(float(match[1]) * _BYTES[match[2].upper()])


_SPANS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_span(text: str, option: str, *, zero: bool = False) -> timedelta:
    """Parse ``text`` such as ``26h``, ``90m``, ``3600s`` or ``2d``, the value of ``option``, as a time span.

    ``zero`` also allows ``0``. InputError for any other text.

    >>> parse_span("26h", "--grace") == timedelta(days=1, hours=2)
    True
    """
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]+)?)\s*([smhd])|0", text.strip())
    if match is None or (float(match[1] or 0) == 0 and not zero):
        raise InputError(f"{option}: expected a number with s, m, h or d, such as 26h or 7d; found {text!r}")
    return timedelta(**{_SPANS[match[2]]: float(match[1])}) if match[2] else timedelta(0)


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
