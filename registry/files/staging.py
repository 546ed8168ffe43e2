"""Files on their way in: ``ROOT/tmp``, where a file is written and flushed before it gets its real name."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from rankmill.registry.files.disk import Disk

OURS_AFTER = 24 * 3600.0  # seconds after which the staged file of a dead process of this machine is removed
ANYBODYS_AFTER = 7 * 24 * 3600.0  # and that of another machine: a file is staged for moments
NO_ALLOCATION = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.ENODEV}
TRY_A_NEW_FILE = errno.EIO
ATTEMPTS = 2


class Staging:
    """The folder for files that are being written; nobody reads here."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder, self._disk = folder, disk

    def write(self, data: bytes, *, flush: bool = True) -> Path:
        """Write a new read-only file, durable but for its name, which is good for publishing only; or not durable.

        When its bytes cannot be brought to the disk (EIO) the kernel may have dropped them and still call the next
        fsync of the file a success.  So that file is given up and its bytes written once more, to a new one.
        """
        for attempt in range(ATTEMPTS):
            try:
                return self._write(self.new_path(), data, flush=flush)
            except OSError as error:
                if error.errno != TRY_A_NEW_FILE or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError

    def new_path(self) -> Path:
        """Name a file that is not there yet, so that it is known whose it is."""
        return self.folder / f"{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex}"

    def write_folder(self, files: Mapping[str, bytes]) -> Path:
        """Write a new folder of read-only files, all of it durable but for its own name."""
        staged = self.new_path()
        try:
            try:
                self._disk.make_folder(staged)
            except FileNotFoundError:
                self._make()
                self._disk.make_folder(staged)
            for name, data in files.items():
                self._write(staged / name, data, flush=True)
            self._disk.fsync_folder(staged)
        except BaseException:
            self.discard_folder(staged)
            raise
        return staged

    def discard(self, staged: Path) -> None:
        """Remove a staged file, published or not; what cannot be removed now is swept later."""
        with contextlib.suppress(OSError):
            self._disk.unlink(staged)

    def discard_folder(self, staged: Path) -> None:
        """Do the same to a staged folder."""
        with contextlib.suppress(OSError):
            for name in sorted(self._disk.names(staged)):
                self.discard(staged / name)
            self._disk.remove_folder(staged)

    def sweep(self) -> None:
        """Remove what writers that died have left here; best effort."""
        with contextlib.suppress(OSError):
            for name in sorted(self._disk.names(self.folder)):
                with contextlib.suppress(OSError):
                    if time.time() - self._disk.modified(self.folder / name) > _keep_for(name):
                        if self._disk.is_folder(self.folder / name):
                            self.discard_folder(self.folder / name)
                        else:
                            self._disk.unlink(self.folder / name)

    def _write(self, staged: Path, data: bytes, *, flush: bool) -> Path:
        descriptor = self._create(staged)
        try:
            try:
                self._fill(descriptor, data)
                if flush:
                    self._disk.fsync(descriptor)
            finally:
                self._disk.close(descriptor)
        except BaseException:
            self.discard(staged)
            raise
        return staged

    def _create(self, staged: Path) -> int:
        try:
            return self._disk.create(staged)
        except FileNotFoundError:  # the first file, or a copy of a registry without its empty folders
            self._make()
            return self._disk.create(staged)

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._disk.make_folder(self.folder, 0o770)  # for those who write; its name need not be durable

    def _fill(self, descriptor: int, data: bytes) -> None:
        if data:
            try:
                self._disk.allocate(descriptor, len(data))
            except OSError as error:
                if error.errno not in NO_ALLOCATION:
                    raise
        rest = memoryview(data)
        while rest:
            rest = rest[self._disk.write(descriptor, rest) :]


def _keep_for(name: str) -> float:
    """Seconds for which a file of this name stays: for ever while the process that staged it may live."""
    host, _, pid = name.rpartition(".")[0].rpartition(".")
    if host != socket.gethostname() or not pid.isdecimal():
        return ANYBODYS_AFTER
    return math.inf if _lives(int(pid)) else OURS_AFTER


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True
