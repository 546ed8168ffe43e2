"""What must hold of a registry at any moment, whatever happened to its writers: I1 to I7 of the design."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from registry.log import Entry
from registry.registry import Registry
from tests.registry.model_disk import ROOT, Machine, ModelDisk

LITTER = re.compile(rf"{re.escape(str(ROOT))}/(tmp|trash|leases)/|{re.escape(str(ROOT))}/ballast$|/checkpoint\.json$")
"""Files that say nothing: on their way in or out, or to be made anew by anybody."""


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
        alias = getattr(entry.change, "alias", None)
        if entry.change.op in {"promote", "rollback", "force"} and alias is not None:
            self.aliases.add((name, alias))

    def check(self, machine: Machine) -> None:
        """Raise AssertionError if something that must hold does not."""
        registry = Registry(ROOT, disk=ModelDisk(machine))
        report = registry.verify()
        assert report.ok, report.findings  # I1, I4: every entry follows, each previous is true, every blob is whole
        logs = {name: registry.log(name) for name in registry.names()}
        for (name, number), entry in self.acknowledged.items():  # I2
            log = logs.get(name, [])
            assert number <= len(log), f"entry {number} of {name} was acknowledged and is gone: {entry}"
            assert log[number - 1] == entry, f"entry {number} of {name} is {log[number - 1]}, acknowledged was {entry}"
        for name, log in logs.items():
            reasons = Counter(entry.reason for entry in log if entry.reason)
            assert not [reason for reason, n in reasons.items() if n > 1], f"committed twice: {reasons}"  # I3, I5
            assert not self.refused & set(reasons), f"refused, and there: {self.refused & set(reasons)}"
            versions = registry.versions(name)
            for version in versions:
                if version.aliases:
                    assert len(version.read()) == version.size  # I4
            meant = {alias for version in versions for alias in version.aliases}
            for alias in (alias for model, alias in self.aliases if model == name):
                assert alias in meant, f"{name}@{alias} was set, and is not"  # I6


def published(machine: Machine) -> set[str]:
    """All files that say something."""
    return {path for path, _ in machine.files() if not LITTER.search(path)}
