"""The files of a registry: its format number, immutable blobs named by digest, and log entries.

An entry never replaces another.

::

    ROOT/FORMAT.json                 the format and rules; written once, before anything else, and never changed
         models/<name>/log/          see ``rankmill.registry.commit_log``
                       lock          the one lock of the model, on a disk
         blobs/<name>/<64 hex>       read-only; model bytes, manifests, attachments and gate reports alike
         tmp/                        files being written

ROOT is a folder on a disk (`rankmill.registry.disk_storage`) or a prefix of a bucket
(`rankmill.registry.bucket_storage`).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rankmill.foundation.errors import IntegrityError, InvalidName
from rankmill.foundation.records import canonical_json, other_format
from rankmill.foundation.storage.bucket import BucketClient
from rankmill.foundation.storage.disk import Disk
from rankmill.foundation.storage.location import Location, ObjectUrl
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry.names import PRODUCTION, check_alias
from rankmill.registry.storage import FORMAT_NAME, Kind, Storage

FORMAT = 5
LARGEST_ENTRY = 1 << 26  # bytes
LARGEST_BLOB = 1 << 30  # bytes; for blobs of unknown size, such as manifests and reports
_BLOB = re.compile(r"([0-9a-f]{64})(\.[0-9a-f]{16})?")


@dataclass(frozen=True, slots=True)
class Format:
    """``FORMAT.json``: ``{"format":5,"kind":"disk","protected":["production"]}``, with the protected aliases.

    ``kind`` is ``bucket`` in a bucket, whose blobs have other names, so that a raw copy to a disk, or from one, is not
    mistaken.
    """

    kind: Kind
    protected: tuple[str, ...] = (PRODUCTION,)

    @classmethod
    def new(cls, kind: Kind, protected: Iterable[str]) -> Format:
        """Return the format of a new registry; InvalidName if an alias is invalid."""
        return cls(kind, tuple(sorted({check_alias(alias) for alias in protected})))

    def to_bytes(self) -> bytes:
        """Return the file."""
        return canonical_json({"format": FORMAT, "kind": self.kind, "protected": list(self.protected)}) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, kind: Kind) -> Format:
        """Read the file of a registry of this ``kind``.

        IntegrityError, without its path, if it is damaged or of another format.
        """
        sound = None
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, InvalidName):
            facts = json.loads(data)
            if type(number := facts["format"]) is int and number != FORMAT:
                raise IntegrityError(other_format("registry", number, FORMAT, "register the models in a new one"))
            sound = cls(facts["kind"], tuple(check_alias(alias) for alias in facts["protected"]))
        if (
            sound is None or sound.to_bytes() != data or sound.kind not in {"disk", "bucket"}
        ):  # any other bytes are damage
            raise IntegrityError(f"expected such as {cls(kind).to_bytes().decode().strip()}, found {data[:60]!r}")
        if sound.kind != kind:
            raise IntegrityError(
                f"this is a registry of a {sound.kind}, and it is on a {kind}: its files were copied as they are; "
                "copy a registry with rankmill models copy"
            )
        return sound


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
        path = self.root / FORMAT_NAME
        inhabited = "models" in self.storage.names(self.root)  # checked first: FORMAT.json is written before models
        try:
            self._format = Format.from_bytes(self.read(path), self.storage.kind)
        except FileNotFoundError:
            if inhabited:
                usual = Format(self.storage.kind).to_bytes().decode().strip()
                cure = f"restore it from a backup (without options of models init its content is the line {usual})"
                raise IntegrityError(f"{path} is missing although the registry has models; {cure}") from None
            return False
        except IntegrityError as error:
            raise IntegrityError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
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
            self.storage.now()  # writes a file: fail before hours of training, not after
            return
        self.storage.create(Format.new(self.storage.kind, protected).to_bytes())
        self.exists()  # if another writer created one meanwhile, its rules apply

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


class Blob(NamedTuple):
    """A file that holds the bytes of a digest; a bucket may have several of one digest."""

    sha256: str
    path: Any
    size: int
    modified: float
    """Seconds since the epoch."""


class Blobs:
    """The blobs of the model ``name``.

    Who stores blobs holds the model's lock until the entry that refers to them is committed, and so does the collector.
    So no blob is deleted between.  In a bucket, the grace period of the collector does that.
    """

    def __init__(self, storage: Storage[Any], root: Location, name: str) -> None:
        self._storage, self._model, self._folder = storage, root / "models" / name, root / "blobs" / name

    def path(self, sha256: str) -> Location:
        """Path of the blob, by which messages name it; in a bucket what the names of its objects begin with."""
        return self._folder / sha256

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the model, to store blobs and commit the entry that refers to them, or to delete blobs."""
        return self._storage.locked(self._model)

    @contextlib.contextmanager
    def keep(self, blobs: Sequence[bytes]) -> Iterator[list[str]]:
        """Store the blobs that the block's commit refers to, and yield their digests, in order."""
        with self.locked():
            yield [self.put(data) for data in blobs]

    def put(self, data: bytes) -> str:
        """Store ``data`` and return its sha256; IntegrityError if the existing blob of this digest has other bytes."""
        sha256 = digest_of(data)
        path = self._storage.new_blob(self._folder, sha256)
        if not self._storage.put_new(path, data):
            raise _damaged(path)
        return sha256

    def read(self, sha256: str, size: int | None = None) -> bytes:
        """Return the blob with this digest, checked; ``size`` is its length if known.

        Raises
        ------
        IntegrityError
            The blob is missing or damaged.
        """
        for path in self._storage.blob_paths(self._folder, sha256):
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
        try:
            found = json.loads(self.read(sha256))
        except (ValueError, RecursionError) as error:
            raise IntegrityError(f"{self.path(sha256)}: expected a JSON object: {error}") from None
        if not isinstance(found, dict):
            raise IntegrityError(f"{self.path(sha256)}: expected a JSON object, found {type(found).__name__}")
        return found

    def all(self) -> list[Blob]:
        """Return every blob that is there, of each digest the newest first; files with other names are skipped."""
        found = [(_BLOB.fullmatch(stored.path.name), stored) for stored in self._storage.files(self._folder)]
        blobs = [Blob(name[1], *stored) for name, stored in found if name is not None]
        return sorted(blobs, key=lambda blob: (blob.sha256, -blob.modified, str(blob.path)))

    def foreign_names(self) -> list[str]:
        """Names in the folder that are not blobs, except hidden files (NFS keeps .nfs files for open ones)."""
        names = sorted(self._storage.names(self._folder))
        return [name for name in names if not _BLOB.fullmatch(name) and not name.startswith(".")]

    def delete(self, blob: Blob) -> None:
        """Delete a blob."""
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
