"""The state of a model, computed from the entries of its log and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rankmill.foundation.errors import IntegrityError
from rankmill.registry.stored_records import AliasPolicy, Entry, GateRecord, Move, Protect, Register, Sweep, Unset

GENESIS = "0" * 64  # the previous digest in the first entry


class Registered(NamedTuple):
    """A version, from the entry that registered it."""

    model: str
    size: int
    manifest: str
    entry: int
    time: str
    attachments: dict[str, str]

    def blobs(self) -> set[str]:
        """Digests of all blobs of the version."""
        return {self.model, self.manifest, *self.attachments.values()}


class Target(NamedTuple):
    """The version that an alias pointed to from ``entry`` on; None: unset.  ``back``: by a rollback."""

    version: int | None
    entry: int
    back: bool = False


@dataclass(slots=True)
class State:
    """The state of a model after ``entries``, of which the last has the digest ``digest``."""

    entries: list[Entry] = field(default_factory=list)
    digest: str = GENESIS
    versions: dict[int, Registered] = field(default_factory=dict)
    """By number, from 1 without gaps."""
    moves: dict[str, list[Target]] = field(default_factory=dict)
    """All targets of each alias, oldest first; the last one is current."""
    policies: dict[str, AliasPolicy | None] = field(default_factory=dict)
    """For each alias that was protected or opened explicitly, its policy; None: open."""
    gates: dict[int, dict[str, Entry]] = field(default_factory=dict)
    """For each version and alias, the entry of the newest gate result."""
    reports: set[str] = field(default_factory=set)
    """Digests of all gate reports."""
    swept: dict[int, int] = field(default_factory=dict)
    """Versions without model bytes, and the entry that swept them."""

    @property
    def head(self) -> int:
        """Number of the last entry; 0 if there is none."""
        return len(self.entries)

    def target(self, alias: str) -> int | None:
        """Return the version that ``alias`` points to; None if it is not set."""
        moves = self.moves.get(alias)
        return moves[-1].version if moves else None

    def standing(self, alias: str) -> int | None:
        """Return the version that a candidate for ``alias`` is compared with.

        It is its target, else the last earlier target not swept.
        """
        moves = self.moves.get(alias, [])
        return next((m.version for m in reversed(moves) if m.version is not None and m.version not in self.swept), None)

    def holders(self, alias: str) -> list[int]:
        """Return the versions that ``alias`` pointed to, newest first.

        Those that were rolled back from since are left out.
        """
        found: dict[int, None] = {}
        until = None  # the target of a rollback: what came after its promotion was taken back
        for move in reversed(self.moves.get(alias, [])):
            if move.version is not None and until in {None, move.version}:
                found[move.version] = None
                until = move.version if move.back else None
        return list(found)

    def before(self, alias: str) -> int | None:
        """Return the version before the current one to which a rollback of ``alias`` leads; None if there is none."""
        gone = {self.target(alias), *self.swept}
        return next((version for version in self.holders(alias) if version not in gone), None)

    def set_aliases(self) -> dict[str, int]:
        """Return the version of each alias that is set, by name."""
        return {alias: version for alias in sorted(self.moves) if (version := self.target(alias)) is not None}

    def aliases(self, version: int) -> tuple[str, ...]:
        """Return the aliases that point to ``version``, sorted."""
        return tuple(alias for alias, target in self.set_aliases().items() if target == version)

    def entry_of(self, model: str, manifest: str) -> int | None:
        """Return the entry that registered this model with this manifest, by their digests.

        None if there is none, or if it was swept.
        """
        for number, row in self.versions.items():
            if (row.model, row.manifest) == (model, manifest) and number not in self.swept:
                return row.entry
        return None

    def blobs(self) -> set[str]:
        """Digests of all blobs that must exist: all except the model bytes of swept versions."""
        found = set(self.reports)
        for number, row in self.versions.items():
            found |= {row.manifest, *row.attachments.values()} if number in self.swept else row.blobs()
        return found

    def apply(self, entry: Entry) -> None:
        """Apply the next entry; IntegrityError, and nothing is changed, if it is not a valid successor."""
        if entry.number != self.head + 1 or entry.prev != self.digest:
            raise IntegrityError(f"entry {entry.number} does not follow entry {self.head}: the chain is broken")
        change = entry.change
        match change:
            case Register():
                self._register(change, entry)
            case Move():
                self._expect(change.version not in self.swept, f"version {change.version} was swept")
                self._set(change.alias, change.version, change.previous, entry.number, back=change.op == "rollback")
            case Unset():
                self._set(change.alias, None, change.previous, entry.number)
            case Protect():
                self.policies[change.alias] = change.policy
            case GateRecord():
                self._gate(change, entry)
            case Sweep():
                self._sweep(change, entry.number)
        self.entries.append(entry)
        self.digest = entry.digest

    def _register(self, change: Register, entry: Entry) -> None:
        last = len(self.versions)
        self._expect(change.version == last + 1, f"version {change.version} does not follow version {last}")
        self.versions[change.version] = Registered(
            change.model, change.size, change.manifest, entry.number, entry.time, change.attachments
        )

    def _set(self, alias: str, version: int | None, previous: int | None, entry: int, *, back: bool = False) -> None:
        known = version is None or version in self.versions
        fits = known and previous == self.target(alias)
        self._expect(fits, f"alias {alias!r} cannot go from {previous} to {version}")
        self.moves.setdefault(alias, []).append(Target(version, entry, back))

    def _gate(self, change: GateRecord, entry: Entry) -> None:
        row = self.versions.get(change.version)
        fits = row is not None and row.model == change.model
        fits = fits and (change.baseline is None or change.baseline in self.versions)
        self._expect(fits, f"the gate's result is not one of version {change.version}")
        self.gates.setdefault(change.version, {})[change.alias] = entry
        self.reports.add(change.report)

    def _sweep(self, change: Sweep, entry: int) -> None:
        swept, meant = set(change.versions), {*self.set_aliases().values()}
        self._expect(
            swept <= self.versions.keys() - meant - self.swept.keys(), "a swept version does not exist, or has an alias"
        )
        self.swept |= dict.fromkeys(change.versions, entry)

    @staticmethod
    def _expect(fits: bool, otherwise: str) -> None:  # noqa: FBT001
        if not fits:
            raise IntegrityError(otherwise)
