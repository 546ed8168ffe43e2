"""A file of JSON lines that keeps the last complete runs within a size limit, even if a writer is killed.

A line is written with one ``write`` under a lock.  An incomplete line, left by a killed process or a full disk, can only be the
last one, and the next writer cuts it off.  If the file exceeds its bound when a run begins, the newest runs that fit into half of
the bound are copied to a new file, which replaces the old one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rankmill.foundation.storage.locks import wait_for_lock
from rankmill.foundation.storage.publish import write_atomically

_CHUNK = 1 << 16


class RunsFile:
    """The file ``path`` of at most ``bound`` bytes; ``begins`` returns whether an object is the first of a run.

    Several processes may write to one file, such as those of several work folders; lines are never mixed.
    """

    def __init__(self, path: Path, begins: Callable[[Mapping[str, Any]], bool], bound: int) -> None:
        self._path = path
        self._begins = begins
        self._bound = bound

    def drop_old_runs(self) -> None:
        """Remove the oldest runs if the file exceeds its bound."""
        if self._is_full():
            with self._locked():
                if self._is_full():  # another process may have shortened it meanwhile
                    write_atomically(self._path, b"".join(self._newest()))

    def append(self, line: str) -> None:
        """Append ``line``, which ends with a line feed, after the last complete line."""
        data = line.encode("ascii")
        with self._locked() as handle:
            end = _cut_torn_line(handle)
            written = 0
            try:
                while written < len(data):
                    written += os.write(handle, data[written:])
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(handle, end)
                raise

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Yield the file, open for appending and locked."""
        while True:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                wait_for_lock(handle)
                if _is_at(handle, self._path):
                    yield handle
                    return
            finally:
                os.close(handle)

    def _is_full(self) -> bool:
        with suppress(OSError):
            return self._path.stat().st_size > self._bound
        return False

    def _newest(self) -> list[bytes]:
        """Return the lines of the newest complete runs that fit into half of the bound."""
        kept: list[bytes] = []
        run: list[bytes] = []
        size = 0
        for line in reversed(self._path.read_bytes().splitlines(keepends=True)):
            found = _object(line)
            if found is None:
                continue
            run.append(line)
            size += len(line)
            if size > self._bound // 2:
                break
            if self._begins(found):
                kept += run
                run = []
        return kept[::-1]


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_at(handle: int, path: Path) -> bool:
    """Return whether ``path`` is still the open file: another process may have replaced it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


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
