"""Files that are read while they are still being fetched: a read waits for the bytes that it needs.

Whoever opens a file of rows takes what `readable` returns for it.  Bytes that are not there yet are zeros in the file itself, so it must
not be opened by its name before it is complete.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Arrival(Protocol):
    """A file that is being fetched."""

    size: int
    complete: bool

    def wait_for(self, start: int, stop: int) -> None:
        """Wait until the bytes from ``start`` to ``stop`` are there; raises what went wrong with fetching."""
        ...


_arriving: dict[Path, Arrival] = {}


def announce(path: Path, arrival: Arrival) -> Callable[[], None]:
    """Let reads of ``path`` wait for ``arrival``, until the function that is returned is called."""
    _arriving[path] = arrival

    def forget() -> None:
        _arriving.pop(path, None)

    return forget


def readable(path: Path) -> Any:
    """Return what libraries open instead of ``path``: its name or, if it is still being fetched, a file whose reads wait."""
    arrival = _arriving.get(path)
    return str(path) if arrival is None or arrival.complete else _WaitingFile(path, arrival)


def open_to_read(path: Path) -> io.RawIOBase:
    """Open ``path``, without a buffer; if it is still being fetched, reads wait."""
    found = readable(path)
    return found if isinstance(found, io.RawIOBase) else io.FileIO(found)


class _WaitingFile(io.RawIOBase):
    """The file is opened for each read, so that there may be any number of them."""

    def __init__(self, path: Path, arrival: Arrival) -> None:
        self._path, self._arrival, self._at = path, arrival, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._arrival.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer) as room:
            self._arrival.wait_for(self._at, min(self._at + len(room), self._arrival.size))
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._at)
                done = file.readinto(room)
        self._at += done or 0
        return done or 0
