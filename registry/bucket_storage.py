"""A registry below a prefix of a bucket.

*Entries* are written by conditional puts (``If-None-Match: *``), of which one wins, as link(2) on a disk.  An entry holds the number of its
transaction, drawn by its writer, so no two writers ever write the same bytes under the same name.  Hence an answer that was lost is found again by
reading: if the object holds our bytes, we have written it; if it holds others, somebody else has; if it is missing, the same request is
sent again, and whichever of the two arrives first counts.

*Blobs* are ``blobs/<name>/<sha256>.<16 hex>``: each writer draws a name that no other object ever had or will have, and relies on no
object of another writer.  So a collector deletes exactly the object that it examined, and there is no lock: it deletes no object that
is younger than the grace period, by the store's clock, within which the writer of that object has committed the entry that refers
to it, or never will.

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
from collections.abc import Mapping

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.bucket import BucketClient, StoreError, StoreRefusal, open_bucket
from rankmill.foundation.storage.location import ObjectUrl
from rankmill.registry.storage import NOBODY_KNOWS, OWN_NAMES, Blob, Kind, Publishing, Storage

ATTEMPTS = 4  # of a conditional put whose answer was lost; each is several tries of the client
PAUSE = 0.5  # seconds before the second attempt
OLD = 24 * 3600.0  # seconds after which something in tmp/ belongs to a killed process
_BLOB = re.compile(r"([0-9a-f]{64})\.[0-9a-f]{16}")


class BucketStorage(Storage[ObjectUrl]):
    """The objects below ``root``, reached by ``bucket`` (default: by obstore)."""

    kind: Kind = "bucket"
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

    def modified(self, path: ObjectUrl) -> float:
        """Seconds since the epoch at which the object was written, by the store's clock."""
        return self._bucket.head(path).modified

    def names(self, folder: ObjectUrl, after: str = "") -> list[str]:
        """List the names below ``folder``, or only those that follow ``after``, if objects alone are there."""
        if after:
            return [stored.url.name for stored in self._bucket.below(folder, after)]
        return self._bucket.names(folder)

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

    # -- the blobs in a folder ----------------------------------------------------------------------------------------

    def put_blob(self, folder: ObjectUrl, sha256: str, data: bytes) -> bool:
        """Store a blob under a name that no object has or had."""
        return self.put_if_absent(folder / f"{sha256}.{secrets.token_hex(8)}", data)

    def blob_files(self, folder: ObjectUrl, sha256: str) -> list[ObjectUrl]:
        """Return every object of this blob."""
        return [stored.url for stored in self._bucket.below(folder, prefix=f"{sha256}.")]

    def blobs(self, folder: ObjectUrl) -> list[Blob]:
        """Return all blobs, of each digest the newest first; objects with other names are skipped."""
        found = [(_BLOB.fullmatch(stored.url.name), stored) for stored in self._bucket.below(folder)]
        blobs = [Blob(parts[1], stored.url, stored.size, stored.modified) for parts, stored in found if parts]
        return sorted(blobs, key=lambda blob: (blob.sha256, -blob.modified, str(blob.path)))


class _Unknown(StoreError):
    """It is unknown whether an object was written."""

    def __init__(self, target: ObjectUrl, fault: OSError | None) -> None:
        self.why = str("objects disappear as soon as they are written" if fault is None else fault.strerror)
        number = errno.EIO if fault is None else fault.errno or errno.EIO
        super().__init__(target, f"{self.why}; {NOBODY_KNOWS}", number)
