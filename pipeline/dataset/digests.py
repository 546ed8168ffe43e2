"""Digests of the input files, computed in a thread while the files are parsed."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.local_copies import object_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_CHUNK = 1 << 20

FileState = tuple[int, int, int]
"""Size, time of the last change and inode of a file; of an object in a bucket its size."""


@contextmanager
def source_digests(paths: Sequence[Path]) -> Iterator[Callable[[], dict[Path, tuple[int, str]]]]:
    """Yield a function that returns (size, sha256) of each file; it waits for them.

    Raises
    ------
    InputError
        By that function: a file changed while it was read, so the rows may not match the digest.
    """
    before = {path: _state(path) for path in paths}
    stop = threading.Event()

    def digest_of(path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while not stop.is_set() and (chunk := file.read(_CHUNK)):
                digest.update(chunk)
        return digest.hexdigest()

    with ThreadPoolExecutor(1, thread_name_prefix="digest") as worker:
        futures = {path: worker.submit(digest_of, path) for path in paths}

        def results() -> dict[Path, tuple[int, str]]:
            digests = {path: future.result() for path, future in futures.items()}
            refuse_changed(before)
            return {path: (before[path][0], digest) for path, digest in digests.items()}

        try:
            yield results
        finally:
            stop.set()
            worker.shutdown(cancel_futures=True)


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
