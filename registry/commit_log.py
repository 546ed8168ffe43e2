"""The log of one model: append-only, hash-chained, the single source of truth.  Its state is computed from its entries.

``models/<name>/log/%020d.json``, numbered from 1 without gaps; one file is one transaction::

    {"entry":{"actor":..,"change":{"op":"promote",..},"host":..,"number":3,"prev":<digest of entry 2>,..},
     "sha256":<digest of this entry>}

in canonical JSON, so every byte is determined and a changed one is noticed.  The chain detects accidents and careless
edits; it is no signature: whoever may write the whole folder can forge a whole log, or cut off its end.

``models/<name>/checkpoint.json`` is the fold of a log up to some entry, so that readers need not fold it all (for 11,000 entries 0.8 s).
It is advisory: it may be missing, old or damaged, and may be deleted at any time.  It is believed only if it has its own
digest and the entry that it claims to end with has the digest that it names, which stands for everything before.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import json
import os
import re
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from rankmill.foundation.errors import ConflictError, InputError, IntegrityError
from rankmill.foundation.records import canonical_json
from rankmill.registry.blob_store import LARGEST_ENTRY, Store
from rankmill.registry.model_state import State
from rankmill.registry.names import NAME
from rankmill.registry.stored_records import Change, Entry, seal, unseal

CHECKPOINT_FORMAT = 1
LARGEST_CHECKPOINT = 1 << 30  # bytes, of a million versions


def is_due(head: int, checkpoint: int) -> bool:
    """Whether a log that has reached ``head`` is worth a new checkpoint: writing it costs as much as folding a few hundred entries."""
    return head - checkpoint >= max(100, head // 20)


def checkpoint_path(store: Store, name: str) -> Path:
    """Where the checkpoint of model ``name`` lies."""
    return store.root / "models" / name / "checkpoint.json"


def write_checkpoint(store: Store, name: str, state: State) -> None:
    """Keep ``state``; best effort, and not flushed: a torn one is not believed."""
    body = canonical_json({"format": CHECKPOINT_FORMAT, "state": state.to_json()})
    with contextlib.suppress(OSError):
        store.replace(checkpoint_path(store, name), seal("checkpoint", body))


def parse_checkpoint(data: bytes) -> State | None:
    """Read the bytes of a checkpoint; None if they are not whole, of another format, or another program's."""
    body, unchanged = unseal("checkpoint", data) or (b"", False)
    if not unchanged:
        return None
    try:
        value = json.loads(body)
        return State.from_json(value["state"]) if value["format"] == CHECKPOINT_FORMAT else None
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):  # as its writer meant it, who kept other things of a state
        return None


def read_checkpoint(store: Store, name: str) -> State | None:
    """Return what the checkpoint holds; whether it fits the log is for `rankmill.registry.commit_log.CommitLog.state` to see."""
    with contextlib.suppress(OSError, IntegrityError):
        return parse_checkpoint(store.read(checkpoint_path(store, name), LARGEST_CHECKPOINT))
    return None


ATTEMPTS = 200  # of one commit against other writers; each lost one means that another writer went ahead
LONGEST_PAUSE = 0.05  # seconds


class CommitLog:
    """Reads and extends the log of model ``name``; the name is checked already."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.folder = store.root / "models" / name / "log"
        self._checkpoint = 0  # the entry with which the checkpoint ends that we have seen

    def path(self, number: int) -> Path:
        """Name the file of entry ``number``."""
        return self.folder / f"{number:020d}.json"

    def listed(self) -> int:
        """Return the highest number that the folder shows; 0 if there is none."""
        names = self.store.unsorted_names(self.folder)
        if is_entry_name(last := max(names, default="")):
            return int(last[:20])
        return max((int(name[:20]) for name in names if is_entry_name(name)), default=0)  # something foreign is there

    def foreign_names(self) -> list[str]:
        """Name what lies in the log's folder and is no entry; NFS keeps .nfs files of what was open."""
        names = self.store.names(self.folder)
        return [name for name in names if not is_entry_name(name) and not name.startswith(".")]

    def exists(self) -> bool:
        """Whether there is an entry: asked for the first by name, since a listing of many takes long."""
        try:
            self.store.read(self.path(1))
        except FileNotFoundError:
            return self.listed() > 0  # what is missing will be told by whoever reads on
        except IntegrityError:  # and what is there in its place
            return True
        return True

    def read(self, number: int) -> Entry:
        """Read one entry; FileNotFoundError if it is not there, IntegrityError naming the file if it is damaged."""
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
        """Return what the log amounts to: its checkpoint, if that fits, and what was written since."""
        state = read_checkpoint(self.store, self.name)
        if state is not None and self._holds(state.head, state.digest):
            self._checkpoint = state.head
        else:
            state = State()
        self.advance(state)
        return state

    def _holds(self, number: int, digest: str) -> bool:
        try:
            return self.read(number).digest == digest
        except (FileNotFoundError, IntegrityError):  # the fold will say what is wrong
            return False

    def commit(self, decide: Callable[[State], Change | int], reason: str = "") -> Entry:
        """Append what ``decide`` makes of the state, and return the entry; it is durable then.

        Where another writer takes the number first, the log is read on and ``decide`` asked again: it checks its
        preconditions each time and raises if they hold no longer.  It returns the number of an old entry if nothing is to be done.

        Raises
        ------
        ConflictError
            Other writers were faster each time.
        """
        if not reason.isprintable():
            raise InputError(f"reason {reason!r}: expected one line of printable text")
        txid = uuid.uuid4().hex
        for attempt in range(ATTEMPTS):
            state = self.state()
            decision = decide(state)
            if isinstance(decision, int):
                if self.settle(state):
                    return self.read(decision)
                continue
            if state.head == 0:
                self.store.make_folders(self.folder)
            else:
                self.settle_folder()
            entry = Entry(
                number=state.head + 1,
                prev=state.digest,
                txid=txid,
                change=decision,
                time=_now(),
                actor=_actor(),
                host=socket.gethostname(),
                reason=reason,
            )
            state.apply(entry)  # what readers could not take in is never written
            data = entry.to_bytes()
            if len(data) > LARGEST_ENTRY:
                raise InputError(
                    f"{self.name}: the maximum size of a log entry is {LARGEST_ENTRY} bytes, got {len(data)}"
                )
            if self.store.put_entry(self.path(entry.number), data):
                self._keep_checkpoint(state)
                return entry
            time.sleep(min(LONGEST_PAUSE, 0.001 * 2.0**attempt) * secrets.randbelow(1000) / 1000)
        raise ConflictError(f"{self.name}: concurrent writers got in first {ATTEMPTS} times; try again")

    def settle(self, state: State) -> bool:
        """Make durable what was read, whose writers may not have come so far yet; tell whether it still is all there is.

        Both before anybody is told that something is so already.  A client of a network file system may remember for
        a minute that the next entry was not there: opening the folder lets it ask again.
        """
        self.store.fsync_folder(self.folder)
        self.settle_folder()
        try:
            self.read(state.head + 1)
        except FileNotFoundError:
            return True
        return False

    def settle_folder(self) -> None:
        """Make the log's folder durable: an import puts it in its place whole, and may be killed right after."""
        self.store.fsync_folder(self.folder.parent)

    def _keep_checkpoint(self, state: State) -> None:
        if is_due(state.head, self._checkpoint):
            write_checkpoint(self.store, self.name, state)


def every_log(store: Store) -> Iterator[tuple[str, CommitLog]]:
    """Find the logs of all models, by name."""
    for name in store.names(store.root / "models"):
        if NAME.fullmatch(name):
            yield name, CommitLog(store, name)


def is_entry_name(name: str) -> bool:
    """Whether a file of this name is an entry."""
    return re.fullmatch(r"[0-9]{20}\.json", name) is not None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return f"uid {os.getuid()}"
