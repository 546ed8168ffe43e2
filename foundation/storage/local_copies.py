"""Objects of buckets under local names: fetched before they are read, and put when what was written is complete.

Every reader and writer of rankmill has local files.  For a URL it gets a local name that ends in the key of the object.
So formats, patterns, folders and companion files work as on a disk.  For an input the name is a symbolic link to a file
of the cache.  An output is written at its name; what is there after a command has succeeded is put, the file that makes
a folder complete last.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rankmill.foundation.errors import ConflictError, InputError
from rankmill.foundation.process_memory import hold_beside
from rankmill.foundation.storage.bucket import PART, ObjectFacts, StoreError, open_bucket
from rankmill.foundation.storage.fetching import PatientClient, fetch, file_in
from rankmill.foundation.storage.found_objects import LAST, UNFINISHED, find, is_unfinished, one
from rankmill.foundation.storage.location import ObjectUrl
from rankmill.foundation.storage.locks import LOCK_NAME, try_lock
from rankmill.foundation.storage.publish import STAGED, new_staged_path
from rankmill.foundation.storage.staging import scratch_folder

MEMORY = 16_000_000 + 4 * PART
"""Bytes of the client, and of parts of what is put while a command works."""
PUT_AT_A_TIME = 4
_LARGE = 64 << 20  # bytes above which a new object is put in parts
_BY_DIGEST = re.compile(r"[0-9a-f]{64}\.\w+")
_behind: dict[Path, ObjectFacts] = {}


def object_behind(path: Path) -> ObjectFacts | None:
    """Return the facts of the object whose local name is ``path``; None if it is another file."""
    return _behind.get(path)


@dataclass(slots=True)
class Upload:
    """The file or folder ``place`` that is put as ``url``.

    Attributes
    ----------
    before
        The objects that were there before.
    replaces
        Whether those among them that do not belong to the new folder are removed.
    folder, lock, kept
        What holds all that is written for it, the open file of its lock, and whether it stays in the cache.
    """

    url: ObjectUrl
    place: Path
    client: PatientClient
    before: dict[ObjectUrl, ObjectFacts]
    replaces: bool
    folder: Path = Path()
    lock: int = -1
    kept: bool = False

    def put(self) -> None:
        """Put all, and remove what does not belong to it.

        Raises
        ------
        ConflictError
            Another process has written the same meanwhile.
        StoreError
            A request failed; `UNFINISHED` is in the folder unless it is complete.
        """
        tree = self.place.is_dir()
        self.put_files(sorted(self.place.rglob("*")) if tree else [self.place])
        for url in self.before if self.replaces and tree else ():
            if not os.path.lexists(self.place.joinpath(*url.relative_to(self.url).parts)):
                self.client.delete(url)

    def put_files(self, files: Iterable[Path]) -> None:
        """Put ``files``, in ``place`` or beside it."""
        client, before = self.client, self.before
        urls = {self._url_of(path): path for path in files if path.is_file()}
        urls = {url: path for url, path in urls.items() if not _is_there(path, before.get(url))}
        last = sorted((url for url in urls if url.name in LAST or url == self.url), key=lambda url: -len(url.key))
        others = [url for url in urls if url not in last]
        whole = last[-1] if last else self.url
        marked = whole != self.url and (whole not in before or any(url in before for url in others))
        if marked:
            client.put(self.url / UNFINISHED, b"")
            if whole in before:
                client.delete(whole)  # it is not complete while parts of it are replaced
        with ThreadPoolExecutor(PUT_AT_A_TIME) as pool:
            for _ in pool.map(lambda url: client.put_file(url, urls[url]), others):
                pass
        for url in last:
            path = urls[url]
            if url in before or path.stat().st_size > _LARGE:
                client.put_file(url, path)
            elif not client.put_new(url, data := path.read_bytes()) and client.get(url) != data:
                raise ConflictError(f"{url}: another command has written it meanwhile; choose another name")
        if marked:
            client.delete(self.url / UNFINISHED)

    def _url_of(self, path: Path) -> ObjectUrl:
        if path == self.place:
            return self.url
        if path.is_relative_to(self.place):
            return self.url / path.relative_to(self.place).as_posix()
        return self.url.parent / path.name


def objects_at(url: ObjectUrl, client: PatientClient) -> dict[ObjectUrl, ObjectFacts]:
    """Return the object ``url``, and those below it."""
    return {each.url: each for each in (*one(url, client), *client.below(url))}


def _is_there(path: Path, facts: ObjectFacts | None) -> bool:
    """Whether an object has the bytes of ``path``: it was not touched, or is named by the same digest."""
    if facts is None:
        return False
    return path.is_symlink() or (bool(_BY_DIGEST.fullmatch(path.name)) and facts.size == path.stat().st_size)


class LocalCopies:
    """The local names of objects of one command, or of a process.

    Parameters
    ----------
    cache
        Folder that keeps fetched objects; None: they are in the temporary folder until `close`.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._open = ExitStack()
        self._scratch = self._open.enter_context(scratch_folder("objects"))
        self._kept = self._scratch if cache is None else cache.absolute()
        roots = "|".join(re.escape(str(root)) for root in (self._scratch, self._kept))
        self._local = re.compile(rf"(?:{roots})/(?:in|out/[0-9a-f]{{16}})/(s3|gs|az)/")
        self._clients: dict[tuple[str, str], PatientClient] = {}
        self._outputs: list[Upload] = []
        self._names: set[Path] = set()
        self._release = hold_beside(MEMORY)

    def close(self) -> None:
        """Remove what is not in the cache folder."""
        for client in self._clients.values():
            client.give_up()
        self._release()
        for output in self._outputs:
            if not output.kept:
                _clear(output.place.parent)
            os.close(output.lock)
        self._outputs.clear()
        for place in self._names:
            _behind.pop(place, None)
        self._open.close()

    def named(self, text: str) -> str:
        """Return ``text`` with URLs instead of our local names."""
        return self._local.sub(r"\1://", text)

    def client(self, url: ObjectUrl) -> PatientClient:
        """Return the bucket of ``url``."""
        place = (url.scheme, url.bucket)
        if place not in self._clients:
            self._clients[place] = PatientClient(open_bucket(url))
        return self._clients[place]

    def forget_clients(self) -> None:
        """Open buckets again when they are needed next, by the environment at that time."""
        self._clients.clear()

    @property
    def writes(self) -> bool:
        """Whether something is to be put."""
        return bool(self._outputs)

    def read(self, url: ObjectUrl) -> Path:
        """Fetch the objects that ``url`` names and return its local name.

        `rankmill.foundation.storage.found_objects.find` finds them.
        """
        self.fetch(find(url, self.client(url)))
        return self.place(url)

    def place(self, url: ObjectUrl) -> Path:
        """Return the local name of ``url``, which need not exist."""
        parts = url.key.split("/") if url.key else []
        if any(part in {"", ".", ".."} or "\0" in part for part in parts):
            raise InputError(f"{str(url)!r}: keys with empty parts, '.' or '..' cannot be read; rename the object")
        return self._scratch.joinpath("in", url.scheme, url.bucket, *parts)

    def fetch(self, found: Iterable[ObjectFacts]) -> None:
        """Fetch those of ``found`` that are not in the cache yet, and give all of them their local names."""
        contents = {facts: file_in(self._kept, facts) for facts in found}
        for facts in contents:
            self.place(facts.url)  # checks the key
        fetch(self.client, contents.items())
        for facts, content in contents.items():
            self._name(facts, content)

    def _name(self, facts: ObjectFacts, content: Path) -> None:
        place = self.place(facts.url)
        _link(place, content, facts.url)
        _behind[place] = facts
        self._names.add(place)

    def write(self, url: ObjectUrl, *, overwrite: bool | None, update: bool = False) -> Path:
        """Return the local name at which to write ``url``; `put` puts what is there then.

        Parameters
        ----------
        overwrite
            Whether to replace what is there; None: files are replaced, and others in a folder stay.
        update
            What is there is fetched, to be changed.

        Raises
        ------
        InputError
            There is something that may not be replaced.
        ConflictError
            Another process is writing it by the same cache.
        """
        if not url.key:
            raise InputError(f"{url}: expected a name in the bucket, such as {url}/NAME")
        client = self.client(url)
        before = objects_at(url, client)
        unfinished = is_unfinished(before, url)
        if before and overwrite is False and not (update or unfinished):
            raise InputError(f"{url}: exists already; choose another name, or replace it with --overwrite")
        if (
            before
            and overwrite
            and url not in before
            and not (unfinished or any(url / name in before for name in LAST))
        ):
            raise InputError(f"{url}: is a folder with other objects; choose another name")
        folder = self._kept / "out" / hashlib.sha256(str(url).encode()).hexdigest()[:16]
        place = folder.joinpath(url.scheme, url.bucket, *url.key.split("/"))
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
        if not try_lock(lock):
            os.close(lock)
            raise ConflictError(f"{url}: another command is writing it; wait for it, or choose another name")
        replaces = update or bool(overwrite) or unfinished
        self._outputs.append(Upload(url, place, client, before, replaces, folder, lock))
        _clear(place.parent)
        if update:
            self.fetch(before.values())
            for each, facts in before.items():
                _link(place.joinpath(*each.relative_to(url).parts), file_in(self._kept, facts), each)
        return place

    def upload(self, place: Path, url: ObjectUrl) -> None:
        """Put the file or folder ``place`` as ``url``, instead of what is there."""
        client = self.client(url)
        before = objects_at(url, client)
        Upload(url, place, client, before, replaces=url not in before).put()

    def is_whole(self, url: ObjectUrl) -> bool:
        """Whether an object is there, or a folder with the file that makes it complete."""
        client = self.client(url)
        return any(one(each, client) for each in (url, *(url / name for name in LAST)))

    def sweep(self) -> None:
        """Remove the objects in the cache that have no local name here; for a cache that is not shared."""
        used = {place.readlink() for place in self._names if place.is_symlink()}
        for content in (self._kept / "objects").glob("*/*"):
            if content not in used:
                content.unlink(missing_ok=True)

    def put(self, *, failed: bool = False) -> None:
        """Put what was written; after a failure only the lists beside it, such as that of rejected rows.

        Raises
        ------
        ConflictError
            Another process has written the same meanwhile.
        """
        for output in self._outputs:
            beside = [path for path in output.place.parent.iterdir() if path.is_file() and path != output.place]
            output.put_files([path for path in beside if not path.name.endswith(STAGED)])
            if failed or not output.place.exists():
                continue
            try:
                output.put()
            except (StoreError, ConflictError) as error:
                if self._kept != self._scratch:
                    output.kept = True
                    error.add_note(f"the result is in {output.folder} until it is made again")
                raise
            shutil.rmtree(output.folder, ignore_errors=True)


def _clear(folder: Path) -> None:
    """Remove all in ``folder`` but what an interrupted command has staged, which may be resumed."""
    for left in folder.glob("*"):
        if left.name.endswith(STAGED):
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


def _link(place: Path, content: Path, url: ObjectUrl) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        link = new_staged_path(place)
        link.symlink_to(content)
        link.replace(place)
    except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError):
        raise InputError(f"{url}: is an object and a folder at once; rename one of them") from None
