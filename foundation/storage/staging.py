"""Staging of files and folders before they are published, and clean-up after killed processes."""

from __future__ import annotations

import errno
import math
import os
import shutil
import socket
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from rankmill.foundation.storage.locks import LOCK_NAME, try_lock
from rankmill.foundation.storage.publish import (
    explain_errors,
    fsync_folder,
    is_left_behind,
    new_staged_path,
    publish_new,
    staged_for,
    write_new,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rankmill.foundation.storage.disk import Disk

OURS_AFTER = 24 * 3600.0  # seconds after which the staged file of a dead process of this machine is removed
ANYBODYS_AFTER = 7 * 24 * 3600.0  # and that of another machine: a file is staged for moments
TRY_A_NEW_FILE = errno.EIO
ATTEMPTS = 2
Way = Literal["link", "rename"]


@contextmanager
def staging_folder(destination: Path, goes_on: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Yield a new folder next to ``destination``; whatever is left of it at the end is removed.

    Where ``goes_on`` says of a folder that a killed run for ``destination`` left that the work can go on in it, that folder is
    yielded instead; and where it says so of this one, an interrupt or a request to end leaves it for a later run.

    Folders above that do not exist are made, and removed again if nothing was put into them.

    Its owner holds a lock on a file in it, so that a later run for the same destination can tell what a
    killed process left (removed here) from the work of a living one (left alone).

    Raises
    ------
    OSError
        There is no room on the disk: of whatever library, with ``destination`` as its file name.
    """
    parent = destination.parent
    made = [above for above in (parent, *parent.parents) if not above.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    for above in made:
        fsync_folder(above.parent)
    taken = None if goes_on is None else _take_over(destination, goes_on)
    _sweep_abandoned(destination)
    folder = new_staged_path(destination) if taken is None else taken[0]
    kept = False
    try:
        with explain_errors(destination, room_only=True):
            if taken is not None:
                with taken[1]:
                    yield folder
                return
            folder.mkdir(mode=0o700)
            with (folder / f"{LOCK_NAME}.new").open("xb") as lock:
                try_lock(lock)
                # it gets its name when it is held: a sweeper leaves a folder without it alone
                (folder / f"{LOCK_NAME}.new").rename(folder / LOCK_NAME)
                yield folder
    except (KeyboardInterrupt, SystemExit):
        kept = goes_on is not None and goes_on(folder)
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            for above in made:
                above.rmdir()


def _take_over(destination: Path, goes_on: Callable[[Path], bool]) -> tuple[Path, BinaryIO] | None:
    """Return a folder that a killed run left and that the work ``goes_on`` in, with its lock, held; None if there is none."""
    for folder in staged_for(destination):
        with suppress(OSError):
            lock = (folder / LOCK_NAME).open("rb")
            try:
                # a sweeper may have been faster: then the file that is held has no name any more
                if try_lock(lock) and os.fstat(lock.fileno()).st_nlink and goes_on(folder):
                    return folder, lock
            except BaseException:
                lock.close()
                raise
            lock.close()
    return None


def _sweep_abandoned(destination: Path) -> None:
    for folder in staged_for(destination):
        if not folder.is_dir():
            continue
        if not (folder / LOCK_NAME).exists() and is_left_behind(folder):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with suppress(OSError), (folder / LOCK_NAME).open("rb") as lock:
            if try_lock(lock):
                shutil.rmtree(folder, ignore_errors=True)


class Staging:
    """A folder for files that many processes write and publish, of this machine and of others; nobody reads here.

    The name of a staged file says whose it is, since not every network file system has locks.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder, self._disk = folder, disk

    def write(self, data: bytes, *, flush: bool = True) -> Path:
        """Write a new read-only file, durable but for its name, which is good for publishing only; or not durable.

        When its bytes cannot be brought to the disk (EIO) the kernel may have dropped them and still call the next
        fsync of the file a success.  So that file is given up and its bytes written once more, to a new one.
        """
        for attempt in range(ATTEMPTS):
            staged = self.new_path()
            try:
                try:
                    self._write(staged, data, flush=flush)
                except FileNotFoundError:  # the first file, or a copy of a registry without its empty folders
                    self._make()
                    self._write(staged, data, flush=flush)
            except OSError as error:
                if error.errno != TRY_A_NEW_FILE or attempt == ATTEMPTS - 1:
                    raise
            else:
                return staged
        raise AssertionError

    def _write(self, staged: Path, data: bytes, *, flush: bool = True) -> None:
        write_new(self._disk, staged, [data], size=len(data), flush=flush)

    def _make(self) -> None:
        with suppress(FileExistsError):
            self._disk.make_folder(self.folder, 0o770)  # for those who write; its name need not be durable

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
                self._write(staged / name, data)
            self._disk.fsync_folder(staged)
        except BaseException:
            self.discard_folder(staged)
            raise
        return staged

    def discard(self, staged: Path) -> None:
        """Remove a staged file, published or not; what cannot be removed now is swept later."""
        with suppress(OSError):
            self._disk.unlink(staged)

    def discard_folder(self, staged: Path) -> None:
        """Do the same to a staged folder."""
        with suppress(OSError):
            for name in sorted(self._disk.names(staged)):
                self.discard(staged / name)
            self._disk.remove_folder(staged)

    def sweep(self) -> None:
        """Remove what writers that died have left here; best effort."""
        with suppress(OSError):
            for name in sorted(self._disk.names(self.folder)):
                with suppress(OSError):
                    if time.time() - self._disk.modified(self.folder / name) > _keep_for(name):
                        if self._disk.is_folder(self.folder / name):
                            self.discard_folder(self.folder / name)
                        else:
                            self._disk.unlink(self.folder / name)

    def probe(self) -> Way:
        """Publish two files under one name, and tell how the first got it; leaves nothing.

        Raises
        ------
        OSError
            Neither way works here, or one that claims to work replaces files.
        """
        target = self.new_path()
        staged: list[Path] = []
        try:
            staged.append(self.write(b"first", flush=False))
            staged.append(self.write(b"second", flush=False))
            publish_new(self._disk, staged[0], target)
            way: Way = "link"
            try:
                self._disk.size(staged[0])
            except FileNotFoundError:
                way = "rename"
            if publish_new(self._disk, staged[1], target) or self._disk.read(target) != b"first":
                reason = f"two files got the same name by a {way}, where one must win; keep the registry on a local disk or NFS"
                raise OSError(errno.EOPNOTSUPP, reason, str(self.folder))
        finally:
            for path in (*staged, target):
                self.discard(path)
        return way


def _keep_for(name: str) -> float:
    """Seconds for which a file of this name stays: for ever while the process that staged it may live."""
    host, _, pid = name.rpartition(".")[0].rpartition(".")
    if host != socket.gethostname() or not pid.isdecimal():
        return ANYBODYS_AFTER
    return math.inf if is_running(int(pid)) else OURS_AFTER


def is_running(pid: int) -> bool:
    """Whether there is a process of this number on this machine, whoever's it is."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True
