"""A registry below a prefix of a bucket.

*Entries* are written by conditional puts (``If-None-Match: *``), of which one wins, as link(2) on a disk.  An entry holds the number of its
transaction, drawn by its writer, so no two writers ever write the same bytes under the same name.  Hence an answer that was lost is found again by
reading: if the object holds our bytes, we have written it; if it holds others, somebody else has; if it is missing, the same request is
sent again, and whichever of the two arrives first counts.

*Blobs* are ``blobs/sha256/ab/<sha256>.<16 hex>``: each writer draws a name that no other object ever had or will have.  A
blob is moved to the trash by an empty object ``trash/<sha256>.<UTC time>.<the same 16 hex>``, and deleted by deleting first the blob, then that mark.
So a collector deletes exactly the object that it examined, or nothing, which the proof in ``rankmill.registry.garbage`` needs and a rename,
which stores do not have, gives on a disk.  Who looks for a blob reads the marks first, then the names of the blobs: an object that is there
and had no mark was not marked when the look began.

*Durable* is what the store has acknowledged.  Stores that list and read objects as soon as they are written are needed: S3, Google Cloud
Storage and Azure do.  A request that was sent and not answered is assumed to be carried out, if at all, within the grace period of
the collector.
"""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.bucket import BucketClient, ObjectFacts, StoreError, StoreRefusal, open_bucket
from rankmill.foundation.storage.location import ObjectUrl
from rankmill.registry.registry_format import IN_BUCKETS
from rankmill.registry.storage import NOBODY_KNOWS, OWN_NAMES, Publishing, Trashed

ATTEMPTS = 4  # of a conditional put whose answer was lost; each is several tries of the client
PAUSE = 0.5  # seconds before the second attempt
OLD = 24 * 3600.0  # seconds after which something in tmp/ belongs to a killed process
TRASH_TIME = "%Y%m%dT%H%M%SZ"
_BLOB = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{16})")
_TRASH = re.compile(r"([0-9a-f]{64})\.([0-9]{8}T[0-9]{6}Z)\.([0-9a-f]{16})")


class BucketStorage:
    """The objects below ``root``, reached by ``bucket`` (default: by obstore)."""

    newest_format = IN_BUCKETS
    flushes_folders = True

    def __init__(self, root: ObjectUrl, bucket: BucketClient | None = None) -> None:
        self.root = root
        self._given = bucket

    @property
    def _bucket(self) -> BucketClient:
        if self._given is None:
            self._given = open_bucket(self.root)
        return self._given

    def read(self, path: ObjectUrl, limit: int) -> bytes:
        """Read the first ``limit`` bytes of an object, all if negative."""
        return self._bucket.get(path, limit)

    def size(self, path: ObjectUrl) -> int:
        """Size of the object in bytes."""
        return self._bucket.head(path).size

    def modified(self, path: ObjectUrl) -> float:
        """Seconds since the epoch at which the object was written, by the store's clock."""
        return self._bucket.head(path).modified

    def names(self, folder: ObjectUrl, after: str = "") -> list[str]:
        """List the names below ``folder``, or only those that follow ``after``, if objects alone are there."""
        if after:
            return [stored.url.name for stored in self._bucket.below(folder, after)]
        return self._bucket.names(folder)

    def files(self, folder: ObjectUrl) -> Iterator[ObjectUrl]:
        """Find every object below ``folder``."""
        for stored in self._bucket.below(folder):
            yield stored.url

    def put_if_absent(self, target: ObjectUrl, data: bytes) -> bool:
        """Write ``data`` to ``target`` unless it exists; return whether ``target`` now holds ``data``.

        After an exception the target is absent, or complete, or will be soon: a request may still be under way.
        """
        fault: OSError | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE * 2 ** (attempt - 1))
            try:
                if self._bucket.put_new(target, data):
                    return True
            except StoreRefusal:
                if fault is None:
                    raise
                raise _Unknown(target, fault) from None
            except StoreError as error:  # it may have been carried out, now or later
                fault = error
            try:
                return self._bucket.get(target, len(data) + 1) == data
            except FileNotFoundError:  # it was not carried out; or somebody has just deleted it
                continue
            except StoreError as error:
                fault = error
        raise _Unknown(target, fault)

    def put_folder_if_absent(self, target: ObjectUrl, files: Mapping[str, bytes]) -> bool:
        """Write files one by one, unless others are there; whoever is killed has written the first of them."""
        return all(self.put_if_absent(target / name, data) for name, data in files.items())

    def replace(self, target: ObjectUrl, data: bytes) -> None:
        """Write ``data`` to ``target``, whether or not it exists."""
        self._bucket.put(target, data)

    def remove(self, path: ObjectUrl) -> None:
        """Remove an object; nothing happens if it is missing."""
        self._bucket.delete(path)

    def set_aside(self, path: ObjectUrl, target: ObjectUrl) -> None:
        """Copy an object to ``target``, then remove it."""
        self._bucket.put(target, self._bucket.get(path))
        self._bucket.delete(path)

    def make_folders(self, folder: ObjectUrl) -> None:
        """Do nothing: there are no folders."""

    def ensure_folder(self, folder: ObjectUrl) -> None:
        """Do nothing: there are no folders."""

    def fsync_folder(self, folder: ObjectUrl) -> None:
        """Do nothing: what was acknowledged is durable."""

    def make_room(self, error: OSError) -> bool:  # noqa: ARG002 (the protocol's)
        """Return False: there is no space to free."""
        return False

    def reserve(self) -> None:
        """Do nothing: there is no space to reserve."""

    def sweep(self) -> None:
        """Remove what killed processes have left in ``tmp/``; best effort."""
        with contextlib.suppress(OSError):
            for stored in self._bucket.below(self.root / "tmp"):
                if time.time() - stored.modified > OLD:
                    self._bucket.delete(stored.url)

    def now(self) -> float:
        """Return the earlier of our clock and the store's."""
        path = self.root / "tmp" / f"clock.{uuid.uuid4().hex}"
        self._bucket.put(path, b"")
        try:
            return min(time.time(), self._bucket.head(path).modified)
        finally:
            with contextlib.suppress(OSError):
                self._bucket.delete(path)

    def check_writable(self) -> None:
        """Raise OSError if objects cannot be created or removed."""
        path = self.root / "tmp" / f"writable.{uuid.uuid4().hex}"
        self._bucket.put(path, b"")
        self._bucket.delete(path)

    def create(self, data: bytes) -> None:
        """Write ``FORMAT.json``, the first object of the registry.

        Raises
        ------
        InputError
            There are other objects below the prefix.
        OSError
            Nothing can be written, or the store cannot hold a registry.
        """
        if foreign := [name for name in self._bucket.names(self.root) if name not in OWN_NAMES]:
            raise InputError(f"{self.root} is not a registry and contains {foreign[0]!r}; choose an empty prefix")
        self.probe()
        self.put_if_absent(self.root / "FORMAT.json", data)

    def probe(self) -> Publishing:
        """Write two objects of one name, of which one must win; OSError if the store replaces objects all the same."""
        path = self.root / "tmp" / f"probe.{uuid.uuid4().hex}"
        try:
            held = self.put_if_absent(path, b"first"), self.put_if_absent(path, b"second")
            found = self._bucket.get(path)
        except _Unknown as error:
            raise StoreError(self.root, error.why, error.errno or errno.EIO) from None
        finally:
            with contextlib.suppress(OSError):
                self._bucket.delete(path)
        if held != (True, False) or found != b"first":
            reason = (
                "this store ignores If-None-Match, so that two writers could take the same entry of a log;"
                " a registry needs a store with conditional writes"
            )
            raise StoreRefusal(self.root, reason, errno.EOPNOTSUPP)
        return "conditional put"

    # -- blobs --------------------------------------------------------------------------------------------------------

    def blob_path(self, sha256: str) -> ObjectUrl:
        """Return what the names of all objects of this blob begin with."""
        return self._folder(sha256) / sha256

    def blob_files(self, sha256: str) -> list[ObjectUrl]:
        """Return the objects of this blob that are not in the trash."""
        marks = self._bucket.below(self.root / "trash", prefix=f"{sha256}.")
        marked = {parts[3] for stored in marks if (parts := _TRASH.fullmatch(stored.url.name))}
        return [url for url, drawn in self._objects(sha256) if drawn not in marked]

    def new_blob(self, sha256: str) -> ObjectUrl:
        """Return a name that no object has or had."""
        return self._folder(sha256) / f"{sha256}.{secrets.token_hex(8)}"

    def has_blob(self, sha256: str) -> bool:
        """Whether there is an object of this blob that is not in the trash."""
        return bool(self.blob_files(sha256))

    def places(self, sha256: str) -> Iterator[ObjectUrl]:
        """Yield every object of this blob."""
        for url, _ in self._objects(sha256):
            yield url

    def digest_at(self, path: ObjectUrl) -> str | None:
        """Return the digest of the blob that an object below ``blobs`` should hold; None if it is no blob."""
        parts = _BLOB.fullmatch(path.name)
        return parts[1] if parts and path.parent == self._folder(parts[1]) else None

    def blobs(self) -> dict[str, ObjectUrl]:
        """Return the newest object of each blob that is not in the trash, by digest."""
        marked = {item.content for item in self.trash_items()}
        newest: dict[str, ObjectFacts] = {}
        for stored in self._bucket.below(self.root / "blobs"):
            sha256 = self.digest_at(stored.url)
            if sha256 is None or stored.url in marked:
                continue
            if sha256 not in newest or newest[sha256].modified < stored.modified:
                newest[sha256] = stored
        return {sha256: stored.url for sha256, stored in newest.items()}

    def trash_items(self) -> list[Trashed]:
        """Return the marks of the trash, sorted by name; the time is the later of the mark's name and its object."""
        found = []
        for stored in self._bucket.below(self.root / "trash"):
            if parts := _TRASH.fullmatch(stored.url.name):
                named = datetime.strptime(parts[2], TRASH_TIME).replace(tzinfo=UTC).timestamp()
                content = self._folder(parts[1]) / f"{parts[1]}.{parts[3]}"
                found.append(Trashed(stored.url, parts[1], max(named, stored.modified), content))
        return found

    def move_to_trash(self, sha256: str, now: float) -> bool:
        """Mark the objects of a blob; return False if there are none without a mark."""
        moved = datetime.fromtimestamp(now, UTC).strftime(TRASH_TIME)
        files = self.blob_files(sha256)
        for path in files:
            drawn = path.name.rpartition(".")[2]
            self._bucket.put(self.root / "trash" / f"{sha256}.{moved}.{drawn}", b"")
        return bool(files)

    def put_back(self, item: Trashed) -> bool:
        """Store the blob again under a new name; return False if it was deleted meanwhile."""
        try:
            data = self._bucket.get(item.content)
        except FileNotFoundError:
            return False
        return self.put_if_absent(self.new_blob(item.sha256), data)

    def trashed_size(self, item: Trashed) -> int:
        """Size of a blob in the trash; 0 if only its mark is left."""
        try:
            return self._bucket.head(item.content).size
        except FileNotFoundError:
            return 0

    def delete_trashed(self, item: Trashed) -> None:
        """Delete a blob in the trash, then its mark."""
        self._bucket.delete(item.content)
        self._bucket.delete(item.path)

    def is_exposed(self, path: ObjectUrl) -> bool:  # noqa: ARG002 (the protocol's)
        """Return False: who may write objects is said in the policies of the bucket."""
        return False

    def protect(self, path: ObjectUrl) -> None:
        """Do nothing."""

    def _folder(self, sha256: str) -> ObjectUrl:
        return self.root / "blobs" / "sha256" / sha256[:2]

    def _objects(self, sha256: str) -> list[tuple[ObjectUrl, str]]:
        """Return every object of a blob, with the drawn part of its name."""
        found = self._bucket.below(self._folder(sha256), prefix=f"{sha256}.")
        return [(s.url, parts[2]) for s in found if (parts := _BLOB.fullmatch(s.url.name))]


class _Unknown(StoreError):
    """It is unknown whether an object was written."""

    def __init__(self, target: ObjectUrl, fault: OSError | None) -> None:
        self.why = str("objects disappear as soon as they are written" if fault is None else fault.strerror)
        number = errno.EIO if fault is None else fault.errno or errno.EIO
        super().__init__(target, f"{self.why}; {NOBODY_KNOWS}", number)
