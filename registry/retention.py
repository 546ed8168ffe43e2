"""Delete what nothing needs: the model bytes of swept versions, and blobs that no entry refers to.

*Which versions go* is decided by log entries, by a pure function of the state before them (`plan`).  A version that no
rule keeps is marked; if no rule keeps it a grace period later, it is swept: it has no model bytes any more.
Promotions, rollbacks and tags are entries of the same log: of two writers of the same number, one decides again on the
state that the other made.  So no alias ever points to a swept version, and no version is swept that an alias points to
or that a rollback would return to.

*Which files are deleted* is decided under the model's lock. Every writer of blobs holds it until the entry that refers
to them is committed. Deleted are blobs that are older than the grace period and that no entry refers to, except as the
model of a swept version.  In a bucket, which has no locks, a writer relies on the objects alone that it has written
itself, within the grace period.  Readers that looked a version up before it was swept have the grace period to read it.

*Clocks.*  The time of an entry is the later of its own timestamp and its file's; the current time is the earlier of our
clock and the storage's.  So a clock that jumps only delays deletion.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache

from rankmill.foundation.errors import IntegrityError
from rankmill.registry.blob_store import Store
from rankmill.registry.commit_log import CommitLog, every_log
from rankmill.registry.model_state import State
from rankmill.registry.stored_records import Mark, Sweep

DAY = 24 * 3600.0  # seconds
REACH = 3  # last distinct targets of an alias to keep: the current one, that of a rollback, and one in reserve
KEEP_TAG = "keep"


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Which unused versions are kept: the latest ones, and those younger than the grace period."""

    keep: int = 10
    """Number of versions."""
    grace: float = 7 * DAY
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The versions to keep, sweep and mark."""

    kept: dict[int, str]
    """Versions that are kept, with the reason."""
    sweep: tuple[int, ...]
    """Versions to sweep now."""
    mark: tuple[int, ...]
    """All versions to be marked after that, including those marked already."""


def plan(state: State, rules: RetentionRules, written: Callable[[int], float], now: float) -> Plan:
    """Decide on every version that is not swept.

    Parameters
    ----------
    state
        The current state.
    rules
        How many versions to keep, and for how long.
    written
        Returns the time of an entry by its number, in seconds since the epoch.
    now
        The current time by the same clock.
    """

    def is_young(entry: int) -> bool:
        return rules.grace > 0 and now - written(entry) < rules.grace

    kept, sweep, mark = reasons(state, rules.keep), [], []
    for version, row in state.versions.items():
        if version in kept or version in state.swept:
            continue
        if is_young(row.entry):
            kept[version] = "registered recently"
        elif version in state.marked and not is_young(state.marked[version]):
            sweep.append(version)
        else:
            mark.append(version)
    return Plan(dict(sorted(kept.items())), tuple(sweep), tuple(mark))


def reasons(state: State, keep: int) -> dict[int, str]:
    """Return the strongest reason for each version that is kept at any age."""
    kept: dict[int, str] = {}
    for alias in sorted(state.moves):
        if (target := state.target(alias)) is not None:
            kept.setdefault(target, f"{alias} points to it")
    for alias in sorted(state.moves):
        for version in [*targets(state, alias)[:REACH], *state.holders(alias)[:2]]:
            kept.setdefault(version, f"{alias} pointed to it lately")
    for version, tags in state.tags.items():
        if KEEP_TAG in tags:
            kept.setdefault(version, f"tag {KEEP_TAG}={tags[KEEP_TAG]}")
    last = len(state.versions)
    for version in range(max(1, last - keep + 1), last + 1):
        kept.setdefault(version, "the last version" if keep == 1 else f"one of the last {keep}")
    return {version: why for version, why in kept.items() if version not in state.swept}


def targets(state: State, alias: str) -> list[int]:
    """Return the distinct versions that ``alias`` has pointed to, the latest first."""
    return list(dict.fromkeys(move.version for move in reversed(state.moves[alias]) if move.version is not None))


WHY_MARK = "no alias or tag keeps it, and it is not among the last versions"
WHY_SWEEP = "marked for longer than the waiting time"


@dataclass(slots=True)
class ModelGarbage:
    """The result for one model; sizes in bytes."""

    kept: dict[int, str]
    """Versions that are kept, with the reason."""
    swept: dict[int, int] = field(default_factory=dict)
    marked: dict[int, int] = field(default_factory=dict)
    """All versions that are marked now."""
    unmarked: list[int] = field(default_factory=list)
    """Versions that were marked and are kept now."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Files of blobs, by name."""


@dataclass(slots=True)
class Collected:
    """What one run did or, with ``dry_run``, would do; sizes in bytes."""

    dry_run: bool
    models: dict[str, ModelGarbage] = field(default_factory=dict)

    @property
    def freed(self) -> int:
        """Number of bytes freed."""
        return sum(sum(model.deleted.values()) for model in self.models.values())

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self) | {"freed": self.freed}


def collect(store: Store, name: str | None, rules: RetentionRules, *, dry_run: bool = False) -> Collected:
    """Collect the versions and blobs of the model ``name``, or of all.

    Raises
    ------
    IntegrityError
        A log cannot be read completely, so it is unknown which blobs it refers to; nothing of that model was deleted.
    OSError
        Something could not be written; everything done so far is consistent, and the next run continues.
    """
    report, now = Collected(dry_run), clock(store, look_only=dry_run)
    if not dry_run:
        store.storage.sweep()
    for log in every_log(store) if name is None else [CommitLog(store, name)]:
        with nullcontext() if dry_run else log.blobs.locked():
            report.models[log.name] = _collect(log, rules, now, dry_run=dry_run)
    return report


def clock(store: Store, *, look_only: bool = False) -> float:
    """Return the earlier of our clock and the storage's, so that no fast clock makes files look older."""
    return time.time() if look_only else store.storage.now()  # reading the storage's clock requires writing a file


def written(log: CommitLog, number: int) -> float:
    """Return the later of the timestamps of an entry and of its file."""
    return max(datetime.fromisoformat(log.read(number).time).timestamp(), log.store.storage.modified(log.path(number)))


def _collect(log: CommitLog, rules: RetentionRules, now: float, *, dry_run: bool) -> ModelGarbage:
    state = State()  # replayed: decisions about deletion do not trust checkpoints
    try:
        log.advance(state)
        found = _decide(log, rules, now, state, dry_run=dry_run)
        log.advance(state)
    except IntegrityError as error:
        raise IntegrityError(f"{error}; nothing of {log.name} is deleted until this is repaired") from None
    if not dry_run and state.head:
        log.flush(state)  # a power failure must not lose another collector's sweep but keep our deletion
    if dry_run:
        state.swept |= dict.fromkeys(found.swept, state.head)
    needed = state.blobs()
    for blob in log.blobs.all():
        if blob.sha256 in needed:
            needed.remove(blob.sha256)  # older ones of this digest, which a bucket may have, are spare
        elif now - blob.modified >= rules.grace:
            found.deleted[blob.path.name] = blob.size
            if not dry_run:
                log.blobs.delete(blob)
    return found


def _decide(log: CommitLog, rules: RetentionRules, now: float, state: State, *, dry_run: bool) -> ModelGarbage:
    """Commit a sweep, then the marks, each decided on the state before it."""

    @cache  # entries never change, and one may mark thousands of versions
    def when(number: int) -> float:
        return written(log, number)

    latest = state

    def planned(state: State) -> Plan:
        nonlocal latest
        latest = state
        return plan(state, rules, when, now)

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

    if not dry_run:
        if swept:
            log.commit(sweep, WHY_SWEEP)
        if set(first.mark) | set(first.sweep) - set(swept) != set(state.marked) - set(swept):
            log.commit(mark, WHY_MARK)
    sizes = {version: row.size for version, row in latest.versions.items()}
    marked = sorted({*last.mark, *last.sweep} - {*swept})
    return ModelGarbage(
        kept=last.kept,
        swept={version: sizes[version] for version in swept},
        marked={version: sizes[version] for version in marked},
        unmarked=[version for version in state.marked if version in last.kept],
    )
