"""Objects of buckets under local names: fetched before they are read, and put when what was written is complete.

Every reader and writer of rankmill has local files.  For a URL it gets a local name that ends in the key of the object, so that
formats, patterns, folders and companions of files mean the same as on a disk.  For an input the name is a symbolic link to a file
of the cache.  An output is written at its name; what is there after a command has succeeded is put, the file that makes a
folder complete last.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path, PurePosixPath
from tempfile import gettempdir, mkdtemp

from rankmill.foundation.errors import ConflictError, InputError
from rankmill.foundation.storage.arriving import announce
from rankmill.foundation.storage.bucket import ObjectFacts, StoreError, open_bucket
from rankmill.foundation.storage.fetching import Fetching, PatientClient, fetch, file_in
from rankmill.foundation.storage.location import ObjectUrl
from rankmill.foundation.storage.locks import LOCK_NAME, try_lock
from rankmill.foundation.storage.publish import STAGED, new_staged_path

LAST = ("_manifest.json", "index.html")
"""The files that make a folder complete: of a dataset and of ranked lists, and of a report."""
UNFINISHED = "_unfinished"
"""An empty object in a folder that is being put, or whose upload has failed."""
PUT_AT_A_TIME = 4
LATER_AT_A_TIME = 4  # parts, while the first ones are read
_LARGE = 64 << 20  # bytes above which a new object is put in parts
_COMPANION = re.compile(
    r"\.(?:query|group)(?:\.\w+)?|\.grades\.parquet"
)  # after the name of the file that it belongs to
_BY_DIGEST = re.compile(r"[0-9a-f]{64}\.\w+")
_TOKENS = re.compile(r"\*+|\?|\[!?[^\]/]+\]|.", flags=re.DOTALL)

_behind: dict[Path, ObjectFacts] = {}


def object_behind(path: Path) -> ObjectFacts | None:
    """Return the facts of the object whose local name is ``path``; None if it is another file."""
    return _behind.get(path)


@dataclass(slots=True)
class _Output:
    url: ObjectUrl
    place: Path
    folder: Path
    """Holds all that is written for it."""
    before: dict[ObjectUrl, ObjectFacts]
    replaces: bool
    lock: int


class LocalCopies:
    """The local names of objects of one command, or of a process.

    Parameters
    ----------
    cache
        Folder that keeps fetched objects; None: they are in the temporary folder until `close`.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._scratch = Path(mkdtemp(prefix="rankmill-", dir=Path(gettempdir()).resolve()))
        self._kept = self._scratch if cache is None else cache.absolute()
        roots = "|".join(re.escape(str(root)) for root in (self._scratch, self._kept))
        self._local = re.compile(rf"(?:{roots})/(?:in|out/[0-9a-f]{{16}})/(s3|gs|az)/")
        self._clients: dict[tuple[str, str], PatientClient] = {}
        self._outputs: list[_Output] = []
        self._names: set[Path] = set()
        self._fetching: list[Fetching] = []
        self._announced: list[Callable[[], None]] = []

    def close(self) -> None:
        """Stop fetching, and remove what is not in the cache folder."""
        for client in self._clients.values():
            client.give_up()
        for fetching in self._fetching:
            fetching.close()
        for forget in self._announced:
            forget()
        self._fetching.clear()
        self._announced.clear()
        for output in self._outputs:
            _clear(output.place.parent)
            os.close(output.lock)
        self._outputs.clear()
        for place in self._names:
            _behind.pop(place, None)
        shutil.rmtree(self._scratch, ignore_errors=True)

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
        """Open buckets anew when they are needed next, by the environment as it is then."""
        self._clients.clear()

    @property
    def writes(self) -> bool:
        """Whether something is to be put."""
        return bool(self._outputs)

    def read(self, url: ObjectUrl, *, later: bool = False) -> Path:
        """Fetch the objects that ``url`` names (see `find`) and return its local name.

        With ``later`` files of rows are fetched while they are read, by `rankmill.foundation.storage.arriving.readable`.
        """
        found = self.find(url)
        rows = [
            facts for facts in found if later and not _COMPANION.search(facts.url.name) and facts.url.name[0] != "_"
        ]
        self.fetch([facts for facts in found if facts not in rows])
        self._fetch_later(rows)
        return self.place(url)

    def find(self, url: ObjectUrl) -> list[ObjectFacts]:
        """Return the objects that ``url`` names, and the companions of files.

        It is the key of an object; or else a pattern with ``*``, ``?`` or ``[``, in which ``**`` matches any number of folders; or else a
        folder: the objects directly in it, or all below it if it has a manifest.

        Raises
        ------
        InputError
            There is no such object.
        """
        client = self.client(url)
        if url.key and (found := _one(url, client)):
            return found + _companions(url, client)
        if has_magic(url.key):
            above, pattern = _pattern(url)
            listed = client.below(above)
            keys = {each.url.key for each in listed if pattern.fullmatch(each.url.key)}
            if not keys:
                raise InputError(f"{url}: no object matches")
            return [each for each in listed if each.url.key in keys or _belongs(each.url.key, keys)]
        found = _in_folder(url, client)
        if not found:
            raise InputError(f"{url}: no such object, and none below it")
        if url.name.startswith("_") and _is_whole(above_it := _in_folder(url.parent, client), url.parent):
            return above_it  # the manifest of a dataset says which of the files in its folders are current
        return found

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

    def _fetch_later(self, found: Iterable[ObjectFacts]) -> None:
        """Begin to fetch ``found``, and give all of them their local names."""
        contents = {facts: file_in(self._kept, facts) for facts in found}
        for facts in contents:
            self.place(facts.url)
        fetching = Fetching(self.client, contents.items(), LATER_AT_A_TIME)
        self._fetching.append(fetching)
        for facts, content in contents.items():
            if (partial := fetching.files.get(facts)) is None:
                self._name(facts, content)
            else:
                self._announced.append(announce(self.place(facts.url), partial))
                partial.named(self._name)

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
        before = {each.url: each for each in (*_one(url, client), *client.below(url))}
        unfinished = _is_unfinished(before, url)
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
        self._outputs.append(_Output(url, place, folder, before, update or bool(overwrite) or unfinished, lock))
        _clear(place.parent)
        if update:
            self.fetch(before.values())
            for each, facts in before.items():
                _link(place.joinpath(*each.relative_to(url).parts), file_in(self._kept, facts), each)
        return place

    def upload(self, place: Path, url: ObjectUrl) -> None:
        """Put the file or folder ``place`` as ``url``, instead of what is there."""
        client = self.client(url)
        before = {each.url: each for each in (*_one(url, client), *client.below(url))}
        output = _Output(url, place, place, before, replaces=url not in before, lock=-1)
        self._put(output, sorted(place.rglob("*")) if place.is_dir() else [place])
        self._remove_former(output)

    def is_whole(self, url: ObjectUrl) -> bool:
        """Whether an object is there, or a folder with the file that makes it complete."""
        client = self.client(url)
        return any(_one(each, client) for each in (url, *(url / name for name in LAST)))

    def sweep(self) -> None:
        """Remove the objects in the cache that have no local name here; for a cache that nobody shares."""
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
            self._put(output, [path for path in beside if not path.name.endswith(STAGED)])
            if not failed and output.place.exists():
                tree = output.place.is_dir()
                self._put(output, sorted(output.place.rglob("*")) if tree else [output.place])
                self._remove_former(output)
                shutil.rmtree(output.folder, ignore_errors=True)

    def _remove_former(self, output: _Output) -> None:
        """Remove what belongs to a folder that was replaced, and not to the new one."""
        if output.replaces and output.place.is_dir():
            for url in output.before:
                if not os.path.lexists(output.place.joinpath(*url.relative_to(output.url).parts)):
                    self.client(url).delete(url)

    def _put(self, output: _Output, files: Sequence[Path]) -> None:
        client, before = self.client(output.url), output.before
        urls = {_url_of(path, output): path for path in files if path.is_file()}
        urls = {url: path for url, path in urls.items() if not _is_there(path, before.get(url))}
        last = sorted((url for url in urls if url.name in LAST or url == output.url), key=lambda url: -len(url.key))
        others = [url for url in urls if url not in last]
        marks: list[ObjectUrl] = []
        if last and last[-1] != output.url and (last[-1] not in before or any(url in before for url in others)):
            marks.append(output.url / UNFINISHED)
            client.put(marks[0], b"")
            if last[-1] in before:
                client.delete(last[-1])  # it is not complete while parts of it are replaced
        with ThreadPoolExecutor(PUT_AT_A_TIME) as pool:
            for _ in pool.map(lambda url: client.put_file(url, urls[url]), others):
                pass
        for url in last:
            path = urls[url]
            if url in before or path.stat().st_size > _LARGE:
                client.put_file(url, path)
            elif not client.put_new(url, data := path.read_bytes()) and client.get(url) != data:
                raise ConflictError(f"{url}: another command has written it meanwhile; choose another name")
        for mark in marks:
            client.delete(mark)


def _url_of(path: Path, output: _Output) -> ObjectUrl:
    if path == output.place:
        return output.url
    if path.is_relative_to(output.place):
        return output.url / path.relative_to(output.place).as_posix()
    return output.url.parent / path.name


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


def _is_there(path: Path, facts: ObjectFacts | None) -> bool:
    """Whether an object has the bytes of ``path``: it was not touched, or is named by the same digest."""
    if facts is None:
        return False
    return path.is_symlink() or (bool(_BY_DIGEST.fullmatch(path.name)) and facts.size == path.stat().st_size)


def _one(url: ObjectUrl, client: PatientClient) -> list[ObjectFacts]:
    try:
        return [client.head(url)]
    except FileNotFoundError:
        return []
    except StoreError:
        client.explain(url)
        raise


def _companions(url: ObjectUrl, client: PatientClient) -> list[ObjectFacts]:
    stem = PurePosixPath(url.name).stem
    stems = [url.name, *([stem] if "." in stem else [])]
    return [
        each
        for stem in stems
        for each in client.below(url.parent, prefix=f"{stem}.")
        if each.url.parent == url.parent and _COMPANION.fullmatch(each.url.name.removeprefix(stem))
    ]


def _belongs(key: str, keys: set[str]) -> bool:
    """Return whether ``key`` is a companion of one of ``keys``.

    >>> [_belongs(key, {"a/x.txt.gz"}) for key in ("a/x.txt.query", "a/x.txt.gz.group", "a/x.query", "a/x.txt")]
    [True, True, False, False]
    """
    found = re.fullmatch(rf"(.+?)(?:{_COMPANION.pattern})", key)
    return found is not None and any(found[1] in {name, name.rpartition(".")[0]} for name in keys if "." in name)


def _in_folder(url: ObjectUrl, client: PatientClient) -> list[ObjectFacts]:
    listed = [each for each in client.below(url) if each.url != url]
    if _is_unfinished((each.url for each in listed), url):
        raise ConflictError(f"{url}: is not complete: it is being written, or writing it has failed; write it again")
    if _is_whole(listed, url):
        return listed
    return [each for each in listed if each.url.parent == url and not each.url.name.startswith(".")]


def _is_unfinished(listed: Iterable[ObjectUrl], url: ObjectUrl) -> bool:
    """Whether a folder was not put as a whole yet, or not again."""
    known = set(listed)
    return url / UNFINISHED in known and not any(url / name in known for name in LAST)


def _is_whole(listed: Iterable[ObjectFacts], url: ObjectUrl) -> bool:
    """Whether a folder has a manifest, so that all below it belongs together."""
    return any(each.url in {url / "_manifest.json", url / "manifest.json"} for each in listed)


def _pattern(url: ObjectUrl) -> tuple[ObjectUrl, re.Pattern[str]]:
    """Return the folder above the first part with a pattern, and the pattern of whole keys.

    >>> above, pattern = _pattern(ObjectUrl("s3", "b", "logs/**/[!x]?*.gz"))
    >>> above.key, [bool(pattern.fullmatch(f"logs/{key}")) for key in ("ab.gz", "a/b/cd.gz", "xy.gz", "a.gz", "a/b.txt")]
    ('logs', [True, True, False, False, False])
    """
    parts = url.key.split("/")
    fixed = next(number for number, part in enumerate(parts) if has_magic(part))
    plain = {"?": "[^/]", "*": "[^/]*"}

    def meant(found: re.Match[str]) -> str:
        token = found[0]
        if token[0] == "[" and len(token) > 1:
            return f"[^{token[2:]}" if token[1] == "!" else token
        return plain.get(token[0], re.escape(token))

    texts = ["(?:[^/]+/)*" if part == "**" else f"{_TOKENS.sub(meant, part)}/" for part in parts]
    last = ".*" if parts[-1] == "**" else texts[-1].removesuffix("/")
    return ObjectUrl(url.scheme, url.bucket, "/".join(parts[:fixed])), re.compile("".join([*texts[:-1], last]))
