"""A file of JSON lines that keeps the last complete runs within a size limit, even if a writer is killed.

A line is one ``write`` under a lock; what a killed process or a full disk left of one is cut off before the next line is written, so
that a torn line can only be the last, and for as long as nobody writes.  Where a run begins and the file is above its bound, the
oldest runs go: the newest that fit into half of the bound are copied aside and renamed over it.
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
    """The file ``path``; ``begins`` says of an object whether a run begins with it, ``bound`` is in bytes.

    Several processes may write to one file (of several work folders, say): each line is one of somebody's.
    """

    def __init__(self, path: Path, begins: Callable[[Mapping[str, Any]], bool], bound: int) -> None:
        self._path = path
        self._begins = begins
        self._bound = bound

    def drop_old_runs(self) -> None:
        """Let the oldest runs go, if the file is above its bound."""
        if self._is_full():
            with self._held():
                if self._is_full():  # another process may have done it meanwhile
                    write_atomically(self._path, b"".join(self._newest()))

    def append(self, line: str) -> None:
        """Write ``line``, which ends with its line feed, behind the last whole line."""
        data = line.encode("ascii")
        with self._held() as handle:
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
    def _held(self) -> Iterator[int]:
        """Yield the file, open for appending, with nobody else at it."""
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
        """Return the lines of the newest runs that fit into half of the bound, none of a run that does not fit."""
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
    """Return whether ``path`` still names the open file: another process may have put a shorter one in its place."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _cut_torn_line(handle: int) -> int:
    """Cut the file behind its last line feed; returns its size."""
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
