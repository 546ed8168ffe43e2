"""A registry in a folder on a disk.

A file is written under ``tmp/``, flushed, and gets its real name by one call that fails if the name is taken
(`rankmill.foundation.storage.publish.publish_new`): nobody ever sees half a file, and of two writers one wins.
Nothing is ever replaced.  Symbolic links below the root are not followed, neither by readers nor by writers.

The lock of a model is flock(2) on ``models/<name>/lock``; it ends with its process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.foundation.storage.disk import Disk
from rankmill.foundation.storage.publish import FULL, NOTHING_CHANGED, REFUSED, explain_errors, publish_new
from rankmill.foundation.storage.staging import Staging, Way
from rankmill.registry.storage import NOBODY_KNOWS, OWN_NAMES, Blob, Kind, Storage

IGNORED_NAMES = {"lost+found"}  # exists in the root of a new volume
ATTEMPTS = 3  # if a name is taken when we publish but missing when we read
NO_FOLDER_FSYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
NO_LOCKS = {errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
NOT_FLUSHED = "the change may be lost in a power failure"
BALLAST_SIZE = (
    1 << 20
)  # bytes; a log entry and its blob need an inode and a block each, and perhaps blocks for their names
LEAST_BALLAST = 1 << 14  # bytes
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Ballast:
    """A file that reserves disk space: deleted when the disk is full, so that a rollback still succeeds, and recreated later.

    On a disk that stays full, it is recreated smaller each time.
    """

    def __init__(self, path: Path, staging: Staging, disk: Disk) -> None:
        self._path, self._staging, self._disk = path, staging, disk
        self._full = False  # checked once per process

    def free(self) -> None:
        """Free the reserved space.  If another process did it already, there is space too."""
        self._full = False
        with contextlib.suppress(OSError):
            self._disk.unlink(self._path)

    def reserve(self) -> None:
        """Create it if it is missing or too small; best effort."""
        if self._full:
            return
        with contextlib.suppress(OSError):
            try:
                there = self._disk.size(self._path)
            except FileNotFoundError:
                there = -1
            size = BALLAST_SIZE
            while size > there and size >= LEAST_BALLAST:
                try:
                    self._put(size, instead=there >= 0)
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    size //= 2
                else:
                    break
            self._full = True

    def _put(self, size: int, *, instead: bool) -> None:
        staged = self._staging.write(
            os.urandom(size), flush=False
        )  # random, so that the file system cannot compress it
        try:
            if instead:  # a smaller file, left by a full disk or a power failure
                self._disk.unlink(self._path)
            publish_new(self._disk, staged, self._path)
        finally:
            self._staging.discard(staged)


class DiskStorage(Storage[Path]):
    """The folder ``root``.  Readers write nothing; the first writer creates it."""

    kind: Kind = "disk"

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.disk = disk or Disk()
        self.flushes_folders = True  # until a flush fails
        self._staging = Staging(root / "tmp", self.disk)
        self._ballast = Ballast(root / "ballast", self._staging, self.disk)
        self._seen: set[Path] = set()  # folders known to be reached without symbolic links

    def read(self, path: Path, limit: int) -> bytes:
        """Read the first ``limit`` bytes of a regular file; IntegrityError for anything else in its place."""
        self._walk(path.parent)
        try:
            try:
                return self.disk.read(path, limit)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                return self.disk.read(path, limit)  # stale NFS handle: open it by name once more
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
        try:
            return self.disk.names(folder)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return self.disk.names(folder)  # as in `read`

    def put_if_absent(self, target: Path, data: bytes) -> bool:
        """Publish ``data`` durably at ``target`` unless it exists; return whether ``target`` now holds ``data``.

        The folder of ``target`` must exist.  After an exception the target is either absent or complete.
        """
        self._walk(self._staging.folder)
        self._walk(target.parent)
        with explain_errors(self._staging.folder):
            staged = self._staging.write(data)
        try:
            with explain_errors(target.parent, NOBODY_KNOWS):
                held = self._publish(staged, target, data)
        finally:
            self._staging.discard(staged)
        self.fsync_folder(target.parent)  # also if another writer has just created it: we rely on it
        return held

    def put_folder_if_absent(self, target: Path, files: Mapping[str, bytes]) -> bool:
        """Publish a folder of files durably and atomically unless ``target`` has files; return whether it was published.

        The parent of ``target`` must exist.  On every file system, rename(2) replaces an empty folder and no other.
        """
        self._walk(self._staging.folder)
        self._walk(target)
        with explain_errors(self._staging.folder):
            staged = self._staging.write_folder(files)
        try:
            with explain_errors(target.parent):
                self.disk.move_folder(staged, target)
        except BaseException as error:
            self._staging.discard_folder(staged)
            if isinstance(error, OSError) and error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return False
            raise
        self.fsync_folder(target.parent)
        return True

    def replace(self, target: Path, data: bytes) -> None:
        """Replace ``target`` atomically but not durably: for files that may be lost."""
        self._walk(self._staging.folder)
        self._walk(target.parent)
        with explain_errors(self._staging.folder):
            staged = self._staging.write(data, flush=False)
        try:
            with explain_errors(target.parent):
                self.disk.replace(staged, target)
        except BaseException:
            self._staging.discard(staged)
            raise

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self.disk.unlink(path)

    def make_folders(self, folder: Path, above: Path | None = None) -> None:
        """Create ``folder`` and its parents below ``above`` (default: the root), durably, even if they exist already."""
        above = above or self.root
        for part in [part for part in (*reversed(folder.parents), folder) if above in part.parents]:
            self._walk(part)
            with explain_errors(part.parent), contextlib.suppress(FileExistsError):
                self.disk.make_folder(part)
            self.fsync_folder(part.parent)  # also if it exists: its creator may not have flushed it yet

    def fsync_folder(self, folder: Path) -> None:
        """Make the names in ``folder`` durable; file systems without this call (SMB) do it by themselves."""
        try:
            with explain_errors(folder, NOT_FLUSHED):
                self.disk.fsync_folder(folder)
        except OSError as error:
            if error.errno not in NO_FOLDER_FSYNC:
                raise
            self.flushes_folders = False

    @contextlib.contextmanager
    def locked(self, folder: Path, *, alone: bool) -> Iterator[None]:
        """Hold the lock of the model in ``folder``; OSError to be ``alone`` where the file system has no locks."""
        self.make_folders(folder)
        descriptor = None
        try:
            with explain_errors(folder):
                descriptor = self.disk.lock(folder / "lock", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            if alone:
                reason = f"this file system has no locks, so that nothing can be deleted safely; {NOTHING_CHANGED}"
                raise OSError(error.errno, reason, str(folder)) from None
        try:
            yield
        finally:
            if descriptor is not None:
                self.disk.close(descriptor)

    def make_room(self, error: OSError) -> bool:
        """Free the reserved space if the disk is full; return whether to try again."""
        if error.errno not in FULL:
            return False
        self._ballast.free()
        return True

    def reserve(self) -> None:
        """Reserve space for the time when the disk is full; best effort."""
        self._ballast.reserve()

    def sweep(self) -> None:
        """Remove what killed writers have left in ``tmp/``; best effort."""
        self._staging.sweep()

    def now(self) -> float:
        """Return the earlier of our clock and the file system's."""
        folder = self.root / "tmp"
        if not self.disk.is_folder(folder):
            self.make_folders(folder)
        path = folder / f"clock.{uuid.uuid4().hex}"
        with explain_errors(folder):
            descriptor = self.disk.create(path)
        try:
            self.disk.close(descriptor)
            return min(time.time(), self.disk.modified(path))
        finally:
            with contextlib.suppress(OSError):
                self.disk.unlink(path)

    def check_writable(self) -> None:
        """Raise OSError if files cannot be created."""
        folder = self._staging.folder if self.disk.is_folder(self._staging.folder) else self.root
        if not self.disk.is_writable(folder):
            raise OSError(errno.EACCES, f"{REFUSED[errno.EACCES]}; {NOTHING_CHANGED}", str(folder))

    def create(self, data: bytes) -> None:
        """Create the folder, with this ``FORMAT.json``.

        Raises
        ------
        InputError
            The folder holds something else.
        OSError
            It cannot be created or written to; nothing is left behind.
        """
        if foreign := [
            n
            for n in sorted(self.disk.names(self.root))
            if n not in OWN_NAMES | IGNORED_NAMES and not n.startswith(".")
        ]:
            raise InputError(
                f"{self.root} is not a registry and contains {foreign[0]!r}; choose an empty or a new folder"
            )
        root = self.root.absolute()
        above = next((folder for folder in root.parents if self.disk.is_folder(folder)), root)
        new = [
            folder for folder in (root, *root.parents) if above in folder.parents and not self.disk.is_folder(folder)
        ]
        try:
            try:
                self.make_folders(root, above)
            except PermissionError:
                if new:  # an existing folder may be a mount whose parent we may not open
                    raise
            for folder in above.parents:  # their creator may have been killed before it flushed them
                with contextlib.suppress(OSError):
                    self.disk.fsync_folder(folder)
            self.probe()  # fails before anything is left behind
            self.put_if_absent(self.root / "FORMAT.json", data)
        except OSError:
            for folder in [self._staging.folder, *new]:  # leave nothing behind
                with contextlib.suppress(OSError):
                    self.disk.remove_folder(folder)
            raise

    def probe(self) -> Way:
        """Publish two files under one name, and return the method that worked; OSError if neither does."""
        with explain_errors(self._staging.folder):
            return self._staging.probe()

    # -- the blobs in a folder ----------------------------------------------------------------------------------------

    def put_blob(self, folder: Path, sha256: str, data: bytes) -> bool:
        """Store a blob durably unless it is there; return whether the file now holds ``data``."""
        path = folder / sha256
        try:
            held = self.read(path, len(data) + 1) == data
        except FileNotFoundError:
            self.make_folders(folder)
            return self.put_if_absent(path, data)
        self.fsync_folder(folder)  # its writer may not have flushed it yet
        return held

    def blob_files(self, folder: Path, sha256: str) -> list[Path]:
        """Return the file that may hold a blob."""
        return [folder / sha256]

    def blobs(self, folder: Path) -> list[Blob]:
        """Return all blobs; files with other names are skipped."""
        found = []
        for name in sorted(filter(_DIGEST.fullmatch, self.names(folder))):
            with contextlib.suppress(FileNotFoundError):  # deleted by a collector
                path = folder / name
                found.append(Blob(name, path, self.disk.size(path), self.disk.modified(path)))
        return found

    def _publish(self, staged: Path, target: Path, data: bytes) -> bool:
        for attempt in range(ATTEMPTS):
            if publish_new(self.disk, staged, target):
                return True
            try:
                return self.read(target, len(data) + 1) == data
            except FileNotFoundError:  # not visible yet (NFS), or deleted meanwhile
                if attempt == ATTEMPTS - 1:
                    raise
                self.disk.names(target.parent)
        raise AssertionError

    def _walk(self, folder: Path) -> None:
        """Raise IntegrityError if the path from the root to ``folder`` contains a symbolic link."""
        if folder in self._seen or not folder.is_relative_to(self.root):
            return
        part = folder
        while part != self.root:
            if self.disk.is_link(part):
                raise IntegrityError(
                    f"{part} is a symbolic link, which the registry does not follow; replace it with the folder itself"
                )
            part = part.parent
        self._seen.add(folder)
