"""Operating-system locks on files and folders; they are released when the process ends, even if it is killed."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_NAME = "lock"
_HELD = {errno.EWOULDBLOCK, errno.EACCES}


class _Opened(Protocol):
    def fileno(self) -> int: ...


def try_lock(file: int | _Opened, *, shared: bool = False) -> bool:
    """Lock an open file; False if another process holds it, OSError if the file system has no locks."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _HELD:
            raise
        return False
    return True


def wait_for_lock(file: int | _Opened) -> None:
    """Wait for the lock on an open file, and take it; without locks in the file system nothing is done."""
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock on ``folder``, so that one process at a time reads its contents and then publishes.

    Without locks in the file system nothing is held.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        wait_for_lock(handle)
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on the file; False if there is no file."""
    try:
        with path.open("rb") as file:
            return not try_lock(file)
    except FileNotFoundError:
        return False
