"""Copy a model to another registry, directly or by a tar file: a bundle.

A bundle is a registry with one model, in a plain, uncompressed tar: ``FORMAT.json``, the entries of the log, oldest
first, and the blobs, sorted by digest, under the names that they have on a disk.  The bundle of one version has the
entry that registered it as the first and only one.  Members have no owners and times, so the same log and blobs always
give the same bytes.

A bundle is unpacked into a scratch folder, by names that a registry has and no others, and verified like every
registry.  It must have exactly the bytes that an export of what it holds has, valid manifests, and gate reports that
agree with their entries.

Entries are added one by one, each a transaction.  So a killed import leaves an earlier state of the model, and a
repeated one resumes from there.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import ConflictError, InputError, IntegrityError, PromotionRefused, UnknownModel
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import explain_errors, new_staged_path, publish_file
from rankmill.foundation.storage.staging import scratch_folder
from rankmill.registry.blob_store import Format, Store
from rankmill.registry.commit_log import CommitLog, entry_name, every_log
from rankmill.registry.model_state import GENESIS, State
from rankmill.registry.names import NAME
from rankmill.registry.promotion import report_fault
from rankmill.registry.rendering import what_of
from rankmill.registry.storage import FORMAT_NAME
from rankmill.registry.stored_records import Entry, GateRecord, Move, Protect, Unset, manifest_bytes
from rankmill.registry.verification import verify

LARGEST = 8**11 - 1  # bytes in a member: eleven octal digits, 8 GiB
ATTEMPTS = 20  # of an import, if other writers commit first
_MEMBER = re.compile(rf"FORMAT\.json|models/{NAME.pattern}/log/[0-9]{{20}}\.json|blobs/{NAME.pattern}/[0-9a-f]{{64}}")


@dataclass(frozen=True, slots=True)
class Exported:
    """The contents of an exported bundle."""

    bundle: Path
    name: str
    versions: tuple[int, ...]
    """Numbers of the versions whose model bytes are in it."""
    entries: int
    """Number of log entries."""
    bytes: int
    """Size of the bundle."""


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
    state = log.state()
    versions = tuple(number for number in state.versions if number not in state.swept)
    if version is not None:
        if version in state.swept:
            gone = f"its model bytes were swept in entry {state.swept[version]} of the log"
            raise UnknownModel(f"{log.name}@{version}: {gone}; export the history ({log.name}) instead")
        versions, state = (version,), _alone(log.name, version, state)
    for row in state.versions.values():
        if row.size > LARGEST:
            raise InputError(f"{log.blobs.path(row.model)} has {row.size} bytes; the maximum in a bundle is {LARGEST}")
    staged = new_staged_path(path)
    try:
        with explain_errors(path.parent):
            with staged.open("xb") as file:
                _write(file, log, state)
            size = staged.stat().st_size
            publish_file(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    return Exported(path, log.name, versions, state.head, size)


def _alone(name: str, version: int, state: State) -> State:
    """Return the state of a model that has this version only, registered when and by whom it was."""
    entry, alone = state.entries[state.versions[version].entry - 1], State()
    change = entry.change.model_copy(update={"version": 1})
    reason = f"{name}@{version}: {entry.reason}" if entry.reason else f"{name}@{version}"
    alone.apply(entry.model_copy(update={"number": 1, "prev": GENESIS, "change": change, "reason": reason}))
    return alone


def _write(file: Any, log: CommitLog, state: State) -> None:
    """Write a registry with the model of ``log`` in this ``state`` as a tar file without owners and times."""
    sizes = {row.model: row.size for row in state.versions.values()}
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as tar:

        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o444
            tar.addfile(member, io.BytesIO(data))

        add(FORMAT_NAME, Format("disk").to_bytes())
        for entry in state.entries:
            add(f"models/{log.name}/log/{entry_name(entry.number)}", entry.to_bytes())
        for sha256 in sorted(state.blobs()):
            add(f"blobs/{log.name}/{sha256}", log.blobs.read(sha256, sizes.get(sha256)))


class _Digest:
    """A file that keeps only the digest of what is written to it."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()
        self.write = self.sha256.update


@contextmanager
def opened_bundle(path: Path) -> Iterator[CommitLog]:
    """Yield the log of the model in the bundle ``path``, unpacked and verified.

    Raises
    ------
    InputError
        There is no such file.
    IntegrityError
        It is damaged, truncated, of another format, or not a bundle.
    """
    if not path.is_file():
        found = "a folder, a pipe or a device" if path.exists() else "no such file"
        raise InputError(f"{path}: expected the tar file of a bundle, found {found}")
    with scratch_folder("bundle") as folder:
        try:
            log = _unpacked(path, folder / "registry")
        except (IntegrityError, tarfile.TarError) as error:
            reason = str(error).replace(f"{folder}/registry/", "")
            raise IntegrityError(
                f"{path}: damaged, or not a bundle of this version (an uncompressed tar): {reason}"
            ) from None
        yield log


def _unpacked(path: Path, folder: Path) -> CommitLog:
    with tarfile.open(path, "r:", format=tarfile.USTAR_FORMAT) as tar:
        for member in tar:
            if member.type != tarfile.REGTYPE or not _MEMBER.fullmatch(member.name):
                raise IntegrityError(f"found {member.name!r} of type {member.type!r}; export the model again")
            place, content = folder / member.name, tar.extractfile(member)
            if content is None or place.exists():
                raise IntegrityError(f"found {member.name!r} twice; export the model again")
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:  # never the time, mode or owner that the bundle claims
                shutil.copyfileobj(content, file)
    store = Store(folder)
    logs = list(every_log(store)) if store.exists() else []
    if len(logs) != 1:
        raise IntegrityError(f"expected one model, found {len(logs)}")
    (log,) = logs
    report = verify(store, [log.name])
    if not report.ok:
        raise IntegrityError(report.findings[0])
    state, written = log.state(), _Digest()
    try:
        for row in state.versions.values():
            manifest_bytes(log.blobs.read_json(row.manifest))
        for gate in (entry.change for entry in state.entries if isinstance(entry.change, GateRecord)):
            canonical_json(log.blobs.read_json(gate.report))  # it can be written again
            if (fault := report_fault(state, gate, lambda gate: log.blobs.read_json(gate.report))) is not None:
                raise IntegrityError(f"the gate of version {gate.version}: {fault}")
    except (InputError, ValueError) as error:
        raise IntegrityError(f"not valid JSON facts: {error}") from None
    _write(written, log, state)
    with path.open("rb") as file:
        if not state.head or hashlib.file_digest(file, "sha256").digest() != written.sha256.digest():
            raise IntegrityError("it has other bytes than an export of what it holds")
    return log


@dataclass(frozen=True, slots=True)
class BundleImport:
    """The result of an import or a copy."""

    name: str
    """Name of the model in this registry."""
    added: int
    """Number of log entries added; 0 if all existed already."""
    head: int
    """Number of entries in the log now."""
    version: int | None = None
    """Number of an imported version in this registry; None for a history."""
    moves: tuple[str, ...] = ()
    """What the new entries did to aliases, in words."""


def copy_history(source: CommitLog, target: CommitLog, *, move_aliases: bool) -> BundleImport:
    """Add the entries of ``source`` that ``target`` lacks to it, whose registry exists, and restore its lost blobs.

    ``move_aliases``: the new entries may move aliases that are protected there.

    Raises
    ------
    ConflictError
        The target has another history.
    IntegrityError
        A blob or the log is damaged.
    """
    whole = source.state()
    sizes = {row.model: row.size for row in whole.versions.values()}
    for _ in range(ATTEMPTS):
        state = target.state()
        new = whole.entries[state.head :]
        _check_same_history(target.name, state, whole)
        if new and not move_aliases:
            refuse_moves(source.name, target.name, new, state, target.store.protected)
        with target.blobs.locked():
            there = state.blobs() & {blob.sha256 for blob in target.blobs.all()}  # others are not relied on
            for sha256 in sorted((whole if new else state).blobs() & whole.blobs() - there):
                target.blobs.put(source.blobs.read(sha256, sizes.get(sha256)))
            if not new:
                target.flush(state)
            if all(target.append(entry) for entry in new):
                target.pack(whole)
                moves = tuple(what_of(entry) for entry in new if _alias_of(entry) is not None)
                return BundleImport(target.name, len(new), max(state.head, whole.head), moves=moves)
    raise ConflictError(f"{target.name}: concurrent writers got in first {ATTEMPTS} times; try again")


def _alias_of(entry: Entry) -> str | None:
    """Return the alias that ``entry`` moves, removes, protects or opens; None if it does nothing of that."""
    return entry.change.alias if isinstance(entry.change, Move | Unset | Protect) else None


def refuse_moves(origin: str, name: str, new: Iterable[Entry], state: State, protected: Iterable[str]) -> None:
    """Raise PromotionRefused if ``new`` entries, decided elsewhere, change an alias that is protected here now."""
    guarded = {alias for alias in protected if alias not in state.policies}
    guarded |= {alias for alias, policy in state.policies.items() if policy is not None}
    moves = [entry for entry in new if _alias_of(entry) in guarded]
    if moves:
        shown = "; ".join(f"entry {entry.number} {what_of(entry)}" for entry in moves[-3:])
        few = f"{len(moves) - 3} earlier ones, and " if len(moves) > 3 else ""
        raise PromotionRefused(
            f"nothing was imported, since the history of {origin} moves what is protected here, without a gate of this"
            f" registry: {few}{shown}; --move-aliases accepts that, and the bundle of a version"
            f" (rankmill models export {origin}@N) "
            f"moves nothing and can pass the gate here as {name}"
        )


def _check_same_history(name: str, state: State, whole: State) -> None:
    """Raise ConflictError unless one of the two logs is a prefix of the other."""
    for here, there in zip(state.entries, whole.entries, strict=False):
        if here != there:
            raise ConflictError(
                f"the history of {name} here differs from entry {here.number} on; import it under another name, such as"
                f" --as {name[:55]}-imported, or import single versions (export {name}@N)"
            )
