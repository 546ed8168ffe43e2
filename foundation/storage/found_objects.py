"""Which objects of a bucket a URL means: an object, a pattern or a folder, as a path would on a disk."""

from __future__ import annotations

import re
from collections.abc import Iterable
from glob import has_magic
from pathlib import PurePosixPath

from rankmill.foundation.errors import ConflictError, InputError
from rankmill.foundation.storage.bucket import ObjectFacts, StoreError
from rankmill.foundation.storage.fetching import PatientClient
from rankmill.foundation.storage.location import ObjectUrl
from rankmill.foundation.storage.table_formats import refuse_listed

LAST = ("_manifest.json", "index.html")
"""The files that make a folder complete: of a dataset and of ranked lists, and of a report."""
UNFINISHED = "_unfinished"
"""An empty object in a folder that is being put, or whose upload has failed."""
_COMPANION = re.compile(
    r"\.(?:query|group)(?:\.\w+)?|\.grades\.parquet"
)  # after the name of the file that it belongs to
_TOKENS = re.compile(r"\*+|\?|\[!?[^\]/]+\]|.", flags=re.DOTALL)


def find(url: ObjectUrl, client: PatientClient) -> list[ObjectFacts]:
    """Return the objects that ``url`` names, and the companions of files.

    It is the key of an object, else a pattern with ``*``, ``?`` or ``[``, else a folder. In a pattern ``**`` matches
    any number of folders. A folder means the objects directly in it, or all below it if it has a manifest.

    Raises
    ------
    InputError
        There is no such object.
    ConflictError
        The folder is not complete.
    """
    if url.key and (found := one(url, client)):
        return found + _companions(url, client)
    if has_magic(url.key):
        above, pattern = _pattern(url)
        listed = list(client.below(above))
        keys = {each.url.key for each in listed if pattern.fullmatch(each.url.key)}
        if not keys:
            raise InputError(f"{url}: no object matches")
        _refuse_table_formats(listed, keys, above)
        return [each for each in listed if each.url.key in keys or _belongs(each.url.key, keys)]
    found = _in_folder(url, client)
    if not found:
        raise InputError(f"{url}: no such object, and none below it")
    if url.name.startswith("_") and _is_whole(above_it := _in_folder(url.parent, client), url.parent):
        return above_it  # the manifest of a dataset says which of the files in its folders are current
    return found


def one(url: ObjectUrl, client: PatientClient) -> list[ObjectFacts]:
    """Return the object ``url``; nothing if it is missing."""
    try:
        return [client.head(url)]
    except FileNotFoundError:
        return []
    except StoreError:
        next(iter(client.below(url)), None)  # the answer to a listing has a text, that to a head has none
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
    if is_unfinished((each.url for each in listed), url):
        raise ConflictError(f"{url}: is not complete: it is being written, or writing it has failed; write it again")
    if _is_whole(listed, url):
        return listed
    found = [each for each in listed if each.url.parent == url and not each.url.name.startswith(".")]
    _refuse_table_formats(listed, [each.url.key for each in found], url)
    return found


def _refuse_table_formats(listed: Iterable[ObjectFacts], keys: Iterable[str], above: ObjectUrl) -> None:
    begin = f"{above.key}/" if above.key else ""
    refuse_listed(
        [each.url.key.removeprefix(begin) for each in listed], [key.removeprefix(begin) for key in keys], str(above)
    )


def is_unfinished(listed: Iterable[ObjectUrl], url: ObjectUrl) -> bool:
    """Whether a folder was not put as a whole yet, or not again."""
    known = set(listed)
    return url / UNFINISHED in known and not any(url / name in known for name in LAST)


def _is_whole(listed: Iterable[ObjectFacts], url: ObjectUrl) -> bool:
    """Whether a folder has a manifest, so that all below it belongs together."""
    return any(each.url in {url / "_manifest.json", url / "manifest.json"} for each in listed)


def _pattern(url: ObjectUrl) -> tuple[ObjectUrl, re.Pattern[str]]:
    """Return the folder above the first part with a pattern, and the pattern of whole keys.

    >>> above, pattern = _pattern(ObjectUrl("s3", "b", "logs/**/[!x]?*.gz"))
    >>> keys = ("ab.gz", "a/b/cd.gz", "xy.gz", "a.gz", "a/b.txt")
    >>> above.key, [bool(pattern.fullmatch(f"logs/{key}")) for key in keys]
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
