"""The attachment ``origin`` of an imported version: who registered it where it comes from, when and why."""

from __future__ import annotations

import json

from pydantic import ConfigDict, ValidationError

from rankmill.foundation.records import canonical_json
from rankmill.registry.history.changes import Number, Record
from rankmill.registry.history.entry import Entry
from rankmill.registry.manifest import Sha256
from rankmill.registry.telling.sentences import when_of, who_of, why_of

ORIGIN = "origin"


class Origin(Record):
    """Where a version was before; ``before`` says where that had been imported from."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    name: str
    version: Number
    entry: Entry
    """The one that registered it there."""
    sha256: Sha256
    before: Origin | None = None

    @classmethod
    def of(cls, data: bytes | None) -> Origin | None:
        """Read the attachment; None if it is not there, or something else."""
        try:
            return None if data is None else cls.model_validate_json(data)
        except ValidationError:
            return None

    def lines(self) -> list[str]:
        """Tell it, the latest place first."""
        entry = self.entry
        said = f"{self.name}@{self.version}, registered {when_of(entry)} UTC by {who_of(entry)}{why_of(entry)}"
        return [said, *([] if self.before is None else self.before.lines())]


def origin_bytes(name: str, version: int, entry: Entry, earlier: bytes | None) -> bytes:
    """Return the attachment for ``version`` of model ``name``, registered by ``entry`` with the attachment ``earlier``."""
    told = {"name": name, "version": version, "entry": entry.to_json(), "sha256": entry.digest}
    return canonical_json(told if earlier is None else told | {"before": json.loads(earlier)})
