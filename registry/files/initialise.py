"""``rankmill models init``: make a registry on purpose, where a first write would make one too, and say what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import InputError
from rankmill.registry.files.format import Format
from rankmill.registry.files.probe import Way
from rankmill.registry.files.store import Store
from rankmill.registry.names import PRODUCTION

WAYS = {"link": "hard links", "rename": "renames that never replace, since it has no hard links"}


@dataclass(frozen=True, slots=True)
class Initialised:
    """A registry that is there, and what its file system can do."""

    root: Path
    made: bool
    """Whether it was not there before."""
    format: Format
    way: Way
    """How files get their names."""
    flushes_folders: bool
    """Whether the file system can be told to make names durable; else it has to do so by itself."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "registry": str(self.root),
            "made": self.made,
            "format": self.format.number,
            "protected": list(self.format.protected),
            "publishes_by": self.way,
            "flushes_folders": self.flushes_folders,
        }

    def render(self) -> str:
        """Say it in a few lines."""
        protected = ", ".join(self.format.protected)
        lines = [
            f"{'Made a registry in' if self.made else 'A registry was there already:'} {self.root}"
            f" (format {self.format.number})",
            f"Protected: {protected} (moves only to what has passed the gate)" if protected else "Protected: nothing",
            f"Files appear by {WAYS[self.way]}.",
        ]
        if not self.flushes_folders:
            lines.append(
                "Names of files cannot be flushed here: whether the last changes outlive a power cut is not ours."
            )
        return "\n".join(lines)


def initialise(store: Store, *, leave_open: bool = False, protect: Sequence[str] = ()) -> Initialised:
    """Make the registry, with production protected unless ``leave_open`` and the aliases ``protect`` besides.

    One that is there already stays as it is; asked for other protected aliases than it has, it says so.

    Raises
    ------
    InputError
        The folder holds something else, an alias may not be called so, or the registry that is there protects others.
    IntegrityError
        A registry is there and is damaged or of a later format.
    OSError
        Nothing can be written there, or its file system cannot keep a registry.
    """
    wanted = Format.new([*(() if leave_open else (PRODUCTION,)), *protect])
    made = not store.exists()
    store.prepare(wanted.protected)
    found = store.format
    if (leave_open or protect) and found.protected != wanted.protected:
        said = [", ".join(protected) or "nothing" for protected in (found.protected, wanted.protected)]
        raise InputError(
            f"{store.root} is a registry already and protects {said[0]}, not {said[1]}, since it was made; "
            "for one model rankmill models alias NAME ALIAS --protect or --open decides otherwise"
        )
    return Initialised(store.root, made, found, *store.probe())
