"""``FORMAT.json``: the format and rules of a registry.  Written once, before anything else, and never changed.

Format 1 is ``{"format":1}``, without protected aliases.  Format 2 lists the protected aliases:
``{"format":2,"protected":["production"]}``.  Both are read and written; a registry keeps its format.  Format 3 has the same content; it
is the one of registries in a bucket, whose blobs have other names, so that a raw copy to a disk, or from one, is not mistaken.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.foundation.errors import IntegrityError, InvalidName
from rankmill.foundation.records import canonical_json
from rankmill.registry.names import check_alias

if TYPE_CHECKING:
    from rankmill.foundation.storage.location import Location
    from rankmill.registry.storage import Publishing

NEWEST = 2
IN_BUCKETS = 3
WAYS = {
    "link": "hard links",
    "rename": "renames that never replace, as it has no hard links",
    "conditional put": "conditional writes (If-None-Match), of which one wins",
}


@dataclass(frozen=True, slots=True)
class Format:
    """The format number and the protected aliases."""

    number: int
    protected: tuple[str, ...] = ()

    @classmethod
    def new(cls, protected: Iterable[str], number: int = NEWEST) -> Format:
        """Return the format of a new registry; InvalidName if an alias is invalid."""
        return cls(number, tuple(sorted({check_alias(alias) for alias in protected})))

    def to_bytes(self) -> bytes:
        """Return the file."""
        facts: dict[str, object] = {"format": self.number}
        if self.number > 1:
            facts["protected"] = list(self.protected)
        return canonical_json(facts) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Format:
        """Read the file; IntegrityError, without its path, if it is damaged or of an unknown format."""
        try:
            facts = json.loads(data)
            number = facts["format"]
        except (ValueError, TypeError, KeyError):
            raise _damaged(data) from None
        if type(number) is not int:
            raise _damaged(data)
        if not 1 <= number <= IN_BUCKETS:
            found = f"this registry has format {number}, this version of rankmill reads formats 1, {NEWEST} and, in buckets, {IN_BUCKETS}"
            raise IntegrityError(f"{found}; use the version that created it, or a later one")
        if unknown := sorted(set(facts) - ({"format"} if number == 1 else {"format", "protected"})):
            raise IntegrityError(
                f"{unknown[0]!r} is a rule that this version of rankmill does not know; use a later one"
            )
        try:
            sound = cls(number, tuple(check_alias(alias) for alias in facts.get("protected", ())))
        except (TypeError, InvalidName):
            raise _damaged(data) from None
        if sound.to_bytes() != data:  # any other bytes are damage
            raise _damaged(data)
        return sound

    def check_layout(self, newest: int) -> None:
        """Raise IntegrityError if the format is one of a bucket on a disk, or the other way round."""
        if (self.number == IN_BUCKETS) != (newest == IN_BUCKETS):
            here, there = ("a bucket", "a disk") if newest == IN_BUCKETS else ("a disk", "a bucket")
            raise IntegrityError(
                f"format {self.number} is one of registries on {there[2:]}s, and this is {here}: its files were copied as they"
                " are; copy a registry with rankmill models copy"
            )


def _damaged(data: bytes) -> IntegrityError:
    expected = Format(NEWEST, ("production",)).to_bytes().decode().strip()
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
