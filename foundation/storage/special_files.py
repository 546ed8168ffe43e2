"""Pipes, devices and sockets in the place of a file: they cannot be read twice, and replacing one destroys it."""

from __future__ import annotations

import stat
from pathlib import Path

from rankmill.foundation.errors import InputError

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def refuse_special(path: Path) -> None:
    """Raise InputError if ``path`` is a pipe, a device or a socket, without opening it; it need not exist."""
    try:
        kind = _KINDS.get(stat.S_IFMT(path.stat().st_mode))
    except OSError:
        return
    if kind is not None:
        raise InputError(
            f"{path}: is {kind}; expected a file or folder on a disk: files are read more than once, and replaced as "
            "a whole"
        )
