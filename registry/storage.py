"""What the registry needs of the place that keeps it: names, bytes, and a way to write a file that never replaces another.

Two places have it: a folder on a disk (`rankmill.registry.disk_storage`) and a prefix of a bucket
(`rankmill.registry.bucket_storage`).  Everything else about a registry is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

P = TypeVar("P")

OWN_NAMES = {"FORMAT.json", "ballast", "blobs", "leases", "models", "quarantine", "tmp", "trash"}
Publishing = Literal["link", "rename", "conditional put"]
"""How a file gets a name that no other file may have."""
NOBODY_KNOWS = "it is unknown whether the change was written: see rankmill models log NAME, and repeat the command if it is not there"


class Trashed(NamedTuple):
    """A blob in the trash."""

    path: Any
    """Where the trash names it."""
    sha256: str
    moved: float
    """Seconds since the epoch."""
    content: Any
    """Where its bytes are."""


class Storage(Protocol[P]):
    """The place of one registry.  All raise OSError; FileNotFoundError if a file is missing."""

    root: P
    newest_format: int
    """Format of a new registry; see `rankmill.registry.registry_format`."""
    flushes_folders: bool
    """Whether names are durable on request; otherwise the place has to do so by itself."""

    def read(self, path: P, limit: int) -> bytes:
        """Read the first ``limit`` bytes of a file, all if negative; IntegrityError for anything else in its place."""
        ...

    def size(self, path: P) -> int:
        """Size of the file in bytes."""
        ...

    def modified(self, path: P) -> float:
        """Seconds since the epoch at which the file was written."""
        ...

    def names(self, folder: P, after: str = "") -> list[str]:
        """List the names in ``folder``, in any order; those up to ``after`` may be left out."""
        ...

    def files(self, folder: P) -> Iterator[P]:
        """Find every file below ``folder`` except those whose name begins with a dot."""
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

    def set_aside(self, path: P, target: P) -> None:
        """Move a file to ``target``, whose folder need not exist."""
        ...

    def make_folders(self, folder: P) -> None:
        """Create ``folder`` and its parents durably."""
        ...

    def ensure_folder(self, folder: P) -> None:
        """Create ``folder`` if it is missing; its name need not be durable."""
        ...

    def fsync_folder(self, folder: P) -> None:
        """Make the names in ``folder`` durable."""
        ...

    def make_room(self, error: OSError) -> bool:
        """Free reserved space if ``error`` says that there is none left; return whether to try again."""
        ...

    def reserve(self) -> None:
        """Reserve space for the time when there is none left; best effort."""
        ...

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

    # -- blobs --------------------------------------------------------------------------------------------------------

    def blob_path(self, sha256: str) -> P:
        """Path of a blob, by which messages name it."""
        ...

    def blob_files(self, sha256: str) -> Iterable[P]:
        """Return the files that may hold a blob and are not in the trash; some may be missing."""
        ...

    def new_blob(self, sha256: str) -> P:
        """Return the path for a blob that is to be stored."""
        ...

    def has_blob(self, sha256: str) -> bool:
        """Whether there is a file of this blob outside the trash; its content is not checked."""
        ...

    def places(self, sha256: str) -> Iterator[P]:
        """Yield every path where a blob may be, in the trash too."""
        ...

    def digest_at(self, path: P) -> str | None:
        """Return the digest of the blob that a file below ``blobs`` should hold; None if it is no blob."""
        ...

    def blobs(self) -> dict[str, P]:
        """Return a file of each blob outside the trash, the newest, by digest."""
        ...

    def trash_items(self) -> list[Trashed]:
        """Return the blobs in the trash, sorted by name."""
        ...

    def move_to_trash(self, sha256: str, now: float) -> bool:
        """Move a blob to the trash; return False if another collector has already moved it."""
        ...

    def put_back(self, item: Trashed) -> bool:
        """Restore a blob; return False if it was restored or deleted meanwhile."""
        ...

    def trashed_size(self, item: Trashed) -> int:
        """Size of a blob in the trash; FileNotFoundError if another collector has deleted it."""
        ...

    def delete_trashed(self, item: Trashed) -> None:
        """Delete a blob in the trash, for ever."""
        ...

    def is_exposed(self, path: P) -> bool:
        """Whether a file that must not change may be written by anybody."""
        ...

    def protect(self, path: P) -> None:
        """Make a file readable by all and writable by none."""
        ...
