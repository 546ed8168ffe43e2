"""What the registry needs of the place that keeps it: names, bytes, and a way to write a file that never replaces another.

Two places have it: a folder on a disk (`rankmill.registry.disk_storage`) and a prefix of a bucket
(`rankmill.registry.bucket_storage`).  Everything else about a registry is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

P = TypeVar("P")

OWN_NAMES = {"FORMAT.json", "ballast", "blobs", "models", "tmp"}
Publishing = Literal["link", "rename", "conditional put"]
"""How a file gets a name that no other file may have."""
Kind = Literal["disk", "bucket"]
NOBODY_KNOWS = "it is unknown whether the change was written: see rankmill models log NAME, and repeat the command if it is not there"


class Blob(NamedTuple):
    """A file that holds the bytes of a digest; a bucket may have several of one digest."""

    sha256: str
    path: Any
    size: int
    modified: float
    """Seconds since the epoch."""


class Storage(Protocol[P]):
    """The place of one registry.  All raise OSError; FileNotFoundError if a file is missing.

    What has a body here is for places without folders, locks and room to reserve.
    """

    root: P
    kind: Kind
    flushes_folders: bool
    """Whether names are durable on request; otherwise the place has to do so by itself."""

    def read(self, path: P, limit: int) -> bytes:
        """Read the first ``limit`` bytes of a file; IntegrityError for anything else in its place."""
        ...

    def modified(self, path: P) -> float:
        """Seconds since the epoch at which the file was written."""
        ...

    def names(self, folder: P, after: str = "") -> list[str]:
        """List the names in ``folder``, in any order; those up to ``after`` may be left out."""
        ...

    def put_if_absent(self, target: P, data: bytes) -> bool:
        """Publish ``data`` durably at ``target`` unless it exists; return whether ``target`` now holds ``data``."""
        ...

    def put_folder_if_absent(self, target: P, files: Mapping[str, bytes]) -> bool:
        """Publish a folder of files unless ``target`` has other files; return whether it was published."""
        ...

    def replace(self, target: P, data: bytes) -> None:
        """Replace ``target`` atomically but not durably."""
        ...

    def remove(self, path: P) -> None:
        """Remove a file."""
        ...

    def make_folders(self, folder: P) -> None:  # noqa: ARG002
        """Create ``folder`` and its parents durably."""
        return

    def fsync_folder(self, folder: P) -> None:  # noqa: ARG002
        """Make the names in ``folder`` durable."""
        return

    def locked(self, folder: P, *, alone: bool) -> AbstractContextManager[None]:  # noqa: ARG002
        """Hold the one lock of the model in ``folder``: shared to store blobs, ``alone`` to delete some.

        A bucket has no locks: there, what is younger than the grace period is never deleted.
        """
        return nullcontext()

    def make_room(self, error: OSError) -> bool:  # noqa: ARG002
        """Free reserved space if ``error`` says that there is none left; return whether to try again."""
        return False

    def reserve(self) -> None:
        """Reserve space for the time when there is none left; best effort."""
        return

    def sweep(self) -> None:
        """Remove what killed writers have left; best effort."""
        ...

    def now(self) -> float:
        """Return the earlier of our clock and the storage's; this writes and removes a file."""
        ...

    def check_writable(self) -> None:
        """Raise OSError if files cannot be created."""
        ...

    def create(self, data: bytes) -> None:
        """Create the registry with this ``FORMAT.json``; InputError if something else is here."""
        ...

    def probe(self) -> Publishing:
        """Publish two files under one name, and return the method that worked; OSError if none does."""
        ...

    # -- the blobs in a folder ----------------------------------------------------------------------------------------

    def put_blob(self, folder: P, sha256: str, data: bytes) -> bool:
        """Store a blob durably; return False if there is a damaged one in its place."""
        ...

    def blob_files(self, folder: P, sha256: str) -> list[P]:
        """Return the files that may hold a blob; some may be missing."""
        ...

    def blobs(self, folder: P) -> list[Blob]:
        """Return all blobs, of each digest the newest first; files with other names are skipped."""
        ...
