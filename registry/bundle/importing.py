"""From a bundle into a registry: all of it or nothing, and twice the same as once.

A history appears in one step: its log is staged as a folder, flushed, and given its place by rename(2), which replaces an
empty folder and no other, on every file system.  Where the registry has the beginning of the log already, the entries
that are new follow one by one, each a transaction as it was where it comes from: whoever looks meanwhile, or after a
crash, sees the model as it once was there, and the same import goes on from that point.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rankmill.foundation.errors import ConflictError
from rankmill.registry.blob_store import Store
from rankmill.registry.bundle.opening import OpenedBundle
from rankmill.registry.bundle.origin import ORIGIN, origin_bytes
from rankmill.registry.history.changes import Register
from rankmill.registry.history.checkpoint import is_due, write_checkpoint
from rankmill.registry.history.entry import Entry
from rankmill.registry.history.log import Log
from rankmill.registry.history.state import State
from rankmill.registry.retention.leases import kept, lease

ATTEMPTS = 20  # against other writers


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did."""

    kind: Literal["history", "version"]
    name: str
    """What the model is called here."""
    origin: str
    """What it was called where it comes from; with its number, if it is one version."""
    added: int
    """New entries of the log; 0: all of it was here."""
    head: int
    """Entries that the log has now."""
    version: int | None
    """The number that the one version has here; None for a history."""
    mended: int = 0
    """Blobs of a history that is here already which were lost, and were put back."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "kind": self.kind,
            "name": self.name,
            "origin": self.origin,
            "changed": self.added > 0,
            "added": self.added,
            "head": self.head,
            "version": self.version,
            "mended": self.mended,
        }


def import_bundle(store: Store, opened: OpenedBundle, name: str, reason: str = "") -> Imported:
    """Take the bundle in as (part of) the model ``name``, which is checked already; the registry is there.

    Raises
    ------
    ConflictError
        The model of that name has another history.
    IntegrityError
        A blob that is here already, or the log, is damaged.
    """
    log = Log(store, name)
    if opened.contents.kind == "version":
        return _import_version(store, log, opened, reason)
    return _import_history(store, log, opened)


def _import_history(store: Store, log: Log, opened: OpenedBundle) -> Imported:
    contents, entries = opened.contents, opened.entries

    def done(added: int, head: int, mended: int = 0) -> Imported:
        return Imported("history", log.name, contents.name, added, head, None, mended)

    for _ in range(ATTEMPTS):
        state = log.state() if log.exists() else State()
        _check_same_history(log, opened, state)
        if state.head >= len(entries):
            log.settle(state)
            mended = _put_lost_blobs(store, opened, state.blobs())
            return done(0, state.head, mended)
        with _kept(store, opened, opened.state.blobs()):
            added = _add(store, log, entries[state.head :])
        if added:
            if is_due(len(entries), state.head):
                write_checkpoint(store, log.name, opened.state)
            return done(len(entries) - state.head, len(entries))
    raise ConflictError(f"{log.name}: other writers were faster {ATTEMPTS} times; try again")


def _add(store: Store, log: Log, entries: list[Entry]) -> bool:
    """Let the entries follow; False if somebody else has written one meanwhile."""
    if entries[0].number > 1:
        log.settle_folder()
        return all(store.put_entry(log.path(entry.number), entry.to_bytes()) for entry in entries)
    store.make_folders(log.folder.parent)
    return store.put_folder_if_absent(log.folder, {log.path(e.number).name: e.to_bytes() for e in entries})


def _check_same_history(log: Log, opened: OpenedBundle, state: State) -> None:
    """Raise ConflictError unless one of the two logs is the beginning of the other."""
    entries = opened.entries
    common = min(state.head, len(entries))
    if common == 0 or (state.digest if common == state.head else log.read(common).digest) == entries[common - 1].digest:
        return
    fork = next(number for number in range(1, common + 1) if log.read(number).digest != entries[number - 1].digest)
    raise ConflictError(
        f"{opened.path}: {log.name} has another history here, from entry {fork} on; import it under another name, such"
        f" as --as {log.name[:55]}-imported, or single versions (export {opened.contents.name}@N)"
    )


def _import_version(store: Store, log: Log, opened: OpenedBundle, reason: str) -> Imported:
    contents, change = opened.contents, opened.registered
    origin = _origin_of(opened)
    own = {key: sha256 for key, sha256 in change.attachments.items() if key != ORIGIN}
    attachments = own | {ORIGIN: hashlib.sha256(origin).hexdigest()}
    added = False

    def decide(state: State) -> Register | int:
        nonlocal added
        for number, row in state.versions.items():
            if (row.model, row.manifest) == (change.model, change.manifest) and number not in state.swept:
                added = False
                return row.entry
        added = True
        return Register(
            op="register",
            version=len(state.versions) + 1,
            model=change.model,
            size=change.size,
            manifest=change.manifest,
            attachments=dict(sorted(attachments.items())),
        )

    came = f"{contents.name}@{change.version}"
    with _kept(store, opened, {change.model, change.manifest, *own.values()}), kept(store, [origin]):
        entry = log.commit(decide, reason or f"imported from {came}")
    assert isinstance(entry.change, Register)  # noqa: S101 (for the type checker)
    return Imported("version", log.name, came, int(added), entry.number, entry.change.version)


def _origin_of(opened: OpenedBundle) -> bytes:
    change, earlier = opened.registered, opened.registered.attachments.get(ORIGIN)
    told = None if earlier is None else next(data for sha256, data in opened.blobs() if sha256 == earlier)
    return origin_bytes(opened.contents.name, change.version, opened.entries[0], told)


@contextlib.contextmanager
def _kept(store: Store, opened: OpenedBundle, wanted: set[str]) -> Iterator[None]:
    """Do as `rankmill.registry.retention.leases.kept`, with blobs that lie in a file and are read one at a time."""
    with lease(store, wanted):
        _put_blobs(store, opened, wanted)
        yield
        _put_lost_blobs(store, opened, wanted)


def _put_lost_blobs(store: Store, opened: OpenedBundle, wanted: set[str]) -> int:
    """Put those that are not there, and count them: a collector has moved them away, or they were lost."""
    if lost := {sha256 for sha256, _ in opened.contents.blobs if sha256 in wanted and not store.has_blob(sha256)}:
        _put_blobs(store, opened, lost)
    return len(lost)


def _put_blobs(store: Store, opened: OpenedBundle, wanted: set[str]) -> None:
    for sha256, data in opened.blobs():
        if sha256 in wanted:
            store.put_blob(data)
