"""Sizes as people write them."""

from __future__ import annotations

import re

from rankmill.pipeline.errors import InputError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(text: str, option: str) -> int:
    """Read a number of bytes such as ``2GB``, ``512MiB`` or ``65536``; InputError names ``option``.

    >>> parse_size("1.5GB", "--memory"), parse_size("64 KiB", "--block-size")
    (1500000000, 65536)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise InputError(f"{option}: expected a size such as 2GB or 512MiB, found {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])
