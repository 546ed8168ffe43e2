"""Check every byte that the registry answers for: each entry by itself, the chain, each blob."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rankmill.foundation.errors import IntegrityError
from rankmill.registry.blob_store import Store
from rankmill.registry.history.changes import Register
from rankmill.registry.history.log import Log, is_entry_name
from rankmill.registry.history.state import State


@dataclass(slots=True)
class VerifyReport:
    """What was read, and what is wrong with it: one line each, beginning with the file."""

    models: int = 0
    entries: int = 0
    versions: int = 0
    bytes_read: int = 0
    findings: list[str] = field(default_factory=list)
    unread: list[OSError] = field(default_factory=list)  # those of the findings that say nothing of the bytes

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def add(self, error: IntegrityError | OSError) -> None:
        """Take down what an entry or a blob could not be read for."""
        if isinstance(error, OSError):
            self.findings.append(f"{error.filename}: {error.strerror}; it was not checked")
            self.unread.append(error)
        else:
            self.findings.append(str(error))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "ok": self.ok,
            "models": self.models,
            "entries": self.entries,
            "versions": self.versions,
            "bytes_read": self.bytes_read,
            "findings": list(self.findings),
        }


def verify(store: Store, names: Iterable[str]) -> VerifyReport:
    """Check the models ``names``, one after the other; damage is reported, not raised, and the rest still checked."""
    report = VerifyReport()
    for name in names:
        _verify_model(Log(store, name), report)
    return report


def _verify_model(log: Log, report: VerifyReport) -> None:
    report.models += 1
    registered: list[Register] = []
    state, chained = State(), True  # behind the first fault the chain says nothing, the entries still do
    for name in log.store.names(log.folder):
        if not is_entry_name(name) and not name.startswith("."):  # NFS keeps .nfs files of what was open
            report.findings.append(f"{log.folder / name}: no entry of the log")
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
        _verify_version(log.store, change, report, swept=change.version in state.swept)
    for sha256 in sorted(state.reports):
        _verify_blob(log.store, sha256, report)


def _verify_version(store: Store, change: Register, report: VerifyReport, *, swept: bool) -> None:
    report.versions += 1
    if not swept:  # of a swept version all but the model is left
        _verify_blob(store, change.model, report, change.size)
    for sha256 in (change.manifest, *change.attachments.values()):
        _verify_blob(store, sha256, report)


def _verify_blob(store: Store, sha256: str, report: VerifyReport, size: int | None = None) -> None:
    try:
        report.bytes_read += len(store.read_blob(sha256, size))
    except (IntegrityError, OSError) as error:
        report.add(error)
