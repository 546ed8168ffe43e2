"""Processes that are killed at random while many write: no acknowledged commit is lost or doubled, no alias ever
unset."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rankmill.registry.model_registry import Registry
from tests import ROOT
from tests.registry.conftest import FACTS
from tests.registry.killed_writers import ALIASES, NAME
from tests.waiting import LIMIT


def survive(
    root: Path, reported: Path, seconds: float, *, promoters: int, registrars: int, collectors: int = 0, seed: int
) -> str:
    """Let writers work and be killed for so long, check what is left, and report the outcome."""
    registry = Registry(root)
    registry.prepare(protected=())
    for number in (1, 2, 3):
        registry.register(NAME, b"first %d" % number, manifest=FACTS)
        for alias in ALIASES:  # so that there is something to go back to
            registry.promote(NAME, number, alias=alias)
    before = len(registry.log(NAME))
    reported.mkdir()
    arguments = [str(root), str(reported), str(seconds), *map(str, [promoters, registrars, collectors, seed])]
    command = [sys.executable, "-m", "tests.registry.killed_writers", *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds * 3 + LIMIT, check=False)
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    log = Registry(root).log(NAME)
    acknowledged = check(root, reported)
    commits = len(log) - before
    swept = len(registry.state(NAME).swept)
    return (
        f"{promoters} promoters, {registrars} registrars, {collectors} collectors ({swept} versions swept): {commits} commits in {facts['seconds']:.1f} s"
        f" ({commits / facts['seconds']:.0f}/s), {acknowledged} acknowledged, {facts['kills']} killed"
    )


def check(root: Path, reported: Path) -> int:
    """Hold what was acknowledged against the log; the number of acknowledgements."""
    registry = Registry(root)
    assert registry.verify().ok  # every move left from where the alias was, every blob is whole
    log = registry.log(NAME)
    reasons = Counter(entry.reason for entry in log if entry.change.op != "sweep" and entry.reason)
    assert not [reason for reason, times in reasons.items() if times > 1], "committed twice"
    acknowledged = 0
    for path in sorted(reported.iterdir()):
        for text in path.read_bytes().splitlines(keepends=True):
            if not text.endswith(b"\n"):
                continue  # killed while it wrote this down
            line = json.loads(text)
            assert "error" not in line, line["error"]
            if "refused" in line:
                assert line["refused"] not in reasons, f"refused, and there: {line}"
            elif "number" in line:
                acknowledged += 1
                assert log[line["number"] - 1].digest == line["sha256"], f"acknowledged, and not there: {line}"
    for entry in log:
        _, expects, target = entry.reason.partition(" expects ")
        if expects:
            assert str(entry.change.previous) == target, f"moved from elsewhere: {entry}"
    there = [version for version in registry.versions(NAME) if version.swept_in is None]
    assert len({(version.sha256, version.manifest_sha256) for version in there}) == len(there), "registered twice"
    return acknowledged


def test_writers_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    print(survive(tmp_path / "registry", tmp_path / "reported", 1.5, promoters=3, registrars=1, collectors=1, seed=1))


@pytest.mark.slow
def test_sixteen_promoters_and_four_registrars_are_killed_for_a_minute(tmp_path: Path) -> None:
    print(survive(tmp_path / "registry", tmp_path / "reported", 60, promoters=16, registrars=4, seed=2))


@pytest.mark.slow
def test_collectors_beside_them_take_nothing_away(tmp_path: Path) -> None:
    print(survive(tmp_path / "registry", tmp_path / "reported", 20, promoters=4, registrars=4, collectors=2, seed=3))
