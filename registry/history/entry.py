"""One entry of a log, and its bytes: canonical JSON, named by its digest, chained to the entry before it."""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import ValidationError

from rankmill.foundation.errors import IntegrityError, LaterEntry
from rankmill.foundation.records import canonical_json
from rankmill.registry.history.changes import Change, Number, Record, as_json
from rankmill.registry.manifest import Sha256, first_fault
from rankmill.registry.sealed import seal, unseal


class Entry(Record):
    """One transaction: what changed, when (UTC), by whom, why; ``prev`` is the digest of the entry before it."""

    number: Number
    prev: Sha256
    txid: str
    change: Change
    time: str
    actor: str
    host: str
    reason: str

    @property
    def digest(self) -> str:
        """Names this entry and, through ``prev``, everything before it."""
        return hashlib.sha256(canonical_json(as_json(self))).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file, without the digest."""
        return as_json(self)

    def to_bytes(self) -> bytes:
        """Return the file."""
        return seal("entry", canonical_json(as_json(self)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Entry:
        """Read a file; IntegrityError if it is not, byte for byte, what `to_bytes` writes."""
        parts = unseal("entry", data)
        if parts is None:
            raise IntegrityError("not an entry of this format: torn, or written by something else")
        body, unchanged = parts
        if not unchanged:
            raise IntegrityError("the bytes were changed after they were written")
        try:
            entry = cls.model_validate_json(body)
        except ValidationError as error:
            unknown = f"not an entry that this version of rankmill knows: {first_fault(error)}"
            raise LaterEntry(f"{unknown}; use the version that wrote it, or a later one") from None
        if canonical_json(as_json(entry)) != body:
            raise IntegrityError("the bytes were changed after they were written")
        return entry
