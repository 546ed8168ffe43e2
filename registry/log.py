"""The log of one model: append-only, hash-chained, the single source of truth.  Its state is a fold of its entries.

``models/<name>/log/%020d.json``, numbered from 1 without gaps; one file is one transaction::

    {"entry":{"actor":..,"change":{"op":"promote",..},"host":..,"number":3,"prev":<digest of entry 2>,..},
     "sha256":<digest of this entry>}

in canonical JSON, so every byte is determined and a changed one is noticed.  The chain detects accidents and careless
edits; it is no signature: whoever may write the whole folder can forge a whole log, or cut off its end.
"""

from __future__ import annotations

import getpass
import hashlib
import itertools
import os
import re
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry.errors import ConflictError, InputError, IntegrityError
from registry.manifest import Sha256, canonical_json, first_fault
from registry.store import Store

GENESIS = "0" * 64  # what the first entry names as the digest before it
ATTEMPTS = 200  # of one commit against other writers; each lost one means that another writer went ahead
LONGEST_PAUSE = 0.05  # seconds


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Register(_Record):
    """A new version: the digests of its model bytes and manifest, and the size of the model in bytes."""

    op: Literal["register"]
    version: Annotated[int, Field(ge=1)]
    model: Sha256
    size: Annotated[int, Field(ge=0)]
    manifest: Sha256


class Move(_Record):
    """An alias now means ``version``; before, it meant ``previous`` (None: nothing yet)."""

    op: Literal["promote", "rollback"]
    alias: str
    version: int
    previous: int | None


Change = Register | Move


class Entry(_Record):
    """One transaction: what changed, when (UTC), by whom, why; ``prev`` is the digest of the entry before it."""

    number: Annotated[int, Field(ge=1)]
    prev: Sha256
    txid: str
    change: Annotated[Change, Field(discriminator="op")]
    time: str
    actor: str
    host: str
    reason: str

    @property
    def digest(self) -> str:
        """Names this entry and, through ``prev``, everything before it."""
        return hashlib.sha256(canonical_json(self.to_json())).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file, without the digest.

        Only what was set: a field that a later version adds is not read into the bytes, and so the digest, of old entries.
        """
        return self.model_dump(mode="json", exclude_unset=True)

    def to_bytes(self) -> bytes:
        """Return the file."""
        return canonical_json({"entry": self.to_json(), "sha256": self.digest}) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Entry:
        """Read a file; IntegrityError if it is not, byte for byte, what `to_bytes` writes."""
        try:
            entry = _File.model_validate_json(data).entry
        except ValidationError as error:
            raise IntegrityError(f"not an entry of this format: {first_fault(error)}") from None
        if entry.to_bytes() != data:
            raise IntegrityError("the bytes were changed after they were written")
        return entry


class _File(_Record):
    entry: Entry
    sha256: Sha256


@dataclass(slots=True)
class State:
    """What the entries so far amount to: a fold, nothing else has a say."""

    head: int = 0
    digest: str = GENESIS
    versions: dict[int, tuple[Register, Entry]] = field(default_factory=dict)
    moves: dict[str, list[Entry]] = field(default_factory=dict)
    """Every move of each alias, oldest first: the last one stands."""

    def target(self, alias: str) -> int | None:
        """Tell the version that ``alias`` means; None if it was never set."""
        return self.moves[alias][-1].change.version if alias in self.moves else None

    def aliases(self, version: int) -> tuple[str, ...]:
        """Name the aliases that mean ``version`` now, sorted."""
        return tuple(sorted(alias for alias in self.moves if self.target(alias) == version))

    def apply(self, entry: Entry) -> None:
        """Take the next entry in; IntegrityError if it cannot follow what was there."""
        change = entry.change
        if entry.number != self.head + 1 or entry.prev != self.digest:
            raise IntegrityError(f"entry {entry.number} does not follow entry {self.head}: the chain is broken")
        if isinstance(change, Register):
            if change.version != len(self.versions) + 1:
                raise IntegrityError(f"version {change.version} does not follow version {len(self.versions)}")
            self.versions[change.version] = (change, entry)
        else:
            if change.version not in self.versions or change.previous != self.target(change.alias):
                raise IntegrityError(f"alias {change.alias!r} cannot go from {change.previous} to {change.version}")
            self.moves.setdefault(change.alias, []).append(entry)
        self.head, self.digest = entry.number, entry.digest


class Log:
    """Reads and extends the log of model ``name``; the name is checked already."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.folder = store.root / "models" / name / "log"

    def path(self, number: int) -> Path:
        """Name the file of entry ``number``."""
        return self.folder / f"{number:020d}.json"

    def listed(self) -> int:
        """Return the highest number that the folder shows; 0 if there is none."""
        numbers = [int(name[:20]) for name in self.store.disk.names(self.folder) if is_entry_name(name)]
        return max(numbers, default=0)

    def read(self, number: int) -> Entry:
        """Read one entry; FileNotFoundError if it is not there, IntegrityError naming the file if it is damaged."""
        path = self.path(number)
        try:
            entry = Entry.from_bytes(self.store.disk.read(path))
            if entry.number != number:
                raise IntegrityError(f"holds entry {entry.number}")  # noqa: TRY301 (the path is added below)
        except IntegrityError as error:
            raise IntegrityError(f"{path}: {error}") from None
        return entry

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """Read what follows entry ``after``, in order.

        A listing may lag behind (NFS), and while others write it may show an entry without the one before, so it only
        says what must be there; each file is asked for by name.
        """
        listed = self.listed()
        for number in itertools.count(after + 1):
            try:
                yield self.read(number)
            except FileNotFoundError:
                if number <= listed:
                    raise IntegrityError(f"{self.path(number)} is missing; restore it from a backup") from None
                return

    def advance(self, state: State) -> list[Entry]:
        """Take into ``state`` what was written since, and return that."""
        taken = []
        for entry in self.entries(after=state.head):
            try:
                state.apply(entry)
            except IntegrityError as error:
                raise IntegrityError(f"{self.path(entry.number)}: {error}") from None
            taken.append(entry)
        return taken

    def state(self) -> State:
        """Fold the whole log."""
        state = State()
        self.advance(state)
        return state

    def commit(self, decide: Callable[[State], Change | Entry], reason: str = "") -> Entry:
        """Append what ``decide`` makes of the state, and return the entry; it is durable then.

        Where another writer takes the number first, the log is read on and ``decide`` asked again: it checks its
        preconditions each time and raises if they hold no longer.  It returns an old entry if nothing is to be done.

        Raises
        ------
        ConflictError
            Other writers were faster each time.
        """
        if not reason.isprintable():
            raise InputError(f"reason {reason!r}: expected one line of printable text")
        state, txid = self.state(), uuid.uuid4().hex
        for attempt in range(ATTEMPTS):
            decision = decide(state)
            if isinstance(decision, Entry):
                self.store.disk.fsync_folder(self.folder)  # its writer may not have come so far yet
                return decision
            if state.head == 0:
                self.store.make_folders(self.folder)
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            entry = Entry(
                number=state.head + 1,
                prev=state.digest,
                txid=txid,
                change=decision,
                time=now,
                actor=_actor(),
                host=socket.gethostname(),
                reason=reason,
            )
            if self.store.put_if_absent(self.path(entry.number), entry.to_bytes()):
                return entry
            time.sleep(min(LONGEST_PAUSE, 0.001 * 2.0**attempt) * secrets.randbelow(1000) / 1000)
            self.advance(state)
        raise ConflictError(f"{self.name}: other writers were faster {ATTEMPTS} times; try again")


def is_entry_name(name: str) -> bool:
    """Whether a file of this name is an entry."""
    return re.fullmatch(r"[0-9]{20}\.json", name) is not None


def _actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return f"uid {os.getuid()}"
