"""A registry below a prefix of a bucket.

*Entries* are written by conditional puts (``If-None-Match: *``), of which one wins, as link(2) on a disk.  An entry
holds the number of its transaction, drawn by its writer, so no two writers ever write the same bytes under the same
name.  Hence reading replaces a lost answer. If the object holds our bytes, we have written it; if it holds others,
another writer has. If it is missing, the same request is sent again, and the first of the two to arrive counts.

*Blobs* are ``blobs/<name>/<sha256>.<16 hex>``: each writer draws a name that no other object ever had or will have, and
relies on no object of another writer.  So a collector deletes exactly the object that it examined, and needs no lock.
It deletes no object that is younger than the grace period, by the store's clock. Within that period the writer of the
object has committed the entry that refers to it, or never will.

*Durable* is what the store has acknowledged.  Stores that list and read objects as soon as they are written are needed:
S3, Google Cloud Storage and Azure do.  A request that was sent and not answered is assumed to be carried out, if at
all, within the grace period of the collector.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Iterable

from rankmill.foundation.storage.bucket import BucketClient, ObjectFacts, StoreError, StoreRefusal, open_bucket
from rankmill.foundation.storage.location import ObjectUrl
from rankmill.registry.storage import NOBODY_KNOWS, Kind, Storage, StoredFile

ATTEMPTS = 4  # of a conditional put whose answer was lost; each is several tries of the client
PAUSE = 0.5  # seconds before the second attempt


class BucketStorage(Storage[ObjectUrl]):
    """The objects below ``root``, reached by ``bucket`` (default: by obstore)."""

    kind: Kind = "bucket"
    careless = (
        "this store ignores If-None-Match, so that two writers could take the same entry of a log;"
        " a registry needs a store with conditional writes"
    )

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

    def files(self, folder: ObjectUrl) -> list[StoredFile[ObjectUrl]]:
        """List the objects below ``folder``."""
        return _stored(self._bucket.below(folder))

    def put_new(self, target: ObjectUrl, data: bytes, otherwise: str = NOBODY_KNOWS) -> bool:
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
                break
            except StoreError as error:  # it may have been carried out, now or later
                fault = error
            try:
                return self._bucket.get(target, len(data) + 1) == data
            except FileNotFoundError:  # the request was not carried out, or the object was deleted meanwhile
                continue
            except StoreError as error:
                fault = error
        why = "objects disappear as soon as they are written" if fault is None else fault.strerror
        raise StoreError(target, f"{why}; {otherwise}", (fault and fault.errno) or errno.EIO)

    def put(self, target: ObjectUrl, data: bytes) -> None:
        """Write ``data`` to ``target``, whether or not it exists."""
        self._bucket.put(target, data)

    def remove(self, path: ObjectUrl) -> None:
        """Remove an object; nothing happens if it is missing."""
        self._bucket.delete(path)

    def new_blob(self, folder: ObjectUrl, sha256: str) -> ObjectUrl:
        """Return a name that no object has or had."""
        return folder / f"{sha256}.{secrets.token_hex(8)}"

    def blob_paths(self, folder: ObjectUrl, sha256: str) -> list[ObjectUrl]:
        """Return every object of this blob."""
        return [stored.path for stored in _stored(self._bucket.below(folder, prefix=f"{sha256}."))]


def _stored(found: Iterable[ObjectFacts]) -> list[StoredFile[ObjectUrl]]:
    return [StoredFile(stored.url, stored.size, stored.modified) for stored in found]
