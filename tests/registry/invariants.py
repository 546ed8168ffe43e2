"""What must hold of a registry at any moment, whatever happened to its writers: I1 to I7 of the design."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Any

from rankmill.registry.model_registry import Registry
from rankmill.registry.stored_records import Entry
from tests.registry.interposed import Around, Interposed
from tests.registry.model_bucket import World, content, on
from tests.registry.model_disk import ROOT, Machine, ModelDisk

LITTER = re.compile(rf"{re.escape(str(ROOT))}/tmp/|/packed\.jsonl$")
"""Files that say nothing: on their way in or out, or to be made anew by anybody."""


State = Machine | World


def registry_of(state: State, around: Around | None = None) -> Registry:
    """The registry on a machine or in a bucket; ``around`` gets every call."""
    if isinstance(state, World):
        return on(state, around)
    disk = ModelDisk(state)
    return Registry(ROOT, disk=disk if around is None else Interposed(disk, around))


class Look:
    """All that readers can learn of a registry; AssertionError if it is damaged."""

    def __init__(self, registry: Registry) -> None:
        report = registry.verify()
        assert report.ok, report.findings  # I1, I4: every entry follows, each previous is true, every blob is whole
        self.logs = {name: registry.log(name) for name in registry.names()}
        self.aliases: set[tuple[str, str]] = set()
        self.models: dict[str, object] = {}
        for name, log in self.logs.items():
            versions = registry.versions(name)
            for version in versions:
                self.aliases |= {(name, alias) for alias in version.aliases}
                if version.aliases:
                    assert len(version.read()) == version.size  # I4
            self.models[name] = (
                [(version.sha256, version.manifest_sha256, version.aliases) for version in versions],
                [entry.change for entry in log],
            )


def look(state: State) -> Look:
    """Look at a registry; at two that are byte for byte the same only once."""
    return _remembered(_Content(state))


class _Content:
    def __init__(self, state: State) -> None:
        self.state = state
        self.key = (
            content(state)
            if isinstance(state, World)
            else frozenset(
                (path, file.data)
                for path, file in state.files()
                if path.endswith("/packed.jsonl") or not LITTER.search(path)
            )
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: Any) -> bool:
        return bool(self.key == other.key)


@lru_cache(maxsize=500)
def _remembered(content: _Content) -> Look:
    return Look(registry_of(content.state))


class Witness:
    """Remembers what was acknowledged, and looks whether the registry still says so.

    Each operation of a test gives a reason of its own, by which its entry is known again.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[str, int], Entry] = {}
        self.refused: set[str] = set()
        self.aliases: set[tuple[str, str]] = set()

    def saw(self, name: str, entry: Entry) -> None:
        """An operation on ``name`` has returned this entry: its own, or an old one that it found to stand already."""
        self.acknowledged[name, entry.number] = entry
        if entry.change.op in {"promote", "rollback", "force"}:
            self.aliases.add((name, entry.change.alias))
        elif entry.change.op == "unset":
            self.aliases.discard((name, entry.change.alias))

    def check(self, state: State) -> Look:
        """Raise AssertionError if something that must hold does not."""
        found = look(state)
        for (name, number), entry in self.acknowledged.items():  # I2
            log = found.logs.get(name, [])
            assert number <= len(log), f"entry {number} of {name} was acknowledged and is gone: {entry}"
            assert log[number - 1] == entry, f"entry {number} of {name} is {log[number - 1]}, acknowledged was {entry}"
        for log in found.logs.values():
            reasons = Counter(entry.reason for entry in log if entry.change.op != "sweep" and entry.reason)
            assert not [reason for reason, n in reasons.items() if n > 1], f"committed twice: {reasons}"  # I3, I5
            assert not self.refused & set(reasons), f"refused, and there: {self.refused & set(reasons)}"
        assert self.aliases <= found.aliases, f"set, and is not: {self.aliases - found.aliases}"  # I6
        return found


def published(machine: Machine) -> set[str]:
    """All files that say something."""
    return {path for path, _ in machine.files() if not LITTER.search(path)}
