"""The one way in which a file appears: whole, under a name that nobody else has taken.

link(2) gives the staged file its real name and fails if the name is taken.  Where a file system has no hard links
(exFAT, some network and FUSE file systems) a rename that never replaces does the same: renameat2(2) with
RENAME_NOREPLACE on Linux, renamex_np(2) with RENAME_EXCL on macOS.  Both put a file at a name only if none is there, so
writers may use either at the same time, and nothing needs to be agreed between them.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from rankmill.registry.files.disk import Disk

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
NO_HARD_LINKS = {errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
NO_RENAMES = {errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}


def publish(disk: Disk, staged: Path, target: Path) -> bool:
    """Give ``staged``, which nobody else knows, the name ``target``; False if another file may have it.

    Whoever gets False compares: over NFS the answer to a request may be lost, and the request sent twice, so that the
    name is taken by our own file.  The staged file may be gone afterwards, or may have two names.

    Raises
    ------
    OSError
        The file could not be published, and ``target`` is as it was; or the answer was lost for good.
    """
    try:
        return _link(disk, staged, target)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    with contextlib.suppress(OSError):
        disk.names(target.parent)  # the server has made the folder anew: look it up again, once
    return _link(disk, staged, target)


def _link(disk: Disk, staged: Path, target: Path) -> bool:
    try:
        disk.link(staged, target)
    except OSError as error:
        # open(2), O_EXCL on NFS: with two names it worked, whatever the answer; or cp --link has made the other one
        if error.errno == errno.EEXIST or _has_two_names(disk, staged):
            return False
        if error.errno not in NO_HARD_LINKS | NO_ROOM:  # tmpfs counts a second name as a file: a rename needs no room
            raise
        return _rename(disk, staged, target, why_not_link=error)
    return True


def _rename(disk: Disk, staged: Path, target: Path, why_not_link: OSError) -> bool:
    try:
        disk.rename_new(staged, target)
    except OSError as error:
        if error.errno == errno.EEXIST or _is_gone(disk, staged):  # gone: renamed, and only the answer was lost
            return False
        if error.errno not in NO_RENAMES:
            raise
        if why_not_link.errno in NO_ROOM:
            raise why_not_link from None
        reason = (
            f"the registry needs hard links or renames that never replace, and has neither here (link: "
            f"{why_not_link.strerror}; rename: {error.strerror}); keep it on a local disk or NFS"
        )
        raise OSError(why_not_link.errno, reason, str(target)) from error
    return True


def _has_two_names(disk: Disk, staged: Path) -> bool:
    try:
        return disk.link_count(staged) == 2
    except OSError:
        return False


def _is_gone(disk: Disk, staged: Path) -> bool:
    try:
        disk.link_count(staged)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
