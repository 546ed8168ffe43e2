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
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING, BinaryIO, Literal

from rankmill.foundation.errors import ClusterUnavailable, WorkerLost
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
from rankmill.foundation.storage.special_files import refuse_special

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rankmill.foundation.storage.disk import Disk

OURS_AFTER = 24 * 3600.0  # seconds after which the staged file of a dead process of this machine is removed
ANYBODYS_AFTER = 7 * 24 * 3600.0  # the same for another machine: files are staged only briefly
TRY_A_NEW_FILE = errno.EIO
ATTEMPTS = 2
_DISCARDED = "discarded"  # marks a folder that is being removed, the lock last
_SCRATCH = "rankmill-"  # the names of scratch folders begin with it
Way = Literal["link", "rename"]


@contextmanager
def staging_folder(destination: Path, resumable: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Yield a new folder next to ``destination``; whatever is left of it at the end is removed.

    If ``resumable`` is true for the folder of a killed run for ``destination``, that folder is yielded instead; if it is true for
    this one, an interrupt, a request to end or the loss of a cluster leaves it for a later run.

    Missing parent folders are created, and removed again if they stay empty.

    The owner holds a lock on a file in the folder, so that a later run for the same destination can tell the folders of killed
    processes (removed here) from those of running ones (left alone).

    Raises
    ------
    InputError
        ``destination`` is a pipe or a device.
    OSError
        The disk is full: from any library, with ``destination`` as its file name.
    """
    refuse_special(destination)
    parent = destination.parent
    created = [above for above in (parent, *parent.parents) if not above.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    for above in created:
        fsync_folder(above.parent)
    resumed = None if resumable is None else _take_over(destination, resumable)
    _sweep_abandoned(destination)
    folder = new_staged_path(destination) if resumed is None else resumed[0]
    kept = False
    try:
        with explain_errors(destination, room_only=True):
            if resumed is not None:
                with resumed[1]:
                    yield folder
                return
            folder.mkdir(mode=0o700)
            with _locked(folder):
                yield folder
    except (KeyboardInterrupt, SystemExit, WorkerLost, ClusterUnavailable):
        kept = resumable is not None and resumable(folder)
        raise
    finally:
        if not kept:
            _discard(folder)
        with suppress(OSError):
            for above in created:
                above.rmdir()


@contextmanager
def scratch_folder(kind: str, inside: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Yield a new folder ``inside`` (default: the temporary folder), which is removed at the end.

    Those of killed processes of this user, of any ``kind``, are removed, too.
    """
    top = Path(gettempdir() if inside is None else inside).resolve()
    for left in top.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            if left.lstat().st_uid == os.getuid() and not left.is_symlink():
                _remove_if_abandoned(left)
    folder = Path(mkdtemp(prefix=f"{_SCRATCH}{kind}-", dir=top))
    try:
        with _locked(folder):
            yield folder
    finally:
        _discard(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the new ``folder``."""
    with (folder / f"{LOCK_NAME}.new").open("xb") as lock:
        with suppress(OSError):  # a file system without locks
            try_lock(lock)
        # renamed once the lock is held: cleanup skips a folder without this file
        (folder / f"{LOCK_NAME}.new").rename(folder / LOCK_NAME)
        yield


def _take_over(destination: Path, resumable: Callable[[Path], bool]) -> tuple[Path, BinaryIO] | None:
    """Return a ``resumable`` folder of a killed run, with its lock held; None if there is none."""
    for folder in staged_for(destination):
        with suppress(OSError):
            lock = (folder / LOCK_NAME).open("rb")
            try:
                # a cleanup may have been faster: then the locked file has no name any more
                free = try_lock(lock) and os.fstat(lock.fileno()).st_nlink and not (folder / _DISCARDED).exists()
                if free and resumable(folder):
                    return folder, lock
            except BaseException:
                lock.close()
                raise
            lock.close()
    return None


def _sweep_abandoned(destination: Path) -> None:
    for folder in staged_for(destination):
        _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    if not folder.is_dir():
        return
    if not (folder / LOCK_NAME).exists():
        if is_left_behind(folder):
            shutil.rmtree(folder, ignore_errors=True)
        return
    with suppress(OSError), (folder / LOCK_NAME).open("rb") as lock:
        if try_lock(lock):
            _discard(folder)


def _discard(folder: Path) -> None:
    """Remove a folder.  If the process is killed meanwhile, a later one does not resume what is left, and removes it."""
    with suppress(OSError):
        (folder / _DISCARDED).touch()
        for name in {*os.listdir(folder)} - {LOCK_NAME, _DISCARDED}:  # noqa: PTH208 - names
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).unlink(missing_ok=True)
        (folder / _DISCARDED).unlink()
    shutil.rmtree(folder, ignore_errors=True)


class Staging:
    """A folder in which many processes, of any machine, stage files; nothing is read here.

    The name of a staged file identifies its owner, since not every network file system has locks.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder, self._disk = folder, disk

    def write(self, data: bytes, *, flush: bool = True) -> Path:
        """Write a new read-only file to publish, with durable bytes if ``flush``.

        If the bytes cannot be synced (EIO), the kernel may have dropped them and still report success for the next fsync.  The file
        is therefore abandoned, and the bytes are written again, to a new one.
        """
        for attempt in range(ATTEMPTS):
            staged = self.new_path()
            try:
                try:
                    self._write(staged, data, flush=flush)
                except FileNotFoundError:  # the first file, or a copy of a registry without its empty folders
                    self._make_folder()
                    self._write(staged, data, flush=flush)
            except OSError as error:
                if error.errno != TRY_A_NEW_FILE or attempt == ATTEMPTS - 1:
                    raise
            else:
                return staged
        raise AssertionError

    def _write(self, staged: Path, data: bytes, *, flush: bool = True) -> None:
        write_new(self._disk, staged, [data], size=len(data), flush=flush)

    def _make_folder(self) -> None:
        with suppress(FileExistsError):
            self._disk.make_folder(self.folder, 0o770)  # for writers; its name need not be durable

    def new_path(self) -> Path:
        """Return an unused name that identifies its owner."""
        return self.folder / f"{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex}"

    def write_folder(self, files: Mapping[str, bytes]) -> Path:
        """Write a new folder of read-only files, durable except for its own name."""
        staged = self.new_path()
        try:
            try:
                self._disk.make_folder(staged)
            except FileNotFoundError:
                self._make_folder()
                self._disk.make_folder(staged)
            for name, data in files.items():
                self._write(staged / name, data)
            self._disk.fsync_folder(staged)
        except BaseException:
            self.discard_folder(staged)
            raise
        return staged

    def discard(self, staged: Path) -> None:
        """Remove a staged file, published or not; if it cannot be removed now, it is cleaned up later."""
        with suppress(OSError):
            self._disk.unlink(staged)

    def discard_folder(self, staged: Path) -> None:
        """Remove a staged folder in the same way."""
        with suppress(OSError):
            for name in sorted(self._disk.names(staged)):
                self.discard(staged / name)
            self._disk.remove_folder(staged)

    def sweep(self) -> None:
        """Remove the files of dead writers; best effort."""
        with suppress(OSError):
            for name in sorted(self._disk.names(self.folder)):
                with suppress(OSError):
                    if time.time() - self._disk.modified(self.folder / name) > _seconds_to_keep(name):
                        if self._disk.is_folder(self.folder / name):
                            self.discard_folder(self.folder / name)
                        else:
                            self._disk.unlink(self.folder / name)

    def probe(self) -> Way:
        """Publish two files under one name, and return the method that worked; leave nothing behind.

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


def _seconds_to_keep(name: str) -> float:
    """Return for how many seconds to keep a file of this name: for ever while its process may live."""
    host, _, pid = name.rpartition(".")[0].rpartition(".")
    if host != socket.gethostname() or not pid.isdecimal():
        return ANYBODYS_AFTER
    return math.inf if is_running(int(pid)) else OURS_AFTER


def is_running(pid: int) -> bool:
    """Return whether this machine has a process of this number, of any user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True
