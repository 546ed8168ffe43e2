"""What the file system of a registry can do, found out by doing it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Literal

from rankmill.registry.files.disk import Disk
from rankmill.registry.files.publishing import publish
from rankmill.registry.files.staging import Staging

Way = Literal["link", "rename"]


def way_to_publish(disk: Disk, staging: Staging) -> Way:
    """Publish two files under one name, in the staging folder, and tell what became of the first; leaves nothing.

    Raises
    ------
    OSError
        Neither way works here, or one that claims to work replaces files.
    """
    target = staging.new_path()
    staged: list[Path] = []
    try:
        staged.append(staging.write(b"first", flush=False))
        staged.append(staging.write(b"second", flush=False))
        publish(disk, staged[0], target)
        way: Way = "link" if _is_there(disk, staged[0]) else "rename"
        if publish(disk, staged[1], target) or disk.read(target) != b"first":
            reason = (
                f"two files got the same name by a {way}, where one must win; keep the registry on a local disk or NFS"
            )
            raise OSError(errno.EOPNOTSUPP, reason, str(staging.folder))
    finally:
        for path in (*staged, target):
            staging.discard(path)
    return way


def _is_there(disk: Disk, path: Path) -> bool:
    try:
        disk.size(path)
    except FileNotFoundError:
        return False
    return True
