"""Every call on the file system that the registry makes, one method each: tests put a failing disk in its place."""

from __future__ import annotations

import os
from pathlib import Path


class Disk:
    """Plain system calls: no retries, no state, no decisions."""

    def read(self, path: Path) -> bytes:
        """Read a regular file whole; a symbolic link in its place is refused."""
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            return file.read()

    def names(self, folder: Path) -> list[str]:
        """List what lies in ``folder``, sorted; a folder that is not there holds nothing."""
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208 (names, not paths)
        except FileNotFoundError:
            return []

    def is_folder(self, path: Path) -> bool:
        """Whether a folder is there."""
        return path.is_dir()

    def modified(self, path: Path) -> float:
        """Seconds since the epoch at which the file was last written."""
        return path.lstat().st_mtime

    def link_count(self, path: Path) -> int:
        """How many names the file has."""
        return path.lstat().st_nlink

    def make_folder(self, folder: Path) -> None:
        """Make one folder whose parent is there."""
        folder.mkdir()

    def create(self, path: Path) -> int:
        """Make a new read-only file and return a descriptor that can write it once."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write as much of ``data`` as the system takes and return how much that was."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Wait until the file's bytes are on stable storage."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Give the descriptor back."""
        os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give the file a second name; FileExistsError if that name is taken."""
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Give the file another name; what had that name before is gone."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Take one name away."""
        path.unlink()

    def fsync_folder(self, folder: Path) -> None:
        """Wait until the folder's names are on stable storage."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
