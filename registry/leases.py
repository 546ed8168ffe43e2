"""Leases: files that name the blobs in use, so that garbage collection keeps them.

``leases/<uuid>.json`` appears whole, is never changed, and is removed by whoever wrote it; it need not survive a loss of
power, which no process survives.  What the dead leave behind is reaped by the collector alone: a lease counts until its process is known to be gone (same machine,
and no process of that number and start) or, where that cannot be known, until it expires.  A lease blocks nobody.
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
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry.blob_store import Store
from rankmill.registry.stored_records import Sha256, StoredRecord, first_fault

LASTS = timedelta(days=7)  # where nobody can see whether its process lives


class BlobLease(StoredRecord):
    """Who relies on which blobs."""

    digests: tuple[Sha256, ...]
    host: str
    world: str
    """The boot of the machine and the name space in which ``pid`` is a number; empty where there is no telling."""
    pid: int
    started: str
    """When the process began, by the kernel's reckoning; empty where there is no telling."""
    expires: AwareDatetime

    def is_dead(self, now: float) -> bool:
        """Whether nobody can rely on it any more."""
        if self.host == socket.gethostname() and self.world and self.world == _world():
            started = _started(self.pid)
            if started or _is_gone(self.pid):
                return started != self.started
        return now >= self.expires.timestamp()


def folder_of(store: Store) -> Path:
    """Where the leases lie."""
    return store.root / "leases"


def read_lease(store: Store, path: Path) -> BlobLease:
    """Read one; FileNotFoundError if it was given up, IntegrityError if it is not a lease."""
    try:
        return BlobLease.model_validate_json(store.read(path))
    except ValidationError as error:
        raise IntegrityError(f"{path}: not a lease: {first_fault(error)}") from None


def leased(store: Store, now: float) -> set[str]:
    """Digests of the blobs that somebody relies on; what is no lease, after a loss of power, is passed over."""
    found: set[str] = set()
    for name in store.names(folder_of(store)):
        with contextlib.suppress(FileNotFoundError, IntegrityError):
            record = read_lease(store, folder_of(store) / name)
            found.update(() if record.is_dead(now) else record.digests)
    return found


def reap(store: Store, now: float) -> list[Path]:
    """Remove the leases of the dead, and name them; best effort."""
    dead = stale(store, now)
    for path in dead:
        give_up(store, path)
    return dead


def stale(store: Store, now: float) -> list[Path]:
    """Name the leases of the dead, and what a loss of power has left of any."""
    dead, folder = [], folder_of(store)
    for name in store.names(folder):
        with contextlib.suppress(FileNotFoundError):
            try:
                gone = read_lease(store, folder / name).is_dead(now)
            except IntegrityError:
                gone = now - store.disk.modified(folder / name) > LASTS.total_seconds()
            if gone:
                dead.append(folder / name)
    return dead


def take(store: Store, digests: Iterable[str]) -> Path:
    """Write a lease on these blobs and return its file; OSError where nothing can be written."""
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
    if not store.disk.is_folder(folder):
        with contextlib.suppress(FileExistsError):
            store.disk.make_folder(folder)
    store.replace(path, canonical_json(record.model_dump(mode="json")) + b"\n")  # nothing has this name
    return path


def give_up(store: Store, path: Path) -> None:
    """Remove a lease; best effort, for the collector removes what is left."""
    with contextlib.suppress(OSError):
        store.disk.unlink(path)


@contextlib.contextmanager
def lease(store: Store, digests: Iterable[str]) -> Iterator[None]:
    """Hold a lease on these blobs for the length of a block; OSError where nothing can be written."""
    path = take(store, digests)
    try:
        yield
    finally:
        give_up(store, path)


@contextlib.contextmanager
def keep_blobs(store: Store, blobs: Sequence[bytes]) -> Iterator[list[str]]:
    """Put blobs that the block's commit refers to, and see to it that they are there after it.

    The lease is written before anybody looks which of them are there already: a collector that has not seen it has not
    seen the commit either, may have moved such a blob to the trash meanwhile, and cannot have deleted it (see
    ``rankmill.registry.garbage``).  It is in memory still, so it is put again.

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
    """Name the boot of this machine and our name space of process numbers, which containers have of their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 (a name, not a path)
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Tell when a process began, in ticks since the machine did; empty where it cannot be seen or has ended."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        )  # from field 3; a name may hold blanks
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _is_gone(pid: int) -> bool:
    """Whether there is no process of this number, or one that has ended; another user's may be hidden from /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return Path(f"/proc/{pid}").exists()  # seen, and yet no start: it has ended and nobody asked for its exit code
