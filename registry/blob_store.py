"""The files of a registry: its format number, immutable blobs named by digest, and entries that never replace each other.

::

    ROOT/FORMAT.json                 see ``rankmill.registry.registry_format``; written once, before anything else
         blobs/sha256/ab/<64 hex>    read-only; model bytes and manifests alike
         models/<name>/log/          see ``rankmill.registry.commit_log``
         leases/, trash/             see ``rankmill.registry.garbage``
         quarantine/                 see ``rankmill.registry.fsck``
         tmp/                        files being written
         ballast                     space that is freed when a disk is full

ROOT is a folder on a disk (`rankmill.registry.disk_storage`) or a prefix of a bucket (`rankmill.registry.bucket_storage`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.foundation.storage.bucket import BucketClient
from rankmill.foundation.storage.disk import Disk
from rankmill.foundation.storage.location import Location, ObjectUrl
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry.names import PRODUCTION
from rankmill.registry.registry_format import Format, Initialised
from rankmill.registry.storage import Storage

LOOKUPS = 3  # attempts to find a blob: a collector may move it to the trash, or back, between two lookups
LARGEST_ENTRY = 1 << 26  # bytes
LARGEST_BLOB = 1 << 30  # bytes; for blobs of unknown size, such as manifests and reports


class Store:
    """Blobs and put-if-absent below ``root``.  Readers write nothing; the first writer creates the registry."""

    def __init__(self, root: Location, disk: Disk | None = None, bucket: BucketClient | None = None) -> None:
        self.root = root
        self.trash = root / "trash"
        self.disk = disk or Disk()
        """The local disk, for bundles."""
        self.storage = _storage_of(root, self.disk, bucket)
        self._format: Format | None = None

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
        inhabited = "models" in self.storage.names(self.root)  # checked first: FORMAT.json is written before models
        try:
            data = self.read(path)
        except FileNotFoundError:
            if inhabited:
                usual = Format(self.storage.newest_format, (PRODUCTION,)).to_bytes().decode().strip()
                cure = f"restore it from a backup (without options of models init its content is the line {usual})"
                raise IntegrityError(f"{path} is missing although the registry has models; {cure}") from None
            return False
        try:
            found = Format.from_bytes(data)
            found.check_layout(self.storage.newest_format)
        except IntegrityError as error:
            raise IntegrityError(f"{path}: {error}") from None
        self._format = found
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
            The place holds something else.
        OSError
            It cannot be created, or it exists and is not writable.
        """
        if self.exists():
            self.storage.check_writable()  # fail before hours of training, not after
            return
        self.storage.create(Format.new(protected, self.storage.newest_format).to_bytes())
        self.exists()  # if another writer created one meanwhile, its rules apply
        self.storage.reserve()

    def initialise(self, *, leave_open: bool = False, protect: Sequence[str] = ()) -> Initialised:
        """Create the registry; ``protect`` names protected aliases besides production, ``leave_open`` leaves production open.

        An existing registry is not changed; it must have the same protected aliases.

        Raises
        ------
        InputError
            The place has other files, an alias is invalid, or the existing registry protects other aliases.
        IntegrityError
            The existing registry is damaged or of a later format.
        OSError
            The place is not writable, or cannot hold a registry.
        """
        wanted = Format.new([*(() if leave_open else (PRODUCTION,)), *protect], self.storage.newest_format)
        made = not self.exists()
        self.prepare(wanted.protected)
        found = self.format
        if (leave_open or protect) and found.protected != wanted.protected:
            names = [", ".join(protected) or "nothing" for protected in (found.protected, wanted.protected)]
            raise InputError(
                f"{self.root} is a registry already, created with protection of {names[0]}, not {names[1]}; "
                "to change it for one model use rankmill models alias NAME ALIAS --protect or --open"
            )
        way = self.storage.probe()
        self.put_if_absent(self.root / "FORMAT.json", found.to_bytes())  # exists; this flushes the folder
        return Initialised(self.root, made, found.number, found.protected, way, self.storage.flushes_folders)

    def read(self, path: Location, limit: int = LARGEST_ENTRY) -> bytes:
        """Read a file of the registry whole.

        Raises
        ------
        FileNotFoundError
            It is not there.
        IntegrityError
            It has more than ``limit`` bytes, is not a regular file, or is reached by a symbolic link.
        """
        data = self.storage.read(path, limit + 1)
        if len(data) > limit:
            raise IntegrityError(f"{path}: expected at most {limit} bytes, found more")
        return data

    def names(self, folder: Location) -> list[str]:
        """List the names in ``folder``, sorted; IntegrityError if a symbolic link leads there."""
        return sorted(self.storage.names(folder))

    def files(self, folder: Location) -> Iterator[Location]:
        """Find every file below ``folder`` except those whose name begins with a dot (NFS creates such files)."""
        return self.storage.files(folder)

    def put_if_absent(self, target: Location, data: bytes) -> bool:
        """Publish ``data`` durably at ``target`` unless it exists; return whether ``target`` now holds ``data``.

        The folder of ``target`` must exist.  After an exception the target is either absent or complete.
        """
        return self.storage.put_if_absent(target, data)

    def put_entry(self, target: Location, data: bytes) -> bool:
        """Do as `put_if_absent`; on a full disk, use the space that is reserved for this."""
        try:
            held = self.put_if_absent(target, data)
        except OSError as error:
            if not self.storage.make_room(error):
                raise
            held = self.put_if_absent(target, data)
        self.storage.reserve()
        return held

    def put_folder_if_absent(self, target: Location, files: Mapping[str, bytes]) -> bool:
        """Publish a folder of files durably unless ``target`` has other files; return whether it was published.

        On a disk it appears at once, in a bucket file by file, in the given order.
        """
        return self.storage.put_folder_if_absent(target, files)

    def replace(self, target: Location, data: bytes) -> None:
        """Replace ``target`` atomically but not durably: for files that may be lost."""
        self.storage.replace(target, data)

    def blob_path(self, sha256: str) -> Location:
        """Path of the blob with this digest, whether or not it exists."""
        path: Location = self.storage.blob_path(sha256)
        return path

    def put_blob(self, data: bytes) -> str:
        """Store ``data`` and return its sha256; writes nothing if the blob exists.

        Raises
        ------
        IntegrityError
            The existing blob of this digest has other bytes.
        """
        sha256 = digest_of(data)
        for path in self.storage.blob_files(sha256):
            try:
                held = self.storage.read(path, len(data) + 1) == data
            except FileNotFoundError:
                continue
            self.fsync_folder(path.parent)  # its writer may not have flushed it yet
            break
        else:
            path = self.storage.new_blob(sha256)
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
            for path in self.storage.places(sha256):
                try:
                    data = self.storage.read(path, (LARGEST_BLOB if size is None else size) + 1)
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
        return self.storage.has_blob(sha256)

    def blob_size(self, sha256: str) -> int:
        """Size of a blob outside the trash, whose content is not checked; FileNotFoundError if there is none."""
        for path in self.storage.blob_files(sha256):
            return self.storage.size(path)
        raise FileNotFoundError(str(self.blob_path(sha256)))

    def make_folders(self, folder: Location) -> None:
        """Create ``folder`` and its parents below the root, durably, even if they exist already."""
        self.storage.make_folders(folder)

    def fsync_folder(self, folder: Location) -> None:
        """Make the names in ``folder`` durable; file systems without this call (SMB) do it by themselves."""
        self.storage.fsync_folder(folder)

    def sweep(self) -> None:
        """Remove what killed writers have left in ``tmp/``; best effort."""
        self.storage.sweep()


def _damaged(path: Location) -> IntegrityError:
    return IntegrityError(f"{path}: the content does not match the digest in its name; restore it from a backup")


def _storage_of(root: Location, disk: Disk, bucket: BucketClient | None) -> Storage[Any]:
    if isinstance(root, ObjectUrl):
        from rankmill.registry.bucket_storage import BucketStorage

        return BucketStorage(root, bucket)
    from rankmill.registry.disk_storage import DiskStorage

    return DiskStorage(root, disk)
