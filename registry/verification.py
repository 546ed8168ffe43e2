"""``models verify``: check the entries, the chain, the pack and every blob of models.

It reports each problem and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.records import as_json, not_in_json
from rankmill.foundation.storage.publish import digest_of
from rankmill.registry.blob_store import LARGEST_BLOB, Store
from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_state import State
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
        report.models += 1
        log = CommitLog(store, name)
        _verify_blobs(log, *_verify_log(log, report), report)
    return report


def _verify_log(log: CommitLog, report: VerifyReport) -> tuple[State, list[Register]]:
    """Return the state after the entries up to the first fault, and all entries that register a version.

    Later entries are still checked alone.
    """
    packed = dict(enumerate(log.packed(), start=1))  # before the log, which may grow meanwhile
    registered: list[Register] = []
    state, chained = State(), True
    report.findings += [f"{log.folder / name}: no entry of the log" for name in log.foreign_names()]
    for number in range(1, log.listed() + 1):
        try:
            entry = log.read(number)
            report.entries += 1
            if isinstance(entry.change, Register):
                registered.append(entry.change)
            if chained:
                log.apply(state, entry)
        except FileNotFoundError:
            report.findings.append(f"{log.path(number)}: the entry is missing")
            chained = False
        except (IntegrityError, OSError) as error:
            report.add(error)
            chained = False
        if chained and packed.get(number, entry) != entry:
            report.findings.append(f"{log.pack_path}: does not match the log; remove it, since it is only a cache")
            packed = {}
    return state, registered


def _verify_blobs(log: CommitLog, state: State, registered: list[Register], report: VerifyReport) -> None:
    report.versions += len(registered)
    report.findings += [f"{log.blobs.path(name)}: no blob" for name in log.blobs.foreign_names()]
    needed = set(state.reports)
    sizes = {}
    for change in registered:
        needed |= {change.manifest, *change.attachments.values()}
        if change.version not in state.swept:  # a swept version has everything but the model
            needed.add(change.model)
            sizes[change.model] = change.size
    there = log.blobs.all()
    for blob in there:  # also those that nothing refers to: a registration of these bytes would meet the damage
        most = sizes.get(blob.sha256, LARGEST_BLOB)
        if blob.size > most:
            if blob.sha256 in needed:
                report.findings.append(f"{blob.path}: expected at most {most} bytes, found {blob.size}")
            continue
        try:
            data = log.store.storage.read(blob.path, most + 1)
        except FileNotFoundError:  # deleted by a collector
            continue
        except (IntegrityError, OSError) as error:
            report.add(error)
            continue
        report.bytes_read += len(data)
        expected = sizes.get(blob.sha256, len(data))
        if digest_of(data) != blob.sha256:
            wrong = (
                "the content does not match the digest in its name; restore it from a backup, or register or "
                "import it again"
            )
            report.findings.append(f"{blob.path}: {wrong}")
        elif len(data) != expected:
            report.findings.append(f"{blob.path}: expected {expected} bytes, found {len(data)}")
    missed = needed - {blob.sha256 for blob in there}
    if missed:  # a collector may have run: the bytes of versions that it swept are no longer needed
        with contextlib.suppress(IntegrityError):
            swept = log.state().swept
            missed -= {change.model for change in registered if change.version in swept}
    report.findings += [
        f"{log.blobs.path(sha256)}: the blob is missing; restore it from a backup" for sha256 in sorted(missed)
    ]
