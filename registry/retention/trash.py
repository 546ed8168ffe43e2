"""The trash: blobs that nobody seemed to need, kept a time of grace longer, and still read where they are missed.

``trash/<sha256>.<UTC time of the move>.<8 hex>``: each move makes a name that never was and never will be again.  So
whoever decides to delete a file by its name deletes the file that it looked at, not a later one with the same bytes.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rankmill.registry.blob_store import Store

NAME = re.compile(r"([0-9a-f]{64})\.([0-9]{8}T[0-9]{6}Z)\.[0-9a-f]{8}")
_TIME = "%Y%m%dT%H%M%SZ"


class Trashed(NamedTuple):
    """A blob in the trash."""

    path: Path
    sha256: str
    moved: float
    """Seconds since the epoch."""


def listed(store: Store) -> list[Trashed]:
    """Give all that lies there, by name."""
    found = []
    for name in store.names(store.trash):
        if parts := NAME.fullmatch(name):
            moved = datetime.strptime(parts[2], _TIME).replace(tzinfo=UTC).timestamp()
            found.append(Trashed(store.trash / name, parts[1], moved))
    return found


def throw(store: Store, sha256: str, now: float) -> bool:
    """Move a blob here; False if it is not in its place any more, since another collector was faster."""
    if not store.disk.is_folder(store.trash):
        store.make_folders(store.trash)
    moved = datetime.fromtimestamp(now, UTC).strftime(_TIME)
    try:
        store.disk.replace(store.blob_path(sha256), store.trash / f"{sha256}.{moved}.{secrets.token_hex(4)}")
    except FileNotFoundError:
        return False
    return True


def is_whole(store: Store, item: Trashed) -> bool:
    """Whether the file is there and has the bytes that its name promises."""
    try:
        return hashlib.sha256(store.disk.read(item.path)).hexdigest() == item.sha256
    except FileNotFoundError:
        return False


def put_back(store: Store, item: Trashed) -> bool:
    """Give a blob its place again; False if it went another way meanwhile."""
    folder = store.blob_path(item.sha256).parent
    if not store.disk.is_folder(folder):  # a copy of a registry without its empty folders
        store.make_folders(folder)
    try:
        store.disk.replace(item.path, store.blob_path(item.sha256))
    except FileNotFoundError:
        return False
    return True
