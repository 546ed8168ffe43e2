"""Copy a model, or one version of it, to another registry by a tar file: a bundle.

A bundle is a plain, uncompressed tar: ``contents.json`` comes first, with the kind of bundle and the digest of the last
entry. Then come the entries of the log, byte for byte, oldest first, then the blobs, sorted by digest.  That digest
covers all entries, and these name all blobs. Members have no owners and times, so the same log and blobs always give
the same bytes.

The whole bundle is read and checked before any of it is used: it must have exactly the bytes that an export of what it
holds has.  So links, devices and foreign paths are refused, and no path is ever taken from an archive.  All digests
match, the entries form a chain, and exactly the blobs that they refer to exist. Gate reports agree with their entries,
and all texts that are shown or parsed later are well-formed.

Entries are added one by one, each a transaction.  So a killed import leaves an earlier state of the model, and a
repeated one resumes from there.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from rankmill.foundation.errors import (
    ConflictError,
    InputError,
    IntegrityError,
    InvalidName,
    PromotionRefused,
    UnknownModel,
)
from rankmill.foundation.records import canonical_json, other_format
from rankmill.foundation.storage.publish import digest_of, explain_errors, new_staged_path, publish_file
from rankmill.registry.blob_store import LARGEST_ENTRY, Store
from rankmill.registry.commit_log import CommitLog, entry_name, is_due
from rankmill.registry.model_state import Registered, State
from rankmill.registry.names import check_alias, check_name
from rankmill.registry.promotion import report_fault
from rankmill.registry.rendering import author_text, what_of
from rankmill.registry.stored_records import (
    Entry,
    GateRecord,
    Move,
    Number,
    Protect,
    Register,
    Sha256,
    StoredRecord,
    Unset,
    VersionManifest,
    first_fault,
    seal,
    unseal,
)

FORMAT: Final = 3
FIRST = "contents.json"
LARGEST = 8**11 - 1  # bytes in a member: eleven octal digits, 8 GiB
ORIGIN = "origin"
ATTEMPTS = 20  # of an import, if other writers commit first
_OBJECT = TypeAdapter(dict[str, JsonValue])
Kind = Literal["history", "version"]


class Contents(StoredRecord):
    """``contents.json``: the whole history of a model, or one version with the entry that registered it."""

    format: Literal[3]
    kind: Kind
    name: str
    """Name of the model in the registry of origin."""
    head: Sha256
    """Digest of the last entry."""

    def to_bytes(self) -> bytes:
        """Return the member."""
        return seal("contents", canonical_json(self.model_dump(mode="json")))

    @classmethod
    def from_bytes(cls, data: bytes) -> Contents:
        """Read the member; IntegrityError, without its name, if it is not exactly what `to_bytes` writes."""
        body = unseal("contents", data)
        try:
            number = json.loads(body).get("format")
            if type(number) is int and number != FORMAT:
                raise IntegrityError(other_format("bundle", number, FORMAT, "export the model again"))
            contents = cls.model_validate_json(body)
            check_name(contents.name)
        except ValidationError as error:
            raise IntegrityError(f"{FIRST} was not written by rankmill: {first_fault(error)}") from None
        except InvalidName as error:
            raise IntegrityError(str(error)) from None
        if contents.to_bytes() != data:
            raise IntegrityError(f"{FIRST} was not written by rankmill")
        return contents


class Origin(StoredRecord):
    """The registry entry from which a version was imported.

    ``before`` is the origin of that version, if it was imported too.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    name: str
    version: Number
    entry: Entry
    """The entry that registered it there."""
    sha256: Sha256
    before: Origin | None = None

    @classmethod
    def of(cls, data: bytes | None) -> Origin | None:
        """Read the attachment; None if it is missing or something else."""
        try:
            return None if data is None else cls.model_validate_json(data)
        except ValidationError:
            return None

    def lines(self) -> list[str]:
        """Describe the origins, the latest first."""
        line = f"{self.name}@{self.version}, registered {author_text(self.entry)}"
        return [line, *([] if self.before is None else self.before.lines())]


# -- export
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exported:
    """The contents of an exported bundle."""

    bundle: Path
    kind: Kind
    name: str
    versions: tuple[int, ...]
    """Numbers of the versions whose model bytes are in it."""
    entries: int
    """Number of log entries."""
    blobs: int
    bytes: int
    """Size of the bundle."""
    head: str
    """Digest of the last entry."""


def export_bundle(log: CommitLog, version: int | None, path: Path, *, overwrite: bool = False) -> Exported:
    """Write one ``version`` of the model of ``log``, or (None) its whole history, to the file ``path``, atomically.

    Raises
    ------
    InputError
        The file exists and ``overwrite`` is false, or its folder does not exist.
    UnknownModel
        The version was swept: there are no model bytes to export.
    IntegrityError
        The log is damaged, or a blob that it refers to is damaged or missing.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected an output file, such as {path / log.name}.tar")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; create it, or write {path.name} elsewhere")
    if not overwrite and os.path.lexists(path):
        raise InputError(f"{path} exists already; choose another name, or replace it with --overwrite")
    state = State()
    entries = log.advance(state)
    if version is None:
        wanted, versions = state.blobs(), tuple(number for number in state.versions if number not in state.swept)
    else:
        if version in state.swept:
            gone = f"its model bytes were swept in entry {state.swept[version]} of the log"
            raise UnknownModel(f"{log.name}@{version}: {gone}; export the history ({log.name}) instead")
        entries, wanted, versions = (
            [entries[state.versions[version].entry - 1]],
            state.versions[version].blobs(),
            (version,),
        )
    sizes = {blob.sha256: blob.size for blob in log.blobs.all()}
    for sha256 in sorted(wanted):
        if sizes.get(sha256, 0) > LARGEST:
            raise InputError(
                f"{log.blobs.path(sha256)} has {sizes[sha256]} bytes; the maximum in a bundle is {LARGEST}"
            )
    kind: Kind = "history" if version is None else "version"
    contents = Contents(format=FORMAT, kind=kind, name=log.name, head=entries[-1].digest)

    def members() -> Iterator[tuple[str, bytes]]:
        yield FIRST, contents.to_bytes()
        yield from ((f"log/{entry_name(entry.number)}", entry.to_bytes()) for entry in entries)
        yield from ((f"blobs/{sha256}", log.blobs.read(sha256, sizes.get(sha256))) for sha256 in sorted(wanted))

    staged = new_staged_path(path)
    try:
        with explain_errors(path.parent):
            with staged.open("xb") as file:
                _write(file, members())
            size = staged.stat().st_size
            publish_file(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    return Exported(path, kind, log.name, versions, len(entries), len(wanted), size, contents.head)


def _write(file: Any, members: Iterable[tuple[str, bytes]]) -> None:
    """Write a tar file of members without owners and times."""
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o444
            tar.addfile(member, io.BytesIO(data))


# -- read a bundle
# --------------------------------------------------------------------------------------------------------


class _Digest:
    """A file that keeps only the digest of what is written to it."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()
        self.write = self.sha256.update


class OpenedBundle:
    """The bundle in the file ``path``, checked.

    Raises
    ------
    InputError
        There is no such file.
    IntegrityError
        It is damaged, truncated, or not a bundle.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.state = State()
        """State of the model after the last entry of a history."""
        self._places: dict[str, tuple[int, int]] = {}
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: expected the tar file of a bundle, found a folder, a pipe or a device")
        with self._opened() as file:
            written = _Digest()
            try:
                _write(written, self._members(file))
            except tarfile.TarError as error:
                raise self._fault(str(error)) from None
            file.seek(0)
            if hashlib.file_digest(file, "sha256").digest() != written.sha256.digest():
                raise self._fault("it has other bytes than an export of what it holds")

    @property
    def registered(self) -> Register:
        """The change in the only entry of a version bundle."""
        change = self.entries[0].change
        assert isinstance(change, Register)  # noqa: S101 (for the type checker; checked on reading)
        return change

    def blobs(self, wanted: set[str]) -> Iterator[bytes]:
        """Read these blobs again, one at a time; each digest is checked again, as the file may have changed."""
        with self._opened() as file:
            for sha256 in sorted(wanted & self._places.keys()):
                start, size = self._places[sha256]
                file.seek(start)
                data = file.read(size)
                if digest_of(data) != sha256:
                    raise self._fault(f"the content of blob {sha256} does not match its digest")
                yield data

    def _opened(self) -> io.BufferedReader:
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            raise InputError(f"{self.path}: no such file; expected the tar file of a bundle") from None

    def _members(self, file: io.BufferedReader) -> Iterator[tuple[str, bytes]]:
        """Check the members in turn, and yield the name and the bytes of each."""
        try:
            tar = tarfile.open(fileobj=file, mode="r:", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 (of an open file)
            first = self._content(file, tar.next(), FIRST, LARGEST_ENTRY)
        except (tarfile.TarError, IntegrityError):
            reason = f"not a bundle of rankmill: expected an uncompressed tar that begins with {FIRST}"
            raise IntegrityError(f"{self.path}: {reason}") from None
        try:
            self.contents = Contents.from_bytes(first)
        except IntegrityError as error:
            raise IntegrityError(f"{self.path}: {error}") from None
        yield FIRST, first
        while (member := tar.next()) is not None and member.name.startswith("log/"):
            data = self._content(file, member, member.name, LARGEST_ENTRY)
            self._take(member.name, data)
            yield member.name, data
        if not self.entries or self.entries[-1].digest != self.contents.head:
            raise self._fault("its last entry is not the one that it should be")
        if self.contents.kind == "version" and len(self.entries) > 1:
            raise self._fault(f"it has {len(self.entries)} entries")
        rows = self._rows()
        check = self._checks(rows)
        sizes = {row.model: row.size for row in rows}
        for sha256 in sorted(self.state.blobs() if self.contents.kind == "history" else rows[0].blobs()):
            name = f"blobs/{sha256}"
            data = self._content(file, member, name, LARGEST)
            if digest_of(data) != sha256:
                raise self._fault(f"the content of {name} does not match its digest")
            if len(data) != sizes.get(sha256, len(data)):
                raise self._fault(f"model {sha256}: expected {sizes[sha256]} bytes, found {len(data)}")
            check(sha256, data)
            self._places[sha256] = file.tell() - len(data), len(data)
            yield name, data
            member = tar.next()
        if member is not None:
            raise self._fault(f"expected the end of the archive, found {member.name!r}")

    def _content(self, file: io.BufferedReader, member: tarfile.TarInfo | None, name: str, most: int) -> bytes:
        """Read a member, which must be a regular file of this ``name``."""
        if member is None:
            raise self._fault(f"expected the file {name}, found the end")
        if member.name != name or member.type != tarfile.REGTYPE:
            raise self._fault(f"expected the file {name}, found {member.name!r} of type {member.type!r}")
        if not 0 <= member.size <= most:
            raise self._fault(f"{name} has {member.size} bytes, expected at most {most}")
        if member.offset_data + member.size > os.fstat(file.fileno()).st_size:  # before memory is taken for it
            raise self._fault("it is truncated")
        file.seek(member.offset_data)
        return file.read(member.size)

    def _take(self, name: str, data: bytes) -> None:
        try:
            entry = Entry.from_bytes(data)
            if name != f"log/{entry_name(entry.number)}":
                raise IntegrityError(f"it holds entry {entry.number}")  # noqa: TRY301 (the path is added below)
            _check_words(entry)
            if self.contents.kind == "history":
                self.state.apply(entry)
            elif not isinstance(entry.change, Register):
                raise IntegrityError("it does not register a version")  # noqa: TRY301
        except (IntegrityError, InvalidName) as error:
            raise self._fault(f"{name}: {error}") from None
        self.entries.append(entry)

    def _checks(self, rows: Sequence[Registered]) -> Callable[[str, bytes], None]:
        """Return the check for the content of a blob.

        Manifests, gate reports and origins are JSON that agrees with the log.
        """
        gates: dict[str, list[GateRecord]] = {}
        for entry in self.entries:
            if isinstance(entry.change, GateRecord):
                gates.setdefault(entry.change.report, []).append(entry.change)
        manifests = {row.manifest for row in [*self.state.versions.values(), *rows]}
        objects = {row.attachments[ORIGIN] for row in rows if ORIGIN in row.attachments} | gates.keys()

        def check(sha256: str, data: bytes) -> None:
            try:
                if sha256 in manifests:
                    VersionManifest.model_validate_json(data)
                if sha256 in objects:
                    _OBJECT.validate_json(data)
                if sha256 in manifests | objects:
                    canonical_json(json.loads(data))  # raises for NaN, which cannot be written again
                for gate in gates.get(sha256, ()):
                    self._check_gate(gate, json.loads(data))
            except ValidationError as error:
                raise self._fault(f"blobs/{sha256} is not a valid {error.title}: {first_fault(error)}") from None
            except ValueError as error:
                raise self._fault(f"blobs/{sha256} is not JSON: {error}") from None

        return check

    def _check_gate(self, gate: GateRecord, report: dict[str, Any]) -> None:
        """Raise IntegrityError if the ``report`` of the gate contradicts what the log says of it."""
        if (fault := report_fault(self.state, gate, lambda _: report)) is not None:
            raise self._fault(f"the gate of version {gate.version}: {fault}")

    def _rows(self) -> list[Registered]:
        """Return the versions whose model bytes must be in the bundle."""
        if self.contents.kind == "history":
            return [row for number, row in self.state.versions.items() if number not in self.state.swept]
        entry, change = self.entries[0], self.registered
        return [Registered(change.model, change.size, change.manifest, entry.number, entry.time, change.attachments)]

    def _fault(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self.path}: the bundle is damaged: {what}")


def _check_words(entry: Entry) -> None:
    """Check foreign texts that are later shown, or parsed as times and names.

    Digests say nothing about them.
    """
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


# -- import
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BundleImport:
    """The result of an import."""

    kind: Kind
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


def import_bundle(store: Store, opened: OpenedBundle, name: str, reason: str, *, move_aliases: bool) -> BundleImport:
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
        return _import_version(log, opened, reason)
    entries = opened.entries

    def done(added: int, head: int, mended: int = 0) -> BundleImport:
        moves = tuple(what_of(entry) for entry in entries[head - added : head] if _alias_of(entry) is not None)
        return BundleImport("history", name, opened.contents.name, added > 0, added, head, None, mended, moves)

    for _ in range(ATTEMPTS):
        state = log.state() if log.exists() else State()
        _check_same_history(log, opened, state)
        with log.blobs.locked():
            lost = state.blobs() & opened.state.blobs() - {blob.sha256 for blob in log.blobs.all()}
            if state.head >= len(entries):
                log.flush(state)
                _put(log, opened, lost)
                return done(0, state.head, len(lost))
            if not move_aliases:
                refuse_moves(opened, name, state, store.protected)
            _put(log, opened, opened.state.blobs() - state.blobs() | lost)
            if all(log.append(entry) for entry in entries[state.head :]):
                if is_due(len(entries), state.head):
                    log.pack(entries)
                return done(len(entries) - state.head, len(entries))
    raise ConflictError(f"{name}: concurrent writers got in first {ATTEMPTS} times; try again")


def _put(log: CommitLog, opened: OpenedBundle, wanted: set[str]) -> None:
    for data in opened.blobs(wanted):
        log.blobs.put(data)


def _alias_of(entry: Entry) -> str | None:
    """Return the alias that ``entry`` moves, removes, protects or opens; None if it does nothing of that."""
    return entry.change.alias if isinstance(entry.change, Move | Unset | Protect) else None


def refuse_moves(opened: OpenedBundle, name: str, state: State, protected: Sequence[str]) -> None:
    """Raise PromotionRefused if new entries change an alias that is protected here now: they were decided elsewhere."""
    guarded = {alias for alias in protected if alias not in state.policies}
    guarded |= {alias for alias, policy in state.policies.items() if policy is not None}
    moves = [entry for entry in opened.entries[state.head :] if _alias_of(entry) in guarded]
    if moves:
        shown = "; ".join(f"entry {entry.number} {what_of(entry)}" for entry in moves[-3:])
        few = f"{len(moves) - 3} earlier ones, and " if len(moves) > 3 else ""
        raise PromotionRefused(
            f"{opened.path}: nothing was imported, since its history moves what is protected here, without a gate of "
            f"this registry: {few}{shown}; --move-aliases accepts that, and the bundle of a version (rankmill models "
            f"export {opened.contents.name}@N) moves nothing and can pass the gate here as {name}"
        )


def _check_same_history(log: CommitLog, opened: OpenedBundle, state: State) -> None:
    """Raise ConflictError unless one of the two logs is a prefix of the other."""
    entries = opened.entries
    common = min(state.head, len(entries))
    if common == 0 or (state.digest if common == state.head else log.read(common).digest) == entries[common - 1].digest:
        return
    fork = next(number for number in range(1, common + 1) if log.read(number).digest != entries[number - 1].digest)
    raise ConflictError(
        f"{opened.path}: the history of {log.name} here differs from entry {fork} on; import it under another name, "
        f"such as --as {log.name[:55]}-imported, or import single versions (export {opened.contents.name}@N)"
    )


def _import_version(log: CommitLog, opened: OpenedBundle, reason: str) -> BundleImport:
    contents, change = opened.contents, opened.registered
    own = {key: sha256 for key, sha256 in change.attachments.items() if key != ORIGIN}
    entry = opened.entries[0]
    facts = {"name": contents.name, "version": change.version, "entry": entry.to_json(), "sha256": entry.digest}
    for earlier in opened.blobs({sha256 for key, sha256 in change.attachments.items() if key == ORIGIN}):
        facts["before"] = json.loads(earlier)
    origin = canonical_json(facts)
    attachments = own | {ORIGIN: digest_of(origin)}
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
    with log.blobs.keep([origin]):
        _put(log, opened, {change.model, change.manifest, *own.values()})
        logged = log.commit(decide, reason or f"imported from {came}")
    assert isinstance(logged.change, Register)  # noqa: S101 (for the type checker)
    return BundleImport("version", log.name, came, added, int(added), logged.number, logged.change.version)
