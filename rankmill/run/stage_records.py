"""What a stage did, kept beside what it made: ``WORK/stages/<stage>.json``.

A stage is known by what goes into it: digests of its files, its options, and the code.  What is the same is not done again;
what differs is told by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.records import as_json, from_json
from rankmill.foundation.storage.publish import file_digest, write_atomically

FORMAT = 1
SHOWN = 3  # differences told by name
CODE = "code"

Inputs = dict[str, str]
"""What goes into a stage, by name: ``code``, ``file a.txt``, ``option n_rounds``, ..; digests, and options as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A stage that has published what it makes."""

    format: int = FORMAT
    stage: str
    key: str
    inputs: Inputs
    outputs: dict[str, str]
    """sha256 of what was made, by path from the work folder."""
    facts: Any
    """The facts of the stage: see `rankmill.run.stage_facts`."""


def key_of(stage: str, inputs: Mapping[str, str]) -> str:
    """Return the digest of the stage's name and all that goes into it."""
    return sha256(json.dumps([stage, dict(inputs)], sort_keys=True).encode()).hexdigest()


def read_record(folder: Path, stage: str, facts: type) -> Record | None:
    """Return the record of ``stage`` in ``folder``; None if there is none, or none that this version understands."""
    path = folder / f"{stage}.json"
    try:
        record = from_json(Record, path.read_bytes(), str(path))
        record = replace(record, facts=from_json(facts, record.facts, str(path)))
    except (OSError, IntegrityError):
        return None
    fits = record.format == FORMAT and record.stage == stage and record.key == key_of(stage, record.inputs)
    return record if fits else None


def write_record(folder: Path, record: Record) -> None:
    """Publish ``record``: from here on the stage is done."""
    folder.mkdir(exist_ok=True)
    text = json.dumps(as_json(record), indent=1, ensure_ascii=True, allow_nan=False)
    write_atomically(folder / f"{record.stage}.json", f"{text}\n".encode())


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say for a person what has changed since ``before``, the first few by name.

    >>> differences({"code": "1", "file a.txt": "7", "option n_rounds": "10"}, {"code": "1", "option n_rounds": "20"})
    'file a.txt is gone, n_rounds was 10 and is 20'
    """
    told = []
    for name in sorted(before.keys() | now.keys(), key=lambda name: (name.startswith("option "), name)):
        was, is_ = before.get(name), now.get(name)
        if was == is_:
            continue
        what = name.removeprefix("option ")
        if name == CODE:
            told.append("the code has changed")
        elif was is None:
            told.append(f"{what} is new")
        elif is_ is None:
            told.append(f"{what} is gone")
        elif name.startswith("option ") and len(was) + len(is_) < 60:
            told.append(f"{what} was {was} and is {is_}")
        else:
            told.append(f"{what} has changed")
    more = len(told) - SHOWN
    return ", ".join(told[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def as_options(**options: object) -> Inputs:
    """Return options as inputs; they are plain values, or dataclasses of such."""
    return {f"option {name}": json.dumps(_plain(value), sort_keys=True, default=str) for name, value in options.items()}


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


Seen = tuple[int, int, int, str]
"""Bytes, time of the last change in nanoseconds, inode, sha256."""


class FileDigests:
    """What is known of the bytes of files, kept in ``path`` from one run to the next.

    Parameters
    ----------
    path
        Where it is kept; a file that is missing or damaged counts as an empty one.
    rehash
        Read every file once, whatever is known of it.
    """

    def __init__(self, path: Path, *, rehash: bool = False) -> None:
        self._path = path
        self._known: dict[str, Seen] = {} if rehash else _read(path)

    def of(self, path: Path) -> str:
        """Return the sha256 of ``path`` in hexadecimal; OSError if it cannot be read."""
        name, found = str(path.absolute()), path.stat()
        state = (found.st_size, found.st_mtime_ns, found.st_ino)
        known = self._known.get(name)
        if known is None or known[:3] != state:
            known = (*state, file_digest(path))
        self._known[name] = known
        return known[3]

    def keep(self) -> None:
        """Write what is known; files that are gone are forgotten."""
        there = {name: seen for name, seen in self._known.items() if Path(name).exists()}
        data = json.dumps(there, sort_keys=True, ensure_ascii=False, indent=0)
        write_atomically(self._path, data.encode("utf-8", "surrogateescape"))


def _read(path: Path) -> dict[str, Seen]:
    try:
        found = json.loads(path.read_bytes().decode("utf-8", "surrogateescape"))
        return {
            str(name): (int(size), int(time), int(inode), str(digest))
            for name, (size, time, inode, digest) in found.items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
