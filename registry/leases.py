"""Leases: files that name the blobs in use, so that garbage collection keeps them.

``leases/<uuid>.json`` is written atomically, never changed, and removed by its writer; it is not flushed, as no process survives
a power failure.  The collector removes the leases of ended processes: a lease is valid until its process is known to be gone (same
machine, and no process with that ID and start time) or, if that cannot be known, until it expires.  A lease blocks nobody.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import AwareDatetime, ValidationError

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.location import Location
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry.blob_store import Store
from rankmill.registry.stored_records import Sha256, StoredRecord, first_fault

LASTS = timedelta(days=7)  # if the process cannot be checked


class BlobLease(StoredRecord):
    """The blobs that a process is using."""

    digests: tuple[Sha256, ...]
    host: str
    world: str
    """Boot ID of the machine and PID namespace; empty if unknown."""
    pid: int
    started: str
    """Start time of the process in kernel ticks; empty if unknown."""
    expires: AwareDatetime

    def is_dead(self, now: float) -> bool:
        """Whether the process has ended or the lease has expired."""
        if self.host == socket.gethostname() and self.world and self.world == _world():
            started = _started(self.pid)
            if started or _is_gone(self.pid):
                return started != self.started
        return now >= self.expires.timestamp()


def folder_of(store: Store) -> Location:
    """Return the folder of the leases."""
    return store.root / "leases"


def read_lease(store: Store, path: Location) -> BlobLease:
    """Read a lease; FileNotFoundError if it was removed, IntegrityError if it is not a lease."""
    try:
        return BlobLease.model_validate_json(store.read(path))
    except ValidationError as error:
        raise IntegrityError(f"{path}: not a lease: {first_fault(error)}") from None


def leased(store: Store, now: float) -> set[str]:
    """Digests of all leased blobs; damaged leases, left by a power failure, are skipped."""
    found: set[str] = set()
    for name in store.names(folder_of(store)):
        with contextlib.suppress(FileNotFoundError, IntegrityError):
            record = read_lease(store, folder_of(store) / name)
            found.update(() if record.is_dead(now) else record.digests)
    return found


def reap(store: Store, now: float) -> list[Location]:
    """Remove the leases of ended processes and return their paths; best effort."""
    dead = stale(store, now)
    for path in dead:
        give_up(store, path)
    return dead


def stale(store: Store, now: float) -> list[Location]:
    """Paths of expired leases, leases of ended processes, and old damaged ones."""
    dead, folder = [], folder_of(store)
    for name in store.names(folder):
        with contextlib.suppress(FileNotFoundError):
            try:
                gone = read_lease(store, folder / name).is_dead(now)
            except IntegrityError:
                gone = now - store.storage.modified(folder / name) > LASTS.total_seconds()
            if gone:
                dead.append(folder / name)
    return dead


def take(store: Store, digests: Iterable[str]) -> Location:
    """Write a lease on these blobs and return its path; OSError if the folder is not writable."""
    folder, pid = folder_of(store), os.getpid()
    record = BlobLease(
        digests=tuple(sorted(set(digests))),
        host=socket.gethostname(),
        world=_world(),
        pid=pid,
        started=_started(pid),
        expires=datetime.now(UTC) + LASTS,
    )
    path = folder / f"{uuid.uuid4().hex}.json"
    store.storage.ensure_folder(folder)
    store.replace(path, canonical_json(record.model_dump(mode="json")) + b"\n")  # the name is new
    return path


def give_up(store: Store, path: Location) -> None:
    """Remove a lease; best effort, as the collector removes expired ones."""
    with contextlib.suppress(OSError):
        store.storage.remove(path)


@contextlib.contextmanager
def lease(store: Store, digests: Iterable[str]) -> Iterator[None]:
    """Hold a lease on these blobs within a ``with`` block; OSError if the folder is not writable."""
    path = take(store, digests)
    try:
        yield
    finally:
        give_up(store, path)


@contextlib.contextmanager
def keep_blobs(store: Store, blobs: Sequence[bytes]) -> Iterator[list[str]]:
    """Store the blobs that the block's commit refers to, and make sure that they exist after it.

    The lease is written before checking which of them exist.  A collector that has not seen the lease may have moved an
    existing blob to the trash, but cannot have deleted it (see ``rankmill.registry.garbage``).  The blob is still in memory, so it
    is stored again.

    Yields
    ------
    list of str
        The digests, in order.
    """
    digests = [digest_of(data) for data in blobs]
    with lease(store, digests):
        for data in blobs:
            store.put_blob(data)
        yield digests
        for data, sha256 in zip(blobs, digests, strict=True):
            if not store.has_blob(sha256):
                store.put_blob(data)


def _world() -> str:
    """Return the boot ID of this machine and our PID namespace; containers have their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 (a name, not a path)
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return the start time of a process in ticks since boot; empty if it cannot be seen or has ended."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        )  # from field 3 on; the process name may contain spaces
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _is_gone(pid: int) -> bool:
    """Whether the process does not exist or has ended; another user's process may be hidden from /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return Path(f"/proc/{pid}").exists()  # visible without a start time: a zombie
