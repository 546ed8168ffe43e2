"""Garbage collection: mark and sweep old versions without removing files that are still in use.

What is at stake.  A blob that a log refers to must never be lost, whatever else happens at the same time and wherever
a crash comes: registrations that find the blob there already, promotions, rollbacks, other collectors.  Nobody holds a
lock.  This is the argument; ``tests/registry/test_retention_interleavings.py`` walks through the interleavings.

1. *Which versions go* is decided by entries of the log.  A sweep says that a version has no bytes any more; it was
   marked a time of grace before, and is decided on the state that it follows.  Promotions, rollbacks and tags are
   entries of the same log: of two that write the same number one is decided anew, on the state that the other made.  So
   no alias ever means a swept version, and none is swept that an alias means or a rollback comes back to.

2. *Moving a blob to the trash is harmless.*  It is one rename; whoever misses the blob in its place looks into the
   trash, and the next collector puts back what is referred to or leased.  All that can lose a blob is deleting a file in
   the trash.

3. *A file in the trash has a name that is never used again.*  So a collector that decides late deletes the file that
   it looked at or, if another collector has deleted it or put it back, nothing.

4. *The order of looks.*  A collector looks (a) which files lie in the trash, (b) which leases there are, (c) what the
   logs refer to, and only then deletes: of the files of (a) those that neither (b) nor (c) names, and that have lain
   there for the time of grace.  Whoever refers to a blob (``leases.keep_blobs``) (1) writes a lease, (2) sees the blob in its
   place or puts it there, (3) commits the entry, (4) sees whether the blob is still in its place and else puts it again
   from memory, (5) gives up the lease.

   Let a collector delete file *f* of a blob that an entry refers to, and that it did not see referred to: (c) came
   before (3).  Leases are given up after (3), and what a crash leaves is reaped only when its process is gone, so after
   (3) too if it came so far; hence (b) came before (1), and (a) before (2).  So at (2) *f* was in the trash, or out of
   it for good, and the blob was in its place as another file.  That file in turn can be deleted only by a collector that
   found it in the trash after (2), and that one did see the lease or the entry.  A crash after (3) leaves the blob in
   its place or in the trash, where readers and the next collector find it.

5. *Power.*  An entry is durable before its writer goes on.  A collector that relies on the sweep of another waits until
   that one is durable before it deletes; and before it deletes a file in the trash because the blob is in its place
   again, it waits until that is durable.

What is assumed.  Names of files written a time of grace ago are seen in listings (network file systems may lag by
seconds).  A writer on *another* machine, or in another container, does not sleep for longer than its lease lasts (seven
days) between (1) and (3) and die before (4): there nobody can see whether it lives.  The time of grace is for readers
that cannot write leases; the argument above does not need it.

Where the clock says so.  Times are the later of what an entry says and when its file was written, and now is the
earlier of our clock and the file system's, so that a clock that jumps makes things stay longer.

The trash: ``trash/<sha256>.<UTC time of the move>.<8 hex>``.  Blobs that nobody seemed to need are kept there for a time of grace, and
are still read where they are missed.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
import uuid
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.storage.publish import digest_of, explain_errors
from rankmill.registry.blob_store import Store
from rankmill.registry.commit_log import CommitLog, every_log
from rankmill.registry.leases import leased, reap, stale
from rankmill.registry.model_state import State
from rankmill.registry.retention_rules import Plan, RetentionRules, plan
from rankmill.registry.stored_records import Mark, Sweep

TRASH_NAME = re.compile(r"([0-9a-f]{64})\.([0-9]{8}T[0-9]{6}Z)\.[0-9a-f]{8}")
TRASH_TIME = "%Y%m%dT%H%M%SZ"


class Trashed(NamedTuple):
    """A blob in the trash."""

    path: Path
    sha256: str
    moved: float
    """Seconds since the epoch."""


def trash_items(store: Store) -> list[Trashed]:
    """Give all that lies there, by name."""
    found = []
    for name in store.names(store.trash):
        if parts := TRASH_NAME.fullmatch(name):
            moved = datetime.strptime(parts[2], TRASH_TIME).replace(tzinfo=UTC).timestamp()
            found.append(Trashed(store.trash / name, parts[1], moved))
    return found


def move_to_trash(store: Store, sha256: str, now: float) -> bool:
    """Move a blob here; False if it is not in its place any more, since another collector was faster."""
    if not store.disk.is_folder(store.trash):
        store.make_folders(store.trash)
    moved = datetime.fromtimestamp(now, UTC).strftime(TRASH_TIME)
    try:
        store.disk.replace(store.blob_path(sha256), store.trash / f"{sha256}.{moved}.{secrets.token_hex(4)}")
    except FileNotFoundError:
        return False
    return True


def is_whole(store: Store, item: Trashed) -> bool:
    """Whether the file is there and has the bytes that its name promises."""
    try:
        return digest_of(store.disk.read(item.path)) == item.sha256
    except FileNotFoundError:
        return False


def put_back(store: Store, item: Trashed) -> bool:
    """Give a blob its place again; False if it went another way meanwhile."""
    folder = store.blob_path(item.sha256).parent
    if not store.disk.is_folder(folder):  # a copy of a registry without its empty folders
        store.make_folders(folder)
    try:
        store.disk.replace(item.path, store.blob_path(item.sha256))
    except FileNotFoundError:
        return False
    return True


WHY_MARK = "no alias, tag or lease keeps it, and it is not among the last versions"
WHY_SWEEP = "marked for longer than the waiting time"
_SHA256 = re.compile(rb"[0-9a-f]{64}")
_DIGEST_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class Model:
    """What became of the versions of one model; sizes in bytes."""

    kept: dict[int, str]
    """Why each stays."""
    swept: dict[int, int] = field(default_factory=dict)
    marked: dict[int, int] = field(default_factory=dict)
    """All that are marked now."""
    unmarked: list[int] = field(default_factory=list)
    """Those that were marked, and that something keeps since."""


@dataclass(slots=True)
class Collected:
    """What one run did, or would do; sizes in bytes."""

    dry_run: bool
    models: dict[str, Model] = field(default_factory=dict)
    put_back: dict[str, str] = field(default_factory=dict)
    """By digest, the name in the trash of what something refers to."""
    trashed: dict[str, int] = field(default_factory=dict)
    """By digest."""
    deleted: dict[str, int] = field(default_factory=dict)
    """By name in the trash, which may hold a blob twice."""
    waiting: dict[str, int] = field(default_factory=dict)
    """What was in the trash before and has to lie there longer, by name."""
    leases_reaped: int = 0

    @property
    def freed(self) -> int:
        """Bytes that the disk has more."""
        return sum(self.deleted.values())

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self) | {"freed": self.freed}


def collect(store: Store, name: str | None, rules: RetentionRules, *, dry_run: bool = False) -> Collected:
    """Collect the versions of the model ``name``, or of all, and the blobs that nothing refers to.

    Raises
    ------
    IntegrityError
        A log cannot be read to its end, so that nobody knows which blobs it refers to; nothing was deleted.
    OSError
        Something could not be written; what was done so far is whole, and the next run goes on from there.
    """
    report = Collected(dry_run)
    now = clock(store, look_only=dry_run)
    held = leased(store, now)
    states = fold(store)
    _put_back(store, needed(store, held, states), report)
    if dry_run:
        report.leases_reaped = len(stale(store, now))
    else:
        store.sweep()
        report.leases_reaped = len(reap(store, now))
    for model in states if name is None else [name]:
        report.models[model] = _decide(CommitLog(store, model), rules, now, states[model], dry_run=dry_run)
    _throw_and_delete(store, states if dry_run else None, rules, now, report)
    return report


def clock(store: Store, *, look_only: bool = False) -> float:
    """Tell the time: ours or that of the files, whichever is earlier, so that no clock ahead of time ages anything."""
    if look_only:  # a file has to be written to see theirs
        return time.time()
    folder = store.root / "tmp"
    if not store.disk.is_folder(folder):
        store.make_folders(folder)
    path = folder / f"clock.{uuid.uuid4().hex}"
    with explain_errors(folder):
        descriptor = store.disk.create(path)
    try:
        store.disk.close(descriptor)
        return min(time.time(), store.disk.modified(path))
    finally:
        with contextlib.suppress(OSError):
            store.disk.unlink(path)


def written(log: CommitLog, number: int) -> float:
    """Tell when an entry was written: by its own word or by its file's, whichever is later."""
    return max(datetime.fromisoformat(log.read(number).time).timestamp(), log.store.disk.modified(log.path(number)))


def fold(store: Store) -> dict[str, State]:
    """Fold the log of every model whole: what decides over deletion rests on no checkpoint."""
    states = {}
    for name, log in every_log(store):
        states[name] = State()
        try:
            log.advance(states[name])
        except IntegrityError as error:
            raise IntegrityError(
                f"{error}; nothing is collected until this is repaired: rankmill models fsck"
            ) from None
    return {name: state for name, state in states.items() if state.head}


def needed(store: Store, held: set[str], states: dict[str, State]) -> set[str]:
    """Digests of what a lease or a log refers to, or anything that is kept in quarantine."""
    return held.union(in_quarantine(store), *(state.blobs() for state in states.values()))


def in_quarantine(store: Store) -> set[str]:
    """Whatever looks like a digest in the entries that were moved to quarantine: they may come back."""
    found = set()
    for path in store.files(store.root / "quarantine"):
        if path.suffix == ".json":
            found |= {sha256.decode() for sha256 in _SHA256.findall(store.disk.read(path))}
    return found


def blobs(store: Store) -> dict[str, Path]:
    """Where each blob lies, by digest; what has no digest's name is passed over."""
    paths = store.files(store.root / "blobs" / "sha256")
    return {
        path.name: path for path in paths if _DIGEST_NAME.fullmatch(path.name) and path == store.blob_path(path.name)
    }


def _put_back(store: Store, wanted: set[str], report: Collected) -> None:
    for item in trash_items(store):
        missed = item.sha256 in wanted and item.sha256 not in report.put_back and not store.has_blob(item.sha256)
        if missed and is_whole(store, item) and (report.dry_run or put_back(store, item)):
            report.put_back[item.sha256] = item.path.name


def _decide(log: CommitLog, rules: RetentionRules, now: float, state: State, *, dry_run: bool) -> Model:
    """Commit what is to be swept, then what is to be marked, each decided on the state that it follows."""

    @cache  # an entry never changes, and one that marks thousands of versions is asked for by each
    def when(number: int) -> float:
        return written(log, number)

    latest = state

    def planned(state: State) -> Plan:
        nonlocal latest
        latest = state
        return plan(state, rules, leased(log.store, now), when, now)

    last = first = planned(state)
    swept: tuple[int, ...] = first.sweep

    def sweep(state: State) -> Sweep | int:
        nonlocal last, swept
        last = planned(state)
        swept = last.sweep
        return Sweep(op="sweep", versions=swept) if swept else state.head

    def mark(state: State) -> Mark | int:
        nonlocal last
        last = planned(state)
        wanted = last.sweep + last.mark  # what came due while we looked is for the next run
        return Mark(op="mark", versions=tuple(sorted(wanted))) if set(wanted) != set(state.marked) else state.head

    if dry_run:
        state.swept |= dict.fromkeys(swept, state.head)
    else:
        if swept:
            log.commit(sweep, WHY_SWEEP)
        if set(first.mark) | set(first.sweep) - set(swept) != set(state.marked) - set(swept):
            log.commit(mark, WHY_MARK)
    sizes = {version: row.size for version, row in enumerate(latest.versions.values(), start=1)}
    marked = sorted({*last.mark, *last.sweep} - {*swept})
    return Model(
        kept=last.kept,
        swept={version: sizes[version] for version in swept},
        marked={version: sizes[version] for version in marked},
        unmarked=[version for version in state.marked if version in last.kept],
    )


def _throw_and_delete(
    store: Store, foreseen: dict[str, State] | None, rules: RetentionRules, now: float, report: Collected
) -> None:
    """Move to the trash what nothing needs, and delete what has lain there for the time of grace.

    The order of the four looks is what the argument rests on: trash and blobs, then leases, then logs.
    """
    items = [item for item in trash_items(store) if item.path.name not in report.put_back.values()]
    present = blobs(store)
    held = leased(store, now)
    states = fold(store) if foreseen is None else foreseen
    wanted = needed(store, held, states)
    swept = {state.versions[version].model for state in states.values() for version in state.swept}
    for sha256, path in present.items():
        if sha256 in wanted:
            continue
        with contextlib.suppress(FileNotFoundError):  # another collector was faster
            if sha256 in swept or now - store.disk.modified(path) >= rules.grace:
                size = store.disk.size(path)
                if report.dry_run or move_to_trash(store, sha256, now):
                    report.trashed[sha256] = size
    durable = False
    for item in items:
        with contextlib.suppress(FileNotFoundError):
            size = store.disk.size(item.path)
            due = now - item.moved >= rules.grace
            if due and item.sha256 in wanted and not (report.dry_run and item.sha256 in report.put_back):
                due = _is_spare(store, item, present)
            if not due:
                report.waiting[item.path.name] = size
                continue
            if not report.dry_run:
                if not durable:  # the sweep that another collector wrote must not be lost where its bytes are
                    _make_durable(store, states)
                    durable = True
                store.disk.unlink(item.path)
            report.deleted[item.path.name] = size


def _is_spare(store: Store, item: Trashed, present: dict[str, Path]) -> bool:
    """Whether a whole blob lies in its place, for good, besides the one in the trash."""
    if item.sha256 not in present:
        return False
    try:
        whole = digest_of(store.disk.read(present[item.sha256])) == item.sha256
        store.fsync_folder(present[item.sha256].parent)
    except FileNotFoundError:
        return False
    return whole


def _make_durable(store: Store, states: dict[str, State]) -> None:
    for name in states:
        store.fsync_folder(CommitLog(store, name).folder)
