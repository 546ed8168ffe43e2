"""``FORMAT.json``: the format and rules of a registry.  Written once, before anything else, and never changed.

``{"format":4,"kind":"disk","protected":["production"]}`` lists the protected aliases.  ``kind`` is ``bucket`` in a bucket, whose blobs have
other names, so that a raw copy to a disk, or from one, is not mistaken.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.foundation.errors import IntegrityError, InvalidName
from rankmill.foundation.records import canonical_json, other_format
from rankmill.registry.names import check_alias

if TYPE_CHECKING:
    from rankmill.foundation.storage.location import Location
    from rankmill.registry.storage import Kind, Publishing

FORMAT = 4
WAYS = {
    "link": "hard links",
    "rename": "renames that never replace, as it has no hard links",
    "conditional put": "conditional writes (If-None-Match), of which one wins",
}


@dataclass(frozen=True, slots=True)
class Format:
    """Where the registry is, and the protected aliases."""

    kind: Kind
    protected: tuple[str, ...] = ()

    @classmethod
    def new(cls, kind: Kind, protected: Iterable[str]) -> Format:
        """Return the format of a new registry; InvalidName if an alias is invalid."""
        return cls(kind, tuple(sorted({check_alias(alias) for alias in protected})))

    def to_bytes(self) -> bytes:
        """Return the file."""
        return canonical_json({"format": FORMAT, "kind": self.kind, "protected": list(self.protected)}) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, kind: Kind) -> Format:
        """Read the file of a registry of this ``kind``; IntegrityError, without its path, if it is damaged or of another format."""
        try:
            facts = json.loads(data)
            number, there = facts["format"], facts.get("kind")
            if type(number) is int and number != FORMAT:
                raise IntegrityError(other_format("registry", number, FORMAT, "register the models in a new one"))
            sound = cls(there, tuple(check_alias(alias) for alias in facts["protected"]))
        except (ValueError, TypeError, KeyError, AttributeError, InvalidName):
            raise _damaged(data, kind) from None
        if sound.to_bytes() != data or there not in {"disk", "bucket"}:  # any other bytes are damage
            raise _damaged(data, kind)
        if there != kind:
            raise IntegrityError(
                f"this is a registry of a {there}, and it is on a {kind}: its files were copied as they are; copy a registry with"
                " rankmill models copy"
            )
        return sound


def _damaged(data: bytes, kind: Kind) -> IntegrityError:
    expected = Format(kind, ("production",)).to_bytes().decode().strip()
    return IntegrityError(f"expected such as {expected}, found {data[:60]!r}")


@dataclass(frozen=True, slots=True)
class Initialised:
    """The properties of a registry and of its file system."""

    registry: Location
    made: bool
    """Whether it is new."""
    format: int
    protected: tuple[str, ...]
    """Aliases that move only to versions that have passed the gate."""
    publishes_by: Publishing
    """How files are published."""
    flushes_folders: bool
    """Whether the file system flushes folders on request; otherwise it has to do so by itself."""

    def render(self) -> str:
        """Return a few lines of text."""
        protected = ", ".join(self.protected)
        lines = [
            f"{'Created a registry in' if self.made else 'A registry exists already:'} {self.registry}"
            f" (format {self.format})",
            f"Protected: {protected} (moves only to versions that passed the gate)"
            if protected
            else "Protected: nothing",
            f"Files are published by {WAYS[self.publishes_by]}.",
        ]
        if not self.flushes_folders:
            lines.append("File names cannot be flushed here: a power failure may lose the last changes.")
        return "\n".join(lines)
