"""Digests of the input files, computed in a thread while the files are parsed."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.local_copies import object_behind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_CHUNK = 1 << 20

FileState = tuple[int, int, int]
"""Size, time of the last change and inode of a file; of an object in a bucket its size."""


class SourceDigests:
    """Size and sha256 of some files; a file that changes between the start and :meth:`results` is an error."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._before = {path: _state(path) for path in paths}
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
        refuse_changed(self._before)
        return {path: (self._before[path][0], digest) for path, digest in zip(self._paths, digests, strict=True)}

    def _digest(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while not self._stop.is_set() and (chunk := file.read(_CHUNK)):
                digest.update(chunk)
        return digest.hexdigest()


def states_of(paths: Iterable[Path]) -> dict[Path, FileState]:
    """Return the states of files before they are read; what is no file is left to the reader to refuse."""
    return {path: _state(path) for path in paths if path.is_file()}


def refuse_changed(before: Mapping[Path, FileState]) -> None:
    """Raise InputError if a file is not in its state of `states_of` any more."""
    for path, state in before.items():
        try:
            changed = _state(path) != state
        except FileNotFoundError:
            changed = True
        if changed:
            raise InputError(f"{path}: was changed while it was read; run again when it is complete")


def _state(path: Path) -> FileState:
    found = path.stat()
    if object_behind(path) is not None:  # does not change: it would be another one
        return found.st_size, 0, 0
    return found.st_size, found.st_mtime_ns, found.st_ino
