"""The storage of a registry: names, bytes, and a write that never replaces another file.

Two places have it: a folder on a disk (`rankmill.registry.disk_storage`) and a prefix of a bucket
(`rankmill.registry.bucket_storage`).  Everything else about a registry is the same for both.
"""

from __future__ import annotations

import contextlib
import errno
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Literal, NamedTuple, TypeVar

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.location import Location
from rankmill.foundation.storage.publish import NOTHING_CHANGED

P = TypeVar("P", bound=Location)

FORMAT_NAME = "FORMAT.json"
OWN_NAMES = {FORMAT_NAME, "blobs", "models", "tmp"}
Kind = Literal["disk", "bucket"]
NOBODY_KNOWS = (
    "it is unknown whether the change was written: see rankmill models log NAME, and repeat the command if "
    "it is not there"
)
OLD = 24 * 3600.0  # seconds after which something in tmp/ belongs to a killed process


class StoredFile(NamedTuple, Generic[P]):
    """A file."""

    path: P
    size: int
    modified: float
    """Seconds since the epoch."""


class Storage(ABC, Generic[P]):
    """The place ``root`` of one registry.  All raise OSError; FileNotFoundError if a file is missing."""

    root: P
    kind: Kind
    careless: str
    """Why a place that replaces files cannot keep a registry."""

    @abstractmethod
    def read(self, path: P, limit: int) -> bytes:
        """Read the first ``limit`` bytes of a file; IntegrityError for anything else in its place."""

    @abstractmethod
    def modified(self, path: P) -> float:
        """Seconds since the epoch at which the file was written."""

    @abstractmethod
    def names(self, folder: P, after: str = "") -> list[str]:
        """List the names in ``folder``, in any order; those up to ``after`` may be left out."""

    @abstractmethod
    def files(self, folder: P) -> list[StoredFile[P]]:
        """List the files in ``folder``, in any order."""

    @abstractmethod
    def put_new(self, target: P, data: bytes, otherwise: str = NOBODY_KNOWS) -> bool:
        """Publish ``data`` durably at ``target`` unless it exists; return whether ``target`` now holds ``data``.

        After an exception, which says ``otherwise``, the target is absent or complete, or in a bucket will be soon.
        """

    @abstractmethod
    def put(self, target: P, data: bytes) -> None:
        """Write or replace ``target`` atomically but not durably."""

    @abstractmethod
    def remove(self, path: P) -> None:
        """Remove a file."""

    @abstractmethod
    def new_blob(self, folder: P, sha256: str) -> P:
        """Return the path for a new blob of this digest."""

    @abstractmethod
    def blob_paths(self, folder: P, sha256: str) -> list[P]:
        """Return the files that may hold a blob; some may be missing."""

    def flush(self, folder: P) -> None:
        """Make the names in ``folder`` durable."""

    def locked(self, folder: P) -> AbstractContextManager[None]:  # noqa: ARG002
        """Hold the one lock of the model in ``folder``, to store blobs or to delete some.

        A bucket has no locks: there, what is younger than the grace period is never deleted.
        """
        return nullcontext()

    def now(self) -> float:
        """Return the earlier of our clock and the storage's; this writes and removes a file."""
        path = self._tmp("clock")
        try:
            self.put(path, b"")
            return min(time.time(), self.modified(path))
        finally:
            with contextlib.suppress(OSError):
                self.remove(path)

    def sweep(self) -> None:
        """Remove what killed writers have left in ``tmp/``; best effort."""
        with contextlib.suppress(OSError):
            for stored in self.files(self._below("tmp")):
                if time.time() - stored.modified > OLD:
                    self.remove(stored.path)

    def probe(self) -> None:
        """Publish two files under one name, of which one must win; OSError if the place cannot keep a registry."""
        path = self._tmp("probe")
        try:
            held = [self.put_new(path, data, NOTHING_CHANGED) for data in (b"first", b"second")]
            found = self.read(path, 10)
        finally:
            with contextlib.suppress(OSError):
                self.remove(path)
        if held != [True, False] or found != b"first":
            raise OSError(errno.EOPNOTSUPP, self.careless, str(self.root))

    def create(self, data: bytes) -> None:
        """Create the registry with this ``FORMAT.json``, its first file.

        Raises
        ------
        InputError
            The place holds something else.
        OSError
            It cannot be written to, or cannot keep a registry; on a disk, nothing is left behind.
        """
        foreign = [name for name in sorted(self.names(self.root)) if not self._is_ours(name)]
        if foreign:
            raise InputError(
                f"{self.root} is not a registry and contains {foreign[0]!r}; choose an empty or a new place"
            )
        self.probe()
        self.put_new(self._below(FORMAT_NAME), data)

    def _is_ours(self, name: str) -> bool:
        return name in OWN_NAMES

    def _tmp(self, what: str) -> P:
        return self._below("tmp", f"{what}.{uuid.uuid4().hex}")

    def _below(self, *names: str) -> P:
        path: P = self.root
        for name in names:
            path = path / name  # type: ignore[assignment]
        return path
