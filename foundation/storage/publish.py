"""Publish files and folders atomically: write to a temporary path, sync, then publish in one atomic step.

Everything is staged on the file system of its destination, so that the last step is a rename or a link.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.storage.disk import Disk, flush_path
from rankmill.foundation.storage.special_files import refuse_special

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

DISK = Disk()
STAGED = ".staging"  # suffix of everything that is staged next to its destination
NOTHING_CHANGED = "nothing was changed"
_LEFT_BEHIND = 3600  # seconds after which something staged without a lock belongs to a killed process
_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than is allowed here",
}
REFUSED = _NO_ROOM | {
    errno.EROFS: "nothing can be written here",
    errno.EACCES: "nothing can be written here",
    errno.EPERM: "nothing can be written here",
    errno.EXDEV: "the folders of a registry must lie on one file system",
}
_NO_ALLOCATION = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.ENODEV}


def fsync_file(path: Path) -> None:
    """Make the bytes of ``path`` survive a power failure."""
    flush_path(path)


def fsync_folder(path: Path) -> None:
    """Make the names in ``path`` survive a power failure: a rename is not durable before this."""
    DISK.fsync_folder(path)


def digest_of(data: bytes) -> str:
    """Return the sha256 of ``data``, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return the sha256 of the bytes of ``path``, in hexadecimal."""
    with path.open("rb", buffering=0) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def explain_errors(path: Path, outcome: str = NOTHING_CHANGED, *, room_only: bool = False) -> Iterator[None]:
    """Raise an OSError again so that it names ``path``, not an unknown staged file, and states the ``outcome``.

    With ``room_only`` only for a full disk, from any library, whose error may name no file or a removed one.
    """
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        said = os.strerror(number)
        explained = error.strerror != said
        if number not in _NO_ROOM if room_only else explained:
            raise
        known = REFUSED.get(number)
        reason = f"{said}; {outcome}" if known is None else f"{known} ({said}); {NOTHING_CHANGED}"
        raise OSError(error.errno, reason, str(path)) from error


def write_new(
    disk: Disk, path: Path, parts: Iterable[bytes], *, size: int = 0, flush: bool = True, mode: int = 0o444
) -> None:
    """Write a new file, with durable bytes if ``flush``; ``size`` bytes are allocated first.

    After an error there is no file.
    """
    descriptor = disk.create(path, mode)
    try:
        try:
            if size:
                _allocate(disk, descriptor, size)
            for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[disk.write(descriptor, rest) :]
            if flush:
                disk.fsync(descriptor)
        finally:
            disk.close(descriptor)
    except BaseException:
        with suppress(OSError):
            disk.unlink(path)
        raise


def _allocate(disk: Disk, descriptor: int, size: int) -> None:
    try:
        disk.allocate(descriptor, size)
    except OSError as error:
        if error.errno not in _NO_ALLOCATION:
            raise


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically: a reader sees the old bytes or the new ones."""
    refuse_special(path)
    for left in staged_for(path):
        if is_left_behind(left):
            left.unlink(missing_ok=True)
    staged = new_staged_path(path)
    with explain_errors(path, room_only=True):
        write_new(DISK, staged, [data], mode=0o666)
    try:
        DISK.replace(staged, path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def new_staged_path(destination: Path) -> Path:
    """Return a new name next to ``destination``, for staging."""
    return destination.with_name(f".{destination.name}.{secrets.token_hex(6)}{STAGED}")


def staged_for(destination: Path) -> list[Path]:
    """Return the paths staged for ``destination``, including those of killed processes."""
    name = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in destination.name)
    return sorted(destination.parent.glob(f".{name}.*{STAGED}"))


def is_left_behind(path: Path) -> bool:
    """Return whether a staged file or folder is so old that its process must have ended."""
    with suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime > _LEFT_BEHIND
    return False


def keep_by_digest(staged: Path, folder: Path) -> str:
    """Sync ``staged``, move it to ``folder`` under the sha256 of its bytes (its suffix stays) and return the digest.

    Two files of one digest are the same file, so an existing one is simply replaced.
    """
    digest = file_digest(staged)
    fsync_file(staged)
    folder.mkdir(parents=True, exist_ok=True)
    staged.replace(folder / f"{digest}{staged.suffix}")
    return digest


def check_new_file(path: Path, *, overwrite: bool, suffixes: Collection[str] = ()) -> None:
    """Raise InputError if no file can be written to ``path``, whose name must have one of ``suffixes`` (none: any)."""
    if suffixes and path.suffix not in suffixes:
        raise InputError(f"{path}: cannot write {path.suffix!r}; name the file {' or '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: already exists; choose another name, or replace it with {spelled('overwrite')}")


def publish_file(staged: Path, destination: Path) -> None:
    """Sync ``staged``, which is on the same file system, and rename it to ``destination``."""
    refuse_special(destination)
    fsync_file(staged)
    staged.replace(destination)
    fsync_folder(destination.parent)


def publish_folder(staged: Path, destination: Path) -> None:
    """Sync the tree ``staged`` and rename it to ``destination``, which must not exist or be an empty folder."""
    refuse_special(destination)
    for folder, _, names in os.walk(staged, topdown=False):
        for name in names:
            fsync_file(Path(folder, name))
        fsync_folder(Path(folder))
    staged.rename(destination)
    fsync_folder(destination.parent)
