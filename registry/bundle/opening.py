"""A bundle, read and checked from its first byte to its last before anything of it is used.

What passes here could have been written by `rankmill.registry.bundle.exporting`: every digest is right, the log follows from entry
to entry, all that it refers to is here and nothing else is, and every text that is shown or parsed later is of its form.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from rankmill.foundation.errors import InputError, IntegrityError, InvalidName
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.disk import Disk
from rankmill.registry.bundle.contents import FIRST, LARGEST_CONTENTS, Contents, blob_member
from rankmill.registry.bundle.origin import ORIGIN
from rankmill.registry.bundle.tar import TarReader
from rankmill.registry.history.changes import Gate, Register
from rankmill.registry.history.entry import Entry
from rankmill.registry.history.state import Registered, State
from rankmill.registry.manifest import Manifest, first_fault
from rankmill.registry.names import check_alias

_OBJECT = TypeAdapter(dict[str, JsonValue])


class OpenedBundle:
    """The bundle in the file ``path``.

    Raises
    ------
    InputError
        There is no such file.
    IntegrityError
        It is damaged, cut short, or no bundle.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        if disk.is_folder(path):
            raise InputError(f"{path}: expected the tar file of a bundle, found a folder")
        self.path = path
        self._disk, self._file = disk, path.resolve()
        try:
            self.size = disk.size(self._file)
        except FileNotFoundError:
            raise InputError(f"{path}: expected the tar file of a bundle, found none") from None
        if not stat.S_ISREG(disk.mode(self._file)):
            raise InputError(
                f"{path}: expected the tar file of a bundle, found a pipe or a device; copy it to a file first"
            )
        tar = TarReader(self._read, str(path))
        self.contents = Contents.from_bytes(tar.first(FIRST, min(LARGEST_CONTENTS, self.size)), str(path))
        if self.contents.size != self.size:  # asked before anything is read through a length
            raise IntegrityError(
                f"{path}: the bundle is damaged: expected {self.contents.size} bytes, found {self.size}"
            )
        self.entries: list[Entry] = []
        self.state = State()
        """What a history amounts to."""
        for index, size in enumerate(self.contents.log):
            self._take(tar.member(self.contents.entry_member(index), size), self.contents.first + index)
        if self.entries[-1].digest != self.contents.head:
            raise self._fault(f"it does not end with the entry {self.contents.head}")
        self._check_blobs(tar)

    @property
    def registered(self) -> Register:
        """The change of the one entry of a version."""
        change = self.entries[0].change
        assert isinstance(change, Register)  # noqa: S101 (for the type checker; checked when it was read)
        return change

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Read the blobs once more, one at a time; each has its digest, whatever happened to the file meanwhile."""
        tar = TarReader(self._read, str(self.path))
        tar.first(FIRST, LARGEST_CONTENTS)
        for index, size in enumerate(self.contents.log):
            tar.member(self.contents.entry_member(index), size)
        yield from self._blobs(tar)

    def _read(self, start: int, size: int) -> bytes:
        return self._disk.read_part(self._file, start, size)

    def _take(self, data: bytes, number: int) -> None:
        try:
            entry = Entry.from_bytes(data)
            if entry.number != number:
                raise IntegrityError(f"it holds entry {entry.number}")  # noqa: TRY301 (told with its place below)
            _check_words(entry)
            if self.contents.kind == "history":
                self.state.apply(entry)
            elif not isinstance(entry.change, Register):
                raise IntegrityError("it does not register a version")  # noqa: TRY301
        except (IntegrityError, InvalidName) as error:
            raise self._fault(f"entry {number}: {error}") from None
        self.entries.append(entry)

    def _check_blobs(self, tar: TarReader) -> None:
        sizes = dict(self.contents.blobs)
        rows = self._rows()
        wanted = self.state.blobs() if self.contents.kind == "history" else _all_of(rows)
        if sizes.keys() != wanted:
            off = min(sizes.keys() ^ wanted)
            raise self._fault(f"blob {off} is {'missing' if off in wanted else 'nothing that the log refers to'}")
        for row in rows:
            if sizes[row.model] != row.size:
                raise self._fault(f"model {row.model}: expected {row.size} bytes, found {sizes[row.model]}")
        manifests = {row.manifest for row in self.state.versions.values()} | {row.manifest for row in rows}
        reports = {entry.change.report for entry in self.entries if isinstance(entry.change, Gate)}
        origins = {row.attachments[ORIGIN] for row in rows if ORIGIN in row.attachments}
        for sha256, data in self._blobs(tar):
            try:
                if sha256 in manifests:
                    Manifest.model_validate_json(data)
                if sha256 in reports | origins:
                    _OBJECT.validate_json(data)
                if sha256 in manifests | reports | origins:
                    canonical_json(json.loads(data))  # they are written as JSON again, which has no NaN
            except ValidationError as error:
                raise self._fault(f"blob {sha256} is no {error.title}: {first_fault(error)}") from None
            except ValueError as error:
                raise self._fault(f"blob {sha256} is no JSON: {error}") from None
        tar.finish()

    def _rows(self) -> list[Registered]:
        """Return the versions whose model bytes must be here."""
        if self.contents.kind == "history":
            return [row for number, row in self.state.versions.items() if number not in self.state.swept]
        entry, change = self.entries[0], self.registered
        return [Registered(change.model, change.size, change.manifest, entry.number, entry.time, change.attachments)]

    def _blobs(self, tar: TarReader) -> Iterator[tuple[str, bytes]]:
        for sha256, size in self.contents.blobs:
            data = tar.member(blob_member(sha256), size)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise self._fault(f"blob {sha256} has bytes of another digest")
            yield sha256, data

    def _fault(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self.path}: the bundle is damaged: {what}")


def _all_of(rows: list[Registered]) -> set[str]:
    return {sha256 for row in rows for sha256 in (row.model, row.manifest, *row.attachments.values())}


def _check_words(entry: Entry) -> None:
    """Check what no digest vouches for: texts of another's making that are shown, or read as times and names, later."""
    if (alias := getattr(entry.change, "alias", None)) is not None:
        check_alias(alias)
    for text in _texts(entry.to_json()):
        if not text.isprintable():
            raise IntegrityError(f"expected printable text, found {text!r}")
    try:
        aware = datetime.fromisoformat(entry.time).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise IntegrityError(f"expected a time such as 2026-05-09T07:35:25.000Z, found {entry.time!r}")


def _texts(value: JsonValue) -> Iterator[str]:
    """Find every text in JSON values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
