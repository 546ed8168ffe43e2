"""Check every file of the registry, report problems with their fix, and repair what can be repaired.

``verify`` reads the entries, the chain and the blobs of given models, and only reports problems.  ``fsck`` checks every file.
It distinguishes damage, which breaks readers or writers, from harmless remains of a crash, which a later command removes.
A repair deletes only checkpoints and leases of ended processes; it moves damaged and foreign files to ``quarantine/<time>/``
under their own path.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from rankmill.foundation.errors import IntegrityError, LaterEntry
from rankmill.foundation.records import as_json, not_in_json
from rankmill.foundation.storage.location import Location, relative
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry import leases
from rankmill.registry.blob_store import Store
from rankmill.registry.commit_log import CommitLog, checkpoint_path, is_entry_name, parse_checkpoint
from rankmill.registry.garbage import in_quarantine, is_whole
from rankmill.registry.model_state import State
from rankmill.registry.names import NAME
from rankmill.registry.storage import Trashed
from rankmill.registry.stored_records import Register


@dataclass(slots=True)
class VerifyReport:
    """What was read, and a line for each problem, beginning with the file."""

    models: int = 0
    entries: int = 0
    versions: int = 0
    bytes_read: int = 0
    findings: list[str] = field(default_factory=list)
    unread: list[OSError] = not_in_json(default_factory=list)  # files that could not be read

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def add(self, error: IntegrityError | OSError) -> None:
        """Add the error with which reading an entry or a blob failed."""
        if isinstance(error, OSError):
            self.findings.append(f"{error.filename}: {error.strerror}; it was not checked")
            self.unread.append(error)
        else:
            self.findings.append(str(error))

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {"ok": self.ok, **as_json(self)}


def verify(store: Store, names: Iterable[str]) -> VerifyReport:
    """Check the models ``names`` in turn; damage is reported, not raised, and the rest is still checked."""
    report = VerifyReport()
    for name in names:
        _verify_model(CommitLog(store, name), report)
    return report


def _verify_model(log: CommitLog, report: VerifyReport) -> None:
    report.models += 1
    registered: list[Register] = []
    state, chained = State(), True  # after the first fault only single entries can be checked
    report.findings += [f"{log.folder / name}: no entry of the log" for name in log.foreign_names()]
    for number in range(1, log.listed() + 1):
        try:
            entry = log.read(number)
        except FileNotFoundError:
            report.findings.append(f"{log.path(number)}: the entry is missing")
            chained = False
            continue
        except (IntegrityError, OSError) as error:
            report.add(error)
            chained = False
            continue
        report.entries += 1
        if chained:
            try:
                state.apply(entry)
            except IntegrityError as error:
                report.findings.append(f"{log.path(number)}: {error}")
                chained = False
        if isinstance(entry.change, Register):
            registered.append(entry.change)
    for change in registered:
        report.versions += 1
        if change.version not in state.swept:  # a swept version has everything but the model
            _verify_blob(log.store, change.model, report, change.size)
        for sha256 in (change.manifest, *change.attachments.values()):
            _verify_blob(log.store, sha256, report)
    for sha256 in sorted(state.reports):
        _verify_blob(log.store, sha256, report)


def _verify_blob(store: Store, sha256: str, report: VerifyReport, size: int | None = None) -> None:
    try:
        report.bytes_read += len(store.read_blob(sha256, size))
    except (IntegrityError, OSError) as error:
        report.add(error)


OLD = 24 * 3600.0  # seconds; staging a file takes moments


@dataclass(slots=True)
class Finding:
    """One problem."""

    file: str
    wrong: str
    cure: str
    damage: bool
    """Whether it breaks readers or writers; otherwise it is harmless."""
    repaired: bool = False

    def __str__(self) -> str:
        state = "repaired" if self.repaired else f"cure: {self.cure}"
        return f"{self.file}: {self.wrong} ({state})"


@dataclass(slots=True)
class FsckReport:
    """All findings."""

    repair: bool
    models: int = 0
    entries: int = 0
    blobs: int = 0
    bytes_read: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no damage is left."""
        return not any(finding.damage and not finding.repaired for finding in self.findings)

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {"ok": self.ok, **as_json(self)}


def fsck(store: Store, *, repair: bool = False) -> FsckReport:
    """Check everything; with ``repair``, repair what can be repaired.

    Raises
    ------
    IntegrityError
        ``FORMAT.json`` is damaged, missing or of an unknown format.
    OSError
        An existing file cannot be read, so nothing can be said about it.
    """
    return _Check(store, repair=repair).run()


class _Check:
    def __init__(self, store: Store, *, repair: bool) -> None:
        self.store, self.report = store, FsckReport(repair)
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        self._vanished: list[str] = []  # blobs that disappeared before they could be read
        self._quarantine = store.root / "quarantine" / f"{moment}.{secrets.token_hex(4)}"

    def run(self) -> FsckReport:
        self.store.exists()
        states = {}
        for name in self.store.names(self.store.root / "models"):
            folder = self.store.root / "models" / name
            if NAME.fullmatch(name):
                states[name] = self._check_log(CommitLog(self.store, name))
            elif not name.startswith("."):
                self._find(folder, "not a valid name of a model", "move it elsewhere", self._set_aside(folder))
        self._check_blobs(states)
        self._check_trash()
        self._check_leases()
        self._check_staged()
        return self.report

    def _find(
        self, file: Location, wrong: str, cure: str, mend: Callable[[], bool] | None = None, *, damage: bool = False
    ) -> None:
        finding = Finding(str(file), wrong, cure if mend is None else f"{cure}, or models fsck --repair", damage)
        if self.report.repair and mend is not None:
            finding.repaired, finding.cure = mend(), cure
        self.report.findings.append(finding)

    def _set_aside(self, *files: Location) -> Callable[[], bool]:
        """Return a repair that moves files to quarantine, the last one first."""

        def mend() -> bool:
            for file in reversed(files):
                self.store.storage.set_aside(file, self._quarantine / str(relative(file, self.store.root)))
            return True

        return mend

    # -- logs ---------------------------------------------------------------------------------------------------------

    def _check_log(self, log: CommitLog) -> State:
        self.report.models += 1
        kept = self._checkpoint(log)  # read before the log, which may grow meanwhile
        for name in log.foreign_names():
            file = log.folder / name
            self._find(file, "no entry of the log", "move it elsewhere", self._set_aside(file), damage=True)
        numbers = [int(name[:20]) for name in self.store.names(log.folder) if is_entry_name(name)]
        state, fault = State(), ""
        fits = kept is None
        for number in range(1, max(numbers, default=0) + 1):
            try:
                state.apply(log.read(number))
            except FileNotFoundError:
                fault = "the entry is missing"
            except LaterEntry as error:  # not damage: cutting it off would undo a committed change
                path = log.path(number)
                wrong = str(error).removeprefix(f"{path}: ")
                self._find(path, wrong, "models fsck of that version", damage=True)
                return state
            except IntegrityError as error:
                fault = str(error).removeprefix(f"{log.path(number)}: ")
            if fault:
                break
            self.report.entries += 1
            fits = fits or (kept is not None and kept.head == number and kept.to_json() == state.to_json())
        tail = [number for number in numbers if number > state.head]
        if fault:
            self._cut(log, state.head + 1, tail, fault)
        elif not fits:
            path = checkpoint_path(self.store, log.name)
            self._find(path, "does not match the log", "remove it", self._drop(path), damage=True)
        return state

    def _checkpoint(self, log: CommitLog) -> State | None:
        path = checkpoint_path(self.store, log.name)
        try:
            data = self.store.read(path)
        except FileNotFoundError:
            return None
        except IntegrityError as error:
            self._find(path, str(error), "remove it", self._drop(path), damage=True)
            return None
        kept = parse_checkpoint(data)
        if kept is None:  # readers ignore it
            self._find(path, "truncated, or of another format", "remove it", self._drop(path))
        return kept

    def _drop(self, *files: Location) -> Callable[[], bool]:
        def mend() -> bool:
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    self.store.storage.remove(file)
            return True

        return mend

    def _cut(self, log: CommitLog, first: int, tail: list[int], fault: str) -> None:
        """Report a broken log; a repair keeps the longest valid prefix, and no checkpoint beyond it."""
        path = checkpoint_path(self.store, log.name)
        move = self._set_aside(*(log.path(number) for number in tail))

        def mend() -> bool:
            if path.name in self.store.names(path.parent):
                self.store.storage.remove(path)
            return move()  # the last one first: writers refuse until the broken one is moved

        last = max(tail, default=first)
        lost = ", ".join(self._entry_text(log, number) for number in tail[:20]) + (", .." if len(tail) > 20 else "")
        which = f"commit {first} is" if last == first else f"commits {first} to {last} are"
        self._find(
            log.path(first),
            f"{fault}; {which} lost unless you can restore them: {lost or 'nothing else'}",
            "restore the log from a backup",
            mend,
            damage=True,
        )

    def _entry_text(self, log: CommitLog, number: int) -> str:
        try:
            change = log.read(number).change
        except (FileNotFoundError, IntegrityError):
            return f"{number} unreadable"
        words = [change.op, *(str(value) for key in ("alias", "version") if (value := getattr(change, key, None)))]
        return f"{number} {' '.join(words)}" + (f" ({change.model[:12]})" if isinstance(change, Register) else "")

    # -- blobs --------------------------------------------------------------------------------------------------------

    def _check_blobs(self, states: dict[str, State]) -> None:
        users = blob_uses(states)
        present = self.store.storage.blobs()
        known = in_quarantine(self.store) | leases.leased(self.store, time.time())
        for path in self.store.files(self.store.root / "blobs"):
            sha256 = self.store.storage.digest_at(path)
            if sha256 is None:
                self._find(path, "no blob", "move it elsewhere", self._set_aside(path), damage=False)
                continue
            self.report.blobs += 1
            self._check_blob(path, sha256, users.get(sha256))
            if sha256 not in users and sha256 not in known:
                self._find(path, "nothing refers to it", "models gc removes it when it is old")
        missed = [sha256 for sha256 in users if sha256 not in present and not self.store.has_blob(sha256)]
        missed += [sha256 for sha256 in self._vanished if sha256 in users]
        if missed:  # a collector may have run: blobs that it swept are no longer needed
            users = blob_uses({name: self._state_now(name, state) for name, state in states.items()})
        for sha256 in dict.fromkeys(missed):
            if sha256 in users and not self.store.has_blob(sha256):
                self._check_missed(sha256, users[sha256])

    def _state_now(self, name: str, state: State) -> State:
        try:
            return CommitLog(self.store, name).state()
        except IntegrityError:  # already reported
            return state

    def _check_blob(self, path: Location, sha256: str, user: str | None) -> None:
        try:
            data, exposed = self.store.storage.read(path, -1), self.store.storage.is_exposed(path)
        except FileNotFoundError:  # deleted by a collector
            self._vanished.append(sha256)
            return
        self.report.bytes_read += len(data)
        if digest_of(data) != sha256:
            of = "nothing refers to it" if user is None else f"it is the {user}"
            copy = self._copy(sha256)
            aside = self._set_aside(path)

            def mend() -> bool:
                aside()
                return user is None or (copy is not None and self.store.storage.put_back(copy))

            cure = "register or import it again, or restore it from a backup"
            self._find(path, f"the content does not match the digest in its name; {of}", cure, mend, damage=True)
        elif exposed:

            def protect() -> bool:
                self.store.storage.protect(path)
                return not self.store.storage.is_exposed(path)

            self._find(path, "is writable", "chmod a-w", protect)

    def _check_missed(self, sha256: str, user: str) -> None:
        path, copy = self.store.blob_path(sha256), self._copy(sha256)
        if copy is None:
            cure = "register or import it again, or restore it from a backup"
            self._find(path, f"missing: the {user}", cure, damage=True)
            return

        def mend() -> bool:
            return self.store.storage.put_back(copy)

        self._find(path, f"in the trash, but needed: the {user}", "models gc restores it", mend)

    def _copy(self, sha256: str) -> Trashed | None:
        copies = (item for item in self.store.storage.trash_items() if item.sha256 == sha256)
        return next((item for item in copies if is_whole(self.store, item)), None)

    # -- what comes and goes ------------------------------------------------------------------------------------------

    def _check_trash(self) -> None:
        ours = {item.path.name for item in self.store.storage.trash_items()}
        for name in self.store.names(self.store.trash):
            if name not in ours and not name.startswith("."):
                file = self.store.trash / name
                self._find(file, "not put here by models gc", "move it elsewhere", self._set_aside(file))

    def _check_leases(self) -> None:
        dead = set(leases.stale(self.store, time.time()))
        folder = leases.folder_of(self.store)
        for name in self.store.names(folder):
            file = folder / name
            try:
                leases.read_lease(self.store, file)
            except FileNotFoundError:
                continue
            except IntegrityError:
                self._find(file, "not a lease, or truncated", "remove it", self._set_aside(file))
                continue
            if file in dead:
                self._find(file, "a lease of a process that has ended", "models gc removes it", self._drop(file))

    def _check_staged(self) -> None:
        folder = self.store.root / "tmp"

        def is_old(name: str) -> bool:
            try:
                return time.time() - self.store.storage.modified(folder / name) > OLD
            except FileNotFoundError:  # its writer has finished
                return False

        def is_swept(name: str) -> bool:
            self.store.sweep()
            return name not in self.store.names(folder)

        try:
            staged = self.store.names(folder)
        except PermissionError:  # staged files may be private to their writer
            self._find(folder, "readable only for its owner and group", "run models fsck as one of them")
            return
        for name in filter(is_old, staged):
            cure = "the next models register removes it once its writer is known to be dead"
            self._find(folder / name, "left by a writer that died", cure, partial(is_swept, name))


def blob_uses(states: dict[str, State]) -> dict[str, str]:
    """Describe each blob that must exist, by digest: the model and version that need it."""
    uses: dict[str, str] = {}
    for name, state in states.items():
        for sha256, use in state.blob_uses(name).items():
            uses.setdefault(sha256, use)
    return uses
