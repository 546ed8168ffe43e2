"""Allow one run at a time in a work folder: a lock on ``WORK/lease``, which records its holder.

The lock ends with the process; the content of the file stays, so that the next run can report one that died.  The lock
only avoids duplicate work.  Integrity does not depend on it: stages publish atomically and the registry checks before
it writes, also on file systems without locks.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.errors import RunUnderWay
from rankmill.foundation.storage.locks import try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LEASE = "lease"
PATIENCE = 1.0  # seconds to retry, as `holder_of` takes the lock for a moment


class RunLease:
    """The lease of this process, during `hold`."""

    def __init__(self, handle: int, holder: Mapping[str, object], died: str | None) -> None:
        self._handle, self._holder = handle, holder
        self.died = died

    def at(self, stage: str) -> None:
        """Record the current ``stage``."""
        self._write(json.dumps({**self._holder, "stage": stage}).encode() + b"\n")

    def end(self) -> None:
        """Record that the run has reported its end."""
        self._write(b"")

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # the disk is full: the file stays empty
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, data, 0)


@contextmanager
def hold(work: Path, run_id: str) -> Iterator[RunLease]:
    """Hold the lease of ``work``, an existing folder.

    Raises
    ------
    RunUnderWay
        Another process holds it; the message has the details.
    OSError
        The folder is not writable.
    """
    handle = os.open(work / LEASE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not _lock(handle):
            raise RunUnderWay(
                f"{work}: in use by {_read(handle) or 'another run'}; wait for it, or give this configuration "
                "another work folder"
            )
        before = _read(handle)
        died = None if before is None else f"{before} ended without a record (killed?)"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"run_id": run_id, "pid": os.getpid(), "host": socket.gethostname(), "since": now}
        lease = RunLease(handle, holder, died)
        lease.at("start")
        yield lease
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    until = time.monotonic() + PATIENCE
    while not try_lock(handle):
        if time.monotonic() > until:
            return False
        time.sleep(PATIENCE / 20)
    return True


def holder_of(work: Path) -> str | None:
    """Return the current holder of the lease of ``work``; None if there is none."""
    with suppress(OSError), (work / LEASE).open("rb") as file:
        if not try_lock(file, shared=True):
            return _read(file.fileno()) or "another run"
    return None


def left_behind(work: Path) -> str | None:
    """Return the last run in the lease of ``work`` that did not report its end; if the lease is free, that run died."""
    with suppress(OSError), (work / LEASE).open("rb") as file:
        return _read(file.fileno())
    return None


def _read(handle: int) -> str | None:
    """Return the holder in the file in words; None if there is none."""
    try:
        found = json.loads(os.pread(handle, 1 << 16, 0))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    run_id, pid, host, since, stage = (found.get(name, "?") for name in ("run_id", "pid", "host", "since", "stage"))
    return f"run {run_id} (process {pid} on {host}, since {since}, at stage {stage})"
