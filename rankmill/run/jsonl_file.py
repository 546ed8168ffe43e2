"""Append lines to a file of JSON lines, so that a killed writer leaves at most an incomplete last line.

A line is written with one ``write`` under a lock.  An incomplete line, left by a killed process or a full disk, can only be the
last one, and the next writer cuts it off.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rankmill.foundation.storage.locks import wait_for_lock

_CHUNK = 1 << 16


def append_line(path: Path, line: str) -> None:
    """Append ``line``, which ends with a line feed, after the last complete line of ``path``.

    Several processes may write to one file, such as those of several work folders; lines are never mixed.
    """
    data = line.encode("ascii")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        wait_for_lock(handle)
        end = _cut_torn_line(handle)
        written = 0
        try:
            while written < len(data):
                written += os.write(handle, data[written:])
        except BaseException:
            with suppress(OSError):
                os.ftruncate(handle, end)
            raise
    finally:
        os.close(handle)


def _cut_torn_line(handle: int) -> int:
    """Truncate the file after its last line feed; return its size."""
    size = end = os.fstat(handle).st_size
    while end > 0:
        begin = max(0, end - _CHUNK)
        found = os.pread(handle, end - begin, begin).rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    if end < size:
        os.ftruncate(handle, end)
    return end
