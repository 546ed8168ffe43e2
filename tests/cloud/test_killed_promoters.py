"""Promoters that are killed at random while they work in one bucket: no acknowledged commit is lost or doubled."""

import itertools
import random
import subprocess
import sys
import time
import uuid

import pytest

from rankmill.registry.model_registry import Registry
from tests import ROOT
from tests.registry.conftest import FACTS
from tests.registry.killed_writers import ALIASES, NAME
from tests.registry.test_killed_writers import check


def promoter(root, reported, number):
    """Start a process that waits for a line before it begins, as starting takes a second."""
    command = [
        sys.executable,
        "-m",
        "tests.cloud.killed_promoters",
        root,
        str(reported / f"writer {number}.jsonl"),
        str(number),
    ]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def begin(process):
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()


def survive(root, reported, seconds, promoters, seed):
    registry = Registry(root)
    registry.prepare(protected=())
    for number in (1, 2, 3):
        registry.register(NAME, b"first %d" % number, manifest=FACTS)
        for alias in ALIASES:
            registry.promote(NAME, number, alias=alias)
    before = len(registry.log(NAME))
    reported.mkdir()
    chance, numbers = random.Random(seed), itertools.count(1)
    alive = [promoter(root, reported, next(numbers)) for _ in range(promoters)]
    kills, last = 0, 0
    try:
        for process in alive:
            begin(process)
        began, spare = time.monotonic(), promoter(root, reported, next(numbers))
        alive.append(spare)
        while time.monotonic() < began + seconds:
            time.sleep(chance.uniform(0, 0.5))
            state = registry.state(NAME)
            assert state.head >= last, f"entry {last} was there, and is not"
            assert set(state.set_aliases()) == set(ALIASES)
            last = state.head
            victim = alive.pop(chance.randrange(promoters))
            assert victim.poll() is None, "a promoter died of itself"
            victim.kill()
            victim.communicate()
            kills += 1
            begin(alive[-1])
            alive.append(promoter(root, reported, next(numbers)))
    finally:
        for process in alive:
            process.kill()
            process.communicate()
    took = time.monotonic() - began
    place = root
    acknowledged, commits = check(place, reported), len(registry.log(NAME)) - before
    return (
        f"{promoters} promoters: {commits} commits in {took:.1f} s ({commits / took:.0f}/s), "
        f"{acknowledged} acknowledged, {kills} killed"
    )


@pytest.mark.slow
def test_eight_promoters_are_killed_for_a_minute(server, tmp_path):
    print(survive(f"{server.url}/{uuid.uuid4().hex}", tmp_path / "reported", 60, promoters=8, seed=1))


@pytest.mark.slow
def test_promoters_that_are_killed_lose_nothing(s3, tmp_path):
    print(survive(f"{s3.url}/{uuid.uuid4().hex}", tmp_path / "reported", 2.5, promoters=2, seed=2))
