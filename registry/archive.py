"""Copy a model, or one version of it, to another registry by a tar file: a bundle.

A bundle is a plain, uncompressed tar: ``contents.json``, which says what it is and lists the size and sha256 of every other file, then the
entries of the log, byte for byte, oldest first, then the blobs, sorted by digest.  Its members have no owners and times, so the
same log and blobs always give the same bytes.

The whole bundle is read and checked before any of it is used.  A member must be a regular file of the name and size that are listed next,
so links, devices and foreign paths are refused, and no path is ever taken from an archive.  What passes could have been
exported here: all digests match, the entries form a chain, exactly the blobs that they refer to are there, gate reports agree with
their entries, and all texts that are shown or parsed later are well-formed.

A new history appears atomically on a disk: its log is staged as a folder and renamed.  If the registry has the beginning of the log already,
new entries are added one by one, each a transaction.  So a killed import leaves an earlier state of the model, and a repeated
one resumes from there.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

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
from rankmill.registry.commit_log import CommitLog, entry_name, is_due, write_checkpoint
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

FORMAT: Final = 2
FIRST = "contents.json"
LARGEST = 8**11 - 1  # bytes in a member: eleven octal digits, 8 GiB
LARGEST_CONTENTS = 1 << 28  # bytes
ORIGIN = "origin"
ATTEMPTS = 20  # of an import, if other writers commit first
_OBJECT = TypeAdapter(dict[str, JsonValue])
Kind = Literal["history", "version"]


class BundledFile(StoredRecord):
    """A file in a bundle."""

    name: str
    size: int
    sha256: Sha256


class Contents(StoredRecord):
    """``contents.json``: the whole history of a model, or one version with the entry that registered it."""

    format: Literal[2]
    kind: Kind
    name: str
    """Name of the model in the registry of origin."""
    files: tuple[BundledFile, ...]

    def to_bytes(self) -> bytes:
        """Return the member."""
        return seal("contents", canonical_json(self.model_dump(mode="json")))

    @classmethod
    def from_bytes(cls, data: bytes) -> Contents:
        """Read the member; IntegrityError, without its path, if it is not exactly what `to_bytes` writes."""
        body, unchanged = unseal("contents", data) or (b"", False)
        if not unchanged:
            raise IntegrityError(f"{FIRST} was changed after it was written")
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
    """The registry entry from which a version was imported; ``before`` is the origin of that version, if it was imported too."""

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


# -- export ---------------------------------------------------------------------------------------------------------------


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
    logged = {f"log/{entry_name(entry.number)}": entry.to_bytes() for entry in entries}
    files = [BundledFile(name=name, size=len(data), sha256=digest_of(data)) for name, data in logged.items()]
    files += _listed(log, wanted)
    kind: Kind = "history" if version is None else "version"
    first = Contents(format=FORMAT, kind=kind, name=log.name, files=tuple(files)).to_bytes()

    def members() -> Iterator[tuple[str, bytes]]:
        yield FIRST, first
        yield from logged.items()
        for file in files[len(logged) :]:
            yield file.name, log.blobs.read(file.sha256, file.size)

    size = _write(path, members())
    return Exported(path, kind, log.name, versions, len(entries), len(wanted), size, entries[-1].digest)


def _listed(log: CommitLog, wanted: set[str]) -> Iterator[BundledFile]:
    sizes = {blob.sha256: blob.size for blob in log.blobs.all()}
    for sha256 in sorted(wanted):
        if sha256 not in sizes:
            log.blobs.read(sha256)  # says that it is missing
        if sizes[sha256] > LARGEST:
            raise InputError(
                f"{log.blobs.path(sha256)} has {sizes[sha256]} bytes; the maximum in a bundle is {LARGEST}"
            )
        yield BundledFile(name=f"blobs/{sha256}", size=sizes[sha256], sha256=sha256)


def _write(path: Path, members: Iterator[tuple[str, bytes]]) -> int:
    """Write a tar file of members without owners and times, and return its size; after an error there is none."""
    staged = new_staged_path(path)
    try:
        with explain_errors(path.parent):
            file = staged.open("xb")
        with file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, data in members:
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o444
                with explain_errors(path.parent):
                    tar.addfile(member, io.BytesIO(data))
        size = staged.stat().st_size
        with explain_errors(path.parent):
            publish_file(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    return size


# -- read a bundle --------------------------------------------------------------------------------------------------------


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
        with self._opened() as file:
            self.contents = self._first(file)
            logged = [listed for listed in self.contents.files if listed.name.startswith("log/")]
            for listed in logged:
                if listed.size > LARGEST_ENTRY:
                    raise self._fault(f"{listed.name} has {listed.size} bytes, expected at most {LARGEST_ENTRY}")
                self._take(listed.name, self._member(file, listed))
            if not self.entries or (self.contents.kind == "version" and len(self.entries) > 1):
                raise self._fault(f"it has {len(self.entries)} entries")
            self._check_blobs(file, self.contents.files[len(logged) :])
            end = 2 * tarfile.BLOCKSIZE  # and zeros up to the next record
            rest = file.read(end + tarfile.RECORDSIZE)
            if any(rest) or not end <= len(rest) < end + tarfile.RECORDSIZE:
                raise self._fault("expected the end of the archive after its last file")

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

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if self.path.is_dir():
            raise InputError(f"{self.path}: expected the tar file of a bundle, found a folder")
        if self.path.exists() and not self.path.is_file():
            raise InputError(
                f"{self.path}: expected the tar file of a bundle, found a pipe or a device; copy it to a file first"
            )
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            raise InputError(f"{self.path}: no such file; expected the tar file of a bundle") from None
        with file:
            yield file

    def _first(self, file: BinaryIO) -> Contents:
        try:
            size = self._header(file, FIRST)
        except IntegrityError:
            raise IntegrityError(
                f"{self.path}: not a bundle of rankmill: expected an uncompressed tar that begins with {FIRST}"
            ) from None
        if size > LARGEST_CONTENTS:
            raise IntegrityError(f"{self.path}: {FIRST} has {size} bytes, expected at most {LARGEST_CONTENTS}")
        try:
            return Contents.from_bytes(self._content(file, size))
        except IntegrityError as error:
            raise IntegrityError(f"{self.path}: {str(error).removeprefix(f'{self.path}: ')}") from None

    def _member(self, file: BinaryIO, listed: BundledFile) -> bytes:
        """Read the next file, which must be the one that is listed."""
        size = self._header(file, listed.name)
        if size != listed.size:
            raise self._fault(f"{listed.name}: expected {listed.size} bytes, found {size}")
        start, data = file.tell(), self._content(file, size)
        if digest_of(data) != listed.sha256:
            raise self._fault(f"the content of {listed.name} does not match its digest")
        if listed.name == f"blobs/{listed.sha256}":
            self._places[listed.sha256] = start, size
        return data

    def _header(self, file: BinaryIO, name: str) -> int:
        """Return the size of the next member, which must be a regular file of this name."""
        try:
            member = tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "ascii", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise self._fault(f"expected {name}: {error}") from None
        if (member.name, member.type, member.linkname) != (name, tarfile.REGTYPE, ""):
            raise self._fault(f"expected the file {name}, found {member.name!r} of type {member.type!r}")
        return member.size

    def _content(self, file: BinaryIO, size: int) -> bytes:
        whole = size + -size % tarfile.BLOCKSIZE
        if not 0 <= size <= whole <= os.fstat(file.fileno()).st_size - file.tell():  # before memory is taken for it
            raise self._fault("it is truncated")
        data = file.read(size)
        if any(file.read(whole - size)):
            raise self._fault("expected zeros up to the next block")
        return data

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

    def _check_blobs(self, file: BinaryIO, listed: Sequence[BundledFile]) -> None:
        rows = self._rows()
        wanted = self.state.blobs() if self.contents.kind == "history" else rows[0].blobs()
        if [each.name for each in listed] != [f"blobs/{sha256}" for sha256 in sorted(wanted)]:
            raise self._fault("its blobs are not those that its log refers to")
        sizes = {each.sha256: each.size for each in listed}
        for row in rows:
            if sizes.get(row.model) != row.size:
                raise self._fault(f"model {row.model}: expected {row.size} bytes, found {sizes.get(row.model)}")
        gates: dict[str, list[GateRecord]] = {}
        for entry in self.entries:
            if isinstance(entry.change, GateRecord):
                gates.setdefault(entry.change.report, []).append(entry.change)
        manifests = {row.manifest for row in self.state.versions.values()} | {row.manifest for row in rows}
        objects = {row.attachments[ORIGIN] for row in rows if ORIGIN in row.attachments} | gates.keys()
        for each in listed:
            data = self._member(file, each)
            try:
                if each.sha256 in manifests:
                    VersionManifest.model_validate_json(data)
                if each.sha256 in objects:
                    _OBJECT.validate_json(data)
                if each.sha256 in manifests | objects:
                    canonical_json(json.loads(data))  # raises for NaN, which cannot be written again
                for gate in gates.get(each.sha256, ()):
                    self._check_gate(gate, json.loads(data))
            except ValidationError as error:
                raise self._fault(f"{each.name} is not a valid {error.title}: {first_fault(error)}") from None
            except ValueError as error:
                raise self._fault(f"{each.name} is not JSON: {error}") from None

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


# -- import ---------------------------------------------------------------------------------------------------------------


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
        with log.blobs.together():
            lost = state.blobs() & opened.state.blobs() - {blob.sha256 for blob in log.blobs.all()}
            if state.head >= len(entries):
                log.settle(state)
                _put(log, opened, lost)
                return done(0, state.head, len(lost))
            if not move_aliases:
                refuse_moves(opened, name, state, store.protected)
            _put(log, opened, opened.state.blobs() - state.blobs() | lost)
            if _add(log, entries[state.head :]):
                if is_due(len(entries), state.head):
                    write_checkpoint(store, name, opened.state)
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
            f"{opened.path}: nothing was imported, since its history moves what is protected here, without a gate of this registry: {few}"
            f"{shown}; --move-aliases accepts that, and the bundle of a version (rankmill models export {opened.contents.name}@N) "
            f"moves nothing and can pass the gate here as {name}"
        )


def _add(log: CommitLog, entries: list[Entry]) -> bool:
    """Append the entries; return False if another writer appended one meanwhile."""
    if entries[0].number > 1:
        log.settle_folder()
        return all(log.store.put_entry(log.path(entry.number), entry.to_bytes()) for entry in entries)
    storage = log.store.storage
    storage.make_folders(log.folder.parent)
    return storage.put_folder_if_absent(log.folder, {entry_name(e.number): e.to_bytes() for e in entries})


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


def _import_version(log: CommitLog, opened: OpenedBundle, reason: str) -> BundleImport:
    contents, change = opened.contents, opened.registered
    own = {key: sha256 for key, sha256 in change.attachments.items() if key != ORIGIN}
    entry = opened.entries[0]
    facts = {"name": contents.name, "version": change.version, "entry": entry.to_json(), "sha256": entry.digest}
    for earlier in opened.blobs({sha256 for key, sha256 in change.attachments.items() if key == ORIGIN}):
        facts["before"] = json.loads(earlier)
    origin = canonical_json(facts)
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
    with log.blobs.keep([origin]):
        _put(log, opened, {change.model, change.manifest, *own.values()})
        logged = log.commit(decide, reason or f"imported from {came}")
    assert isinstance(logged.change, Register)  # noqa: S101 (for the type checker)
    return BundleImport("version", log.name, came, added, int(added), logged.number, logged.change.version)
