"""The log of one model: append-only, hash-chained, the single source of truth.  Its state is computed from its entries.

``models/<name>/log/%020d.json``, numbered from 1 without gaps; one file is one transaction::

    {"entry":{"actor":..,"change":{"op":"promote",..},"host":..,"number":3,"prev":<digest of entry 2>,..},
     "sha256":<digest of this entry>}

in canonical JSON, so that any changed byte is detected.  The chain detects accidents and careless edits; it is not a
signature: a process that can write to the folder can forge a whole log, or cut off its end.

``models/<name>/packed.jsonl`` has the files of the first entries, one a line, so that readers need not open each of
them.  It is a cache:
it may be missing, old or damaged, and may be deleted at any time.  It is used only if its entries form a chain to the
log's entry of the last number; the digest of that one covers all earlier entries.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import os
import re
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from rankmill.foundation.errors import ConflictError, InputError, IntegrityError
from rankmill.foundation.shown import shown_in_line
from rankmill.foundation.storage.location import Location
from rankmill.registry.blob_store import LARGEST_ENTRY, Blobs, Store
from rankmill.registry.model_state import State
from rankmill.registry.names import NAME
from rankmill.registry.stored_records import Change, Entry

LARGEST_PACK = 1 << 30  # bytes
ATTEMPTS = 200  # for one commit; each failure means that another writer succeeded
LONGEST_PAUSE = 0.05  # seconds


def is_due(head: int, packed: int) -> bool:
    """Whether to pack again after entry ``head``."""
    return head - packed >= max(100, head // 20)


class CommitLog:
    """Reads and extends the log of model ``name``, a valid name, beside whose blobs it is stored."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.folder = store.root / "models" / name / "log"
        self.blobs = Blobs(store.storage, store.root, name)
        self._packed = 0  # last entry in the pack that was read

    def path(self, number: int) -> Location:
        """Path of entry ``number``."""
        return self.folder / entry_name(number)

    def listed(self, after: int = 0) -> int:
        """Return the highest entry number in the folder's listing; at most ``after`` if there is none after that."""
        names = self.store.storage.names(self.folder, entry_name(after) if after else "")
        if is_entry_name(last := max(names, default="")):
            return int(last[:20])
        return max((int(name[:20]) for name in names if is_entry_name(name)), default=0)  # there is a foreign file

    def foreign_names(self) -> list[str]:
        """Names in the log's folder that are not entries, except hidden files (NFS keeps .nfs files for open ones)."""
        names = sorted(self.store.storage.names(self.folder))
        return [name for name in names if not is_entry_name(name) and not name.startswith(".")]

    def exists(self) -> bool:
        """Whether there is an entry.  Opens the first by name, since listing a large folder is slow."""
        try:
            self.store.read(self.path(1))
        except FileNotFoundError:
            return self.listed() > 0  # reading the log will report the missing entry
        except IntegrityError:  # and a file that is not regular
            return True
        return True

    def read(self, number: int) -> Entry:
        """Read one entry; FileNotFoundError if it is missing, IntegrityError naming the file if it is damaged."""
        path = self.path(number)
        data = self.store.read(path)
        try:
            entry = Entry.from_bytes(data)
            if entry.number != number:
                raise IntegrityError(f"holds entry {entry.number}")  # noqa: TRY301 (the path is added below)
        except IntegrityError as error:
            raise type(error)(f"{path}: {error}") from None
        return entry

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """Read the entries after ``after``, in order.

        A listing may lag behind (NFS) or, during writes, show an entry without the one before it.  So it only shows
        which entries must exist; each file is opened by name.
        """
        listed = self.listed(after)
        for number in itertools.count(after + 1):
            try:
                yield self.read(number)
            except FileNotFoundError:
                if number <= listed:
                    raise IntegrityError(f"{self.path(number)} is missing; restore it from a backup") from None
                return

    def advance(self, state: State) -> State:
        """Apply all newer entries to ``state`` and return it."""
        for entry in self.entries(after=state.head):
            self.apply(state, entry)
        return state

    def apply(self, state: State, entry: Entry) -> None:
        """Apply one entry of this log; IntegrityError that names its file if it cannot follow."""
        try:
            state.apply(entry)
        except IntegrityError as error:
            raise IntegrityError(f"{self.path(entry.number)}: {error}") from None

    @property
    def pack_path(self) -> Location:
        """Path of the pack."""
        return self.folder.parent / "packed.jsonl"

    def state(self) -> State:
        """Return the current state: what is packed, if it matches the log, plus all newer entries."""
        state = State()
        try:
            for entry in self.packed():
                state.apply(entry)
            if state.head and self.read(state.head).digest != state.digest:
                state = State()
        except (FileNotFoundError, IntegrityError):  # reading the log will report what is wrong there
            state = State()
        self._packed = state.head
        return self.advance(state)

    def packed(self) -> list[Entry]:
        """Return the entries in the pack; none if it is missing or damaged.

        Whether they are the log's own is for the caller to check.
        """
        with contextlib.suppress(OSError, IntegrityError):
            lines = self.store.read(self.pack_path, LARGEST_PACK).splitlines(keepends=True)
            return [Entry.from_bytes(line) for line in lines]
        return []

    def pack(self, state: State) -> None:
        """Write the log as its pack if it is due; best effort and not flushed, as readers ignore a damaged one."""
        if is_due(state.head, self._packed):
            with contextlib.suppress(OSError):
                self.store.storage.put(self.pack_path, b"".join(entry.to_bytes() for entry in state.entries))

    def commit(self, decide: Callable[[State], Change | int], reason: str = "") -> Entry:
        """Append the change that ``decide`` returns for the current state; return the durable entry.

        If another writer takes the number first, the new entries are read and ``decide`` is called again: it checks its
        preconditions each time and raises if they no longer hold.  If nothing has to change, it returns the number of
        an existing entry.

        Raises
        ------
        ConflictError
            Other writers committed first in every attempt.
        """
        if not reason.isprintable():
            raise InputError(f"reason {reason!r}: expected one line of printable text")
        txid = uuid.uuid4().hex
        for attempt in range(ATTEMPTS):
            state = self.state()
            decision = decide(state)
            if isinstance(decision, int):
                if self.flush(state):
                    return state.entries[decision - 1]
                continue
            entry = Entry(
                number=state.head + 1,
                prev=state.digest,
                txid=txid,
                change=decision,
                time=_now(),
                actor=shown_in_line(_actor()),
                host=shown_in_line(socket.gethostname()),
                reason=reason,
            )
            state.apply(entry)  # raises before an invalid entry is written
            if self.append(entry):
                self.pack(state)
                return entry
            time.sleep(min(LONGEST_PAUSE, 0.001 * 2.0**attempt) * secrets.randbelow(1000) / 1000)
        raise ConflictError(f"{self.name}: concurrent writers got in first {ATTEMPTS} times; try again")

    def append(self, entry: Entry) -> bool:
        """Write an entry that follows the last one, durably; return whether the log now holds it.

        InputError if it is too large.
        """
        data = entry.to_bytes()
        if len(data) > LARGEST_ENTRY:
            raise InputError(f"{self.name}: the maximum size of a log entry is {LARGEST_ENTRY} bytes, got {len(data)}")
        return self.store.storage.put_new(self.path(entry.number), data)

    def flush(self, state: State) -> bool:
        """Make the entries that were read durable; return whether there is still no newer one.

        Needed before "no change needed" is reported, as the writer of the last entry may not have flushed it yet.  A
        network file system may cache for a minute that the next entry is missing; opening the folder renews the cache.
        """
        self.store.storage.flush(self.folder)
        try:
            self.read(state.head + 1)
        except FileNotFoundError:
            return True
        return False


def every_log(store: Store) -> Iterator[CommitLog]:
    """Return the logs of all models, sorted by name. A model whose first registration was killed has no entries."""
    for name in sorted(filter(NAME.fullmatch, store.storage.names(store.root / "models"))):
        yield CommitLog(store, name)


def entry_name(number: int) -> str:
    """Return the name of the file of entry ``number``."""
    return f"{number:020d}.json"


def is_entry_name(name: str) -> bool:
    """Whether a file of this name is an entry."""
    return re.fullmatch(r"[0-9]{20}\.json", name) is not None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user ID may have no name
        return f"uid {os.getuid()}"
