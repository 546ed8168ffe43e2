"""Delete what nothing needs: the model bytes of versions that no rule keeps, and blobs that no entry refers to.

*Which versions are swept* is decided by a log entry, by a pure function of the state before it (`plan`).  They are
those that no rule keeps now, nor kept at any moment of the grace period.  They have no model bytes any more: they are
swept.  Promotions and rollbacks are entries of the same log: of two writers of the same number, one decides again on
the state that the other made.  So no alias ever points to a swept version, and no version is swept that an alias points
to or that a rollback would return to.

*Which files are deleted* is decided under the model's lock, which a writer of blobs holds until the entry that refers
to them is committed.  They are blobs that are older than the grace period and that no entry refers to, except as the
model of a swept version.  In a bucket, which has no locks, a writer relies only on objects that it wrote itself, within
the grace period.

*Clocks.*  The time of an entry is the later of its own timestamp and its file's; the current time is the earlier of our
clock and the storage's.  So a clock that jumps only delays deletion.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import datetime
from math import inf
from typing import NamedTuple

from rankmill.foundation.errors import IntegrityError
from rankmill.registry.blob_store import Store
from rankmill.registry.commit_log import CommitLog, every_log
from rankmill.registry.model_state import State
from rankmill.registry.stored_records import Entry, Sweep

DAY = 24 * 3600.0  # seconds
REACH = 3  # last distinct targets of an alias to keep: the current one, that of a rollback, and one in reserve
WHY = "nothing has kept it for the grace period"


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Which unused versions are kept: the latest ones, and those that were needed within the grace period."""

    keep: int = 10
    """Number of versions."""
    grace: float = 7 * DAY
    """Seconds."""


class Plan(NamedTuple):
    """The versions that are kept, with the reason, and those to sweep now."""

    kept: dict[int, str]
    sweep: tuple[int, ...]


def plan(state: State, rules: RetentionRules, written: Callable[[Entry], float], now: float) -> Plan:
    """Decide on every version that is not swept.

    Parameters
    ----------
    state
        The current state.
    rules
        How many versions to keep, and for how long.
    written
        Returns the time of an entry, in seconds since the epoch.
    now
        The current time by the same clock.
    """
    past, kept, lately = State(), reasons(state, rules.keep), set[int]()
    young = False
    for entry in state.entries:
        young = young or now - written(entry) < rules.grace
        if young:  # what was kept before it was kept within the grace period
            lately.update(reasons(past, rules.keep))
        past.apply(entry)
    for version in lately - state.swept.keys():
        kept.setdefault(version, "needed within the grace period")
    gone = state.versions.keys() - kept.keys() - state.swept.keys()
    return Plan(dict(sorted(kept.items())), tuple(sorted(gone)))


def reasons(state: State, keep: int) -> dict[int, str]:
    """Return the strongest reason for each version that is kept at any age."""
    kept: dict[int, str] = {}
    for alias, target in state.set_aliases().items():
        kept.setdefault(target, f"{alias} points to it")
    for alias, moves in sorted(state.moves.items()):
        targets = dict.fromkeys(move.version for move in reversed(moves) if move.version is not None)
        for version in [*targets][:REACH] + state.holders(alias)[:2]:
            kept.setdefault(version, f"{alias} pointed to it lately")
    last = len(state.versions)
    for version in range(max(1, last - keep + 1), last + 1):
        kept.setdefault(version, "the last version" if keep == 1 else f"one of the last {keep}")
    return {version: why for version, why in kept.items() if version not in state.swept}


@dataclass(slots=True)
class ModelGarbage:
    """The result for one model; sizes in bytes."""

    kept: dict[int, str]
    """Versions that are kept, with the reason."""
    swept: dict[int, int]
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


def dates(log: CommitLog) -> Callable[[Entry], float]:
    """Return a function that gives the later of the timestamps of an entry and its file; infinity for later entries."""
    modified = {stored.path: stored.modified for stored in log.store.storage.files(log.folder)}
    return lambda entry: max(datetime.fromisoformat(entry.time).timestamp(), modified.get(log.path(entry.number), inf))


def _collect(log: CommitLog, rules: RetentionRules, now: float, *, dry_run: bool) -> ModelGarbage:
    decided, written = Plan({}, ()), dates(log)

    def sweep(state: State) -> Sweep | int:
        nonlocal decided
        decided = plan(state, rules, written, now)
        return Sweep(op="sweep", versions=decided.sweep) if decided.sweep else state.head

    try:
        state = log.state()
        sweep(state)
        if (
            state.head and not dry_run
        ):  # makes the log durable: a power failure must not lose a sweep but keep our deletion
            log.commit(sweep, WHY)
            log.advance(state)
    except IntegrityError as error:
        raise IntegrityError(f"{error}; nothing of {log.name} is deleted until this is repaired") from None
    if dry_run:
        state.swept |= dict.fromkeys(decided.sweep, state.head)
    found = ModelGarbage(decided.kept, {version: state.versions[version].size for version in decided.sweep})
    needed = state.blobs()
    for blob in log.blobs.all():
        if blob.sha256 in needed:
            needed.remove(blob.sha256)  # older ones of this digest, which a bucket may have, are spare
        elif now - blob.modified >= rules.grace:
            found.deleted[blob.path.name] = blob.size
            if not dry_run:
                log.blobs.delete(blob)
    return found
