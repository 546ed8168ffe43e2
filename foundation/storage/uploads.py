"""Put what was written locally as objects; the file that makes a folder complete comes last."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rankmill.foundation.errors import ConflictError
from rankmill.foundation.storage.bucket import ObjectFacts
from rankmill.foundation.storage.fetching import PatientClient
from rankmill.foundation.storage.found_objects import LAST, UNFINISHED, one
from rankmill.foundation.storage.location import ObjectUrl

PUT_AT_A_TIME = 4
_LARGE = 64 << 20  # bytes above which a new object is put in parts
_BY_DIGEST = re.compile(r"[0-9a-f]{64}\.\w+")


@dataclass(slots=True)
class Upload:
    """The file or folder ``place`` that is put as ``url``.

    Attributes
    ----------
    before
        The objects that were there before.
    replaces
        Whether those among them that do not belong to the new folder are removed.
    """

    url: ObjectUrl
    place: Path
    client: PatientClient
    before: dict[ObjectUrl, ObjectFacts]
    replaces: bool

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
