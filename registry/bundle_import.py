"""Import a bundle into a registry, all of it or nothing; a second import changes nothing.

The whole bundle is read and checked before any of it is used.  What passes could have been written by
`rankmill.registry.bundle_export`: all digests match, the entries of the log form a chain, exactly the blobs that the log refers
to are present, and all texts that are shown or parsed later are well-formed.

A new history appears atomically: its log is staged as a folder, flushed, and published by rename(2), which replaces an empty
folder and no other, on every file system.  If the registry has the beginning of the log already, the new entries are added one
by one, each a transaction.  So readers, and whoever looks after a crash, see an earlier state of the model, and a repeated
import resumes from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, TypeAdapter, ValidationError

from rankmill.foundation.errors import ConflictError, InputError, IntegrityError, InvalidName, PromotionRefused
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.disk import Disk
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry.blob_store import Store
from rankmill.registry.bundle_format import (
    FIRST,
    LARGEST_CONTENTS,
    ORIGIN,
    Contents,
    TarReader,
    blob_member,
    origin_bytes,
)
from rankmill.registry.commit_log import CommitLog, is_due, write_checkpoint
from rankmill.registry.leases import keep_blobs, lease
from rankmill.registry.model_state import Registered, State
from rankmill.registry.names import check_alias
from rankmill.registry.promotion import report_fault
from rankmill.registry.rendering import what_of
from rankmill.registry.stored_records import (
    Entry,
    GateRecord,
    Move,
    Protect,
    Register,
    Unset,
    VersionManifest,
    first_fault,
)

_OBJECT = TypeAdapter(dict[str, JsonValue])


class OpenedBundle:
    """The bundle in the file ``path``.

    Raises
    ------
    InputError
        There is no such file.
    IntegrityError
        It is damaged, truncated, or not a bundle.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        if disk.is_folder(path):
            raise InputError(f"{path}: expected the tar file of a bundle, found a folder")
        self.path = path
        self._disk, self._file = disk, path.resolve()
        try:
            self.size = disk.size(self._file)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file; expected the tar file of a bundle") from None
        if not stat.S_ISREG(disk.mode(self._file)):
            raise InputError(
                f"{path}: expected the tar file of a bundle, found a pipe or a device; copy it to a file first"
            )
        tar = TarReader(self._read, str(path))
        self.contents = Contents.from_bytes(tar.first(FIRST, min(LARGEST_CONTENTS, self.size)), str(path))
        if self.contents.size != self.size:  # checked before any length in the file is trusted
            raise IntegrityError(
                f"{path}: the bundle is damaged: expected {self.contents.size} bytes, found {self.size}"
            )
        self.entries: list[Entry] = []
        self.state = State()
        """State of the model after the last entry of a history."""
        for index, size in enumerate(self.contents.log):
            self._take(tar.member(self.contents.entry_member(index), size), self.contents.first + index)
        if self.entries[-1].digest != self.contents.head:
            raise self._fault(f"it does not end with the entry {self.contents.head}")
        self._check_blobs(tar)

    @property
    def registered(self) -> Register:
        """The change in the only entry of a version bundle."""
        change = self.entries[0].change
        assert isinstance(change, Register)  # noqa: S101 (for the type checker; checked on reading)
        return change

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Read the blobs again, one at a time; each digest is checked again, as the file may have changed."""
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
                raise IntegrityError(f"it holds entry {entry.number}")  # noqa: TRY301 (the path is added below)
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
        wanted = self.state.blobs() if self.contents.kind == "history" else rows[0].blobs()
        if sizes.keys() != wanted:
            off = min(sizes.keys() ^ wanted)
            raise self._fault(f"blob {off} is {'missing' if off in wanted else 'not referenced by the log'}")
        for row in rows:
            if sizes[row.model] != row.size:
                raise self._fault(f"model {row.model}: expected {row.size} bytes, found {sizes[row.model]}")
        gates: dict[str, list[GateRecord]] = {}
        for entry in self.entries:
            if isinstance(entry.change, GateRecord):
                gates.setdefault(entry.change.report, []).append(entry.change)
        manifests = {row.manifest for row in self.state.versions.values()} | {row.manifest for row in rows}
        reports = gates.keys()
        origins = {row.attachments[ORIGIN] for row in rows if ORIGIN in row.attachments}
        for sha256, data in self._blobs(tar):
            try:
                if sha256 in manifests:
                    VersionManifest.model_validate_json(data)
                if sha256 in reports | origins:
                    _OBJECT.validate_json(data)
                if sha256 in manifests | reports | origins:
                    canonical_json(json.loads(data))  # raises for NaN, which cannot be written again
                self._check_gates(gates.get(sha256, ()), data)
            except ValidationError as error:
                raise self._fault(f"blob {sha256} is not a valid {error.title}: {first_fault(error)}") from None
            except ValueError as error:
                raise self._fault(f"blob {sha256} is not JSON: {error}") from None
        tar.finish()

    def _check_gates(self, gates: Sequence[GateRecord], report: bytes) -> None:
        """Raise IntegrityError if the ``report`` of these gates contradicts what the log says of them."""
        for gate in gates:
            if (fault := report_fault(self.state, gate, lambda _: _OBJECT.validate_json(report))) is not None:
                raise self._fault(f"the gate of version {gate.version}: {fault}")

    def _rows(self) -> list[Registered]:
        """Return the versions whose model bytes must be in the bundle."""
        if self.contents.kind == "history":
            return [row for number, row in self.state.versions.items() if number not in self.state.swept]
        entry, change = self.entries[0], self.registered
        return [Registered(change.model, change.size, change.manifest, entry.number, entry.time, change.attachments)]

    def _blobs(self, tar: TarReader) -> Iterator[tuple[str, bytes]]:
        for sha256, size in self.contents.blobs:
            data = tar.member(blob_member(sha256), size)
            if digest_of(data) != sha256:
                raise self._fault(f"the content of blob {sha256} does not match its digest")
            yield sha256, data

    def _fault(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self.path}: the bundle is damaged: {what}")


def _check_words(entry: Entry) -> None:
    """Check texts of foreign origin that are shown, or parsed as times and names, later; digests say nothing about them."""
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


ATTEMPTS = 20  # if other writers commit first


@dataclass(frozen=True, slots=True)
class BundleImport:
    """The result of an import."""

    kind: Literal["history", "version"]
    name: str
    """Name of the model in this registry."""
    origin: str
    """Name of the model in the registry of origin; for one version ``NAME@7``."""
    changed: bool
    added: int
    """Number of log entries added; 0 if all existed already."""
    head: int
    """Number of entries in the log now."""
    version: int | None
    """Number of an imported version in this registry; None for a history."""
    mended: int = 0
    """Number of lost blobs of an existing history that were restored."""
    moves: tuple[str, ...] = ()
    """What the new entries did to aliases, in words."""


def import_bundle(
    store: Store, opened: OpenedBundle, name: str, reason: str = "", *, move_aliases: bool = False
) -> BundleImport:
    """Import the bundle as the model ``name``, a valid name; the registry exists.

    ``move_aliases``: its entries may move aliases that are protected here.

    Raises
    ------
    ConflictError
        The model of that name has another history.
    IntegrityError
        An existing blob or the log is damaged.
    """
    log = CommitLog(store, name)
    if opened.contents.kind == "version":
        return _import_version(store, log, opened, reason)
    return _import_history(store, log, opened, move_aliases=move_aliases)


def _import_history(store: Store, log: CommitLog, opened: OpenedBundle, *, move_aliases: bool) -> BundleImport:
    contents, entries = opened.contents, opened.entries

    def done(added: int, head: int, mended: int = 0) -> BundleImport:
        moves = tuple(what_of(entry) for entry in entries[head - added : head] if _alias_of(entry) is not None)
        return BundleImport("history", log.name, contents.name, added > 0, added, head, None, mended, moves)

    for _ in range(ATTEMPTS):
        state = log.state() if log.exists() else State()
        _check_same_history(log, opened, state)
        if state.head >= len(entries):
            log.settle(state)
            mended = _put_lost_blobs(store, opened, state.blobs())
            return done(0, state.head, mended)
        if not move_aliases:
            _refuse_moves(store, log, opened, state)
        with _keep_blobs_of(store, opened, opened.state.blobs()):
            added = _add(store, log, entries[state.head :])
        if added:
            if is_due(len(entries), state.head):
                write_checkpoint(store, log.name, opened.state)
            return done(len(entries) - state.head, len(entries))
    raise ConflictError(f"{log.name}: concurrent writers got in first {ATTEMPTS} times; try again")


def _alias_of(entry: Entry) -> str | None:
    """Return the alias that ``entry`` moves, removes, protects or opens; None if it does nothing of that."""
    return entry.change.alias if isinstance(entry.change, Move | Unset | Protect) else None


def _refuse_moves(store: Store, log: CommitLog, opened: OpenedBundle, state: State) -> None:
    """Raise PromotionRefused if new entries change an alias that is protected here now: they were decided elsewhere."""
    guarded = {alias for alias in store.protected if alias not in state.policies}
    guarded |= {alias for alias, policy in state.policies.items() if policy is not None}
    moves = [entry for entry in opened.entries[state.head :] if _alias_of(entry) in guarded]
    if moves:
        shown = "; ".join(f"entry {entry.number} {what_of(entry)}" for entry in moves[-3:])
        few = f"{len(moves) - 3} earlier ones, and " if len(moves) > 3 else ""
        raise PromotionRefused(
            f"{opened.path}: nothing was imported, since its history moves what is protected here, without a gate of this registry: {few}"
            f"{shown}; --move-aliases accepts that, and the bundle of a version (rankmill models export {opened.contents.name}@N) "
            f"moves nothing and can pass the gate here as {log.name}"
        )


def _add(store: Store, log: CommitLog, entries: list[Entry]) -> bool:
    """Append the entries; return False if another writer appended one meanwhile."""
    if entries[0].number > 1:
        log.settle_folder()
        return all(store.put_entry(log.path(entry.number), entry.to_bytes()) for entry in entries)
    store.make_folders(log.folder.parent)
    return store.put_folder_if_absent(log.folder, {log.path(e.number).name: e.to_bytes() for e in entries})


def _check_same_history(log: CommitLog, opened: OpenedBundle, state: State) -> None:
    """Raise ConflictError unless one of the two logs is a prefix of the other."""
    entries = opened.entries
    common = min(state.head, len(entries))
    if common == 0 or (state.digest if common == state.head else log.read(common).digest) == entries[common - 1].digest:
        return
    fork = next(number for number in range(1, common + 1) if log.read(number).digest != entries[number - 1].digest)
    raise ConflictError(
        f"{opened.path}: the history of {log.name} here differs from entry {fork} on; import it under another name, such"
        f" as --as {log.name[:55]}-imported, or import single versions (export {opened.contents.name}@N)"
    )


def _import_version(store: Store, log: CommitLog, opened: OpenedBundle, reason: str) -> BundleImport:
    contents, change = opened.contents, opened.registered
    origin = _origin_of(opened)
    own = {key: sha256 for key, sha256 in change.attachments.items() if key != ORIGIN}
    attachments = own | {ORIGIN: hashlib.sha256(origin).hexdigest()}
    added = False

    def decide(state: State) -> Register | int:
        nonlocal added
        known = state.entry_of(change.model, change.manifest)
        added = known is None
        if known is not None:
            return known
        return Register(
            op="register",
            version=len(state.versions) + 1,
            model=change.model,
            size=change.size,
            manifest=change.manifest,
            attachments=dict(sorted(attachments.items())),
        )

    came = f"{contents.name}@{change.version}"
    with _keep_blobs_of(store, opened, {change.model, change.manifest, *own.values()}), keep_blobs(store, [origin]):
        entry = log.commit(decide, reason or f"imported from {came}")
    assert isinstance(entry.change, Register)  # noqa: S101 (for the type checker)
    return BundleImport("version", log.name, came, added, int(added), entry.number, entry.change.version)


def _origin_of(opened: OpenedBundle) -> bytes:
    change, earlier = opened.registered, opened.registered.attachments.get(ORIGIN)
    attachment = None if earlier is None else next(data for sha256, data in opened.blobs() if sha256 == earlier)
    return origin_bytes(opened.contents.name, change.version, opened.entries[0], attachment)


@contextlib.contextmanager
def _keep_blobs_of(store: Store, opened: OpenedBundle, wanted: set[str]) -> Iterator[None]:
    """Do as `rankmill.registry.leases.keep_blobs`, with blobs that are read from a file one at a time."""
    with lease(store, wanted):
        _put_blobs(store, opened, wanted)
        yield
        _put_lost_blobs(store, opened, wanted)


def _put_lost_blobs(store: Store, opened: OpenedBundle, wanted: set[str]) -> int:
    """Store the missing blobs, which were lost or moved to the trash, and return their number."""
    if lost := {sha256 for sha256, _ in opened.contents.blobs if sha256 in wanted and not store.has_blob(sha256)}:
        _put_blobs(store, opened, lost)
    return len(lost)


def _put_blobs(store: Store, opened: OpenedBundle, wanted: set[str]) -> None:
    for sha256, data in opened.blobs():
        if sha256 in wanted:
            store.put_blob(data)
