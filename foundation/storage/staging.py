"""Staging folders next to what is published, scratch folders, and clean-up after killed processes."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING, BinaryIO

from rankmill.foundation.errors import ClusterUnavailable, WorkerLost
from rankmill.foundation.storage.locks import LOCK_NAME, try_lock
from rankmill.foundation.storage.publish import (
    explain_errors,
    fsync_folder,
    is_left_behind,
    new_staged_path,
    staged_for,
)
from rankmill.foundation.storage.special_files import refuse_special

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DISCARDED = "discarded"  # marks a folder that is being removed, the lock last
_SCRATCH = "rankmill-"  # the names of scratch folders begin with it


@contextmanager
def staging_folder(destination: Path, resumable: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Yield a new folder next to ``destination``; it is removed at the end.

    If ``resumable`` is true for the folder of a killed run for ``destination``, that folder is yielded instead. If it
    is true for this one, an interrupt, SIGTERM or the loss of a cluster leaves it for a later run.

    Missing parent folders are created, and removed again if they stay empty.

    The owner holds a lock on a file in the folder. So a later run for the same destination removes the folders of
    killed processes, and keeps those of running ones.

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
    """Remove a folder. If the process is killed meanwhile, a later one does not resume what is left, and removes it."""
    with suppress(OSError):
        (folder / _DISCARDED).touch()
        for name in {*os.listdir(folder)} - {LOCK_NAME, _DISCARDED}:  # noqa: PTH208 - names
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).unlink(missing_ok=True)
        (folder / _DISCARDED).unlink()
    shutil.rmtree(folder, ignore_errors=True)
