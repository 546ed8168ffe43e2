"""Garbage collection: mark and sweep old versions without removing files that are still in use.

The guarantee.  A blob that a log refers to is never lost, whatever runs at the same time (registrations of an existing blob,
promotions, rollbacks, other collectors) and wherever a process crashes.  There are no locks.  This is the proof;
``tests/registry/test_retention_interleavings.py`` runs through the interleavings.

1. *Which versions are deleted* is decided by log entries.  A sweep entry says that a version has no model bytes any more; the
   version was marked at least a grace period earlier.  Promotions, rollbacks and tags are entries of the same log: of two
   writers of the same number, one decides again on the state that the other made.  So no alias ever points to a swept
   version, and no version is swept that an alias points to or that a rollback would return to.

2. *Moving a blob to the trash is harmless.*  It is one rename; readers that miss the blob at its own path look in the
   trash, and the next collector restores blobs that are referred to or leased.  Only deleting a file in the trash can lose
   a blob.

3. *Names in the trash are never reused.*  So a slow collector deletes exactly the file that it examined or, if another
   collector has deleted or restored it, nothing.

4. *The order of reads.*  A collector reads (a) the files in the trash, (b) the leases, (c) the logs, and only then deletes
   those files of (a) that neither (b) nor (c) names and that have been in the trash for the grace period.  A writer that refers
   to a blob (``leases.keep_blobs``) (1) writes a lease, (2) checks that the blob is at its own path or stores it there,
   (3) commits the entry, (4) checks again and, if the blob is gone, stores it again from memory, (5) removes the lease.

   Suppose that a collector deletes file *f* of a blob without having seen the entry that refers to it.  Then (c) came before
   (3).  Leases are removed after (3), and the lease of a crashed process only when that process is gone, so also after (3)
   if it got that far.  As the collector did not see the lease either, (b) came before (1), and (a) before (2).  So at (2) *f* was
   in the trash or deleted, and the blob was at its own path as another file.  That file can be deleted only by a collector that
   found it in the trash after (2), and that collector saw the lease or the entry.  A crash after (3) leaves the blob at its
   own path or in the trash, where readers and the next collector find it.

5. *Power failure.*  An entry is durable before its writer continues.  Before a collector deletes a file, it makes durable what
   the deletion relies on: the sweep entry of another collector, or the blob at its own path.

Assumptions.  Listings show files that were written a grace period ago (network file systems may lag by seconds).  A writer on
*another* machine, or in another container, where its process cannot be seen, does not pause for longer than its lease lasts
(seven days) between (1) and (3) and then die before (4).  The grace period protects readers that cannot write leases; the
proof above does not need it.

Clocks.  The time of an entry is the later of its own timestamp and its file's; the current time is the earlier of our clock
and the file system's.  So a clock that jumps only delays deletion.

Unreferenced blobs are kept in the trash for a grace period and can still be read.

In a bucket there are no renames.  A blob gets an empty object as its mark there, and its own name is never used again, so (2) and (3)
hold; see ``rankmill.registry.bucket_storage``.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.storage.location import Location
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry.blob_store import Store
from rankmill.registry.commit_log import CommitLog, every_log
from rankmill.registry.leases import leased, reap, stale
from rankmill.registry.model_state import State
from rankmill.registry.retention_rules import Plan, RetentionRules, plan
from rankmill.registry.storage import Trashed
from rankmill.registry.stored_records import Mark, Sweep


def is_whole(store: Store, item: Trashed) -> bool:
    """Whether the file exists and matches its digest."""
    try:
        return digest_of(store.storage.read(item.content, -1)) == item.sha256
    except FileNotFoundError:
        return False


WHY_MARK = "no alias, tag or lease keeps it, and it is not among the last versions"
WHY_SWEEP = "marked for longer than the waiting time"
_SHA256 = re.compile(rb"[0-9a-f]{64}")


@dataclass(slots=True)
class ModelGarbage:
    """The result for the versions of one model; sizes in bytes."""

    kept: dict[int, str]
    """Versions that are kept, with the reason."""
    swept: dict[int, int] = field(default_factory=dict)
    marked: dict[int, int] = field(default_factory=dict)
    """All versions that are marked now."""
    unmarked: list[int] = field(default_factory=list)
    """Versions that were marked and are kept now."""


@dataclass(slots=True)
class Collected:
    """What one run did or, with ``dry_run``, would do; sizes in bytes."""

    dry_run: bool
    models: dict[str, ModelGarbage] = field(default_factory=dict)
    put_back: dict[str, str] = field(default_factory=dict)
    """Restored blobs by digest, with their name in the trash."""
    trashed: dict[str, int] = field(default_factory=dict)
    """Blobs moved to the trash, by digest."""
    deleted: dict[str, int] = field(default_factory=dict)
    """By name in the trash, which may contain a blob twice."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Blobs that stay in the trash, by name there."""
    leases_reaped: int = 0

    @property
    def freed(self) -> int:
        """Number of bytes freed on disk."""
        return sum(self.deleted.values())

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self) | {"freed": self.freed}


def collect(store: Store, name: str | None, rules: RetentionRules, *, dry_run: bool = False) -> Collected:
    """Collect the versions of the model ``name``, or of all, and the blobs that nothing refers to.

    Raises
    ------
    IntegrityError
        A log cannot be read completely, so it is unknown which blobs it refers to; nothing was deleted.
    OSError
        Something could not be written; everything done so far is consistent, and the next run continues.
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
    """Return the earlier of our clock and the storage's, so that no fast clock makes files look older."""
    return time.time() if look_only else store.storage.now()  # reading the storage's clock requires writing a file


def written(log: CommitLog, number: int) -> float:
    """Return the later of the timestamps of an entry and of its file."""
    return max(datetime.fromisoformat(log.read(number).time).timestamp(), log.store.storage.modified(log.path(number)))


def fold(store: Store) -> dict[str, State]:
    """Replay the whole log of every model: decisions about deletion do not trust checkpoints."""
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
    """Digests that a lease, a log or a file in quarantine refers to."""
    return held.union(in_quarantine(store), *(state.blobs() for state in states.values()))


def in_quarantine(store: Store) -> set[str]:
    """Everything that looks like a digest in quarantined entries, as these may be restored."""
    found = set()
    for path in store.files(store.root / "quarantine"):
        if path.suffix == ".json":
            found |= {sha256.decode() for sha256 in _SHA256.findall(store.storage.read(path, -1))}
    return found


def _put_back(store: Store, wanted: set[str], report: Collected) -> None:
    for item in store.storage.trash_items():
        missed = item.sha256 in wanted and item.sha256 not in report.put_back and not store.has_blob(item.sha256)
        if missed and is_whole(store, item) and (report.dry_run or store.storage.put_back(item)):
            report.put_back[item.sha256] = item.path.name


def _decide(log: CommitLog, rules: RetentionRules, now: float, state: State, *, dry_run: bool) -> ModelGarbage:
    """Commit a sweep, then the marks, each decided on the state before it."""

    @cache  # entries never change, and one may mark thousands of versions
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
        wanted = last.sweep + last.mark  # versions that became due meanwhile are left to the next run
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
    return ModelGarbage(
        kept=last.kept,
        swept={version: sizes[version] for version in swept},
        marked={version: sizes[version] for version in marked},
        unmarked=[version for version in state.marked if version in last.kept],
    )


def _throw_and_delete(
    store: Store, foreseen: dict[str, State] | None, rules: RetentionRules, now: float, report: Collected
) -> None:
    """Move unreferenced blobs to the trash, and delete those that have been there for the grace period.

    The proof depends on the order of the reads: trash and blobs, then leases, then logs.
    """
    items = [item for item in store.storage.trash_items() if item.path.name not in report.put_back.values()]
    present = store.storage.blobs()
    held = leased(store, now)
    states = fold(store) if foreseen is None else foreseen
    wanted = needed(store, held, states)
    swept = {state.versions[version].model for state in states.values() for version in state.swept}
    for sha256, path in present.items():
        if sha256 in wanted:
            continue
        with contextlib.suppress(FileNotFoundError):  # another collector was faster
            if sha256 in swept or now - store.storage.modified(path) >= rules.grace:
                size = store.storage.size(path)
                if report.dry_run or store.storage.move_to_trash(sha256, now):
                    report.trashed[sha256] = size
    durable = False
    for item in items:
        with contextlib.suppress(FileNotFoundError):
            size = store.storage.trashed_size(item)
            due = now - item.moved >= rules.grace
            if due and item.sha256 in wanted and not (report.dry_run and item.sha256 in report.put_back):
                due = _is_spare(store, item, present)
            if not due:
                report.waiting[item.path.name] = size
                continue
            if not report.dry_run:
                if not durable:  # a power failure must not lose another collector's sweep but keep our deletion
                    _make_durable(store, states)
                    durable = True
                store.storage.delete_trashed(item)
            report.deleted[item.path.name] = size


def _is_spare(store: Store, item: Trashed, present: dict[str, Location]) -> bool:
    """Whether an intact, durable copy of the blob exists outside the trash."""
    if item.sha256 not in present:
        return False
    try:
        whole = digest_of(store.storage.read(present[item.sha256], -1)) == item.sha256
        store.fsync_folder(present[item.sha256].parent)
    except FileNotFoundError:
        return False
    return whole


def _make_durable(store: Store, states: dict[str, State]) -> None:
    for name in states:
        store.fsync_folder(CommitLog(store, name).folder)
