"""System calls for durable files, one method each, so that tests can replace them by a failing disk."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import sys
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # <fcntl.h> and <linux/fs.h>
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the last: pipes do not block
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Disk:
    """Plain system calls: no retries, no state, no decisions."""

    def read(self, path: Path, limit: int = -1) -> bytes:
        """Read a regular file, whole or its first ``limit`` bytes; OSError for anything else in its place."""
        descriptor = os.open(path, READ_FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(limit)
        finally:
            os.close(descriptor)

    def names(self, folder: Path) -> list[str]:
        """List the names in ``folder``, in any order; a missing folder has none."""
        try:
            return os.listdir(folder)  # noqa: PTH208 (names, not paths)
        except FileNotFoundError:
            return []

    def is_folder(self, path: Path) -> bool:
        """Return whether ``path`` is a folder."""
        return path.is_dir()

    def is_link(self, path: Path) -> bool:
        """Return whether ``path`` is a symbolic link."""
        return path.is_symlink()

    def modified(self, path: Path) -> float:
        """Seconds since the epoch at which the file was last written."""
        return path.lstat().st_mtime

    def size(self, path: Path) -> int:
        """Size of the file in bytes."""
        return path.lstat().st_size

    def make_folder(self, folder: Path, mode: int = 0o777) -> None:
        """Create one folder in an existing one; the umask applies to ``mode``."""
        folder.mkdir(mode)

    def create(self, path: Path, mode: int = 0o444) -> int:
        """Create a file, read-only by default, and return a descriptor that can write it.

        The umask applies to ``mode``.
        """
        return os.open(path, NEW_FLAGS, mode)

    def allocate(self, descriptor: int, size: int) -> None:
        """Allocate ``size`` bytes before they are written, so that a full disk is noticed first."""
        if sys.platform != "darwin":  # has no posix_fallocate: a full disk shows in `write`
            os.posix_fallocate(descriptor, 0, size)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write as much of ``data`` as the system accepts, and return the number of bytes."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Wait until the file's bytes are on stable storage."""
        _flush(descriptor)

    def lock(self, path: Path, how: int) -> int:
        """Wait for the lock on ``path``, which is created if it is missing: LOCK_SH or LOCK_EX.

        Closing the descriptor releases it.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, how)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give the file a second name; FileExistsError if that name is taken."""
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Rename the file; an existing ``target`` is replaced."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove one name of a file."""
        path.unlink()

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder."""
        folder.rmdir()

    def fsync_folder(self, folder: Path) -> None:
        """Wait until the folder's names are on stable storage."""
        flush_path(folder, os.O_DIRECTORY)


def exchange(first: Path, second: Path) -> bool:
    """Swap two names of one file system atomically; False, with nothing done, if the system cannot.

    Linux has it (``renameat2`` with ``RENAME_EXCHANGE``), but not for every file system.  OSError if a name is missing.
    """
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # another system, or an old C library
        return False
    if not swap(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code not in {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}:
        raise OSError(code, os.strerror(code), str(first), None, str(second))
    return False


def flush_path(path: Path, flags: int = 0) -> None:
    """Wait until what has been written to ``path`` is on stable storage."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        _flush(descriptor)
    finally:
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    if sys.platform == "darwin":  # its fsync leaves the bytes in the drive's own cache
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.ENOTTY, errno.EINVAL}:  # network file systems know fsync only
                raise
        else:
            return
    os.fsync(descriptor)
