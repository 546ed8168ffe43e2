"""A registry in a folder on a disk.

A file is written under ``tmp/``, flushed, and gets its real name by link(2), which fails if the name is taken. So no
reader sees half a file, and one of two writers wins.  Nothing is ever replaced.  Symbolic links below the root are not
followed, neither by readers nor by writers.

The lock of a model is flock(2) on ``models/<name>/lock``; it ends with its process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.storage.disk import Disk
from rankmill.foundation.storage.publish import NOTHING_CHANGED, explain_errors, write_new
from rankmill.registry.storage import NOBODY_KNOWS, Kind, Storage, StoredFile

T = TypeVar("T")

IGNORED_NAMES = {"lost+found"}  # exists in the root of a new volume
ATTEMPTS = 3  # if a name is taken when we publish but missing when we read
NO_HARD_LINKS = {errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
NO_LOCKS = {errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
NOT_FLUSHED = "the change may be lost in a power failure"
BETTER = "keep the registry on a local disk or NFS"


class DiskStorage(Storage[Path]):
    """The folder ``root``.  Readers write nothing; the first writer creates it."""

    kind: Kind = "disk"
    careless = f"two files got the same name by a hard link, where one must win; {BETTER}"

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.disk = disk or Disk()
        self._seen: set[Path] = set()  # folders known to be reached without symbolic links
        self._made: set[Path] = set()  # folders whose names are known to be durable

    def read(self, path: Path, limit: int) -> bytes:
        """Read the first ``limit`` bytes of a regular file; IntegrityError for anything else in its place."""
        self._walk(path.parent)
        try:
            return _again(lambda: self.disk.read(path, limit))
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.EINVAL, errno.ENXIO}:
                error.filename = str(path)  # read(2) reports no name
                raise
            what = "a symbolic link" if error.errno == errno.ELOOP else "not a regular file"
            raise IntegrityError(f"{path} is {what}; restore it from a backup") from None

    def modified(self, path: Path) -> float:
        """Seconds since the epoch at which the file was written."""
        return self.disk.modified(path)

    def names(self, folder: Path, after: str = "") -> list[str]:  # noqa: ARG002 (the protocol's)
        """List the names in ``folder``; IntegrityError if a symbolic link leads there."""
        self._walk(folder)
        return _again(lambda: self.disk.names(folder))

    def files(self, folder: Path) -> list[StoredFile[Path]]:
        """List the files in ``folder``."""
        found = []
        for path in (folder / name for name in sorted(self.names(folder))):
            with contextlib.suppress(FileNotFoundError):  # deleted by a collector
                found.append(StoredFile(path, self.disk.size(path), self.disk.modified(path)))
        return found

    def put_new(self, target: Path, data: bytes, otherwise: str = NOBODY_KNOWS) -> bool:
        """Publish ``data`` durably at ``target`` unless it exists; return whether ``target`` now holds ``data``."""
        self._make_folders(target.parent)
        with self._staged(data) as staged, explain_errors(target.parent, otherwise):
            held = self._link(staged, target, data)
        self.flush(target.parent)  # also if another writer has just created it: we rely on it
        return held

    def put(self, target: Path, data: bytes) -> None:
        """Replace ``target`` atomically but not durably."""
        self._walk(target.parent)
        with self._staged(data, flush=False) as staged, explain_errors(target.parent):
            self.disk.replace(staged, target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self.disk.unlink(path)

    def new_blob(self, folder: Path, sha256: str) -> Path:
        """Return the one file of a blob."""
        return folder / sha256

    def blob_paths(self, folder: Path, sha256: str) -> list[Path]:
        """Return the one file of a blob."""
        return [folder / sha256]

    def flush(self, folder: Path) -> None:
        """Make the names in ``folder`` durable."""
        with explain_errors(folder, NOT_FLUSHED):
            self.disk.fsync_folder(folder)

    @contextlib.contextmanager
    def locked(self, folder: Path) -> Iterator[None]:
        """Hold the lock of the model in ``folder``; OSError where the file system has no locks."""
        self._make_folders(folder)
        try:
            with explain_errors(folder):
                descriptor = self.disk.lock(folder / "lock", fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise OSError(
                error.errno, f"this file system has no locks; {NOTHING_CHANGED}; {BETTER}", str(folder)
            ) from None
        try:
            yield
        finally:
            self.disk.close(descriptor)

    def create(self, data: bytes) -> None:
        """Create the folder, with this ``FORMAT.json``; errors as in `Storage.create`."""
        root = self.root.absolute()
        new = [folder for folder in (root, *root.parents) if not self.disk.is_folder(folder)]
        try:
            for folder in reversed(new):
                with explain_errors(folder.parent), contextlib.suppress(FileExistsError):
                    self.disk.make_folder(folder)
            for folder in (
                root,
                *root.parents,
            ):  # also those that exist: their creator may have been killed before it did so
                try:
                    self.flush(folder.parent)
                except OSError:  # a folder above may be closed to us
                    if folder in new:
                        raise
            super().create(data)
        except OSError:
            for folder in [self.root / "tmp", *new]:  # leave nothing behind
                with contextlib.suppress(OSError):
                    self.disk.remove_folder(folder)
            raise

    def _is_ours(self, name: str) -> bool:
        return super()._is_ours(name) or name in IGNORED_NAMES or name.startswith(".")

    def _make_folders(self, folder: Path) -> None:
        """Create ``folder`` and its parents below the root, durably, even if they exist.

        Their creator may not have flushed them.
        """
        if folder in self._made:
            return
        for part in [part for part in (*reversed(folder.parents), folder) if self.root in part.parents]:
            self._walk(part)
            with explain_errors(part.parent), contextlib.suppress(FileExistsError):
                self.disk.make_folder(part)
            self.flush(part.parent)
        self._made.add(folder)

    @contextlib.contextmanager
    def _staged(self, data: bytes, *, flush: bool = True) -> Iterator[Path]:
        """Write a read-only file to publish, with durable bytes if ``flush``; it is removed at the end."""
        staged = self.root / "tmp" / uuid.uuid4().hex
        self._walk(staged.parent)
        with explain_errors(staged.parent):
            try:
                write_new(self.disk, staged, [data], size=len(data), flush=flush)
            except FileNotFoundError:  # the first file, or a copy of a registry without its empty folders
                with contextlib.suppress(FileExistsError):
                    self.disk.make_folder(staged.parent, 0o770)  # for writers; its name need not be durable
                write_new(self.disk, staged, [data], size=len(data), flush=flush)
        try:
            yield staged
        finally:
            with contextlib.suppress(OSError):
                self.disk.unlink(staged)

    def _link(self, staged: Path, target: Path, data: bytes) -> bool:
        """Publish a staged file.

        The file that is found there counts, not the answer: over NFS an answer may be lost.
        """
        for attempt in range(ATTEMPTS):
            try:
                self.disk.link(staged, target)
            except OSError as error:
                if error.errno in NO_HARD_LINKS:
                    reason = f"the registry needs hard links, which are not possible here ({error.strerror}); {BETTER}"
                    raise OSError(error.errno, reason, str(target)) from None
                try:
                    return self.read(target, len(data) + 1) == data
                except FileNotFoundError:  # not visible yet (NFS), or deleted meanwhile; or not carried out
                    if error.errno not in {errno.EEXIST, errno.ESTALE} or attempt == ATTEMPTS - 1:
                        raise error from None
                    self.disk.names(target.parent)  # look the folder up again
            else:
                return True
        raise AssertionError

    def _walk(self, folder: Path) -> None:
        """Raise IntegrityError if the path from the root to ``folder`` contains a symbolic link."""
        if folder in self._seen or not folder.is_relative_to(self.root):
            return
        part = folder
        while part != self.root:
            if self.disk.is_link(part):
                cure = "which the registry does not follow; replace it with the folder itself"
                raise IntegrityError(f"{part} is a symbolic link, {cure}")
            part = part.parent
        self._seen.add(folder)


def _again(call: Callable[[], T]) -> T:
    """Call once more if a handle of NFS is stale: that opens the file by name."""
    try:
        return call()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return call()
