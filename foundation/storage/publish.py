"""Files and folders that appear whole or not at all: written aside, synced, then published by one atomic step.

Everything is staged on the file system of its destination, so that the last step is a rename.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCK_NAME = "lock"
_LEFT_BEHIND = 3600  # seconds after which what has no lock yet, but takes milliseconds, belongs to a killed process
_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than is allowed here",
}


def fsync_file(path: Path) -> None:
    """Make the bytes of ``path`` survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_folder(path: Path) -> None:
    """Make the names in ``path`` survive a power failure: a rename is not durable before this."""
    fsync_file(path)


def file_digest(path: Path) -> str:
    """Return the sha256 of the bytes of ``path``, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``, replacing what was there, so that a reader sees the old bytes or the new ones."""
    for left in path.parent.glob(f".{_literal(path.name)}.*.staging"):
        if _is_left_behind(left):
            left.unlink(missing_ok=True)
    staged = path.with_name(f".{path.name}.{secrets.token_hex(6)}.staging")
    try:
        with _telling_of_room(path), staged.open("xb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


@contextmanager
def _telling_of_room(destination: Path) -> Iterator[None]:
    """Say of ``destination``, in an OSError, that there is no room on the disk: libraries name no file or one that is gone."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        what = f"{_NO_ROOM[error.errno]} ({os.strerror(error.errno)}); nothing was changed"
        raise OSError(error.errno, what, str(destination)) from error


def keep_by_digest(staged: Path, folder: Path) -> str:
    """Sync ``staged``, move it to ``folder`` under the sha256 of its bytes (its suffix stays) and return the digest.

    Two files of one digest are the same file, so an existing one is simply replaced.
    """
    digest = file_digest(staged)
    fsync_file(staged)
    folder.mkdir(parents=True, exist_ok=True)
    staged.replace(folder / f"{digest}{staged.suffix}")
    return digest


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock on ``folder``: of all that look what is in it and then publish something else, one does at a time.

    Where the file system has no locks there is none.
    """
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def staging_folder(destination: Path, goes_on: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Yield a new folder next to ``destination``; whatever is left of it at the end is removed.

    Where ``goes_on`` says of a folder that a killed run for ``destination`` left that the work can go on in it, that folder is
    yielded instead; and where it says so of this one, an interrupt or a request to end leaves it for a later run.

    Folders above that do not exist are made, and removed again if nothing was put into them.

    Its owner holds a lock on a file in it, so that a later run for the same destination can tell the leavings of a
    killed process (removed here) from the work of a living one (left alone).

    Raises
    ------
    OSError
        There is no room on the disk: of whatever library, with ``destination`` as its file name.
    """
    import fcntl

    parent = destination.parent
    made = [above for above in (parent, *parent.parents) if not above.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    for above in made:
        fsync_folder(above.parent)
    taken = None if goes_on is None else _take_over(destination, goes_on)
    _sweep_abandoned(destination)
    folder = parent / f".{destination.name}.{secrets.token_hex(6)}.staging" if taken is None else taken[0]
    kept = False
    try:
        with _telling_of_room(destination):
            if taken is not None:
                with taken[1]:
                    yield folder
                return
            folder.mkdir(mode=0o700)
            with (folder / f"{LOCK_NAME}.new").open("xb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # it gets its name when it is held: a sweeper leaves a folder without it alone
                (folder / f"{LOCK_NAME}.new").rename(folder / LOCK_NAME)
                yield folder
    except (KeyboardInterrupt, SystemExit):
        kept = goes_on is not None and goes_on(folder)
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            for above in made:
                above.rmdir()


def _take_over(destination: Path, goes_on: Callable[[Path], bool]) -> tuple[Path, BinaryIO] | None:
    """Return a folder that a killed run left and that the work ``goes_on`` in, with its lock, held; None if there is none."""
    import fcntl

    for folder in sorted(destination.parent.glob(f".{_literal(destination.name)}.*.staging")):
        with suppress(OSError):
            lock = (folder / LOCK_NAME).open("rb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # a sweeper may have been faster: then the file that is held has no name any more
                if os.fstat(lock.fileno()).st_nlink and goes_on(folder):
                    return folder, lock
            except BaseException:
                lock.close()
                raise
            lock.close()
    return None


def _sweep_abandoned(destination: Path) -> None:
    import fcntl

    for folder in destination.parent.glob(f".{_literal(destination.name)}.*.staging"):
        if not folder.is_dir():
            continue
        if not (folder / LOCK_NAME).exists() and _is_left_behind(folder):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with suppress(OSError), (folder / LOCK_NAME).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _is_left_behind(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime > _LEFT_BEHIND
    return False


def _literal(name: str) -> str:
    """Quote the characters of ``name`` that mean something in a glob."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def publish_folder(staged: Path, destination: Path) -> None:
    """Sync the tree ``staged`` and rename it to ``destination``, which must not exist or be an empty folder."""
    for folder, _, names in os.walk(staged, topdown=False):
        for name in names:
            fsync_file(Path(folder, name))
        fsync_folder(Path(folder))
    staged.rename(destination)
    fsync_folder(destination.parent)


def exchange(first: Path, second: Path) -> bool:
    """Swap two names of one file system in one step; False, with nothing done, where the system cannot.

    Linux has it (``renameat2`` with ``RENAME_EXCHANGE``), but not for every file system.  OSError if a name is missing.
    """
    import ctypes
    import sys

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if renameat2 is None:
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if renameat2(here, os.fsencode(first), here, os.fsencode(second), swap) == 0:
        return True
    number = ctypes.get_errno()
    if number in {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}:
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))
