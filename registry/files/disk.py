"""Every call on the file system that the registry makes, one method each: tests put a failing disk in its place."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from pathlib import Path

if sys.platform == "darwin":
    from fcntl import F_FULLFSYNC, fcntl

AT_FDCWD, RENAME_NOREPLACE = -100, 1  # <fcntl.h> and <linux/fs.h>
RENAME_EXCL = 4  # <sys/stdio.h> of macOS
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the last: a pipe without a writer waits not
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

    def read_part(self, path: Path, start: int, size: int) -> bytes:
        """Read up to ``size`` bytes from position ``start`` on; fewer at the end of the file only."""
        descriptor = os.open(path, READ_FLAGS)
        try:
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                file.seek(start)
                return file.read(size)
        finally:
            os.close(descriptor)

    def names(self, folder: Path) -> list[str]:
        """List what lies in ``folder``, in any order; a folder that is not there holds nothing."""
        try:
            return os.listdir(folder)  # noqa: PTH208 (names, not paths)
        except FileNotFoundError:
            return []

    def is_folder(self, path: Path) -> bool:
        """Whether a folder is there."""
        return path.is_dir()

    def is_link(self, path: Path) -> bool:
        """Whether a symbolic link is there."""
        return path.is_symlink()

    def is_writable(self, folder: Path) -> bool:
        """Whether this process may make and remove names in the folder."""
        return os.access(folder, os.W_OK | os.X_OK)

    def modified(self, path: Path) -> float:
        """Seconds since the epoch at which the file was last written."""
        return path.lstat().st_mtime

    def size(self, path: Path) -> int:
        """How many bytes the file has."""
        return path.lstat().st_size

    def mode(self, path: Path) -> int:
        """Who may read and write the file."""
        return path.lstat().st_mode

    def make_read_only(self, path: Path) -> None:
        """Let everybody read the file and nobody write it."""
        path.chmod(0o444)

    def link_count(self, path: Path) -> int:
        """How many names the file has."""
        return path.lstat().st_nlink

    def make_folder(self, folder: Path, mode: int = 0o777) -> None:
        """Make one folder whose parent is there; the umask takes from ``mode``."""
        folder.mkdir(mode)

    def create(self, path: Path) -> int:
        """Make a new read-only file and return a descriptor that can write it once."""
        return os.open(path, NEW_FLAGS, 0o444)

    def allocate(self, descriptor: int, size: int) -> None:
        """Have the blocks for ``size`` bytes before they are written, so that a full disk shows first."""
        if sys.platform != "darwin":  # has no posix_fallocate: a full disk shows in `write`
            os.posix_fallocate(descriptor, 0, size)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write as much of ``data`` as the system takes and return how much that was."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Wait until the file's bytes are on stable storage."""
        _flush(descriptor)

    def close(self, descriptor: int) -> None:
        """Give the descriptor back."""
        os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give the file a second name; FileExistsError if that name is taken."""
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Give the file another name; what had that name before is gone."""
        source.replace(target)

    def rename_new(self, source: Path, target: Path) -> None:
        """Give the file another name; FileExistsError if that name is taken, where rename(2) would replace."""
        libc, names = ctypes.CDLL(None, use_errno=True), (os.fsencode(source), os.fsencode(target))
        try:
            if sys.platform == "darwin":
                failed = libc.renamex_np(*names, RENAME_EXCL)
            else:
                failed = libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_NOREPLACE)
        except AttributeError:  # a C library that does not have it
            failed, code = -1, errno.ENOSYS
        else:
            code = ctypes.get_errno()
        if failed:
            raise OSError(code, os.strerror(code), str(source), None, str(target))

    def move_folder(self, source: Path, target: Path) -> None:
        """Give a folder another name; OSError if that name is taken, save by an empty folder, which is gone then."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Take one name away."""
        path.unlink()

    def remove_folder(self, folder: Path) -> None:
        """Take an empty folder away."""
        folder.rmdir()

    def fsync_folder(self, folder: Path) -> None:
        """Wait until the folder's names are on stable storage."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _flush(descriptor)
        finally:
            os.close(descriptor)


def _flush(descriptor: int) -> None:
    if sys.platform == "darwin":  # its fsync leaves the bytes in the drive's own cache
        try:
            fcntl(descriptor, F_FULLFSYNC)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.ENOTTY, errno.EINVAL}:  # network file systems know fsync only
                raise
        else:
            return
    os.fsync(descriptor)
