"""A registry in a folder on a disk.

A file is written under ``tmp/``, flushed, and gets its real name by one call that fails if the name is taken
(`rankmill.foundation.storage.publish.publish_new`): nobody ever sees half a file, and of two writers one wins.
Nothing is ever replaced.  Symbolic links below the root are not followed, neither by readers nor by writers.

The trash: ``trash/<sha256>.<UTC time of the move>.<8 hex>``, to which blobs are renamed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.foundation.storage.disk import Disk
from rankmill.foundation.storage.publish import FULL, NOTHING_CHANGED, REFUSED, explain_errors, publish_new
from rankmill.foundation.storage.staging import Staging, Way
from rankmill.registry.storage import NOBODY_KNOWS, OWN_NAMES, Trashed

IGNORED_NAMES = {"lost+found"}  # exists in the root of a new volume
ATTEMPTS = 3  # if a name is taken when we publish but missing when we read
NO_FOLDER_FSYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
NOT_FLUSHED = "the change may be lost in a power failure"
BALLAST_SIZE = (
    1 << 20
)  # bytes; a log entry and its blob need an inode and a block each, and perhaps blocks for their names
LEAST_BALLAST = 1 << 14  # bytes
WRITABLE = 0o222
TRASH_NAME = re.compile(r"([0-9a-f]{64})\.([0-9]{8}T[0-9]{6}Z)\.[0-9a-f]{8}")
TRASH_TIME = "%Y%m%dT%H%M%SZ"
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


class DiskStorage:
    """The folder ``root``.  Readers write nothing; the first writer creates it."""

    newest_format = 2

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.trash = root / "trash"
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

    def size(self, path: Path) -> int:
        """Size of the file in bytes."""
        return self.disk.size(path)

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

    def files(self, folder: Path) -> Iterator[Path]:
        """Find every file below ``folder`` except those whose name begins with a dot (NFS creates such files)."""
        for name in sorted(self.names(folder)):
            path = folder / name
            if name.startswith("."):
                continue
            if self.disk.is_folder(path):
                yield from self.files(path)
            else:
                yield path

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

    def set_aside(self, path: Path, target: Path) -> None:
        """Move a file to ``target``, whose folder need not exist."""
        self.make_folders(target.parent)
        self.disk.replace(path, target)

    def make_folders(self, folder: Path, above: Path | None = None) -> None:
        """Create ``folder`` and its parents below ``above`` (default: the root), durably, even if they exist already."""
        above = above or self.root
        for part in [part for part in (*reversed(folder.parents), folder) if above in part.parents]:
            self._walk(part)
            with explain_errors(part.parent), contextlib.suppress(FileExistsError):
                self.disk.make_folder(part)
            self.fsync_folder(part.parent)  # also if it exists: its creator may not have flushed it yet

    def ensure_folder(self, folder: Path) -> None:
        """Create ``folder``, in an existing one, if it is missing; its name need not be durable."""
        if not self.disk.is_folder(folder):
            with contextlib.suppress(FileExistsError):
                self.disk.make_folder(folder)

    def fsync_folder(self, folder: Path) -> None:
        """Make the names in ``folder`` durable; file systems without this call (SMB) do it by themselves."""
        try:
            with explain_errors(folder, NOT_FLUSHED):
                self.disk.fsync_folder(folder)
        except OSError as error:
            if error.errno not in NO_FOLDER_FSYNC:
                raise
            self.flushes_folders = False

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

    # -- blobs --------------------------------------------------------------------------------------------------------

    def blob_path(self, sha256: str) -> Path:
        """Path of the blob with this digest, whether or not it exists."""
        return self.root / "blobs" / "sha256" / sha256[:2] / sha256

    def blob_files(self, sha256: str) -> Iterable[Path]:
        """Return the file that may hold a blob."""
        return [self.blob_path(sha256)]

    def new_blob(self, sha256: str) -> Path:
        """Return the path for a blob that is to be stored."""
        return self.blob_path(sha256)

    def has_blob(self, sha256: str) -> bool:
        """Whether the file of this blob exists outside the trash; its content is not checked."""
        try:
            self.disk.modified(self.blob_path(sha256))
        except FileNotFoundError:
            return False
        return True

    def places(self, sha256: str) -> Iterator[Path]:
        """Yield the paths where a blob may be: its own path or, if it is missing there, the trash."""
        yield self.blob_path(sha256)
        for name in sorted(self.names(self.trash)):
            if name.startswith(sha256):
                yield self.trash / name

    def digest_at(self, path: Path) -> str | None:
        """Return the digest of the blob that a file below ``blobs`` should hold; None if it is no blob."""
        sha256 = path.name
        return sha256 if path == self.blob_path(sha256) and _DIGEST.fullmatch(sha256) else None

    def blobs(self) -> dict[str, Path]:
        """Paths of the blobs by digest; files with other names are skipped."""
        paths = self.files(self.root / "blobs" / "sha256")
        return {sha256: path for path in paths if (sha256 := self.digest_at(path)) is not None}

    def trash_items(self) -> list[Trashed]:
        """Return the blobs in the trash, sorted by name."""
        found = []
        for name in sorted(self.names(self.trash)):
            if parts := TRASH_NAME.fullmatch(name):
                moved = datetime.strptime(parts[2], TRASH_TIME).replace(tzinfo=UTC).timestamp()
                found.append(Trashed(self.trash / name, parts[1], moved, self.trash / name))
        return found

    def move_to_trash(self, sha256: str, now: float) -> bool:
        """Move a blob to the trash; return False if another collector has already moved it."""
        if not self.disk.is_folder(self.trash):
            self.make_folders(self.trash)
        moved = datetime.fromtimestamp(now, UTC).strftime(TRASH_TIME)
        try:
            self.disk.replace(self.blob_path(sha256), self.trash / f"{sha256}.{moved}.{secrets.token_hex(4)}")
        except FileNotFoundError:
            return False
        return True

    def put_back(self, item: Trashed) -> bool:
        """Restore a blob; return False if it was restored or deleted meanwhile."""
        folder = self.blob_path(item.sha256).parent
        if not self.disk.is_folder(folder):  # the registry was copied without its empty folders
            self.make_folders(folder)
        try:
            self.disk.replace(item.path, self.blob_path(item.sha256))
        except FileNotFoundError:
            return False
        return True

    def trashed_size(self, item: Trashed) -> int:
        """Size of a blob in the trash; FileNotFoundError if another collector has deleted it."""
        return self.disk.size(item.path)

    def delete_trashed(self, item: Trashed) -> None:
        """Delete a blob in the trash, for ever."""
        self.disk.unlink(item.path)

    def is_exposed(self, path: Path) -> bool:
        """Whether a file may be written by anybody."""
        return bool(self.disk.mode(path) & WRITABLE)

    def protect(self, path: Path) -> None:
        """Make a file readable by all and writable by none."""
        self.disk.make_read_only(path)

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
