"""The files of a registry: its format number, immutable blobs named by digest, and entries that never replace each other.

::

    ROOT/FORMAT.json                 see ``rankmill.registry.registry_format``; written once, before anything else
         models/<name>/log/          see ``rankmill.registry.commit_log``
                       lock          the one lock of the model
         blobs/<name>/<64 hex>       read-only; model bytes, manifests, attachments and gate reports alike
         tmp/                        files being written
         ballast                     space that is freed when a disk is full

ROOT is a folder on a disk (`rankmill.registry.disk_storage`) or a prefix of a bucket (`rankmill.registry.bucket_storage`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.storage.bucket import BucketClient
from rankmill.foundation.storage.disk import Disk
from rankmill.foundation.storage.location import Location, ObjectUrl
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry.names import PRODUCTION
from rankmill.registry.registry_format import Format
from rankmill.registry.storage import Blob, Storage

LARGEST_ENTRY = 1 << 26  # bytes
LARGEST_BLOB = 1 << 30  # bytes; for blobs of unknown size, such as manifests and reports


class Store:
    """The folder or bucket ``root``.  Readers write nothing; the first writer creates the registry."""

    def __init__(self, root: Location, disk: Disk | None = None, bucket: BucketClient | None = None) -> None:
        self.root = root
        self.storage = _storage_of(root, disk, bucket)
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
                usual = Format(self.storage.kind, (PRODUCTION,)).to_bytes().decode().strip()
                cure = f"restore it from a backup (without options of models init its content is the line {usual})"
                raise IntegrityError(f"{path} is missing although the registry has models; {cure}") from None
            return False
        try:
            self._format = Format.from_bytes(data, self.storage.kind)
        except IntegrityError as error:
            raise IntegrityError(f"{path}: {error}") from None
        return True

    @property
    def protected(self) -> tuple[str, ...]:
        """The aliases that move forward only after a passed gate, fixed when the registry was created."""
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
        self.storage.create(Format.new(self.storage.kind, protected).to_bytes())
        self.exists()  # if another writer created one meanwhile, its rules apply
        self.storage.reserve()

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

    def put_entry(self, target: Location, data: bytes) -> bool:
        """Publish an entry as `Storage.put_if_absent`; on a full disk, use the space that is reserved for this."""
        try:
            held = self.storage.put_if_absent(target, data)
        except OSError as error:
            if not self.storage.make_room(error):
                raise
            held = self.storage.put_if_absent(target, data)
        self.storage.reserve()
        return held


class Blobs:
    """The blobs of the model ``name``.

    Whoever stores blobs holds the model's lock, shared with others who do, until the entry that refers to them is committed;
    the collector holds it alone.  So no blob is deleted between.  In a bucket, the grace period of the collector does that.
    """

    def __init__(self, storage: Storage[Any], root: Location, name: str) -> None:
        self._storage, self._model, self._folder = storage, root / "models" / name, root / "blobs" / name

    def path(self, sha256: str) -> Location:
        """Path of the blob, by which messages name it; in a bucket what the names of its objects begin with."""
        return self._folder / sha256

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the model alone, to delete blobs."""
        return self._storage.locked(self._model, alone=True)

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the model, to store blobs and to commit the entry that refers to them."""
        return self._storage.locked(self._model, alone=False)

    @contextlib.contextmanager
    def keep(self, blobs: Sequence[bytes]) -> Iterator[list[str]]:
        """Store the blobs that the block's commit refers to, and yield their digests, in order."""
        with self.together():
            yield [self.put(data) for data in blobs]

    def put(self, data: bytes) -> str:
        """Store ``data`` and return its sha256; IntegrityError if the existing blob of this digest has other bytes."""
        sha256 = digest_of(data)
        if not self._storage.put_blob(self._folder, sha256, data):
            raise _damaged(self.path(sha256))
        return sha256

    def read(self, sha256: str, size: int | None = None) -> bytes:
        """Return the blob with this digest, checked; ``size`` is its length if known.

        Raises
        ------
        IntegrityError
            The blob is missing or damaged.
        """
        for path in self._storage.blob_files(self._folder, sha256):
            try:
                data = self._storage.read(path, (LARGEST_BLOB if size is None else size) + 1)
            except FileNotFoundError:
                continue
            if digest_of(data) != sha256:
                raise _damaged(path)
            if size is not None and len(data) != size:
                raise IntegrityError(f"{path}: expected {size} bytes, found {len(data)}")
            return data
        raise IntegrityError(f"{self.path(sha256)}: the blob is missing; restore it from a backup")

    def read_json(self, sha256: str) -> dict[str, Any]:
        """Return the JSON object in the blob with this digest; errors as in `read`."""
        found: dict[str, Any] = json.loads(self.read(sha256))
        return found

    def all(self) -> list[Blob]:
        """Return every blob that is there, of each digest the newest first."""
        return self._storage.blobs(self._folder)

    def foreign_names(self) -> list[str]:
        """Names in the folder that are not blobs, except hidden files (NFS keeps .nfs files for open ones)."""
        ours = {blob.path.name for blob in self.all()}
        return [name for name in sorted(self._storage.names(self._folder)) if name not in ours and name[0] != "."]

    def delete(self, blob: Blob) -> None:
        """Delete a blob, for ever."""
        with contextlib.suppress(FileNotFoundError):
            self._storage.remove(blob.path)


def _damaged(path: Location) -> IntegrityError:
    return IntegrityError(f"{path}: the content does not match the digest in its name; restore it from a backup")


def _storage_of(root: Location, disk: Disk | None, bucket: BucketClient | None) -> Storage[Any]:
    if isinstance(root, ObjectUrl):
        from rankmill.registry.bucket_storage import BucketStorage

        return BucketStorage(root, bucket)
    from rankmill.registry.disk_storage import DiskStorage

    return DiskStorage(root, disk)
