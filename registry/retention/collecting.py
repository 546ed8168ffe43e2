"""One run of the collector: put back, mark and sweep, throw away, delete.  See ``rankmill.registry.retention`` for why it is safe."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.storage.publish import explain_errors
from rankmill.registry.blob_store import Store
from rankmill.registry.history.changes import Mark, Sweep
from rankmill.registry.history.log import Log
from rankmill.registry.history.state import State
from rankmill.registry.names import NAME
from rankmill.registry.retention.keeping import Plan, Rules, plan
from rankmill.registry.retention.leases import leased, reap, stale
from rankmill.registry.retention.trash import Trashed, is_whole, listed, put_back, throw

WHY_MARK = "kept by no alias, tag or lease, not among the last versions"
WHY_SWEEP = "marked for the time of grace"
_SHA256 = re.compile(rb"[0-9a-f]{64}")
_NAME = re.compile(r"[0-9a-f]{64}")


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

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"freed": self.freed}


def collect(store: Store, name: str | None, rules: Rules, *, dry_run: bool = False) -> Collected:
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
        report.models[model] = _decide(Log(store, model), rules, now, states[model], dry_run=dry_run)
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


def written(log: Log, number: int) -> float:
    """Tell when an entry was written: by its own word or by its file's, whichever is later."""
    return max(datetime.fromisoformat(log.read(number).time).timestamp(), log.store.disk.modified(log.path(number)))


def fold(store: Store) -> dict[str, State]:
    """Fold the log of every model whole: what decides over deletion rests on no checkpoint."""
    states = {}
    for name in store.names(store.root / "models"):
        if NAME.fullmatch(name):
            states[name] = State()
            try:
                Log(store, name).advance(states[name])
            except IntegrityError as error:
                raise IntegrityError(f"{error}; until then nothing is collected: rankmill models fsck") from None
    return {name: state for name, state in states.items() if state.head}


def needed(store: Store, held: set[str], states: dict[str, State]) -> set[str]:
    """Digests of what a lease or a log refers to, or anything that is kept in quarantine."""
    return held.union(in_quarantine(store), *(state.blobs() for state in states.values()))


def in_quarantine(store: Store) -> set[str]:
    """Whatever looks like a digest in the entries that were moved to quarantine: they may come back."""
    found = set()
    for path in _files(store, store.root / "quarantine"):
        if path.suffix == ".json":
            found |= {sha256.decode() for sha256 in _SHA256.findall(store.disk.read(path))}
    return found


def blobs(store: Store) -> dict[str, Path]:
    """Where each blob lies, by digest; what has no digest's name is passed over."""
    paths = _files(store, store.root / "blobs" / "sha256")
    return {path.name: path for path in paths if _NAME.fullmatch(path.name) and path == store.blob_path(path.name)}


def _put_back(store: Store, wanted: set[str], report: Collected) -> None:
    for item in listed(store):
        missed = item.sha256 in wanted and item.sha256 not in report.put_back and not store.has_blob(item.sha256)
        if missed and is_whole(store, item) and (report.dry_run or put_back(store, item)):
            report.put_back[item.sha256] = item.path.name


def _decide(log: Log, rules: Rules, now: float, state: State, *, dry_run: bool) -> Model:
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
    store: Store, foreseen: dict[str, State] | None, rules: Rules, now: float, report: Collected
) -> None:
    """Move to the trash what nothing needs, and delete what has lain there for the time of grace.

    The order of the four looks is what the argument rests on: trash and blobs, then leases, then logs.
    """
    items = [item for item in listed(store) if item.path.name not in report.put_back.values()]
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
                if report.dry_run or throw(store, sha256, now):
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
        whole = hashlib.sha256(store.disk.read(present[item.sha256])).hexdigest() == item.sha256
        store.fsync_folder(present[item.sha256].parent)
    except FileNotFoundError:
        return False
    return whole


def _make_durable(store: Store, states: dict[str, State]) -> None:
    for name in states:
        store.fsync_folder(Log(store, name).folder)


def _files(store: Store, folder: Path) -> Iterator[Path]:
    for name in store.names(folder):
        path = folder / name
        if store.disk.is_folder(path):
            yield from _files(store, path)
        else:
            yield path
