"""Digests of the input files, computed in a thread while the files are parsed."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.arriving import open_to_read
from rankmill.foundation.storage.local_copies import object_behind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_CHUNK = 1 << 20


class SourceDigests:
    """Size and sha256 of some files; a file that changes between the start and :meth:`results` is an error."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._before = [_state(path) for path in paths]
        self._stop = threading.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="digest")

    def __enter__(self) -> Self:
        self._futures = [self._worker.submit(self._digest, path) for path in self._paths]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._worker.shutdown(cancel_futures=True)

    def results(self) -> dict[Path, tuple[int, str]]:
        """Return (size, sha256) of each file.

        Raises
        ------
        InputError
            A file changed while it was read, so the rows may not match the digest.
        """
        digests = [future.result() for future in self._futures]
        for path, before in zip(self._paths, self._before, strict=True):
            if _state(path) != before:
                raise InputError(f"{path}: was changed while it was read; run again when it is complete")
        found = zip(self._paths, self._before, digests, strict=True)
        return {path: (before[0], digest) for path, before, digest in found}

    def _digest(self, path: Path) -> str:
        digest = hashlib.sha256()
        with open_to_read(path) as file:
            while not self._stop.is_set() and (chunk := file.read(_CHUNK)):
                digest.update(chunk)
        return digest.hexdigest()


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    if object_behind(path) is not None:  # does not change: it would be another one
        return found.st_size, 0, 0
    return found.st_size, found.st_mtime_ns, found.st_ino
