"""One registered version: its facts from the log, and access to its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rankmill.foundation.errors import IntegrityError, UnknownModel
from rankmill.foundation.storage.location import Location
from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_state import Registered, State
from rankmill.registry.stored_records import Entry


@dataclass(unsafe_hash=True)  # not frozen: a frozen one takes twice as long to create, and lists have ten thousand
class Version:
    """A version, with the state at the time of the lookup; its files are read on access."""

    name: str
    number: int
    row: Registered = field(repr=False)
    state: State = field(repr=False, compare=False)
    log: CommitLog = field(repr=False, compare=False)

    @property
    def sha256(self) -> str:
        """Digest of the model's bytes."""
        return self.row.model

    @property
    def size(self) -> int:
        """Length of the model in bytes."""
        return self.row.size

    @property
    def manifest_sha256(self) -> str:
        """Digest of the manifest's bytes."""
        return self.row.manifest

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases that point to this version, by name."""
        return self.state.aliases(self.number)

    @property
    def swept_in(self) -> int | None:
        """The log entry that swept the model file; None if it exists."""
        return self.state.swept.get(self.number)

    @property
    def model_path(self) -> Location:
        """Path of the model file, read-only; `read` also checks its content."""
        return self.log.blobs.path(self.sha256)

    @property
    def registered(self) -> Entry:
        """The entry that registered this version."""
        return self.state.entries[self.row.entry - 1]

    @property
    def gates(self) -> dict[str, Entry]:
        """For each alias with a gate result, by name, the log entry of the newest one."""
        return dict(sorted(self.state.gates.get(self.number, {}).items()))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The facts that were registered with the model, checked against their digest."""
        return self.log.blobs.read_json(self.manifest_sha256)

    def attachment(self, key: str) -> bytes | None:
        """Return what was registered with the model under ``key``, checked against its digest; None if nothing was."""
        sha256 = self.row.attachments.get(key)
        return None if sha256 is None else self.log.blobs.read(sha256)

    def read(self) -> bytes:
        """Return the model's bytes.

        Raises
        ------
        IntegrityError
            The file is missing or does not match its digest.
        UnknownModel
            The version was swept.
        """
        if self.swept_in is not None:
            raise self._swept(self.swept_in)
        try:
            return self.log.blobs.read(self.sha256, self.size)
        except IntegrityError:
            swept = self.log.state().swept.get(self.number)  # swept after the lookup
            if swept is None:
                raise
            raise self._swept(swept) from None

    def _swept(self, entry: int) -> UnknownModel:
        return UnknownModel(f"{self}: its bytes were swept in entry {entry} of the log")

    def to_json(self) -> dict[str, object]:
        """All facts about the version, as JSON values."""
        return {
            "name": self.name,
            "version": self.number,
            "sha256": self.sha256,
            "size": self.size,
            "model_path": str(self.model_path),
            "aliases": list(self.aliases),
            "registered": {"time": self.registered.time, "actor": self.registered.actor, "host": self.registered.host},
            "reason": self.registered.reason,
            "manifest": self.manifest,
        }

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"
