"""Digests of files, taken again only where size, time of change or inode tell of a change."""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.pipeline.publish import file_digest, write_atomically
from rankmill.trainer.code_digest import digest_of_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def code_of(packages: Iterable[str]) -> str:
    """Return the sha256 over the ``.py`` files of ``packages`` (dotted names), as they are installed."""
    return sha256(b"".join(_of_package(package) for package in sorted(packages))).hexdigest()


@cache
def _of_package(package: str) -> bytes:
    return b"".join(digest_of_folder(package, Path(folder)) for folder in import_module(package).__path__)
