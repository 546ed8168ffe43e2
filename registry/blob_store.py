"""The registry on disk: its format number, immutable blobs named by digest, and atomically written files.

::

    ROOT/FORMAT.json                 see ``rankmill.registry.registry_format``; written once, before anything else
         blobs/sha256/ab/<64 hex>    read-only; model bytes and manifests alike
         models/<name>/log/          see ``rankmill.registry.commit_log``
         leases/, trash/             see ``rankmill.registry.garbage``
         quarantine/                 see ``rankmill.registry.fsck``
         tmp/                        files being written: see `rankmill.foundation.storage.staging.Staging`
         ballast                     see `Ballast`

A file is written under ``tmp/``, flushed, and gets its real name by one call that fails if the name is taken
(`rankmill.foundation.storage.publish.publish_new`): nobody ever sees half a file, and of two writers one wins.
Nothing is ever replaced.  Symbolic links below ROOT are not followed, neither by readers nor by writers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.foundation.storage.disk import Disk
from rankmill.foundation.storage.publish import FULL, NOTHING_CHANGED, REFUSED, digest_of, explain_errors, publish_new
from rankmill.foundation.storage.staging import Staging, Way
from rankmill.registry.names import PRODUCTION
from rankmill.registry.registry_format import NEWEST, Format, Initialised

OWN_NAMES = {"FORMAT.json", "ballast", "blobs", "leases", "models", "quarantine", "tmp", "trash"}
IGNORED_NAMES = {"lost+found"}  # exists in the root of a new volume
LOOKUPS = 3  # attempts to find a blob: a collector may move it to the trash, or back, between two lookups
LARGEST_ENTRY = 1 << 26  # bytes
LARGEST_BLOB = 1 << 30  # bytes; for blobs of unknown size, such as manifests and reports
ATTEMPTS = 3  # if a name is taken when we publish but missing when we read
NO_FOLDER_FSYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
NOBODY_KNOWS = "it is unknown whether the change was written: see rankmill models log NAME, and repeat the command if it is not there"
NOT_FLUSHED = "the change may be lost in a power failure"
BALLAST_SIZE = (
    1 << 20
)  # bytes; a log entry and its blob need an inode and a block each, and perhaps blocks for their names
LEAST_BALLAST = 1 << 14  # bytes


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


class Store:
    """Blobs and put-if-absent below ``root``.  Readers write nothing; the first writer creates the folder."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.trash = root / "trash"
        self.disk = disk or Disk()
        self._staging = Staging(root / "tmp", self.disk)
        self._ballast = Ballast(root / "ballast", self._staging, self.disk)
        self._format: Format | None = None
        self._flushes_folders = True  # until a flush fails
        self._seen: set[Path] = set()  # folders known to be reached without symbolic links

    def exists(self) -> bool:
        """Whether there is a registry of a known format.

        Raises
        ------
        IntegrityError
            Its format number is unknown, or its ``FORMAT.json`` is damaged or missing.
        """
        if self._format is not None:
            return True
        path = self.root / "FORMAT.json"
        inhabited = "models" in self.disk.names(self.root)  # checked first: FORMAT.json is written before models
        try:
            data = self.read(path)
        except FileNotFoundError:
            if inhabited:
                usual = Format(NEWEST, (PRODUCTION,)).to_bytes().decode().strip()
                cure = f"restore it from a backup (without options of models init its content is the line {usual})"
                raise IntegrityError(f"{path} is missing although the registry has models; {cure}") from None
            return False
        try:
            self._format = Format.from_bytes(data)
        except IntegrityError as error:
            raise IntegrityError(f"{path}: {error}") from None
        return True

    @property
    def format(self) -> Format:
        """The content of ``FORMAT.json``; InputError if there is no registry."""
        if not self.exists() or self._format is None:
            raise InputError(f"{self.root}: no registry here; create one with rankmill models init")
        return self._format

    @property
    def protected(self) -> tuple[str, ...]:
        """The aliases that move forward only after a passed gate, fixed when the registry was created; none in format 1."""
        self.exists()
        return () if self._format is None else self._format.protected

    def prepare(self, protected: Iterable[str] = (PRODUCTION,)) -> None:
        """Create the registry with the aliases ``protected`` if it does not exist.

        Raises
        ------
        InputError
            The folder holds something else.
        OSError
            It cannot be created, or it exists and is not writable.
        """
        if self.exists():
            folder = self._staging.folder if self.disk.is_folder(self._staging.folder) else self.root
            if not self.disk.is_writable(folder):  # fail before hours of training, not after
                raise OSError(errno.EACCES, f"{REFUSED[errno.EACCES]}; {NOTHING_CHANGED}", str(folder))
            return
        data = Format.new(protected).to_bytes()
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
            self._way_to_publish()  # fails before anything is left behind
            self.put_if_absent(self.root / "FORMAT.json", data)
        except OSError:
            for folder in [self._staging.folder, *new]:  # leave nothing behind
                with contextlib.suppress(OSError):
                    self.disk.remove_folder(folder)
            raise
        self.exists()  # if another writer created one meanwhile, its rules apply
        self._ballast.reserve()

    def initialise(self, *, leave_open: bool = False, protect: Sequence[str] = ()) -> Initialised:
        """Create the registry; ``protect`` names protected aliases besides production, ``leave_open`` leaves production open.

        An existing registry is not changed; it must have the same protected aliases.

        Raises
        ------
        InputError
            The folder has other files, an alias is invalid, or the existing registry protects other aliases.
        IntegrityError
            The existing registry is damaged or of a later format.
        OSError
            The folder is not writable, or its file system cannot hold a registry.
        """
        wanted = Format.new([*(() if leave_open else (PRODUCTION,)), *protect])
        made = not self.exists()
        self.prepare(wanted.protected)
        found = self.format
        if (leave_open or protect) and found.protected != wanted.protected:
            names = [", ".join(protected) or "nothing" for protected in (found.protected, wanted.protected)]
            raise InputError(
                f"{self.root} is a registry already, created with protection of {names[0]}, not {names[1]}; "
                "to change it for one model use rankmill models alias NAME ALIAS --protect or --open"
            )
        way = self._way_to_publish()
        self.put_if_absent(self.root / "FORMAT.json", found.to_bytes())  # exists; this flushes the folder
        return Initialised(self.root, made, found.number, found.protected, way, self._flushes_folders)

    def read(self, path: Path, limit: int = LARGEST_ENTRY) -> bytes:
        """Read a file of the registry whole.

        Raises
        ------
        FileNotFoundError
            It is not there.
        IntegrityError
            It has more than ``limit`` bytes, is not a regular file, or is reached by a symbolic link.
        """
        data = self._read(path, limit + 1)
        if len(data) > limit:
            raise IntegrityError(f"{path}: expected at most {limit} bytes, found more")
        return data

    def names(self, folder: Path) -> list[str]:
        """List the names in ``folder``, sorted; IntegrityError if a symbolic link leads there."""
        return sorted(self.unsorted_names(folder))

    def unsorted_names(self, folder: Path) -> list[str]:
        """List the names in ``folder``; sorting ten thousand takes as long as listing them."""
        self._walk(folder)
        try:
            return self.disk.names(folder)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return self.disk.names(folder)  # as in `_read`

    def files(self, folder: Path) -> Iterator[Path]:
        """Find every file below ``folder`` except those whose name begins with a dot (NFS creates such files)."""
        for name in self.names(folder):
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

    def put_entry(self, target: Path, data: bytes) -> bool:
        """Do as `put_if_absent`; on a full disk, use the space of the ballast."""
        try:
            held = self.put_if_absent(target, data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._ballast.free()
            held = self.put_if_absent(target, data)
        self._ballast.reserve()
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

    def blob_path(self, sha256: str) -> Path:
        """Path of the blob with this digest, whether or not it exists."""
        return self.root / "blobs" / "sha256" / sha256[:2] / sha256

    def put_blob(self, data: bytes) -> str:
        """Store ``data`` and return its sha256; writes nothing if the blob exists.

        Raises
        ------
        IntegrityError
            The existing blob of this digest has other bytes.
        """
        sha256 = digest_of(data)
        path = self.blob_path(sha256)
        try:
            held = self._read(path, len(data) + 1) == data
            self.fsync_folder(path.parent)  # its writer may not have flushed it yet
        except FileNotFoundError:
            self.make_folders(path.parent)
            held = self.put_if_absent(path, data)
        if not held:
            raise _damaged(path)
        return sha256

    def read_blob(self, sha256: str, size: int | None = None) -> bytes:
        """Return the blob with this digest, checked; ``size`` is its length if known.

        Raises
        ------
        IntegrityError
            The blob is missing or damaged.
        """
        for _ in range(LOOKUPS):
            for path in self._places(sha256):
                try:
                    data = self._read(path, (LARGEST_BLOB if size is None else size) + 1)
                except FileNotFoundError:
                    continue
                if digest_of(data) != sha256:
                    raise _damaged(path)
                if size is not None and len(data) != size:
                    raise IntegrityError(f"{path}: expected {size} bytes, found {len(data)}")
                return data
        raise IntegrityError(f"{self.blob_path(sha256)}: the blob is missing; restore it from a backup")

    def read_json(self, sha256: str) -> dict[str, Any]:
        """Return the JSON object in the blob with this digest; errors as in `read_blob`."""
        found: dict[str, Any] = json.loads(self.read_blob(sha256))
        return found

    def has_blob(self, sha256: str) -> bool:
        """Whether the file of this blob exists outside the trash; its content is not checked."""
        try:
            self.disk.modified(self.blob_path(sha256))
        except FileNotFoundError:
            return False
        return True

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
            self._flushes_folders = False

    def sweep(self) -> None:
        """Remove what killed writers have left in ``tmp/``; best effort."""
        self._staging.sweep()

    def _places(self, sha256: str) -> Iterator[Path]:
        """Yield the paths where a blob may be: its own path or, if it is missing there, the trash."""
        yield self.blob_path(sha256)
        for name in self.names(self.trash):
            if name.startswith(sha256):
                yield self.trash / name

    def _way_to_publish(self) -> Way:
        with explain_errors(self._staging.folder):
            return self._staging.probe()

    def _publish(self, staged: Path, target: Path, data: bytes) -> bool:
        for attempt in range(ATTEMPTS):
            if publish_new(self.disk, staged, target):
                return True
            try:
                return self._read(target, len(data) + 1) == data
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

    def _read(self, path: Path, limit: int) -> bytes:
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


def _damaged(path: Path) -> IntegrityError:
    return IntegrityError(f"{path}: the content does not match the digest in its name; restore it from a backup")
