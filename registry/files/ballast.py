"""``ROOT/ballast``: a file that holds room free, so that a rollback goes through on a full disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rankmill.registry.files.disk import Disk
from rankmill.registry.files.publishing import NO_ROOM, publish
from rankmill.registry.files.staging import Staging

SIZE = 1 << 20  # bytes; an entry of the log takes a block and a file, and maybe a block for the name of each
LEAST = 1 << 14  # less is not worth a file


class Ballast:
    """Room for a few small files: thrown off when the disk is full, taken in again when there is room.

    On a disk that stays full only less than what was thrown off fits in again, so it becomes smaller with each use.
    """

    def __init__(self, path: Path, staging: Staging, disk: Disk) -> None:
        self._path, self._staging, self._disk = path, staging, disk
        self._full = False  # looked at once by each process

    def throw_off(self) -> None:
        """Make room.  Somebody else may have been faster: then there is room too."""
        self._full = False
        with contextlib.suppress(OSError):
            self._disk.unlink(self._path)

    def take_in(self) -> None:
        """Put it in its place if it is not there in full; best effort."""
        if self._full:
            return
        with contextlib.suppress(OSError):
            there = self._there()
            size = SIZE
            while size > there and size >= LEAST:
                try:
                    self._put(size, instead=there >= 0)
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    size //= 2
                else:
                    break
            self._full = True

    def _there(self) -> int:
        """How many bytes are there; -1 if there is no file."""
        try:
            return self._disk.size(self._path)
        except FileNotFoundError:
            return -1

    def _put(self, size: int, *, instead: bool) -> None:
        staged = self._staging.write(os.urandom(size), flush=False)  # nothing that a file system could pack
        try:
            if instead:  # what a full disk or a pulled plug has left of it
                self._disk.unlink(self._path)
            publish(self._disk, staged, self._path)
        finally:
            self._staging.discard(staged)
