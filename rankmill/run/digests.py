"""Digests of files, taken again only where size, time of change or inode tell of a change."""

from __future__ import annotations

import json
from pathlib import Path

from rankmill.foundation.storage.publish import file_digest, write_atomically

Seen = tuple[int, int, int, str]
"""Bytes, time of the last change in nanoseconds, inode, sha256."""


class FileDigests:
    """What is known of the bytes of files, kept in ``path`` from one run to the next.

    Parameters
    ----------
    path
        Where it is kept; a file that is missing or damaged counts as an empty one.
    rehash
        Read every file once, whatever is known of it.
    """

    def __init__(self, path: Path, *, rehash: bool = False) -> None:
        self._path = path
        self._known: dict[str, Seen] = {} if rehash else _read(path)

    def of(self, path: Path) -> str:
        """Return the sha256 of ``path`` in hexadecimal; OSError if it cannot be read."""
        name, found = str(path.absolute()), path.stat()
        state = (found.st_size, found.st_mtime_ns, found.st_ino)
        known = self._known.get(name)
        if known is None or known[:3] != state:
            known = (*state, file_digest(path))
        self._known[name] = known
        return known[3]

    def keep(self) -> None:
        """Write what is known; files that are gone are forgotten."""
        there = {name: seen for name, seen in self._known.items() if Path(name).exists()}
        data = json.dumps(there, sort_keys=True, ensure_ascii=False, indent=0)
        write_atomically(self._path, data.encode("utf-8", "surrogateescape"))


def _read(path: Path) -> dict[str, Seen]:
    try:
        found = json.loads(path.read_bytes().decode("utf-8", "surrogateescape"))
        return {
            str(name): (int(size), int(time), int(inode), str(digest))
            for name, (size, time, inode, digest) in found.items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
