"""Objects of a bucket, fetched whole into files of a cache: by parts, several at a time, and published atomically."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import ConflictError
from rankmill.foundation.process_memory import return_large_arrays
from rankmill.foundation.storage.bucket import PART, BucketClient, ObjectFacts, StoreError, StoreRefusal
from rankmill.foundation.storage.location import ObjectUrl
from rankmill.foundation.storage.publish import (
    STAGED,
    fsync_file,
    fsync_folder,
    is_left_behind,
    new_staged_path,
)

AT_A_TIME = 8  # parts
PAUSES = (0.1, 1, 3, 6, 10, 15)  # seconds, in which a server that has failed may come back
Clients = Callable[[ObjectUrl], "PatientClient"]


class PatientClient(BucketClient if TYPE_CHECKING else object):  # type: ignore[misc]
    """A bucket whose requests are repeated if the store fails, after pauses beyond the client's own short ones."""

    def __init__(self, bucket: BucketClient) -> None:
        self._bucket = bucket
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Repeat no request any more."""
        self._given_up.set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a copy that has no bucket yet
            raise AttributeError(name)
        request = getattr(self._bucket, name)
        if name == "below":  # the whole listing is one request
            return partial(self._patiently, lambda *which, **more: list(request(*which, **more)))
        return partial(self._patiently, request)

    def _patiently(self, request: Callable[..., Any], *given: Any, **more: Any) -> Any:
        for pause in PAUSES:
            try:
                return request(*given, **more)
            except StoreRefusal:
                raise
            except StoreError:
                if self._given_up.wait(pause):
                    raise
        return request(*given, **more)


def file_in(cache: Path, facts: ObjectFacts) -> Path:
    """Return the file of the folder ``cache`` that holds an object: it is named by the digest of URL, ETag and size."""
    known = facts.tag or facts.version or str(facts.modified)
    digest = hashlib.sha256(f"{facts.url}\n{known}\n{facts.size}".encode()).hexdigest()
    return cache / "objects" / digest[:2] / digest[2:]


def fetch(client: Clients, wanted: Iterable[tuple[ObjectFacts, Path]]) -> None:
    """Fetch objects to files, unless these are there; after an error nothing incomplete is left.

    Memory: at most `AT_A_TIME` parts of `PART` bytes.

    Raises
    ------
    ConflictError
        An object was replaced or removed since it was listed.
    StoreError
        A request failed.
    """
    files = [_Partial(facts, path) for facts, path in wanted if not _is_here(facts, path)]
    if not files:
        return
    return_large_arrays()  # the parts, which are not needed afterwards
    parts = [(file, start) for file in files for start in range(0, max(1, file.facts.size), PART)]
    pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="fetching")
    try:
        done = pool.map(lambda part: part[0].fetch(client(part[0].facts.url), part[1]), parts)
        for (file, start), _ in zip(parts, done, strict=True):
            if start + PART >= file.facts.size:  # its last part, and all before it are there
                file.publish()
    finally:
        pool.shutdown(cancel_futures=True)
        for file in files:
            file.staged.unlink(missing_ok=True)


class _Partial:
    """An object of which some parts are on the disk."""

    def __init__(self, facts: ObjectFacts, path: Path) -> None:
        self.facts, self.path = facts, path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it has another length
        for left in path.parent.glob(f".*{STAGED}"):
            if is_left_behind(left):
                left.unlink(missing_ok=True)
        self.staged = new_staged_path(path)
        with self.staged.open("xb") as file:
            self.staged.chmod(0o600)
            file.truncate(facts.size)

    def fetch(self, client: PatientClient, start: int) -> None:
        """Fetch the part from ``start``."""
        size = min(PART, self.facts.size - start)
        data, tag = _part(client, self.facts.url, start, size) if size else (b"", self.facts.tag)
        if tag != self.facts.tag:
            raise _replaced(self.facts.url)
        with self.staged.open("r+b", buffering=0) as file:
            file.seek(start)
            written = 0
            while written < size:
                written += file.write(data[written:])

    def publish(self) -> None:
        """Give the file its name; if it exists, another process has fetched the same bytes."""
        if self.staged.stat().st_size != self.facts.size:
            raise OSError(errno.EIO, "the copy in the cache has another length than its object", str(self.facts.url))
        fsync_file(self.staged)
        self.staged.replace(self.path)
        fsync_folder(self.path.parent)


def _is_here(facts: ObjectFacts, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_size == facts.size
    return False


def _part(client: PatientClient, url: ObjectUrl, start: int, size: int) -> tuple[bytes | memoryview, str]:
    try:
        found: tuple[bytes | memoryview, str] = client.part(url, start, size)
    except FileNotFoundError:
        raise _replaced(url) from None
    return found


def _replaced(url: ObjectUrl) -> ConflictError:
    return ConflictError(f"{url}: was replaced or removed while it was read; run again when it is complete")
