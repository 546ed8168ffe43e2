"""Objects of a bucket, fetched whole into files of a cache: by parts, several at a time, and published atomically."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

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
T = TypeVar("T")
Clients = Callable[[ObjectUrl], "PatientClient"]


class PatientClient:
    """A bucket whose requests are repeated if the store fails, after pauses beyond the client's own short ones."""

    def __init__(self, bucket: BucketClient) -> None:
        self._bucket = bucket
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Repeat no request any more."""
        self._given_up.set()

    def get(self, url: ObjectUrl) -> bytes:
        """Read an object."""
        return self._patiently(lambda: self._bucket.get(url))

    def part(self, url: ObjectUrl, start: int, size: int) -> tuple[bytes | memoryview, str]:
        """Read ``size`` bytes of an object from ``start``; also return its ETag."""
        return self._patiently(lambda: self._bucket.part(url, start, size))

    def head(self, url: ObjectUrl) -> ObjectFacts:
        """Return the facts about an object."""
        return self._patiently(lambda: self._bucket.head(url))

    def explain(self, url: ObjectUrl) -> None:
        """Raise what is wrong, after `head` has failed: the answer to a listing has a text, that to a head has none."""
        next(iter(self._bucket.below(url)), None)

    def below(self, above: ObjectUrl, prefix: str = "") -> list[ObjectFacts]:
        """List every object below ``above`` whose name begins with ``prefix``."""
        return self._patiently(lambda: list(self._bucket.below(above, prefix=prefix)))

    def put(self, url: ObjectUrl, data: bytes) -> None:
        """Write an object; an existing one is replaced."""
        self._patiently(lambda: self._bucket.put(url, data))

    def put_file(self, url: ObjectUrl, path: Path) -> None:
        """Write the bytes of a file as an object; an existing one is replaced."""
        self._patiently(lambda: self._bucket.put_file(url, path))

    def put_new(self, url: ObjectUrl, data: bytes) -> bool:
        """Write an object unless it exists; False may also mean that an earlier try has written it."""
        return self._patiently(lambda: self._bucket.put_new(url, data))

    def delete(self, url: ObjectUrl) -> None:
        """Remove an object; nothing happens if it is missing."""
        self._patiently(lambda: self._bucket.delete(url))

    def _patiently(self, request: Callable[[], T]) -> T:
        for pause in PAUSES:
            try:
                return request()
            except StoreRefusal:
                raise
            except StoreError:
                if self._given_up.wait(pause):
                    raise
        return request()


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
    fetching = Fetching(client, wanted)
    try:
        fetching.wait()
    finally:
        fetching.close()


class Fetching:
    """Objects that are fetched by some threads, in order; parts that somebody waits for come first.

    Parameters
    ----------
    client
        Opens the bucket of a URL.
    wanted
        Objects, and the files for them; what is there already is left out.
    at_a_time
        Number of parts; memory is that of so many.
    """

    def __init__(self, client: Clients, wanted: Iterable[tuple[ObjectFacts, Path]], at_a_time: int = AT_A_TIME) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._ended = False
        self._failure: Exception | None = None
        self.files = {facts: Partial(self, facts, path) for facts, path in wanted if not _is_here(facts, path)}
        """The files that are not there yet, by their objects."""
        self._left = len(self.files)
        self._waiting = dict.fromkeys(
            (file, start) for file in self.files.values() for start in range(0, max(1, file.size), PART)
        )
        if self._waiting:
            return_large_arrays()  # the parts, which are not needed afterwards
        self._threads = [
            threading.Thread(target=self._work, name="fetching", daemon=True)
            for _ in range(min(at_a_time, len(self._waiting)))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Wait until all files are complete; raises what went wrong."""
        self._until(lambda: self._left == 0)

    def close(self) -> None:
        """Stop, and remove what is incomplete."""
        with self._changed:
            self._ended = True
            self._waiting.clear()
        for thread in self._threads:
            thread.join()
        for file in self.files.values():
            file.abandon()

    def wait_for(self, file: Partial, parts: Iterable[int]) -> None:
        """Wait until ``parts`` of ``file``, by their starts, are there; they are fetched next."""
        missing = set(parts) - file.present
        if not missing:
            return
        with self._changed:
            first = {(file, start): None for start in sorted(missing) if (file, start) in self._waiting}
            if first:
                self._waiting = first | self._waiting
        self._until(lambda: missing <= file.present)

    def _until(self, done: Callable[[], bool]) -> None:
        with self._changed:
            while not done():
                if self._failure is not None:
                    raise self._failure
                if self._ended:
                    raise InterruptedError(errno.EINTR, "fetching was stopped")
                self._changed.wait()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._failure is not None or not self._waiting:
                    return
                file, start = next(iter(self._waiting))
                del self._waiting[file, start]
            try:
                complete = file.fetch(self._client(file.facts.url), start)
            except Exception as error:  # for whoever waits
                with self._changed:
                    self._failure = self._failure or error
                    self._changed.notify_all()
                return
            with self._changed:
                file.present.add(start)
                self._left -= complete
                self._changed.notify_all()


class Partial:
    """An object of which some parts are on the disk."""

    def __init__(self, fetching: Fetching, facts: ObjectFacts, path: Path) -> None:
        self.facts, self.path = facts, path
        self.present: set[int] = set()
        """The parts that are on the disk, by their starts."""
        self.size, self.complete = facts.size, False
        self._name: Callable[[ObjectFacts, Path], None] | None = None
        self._fetching = fetching
        self._missing = max(1, -(-facts.size // PART))
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it has another length
        for left in path.parent.glob(f".*{STAGED}"):
            if is_left_behind(left):
                left.unlink(missing_ok=True)
        self.staged = new_staged_path(path)
        with self.staged.open("xb") as file:
            self.staged.chmod(0o600)
            file.truncate(self.size)

    def wait_for(self, start: int, stop: int) -> None:
        """Wait until the bytes from ``start`` to ``stop`` are there; raises what went wrong with fetching."""
        self._fetching.wait_for(self, range(start // PART * PART, stop, PART))

    def named(self, name: Callable[[ObjectFacts, Path], None]) -> None:
        """Call ``name`` with the object and where its bytes are: now, and again when it is complete."""
        with self._lock:
            self._name = name
            name(self.facts, self.path if self.complete else self.staged)

    def fetch(self, client: PatientClient, start: int) -> bool:
        """Fetch the part from ``start``; after the last one the file is published.  Return whether this was the last one."""
        size = min(PART, self.size - start)
        data, tag = _part(client, self.facts.url, start, size) if size else (b"", self.facts.tag)
        if tag != self.facts.tag:
            raise _replaced(self.facts.url)
        with self.staged.open("r+b", buffering=0) as file:
            file.seek(start)
            written = 0
            while written < size:
                written += file.write(data[written:])
        with self._lock:
            self._missing -= 1
            last = self._missing == 0
        if last:
            self._publish()
        return last

    def abandon(self) -> None:
        """Remove what is incomplete."""
        self.staged.unlink(missing_ok=True)

    def _publish(self) -> None:
        if self.staged.stat().st_size != self.size:
            raise OSError(errno.EIO, "the copy in the cache has another length than its object", str(self.facts.url))
        fsync_file(self.staged)
        self.staged.replace(self.path)  # if it is there, somebody else has fetched the same bytes
        fsync_folder(self.path.parent)
        with self._lock:
            self.complete = True
            if self._name is not None:
                self._name(self.facts, self.path)
        self.staged.unlink(missing_ok=True)


def _is_here(facts: ObjectFacts, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_size == facts.size
    return False


def _part(client: PatientClient, url: ObjectUrl, start: int, size: int) -> tuple[bytes | memoryview, str]:
    try:
        return client.part(url, start, size)
    except FileNotFoundError:
        raise _replaced(url) from None


def _replaced(url: ObjectUrl) -> ConflictError:
    return ConflictError(f"{url}: was replaced or removed while it was read; run again when it is complete")
