"""Export a bundle from a registry: the same log and blobs always give the same bytes."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankmill.foundation.errors import InputError, IntegrityError, UnknownModel
from rankmill.foundation.storage.publish import explain_errors, write_new
from rankmill.registry.bundle_format import FIRST, FORMAT, LARGEST, Contents, blob_member, ending, header, padding
from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_state import State


@dataclass(frozen=True, slots=True)
class Exported:
    """The contents of an exported bundle."""

    bundle: Path
    kind: Literal["history", "version"]
    name: str
    versions: tuple[int, ...]
    """Numbers of the versions whose model bytes are in it."""
    entries: int
    """Number of log entries."""
    blobs: int
    bytes: int
    """Size of the blobs."""
    head: str
    """Digest of the last entry."""


class Bundle:
    """One ``version`` of the model of ``log``, or (None) its whole history, ready for export.

    Raises
    ------
    UnknownModel
        The version was swept: there are no model bytes to export.
    IntegrityError
        The log is damaged, or a blob that it refers to is missing; damaged blobs are detected by `write`.
    """

    def __init__(self, log: CommitLog, version: int | None = None) -> None:
        self._store = log.store
        state = State()
        entries = log.advance(state)
        self._models = {row.model: row.size for row in state.versions.values()}
        if version is None:
            self._entries, wanted = entries, state.blobs()
            self.versions = tuple(number for number in state.versions if number not in state.swept)
        else:
            if version in state.swept:
                gone = f"its model bytes were swept in entry {state.swept[version]} of the log"
                raise UnknownModel(f"{log.name}@{version}: {gone}; export the history ({log.name}) instead")
            self._entries, wanted = [entries[state.versions[version].entry - 1]], state.versions[version].blobs()
            self.versions = (version,)
        self.contents = Contents(
            format=FORMAT,
            kind="history" if version is None else "version",
            name=log.name,
            first=self._entries[0].number,
            log=tuple(len(entry.to_bytes()) for entry in self._entries),
            head=self._entries[-1].digest,
            blobs=tuple((sha256, self._size(sha256)) for sha256 in sorted(wanted)),
        )

    def write(self, path: Path, *, overwrite: bool = False) -> Exported:
        """Write the file ``path`` atomically.

        Raises
        ------
        InputError
            The file exists and ``overwrite`` is false, or its folder does not exist.
        IntegrityError
            A blob is damaged or missing.
        """
        disk = self._store.disk
        if disk.is_folder(path):
            raise InputError(f"{path} is a folder; expected an output file, such as {path / self.contents.name}.tar")
        if not disk.is_folder(path.parent):
            raise InputError(f"{path.parent}: no such folder; create it, or write {path.name} elsewhere")
        if not overwrite and path.name in disk.names(path.parent):
            raise InputError(f"{path} exists already; choose another name, or replace it with --overwrite")
        staged = path.parent / f".{path.name[:100]}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex}"
        try:
            write_new(disk, staged, self._parts())
            disk.replace(staged, path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                disk.unlink(staged)
            if isinstance(error, OSError) and str(error.filename) in {
                "None",
                str(staged),
            }:  # an error of writing, not of reading
                with explain_errors(path.parent):
                    raise
            raise
        disk.fsync_folder(path.parent)
        held = self.contents
        return Exported(path, held.kind, held.name, self.versions, len(held.log), len(held.blobs), held.size, held.head)

    def _parts(self) -> Iterator[bytes]:
        position = 0
        for name, data in self._members():
            for part in (header(name, len(data)), data, padding(len(data))):
                position += len(part)
                yield part
        yield ending(position)

    def _members(self) -> Iterator[tuple[str, bytes]]:
        yield FIRST, self.contents.to_bytes()
        for index, entry in enumerate(self._entries):
            yield self.contents.entry_member(index), entry.to_bytes()
        for sha256, size in self.contents.blobs:
            data = self._store.read_blob(sha256, size)
            if len(data) != size:
                raise IntegrityError(f"{self._store.blob_path(sha256)}: expected {size} bytes, found {len(data)}")
            yield blob_member(sha256), data

    def _size(self, sha256: str) -> int:
        """Return the size of a blob; `write` checks its content."""
        try:
            size = self._store.blob_size(sha256)
        except FileNotFoundError:  # in the trash, or lost
            size = len(self._store.read_blob(sha256, self._models.get(sha256)))
        if size > LARGEST:
            raise InputError(f"{self._store.blob_path(sha256)} has {size} bytes; the maximum in a bundle is {LARGEST}")
        return size
