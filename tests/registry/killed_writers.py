"""Real processes at work on one registry, and one that kills them: run by `test_killed_writers`, which looks at the
end.

Each writer keeps a file of its own, to which it adds a line for every commit that was acknowledged to it, flushed.
The mother forks them from what she has imported, so that a new one is at work within milliseconds.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rankmill.foundation.errors import ConflictError, InputError, UnknownModel
from rankmill.registry.model_registry import Registry
from rankmill.registry.retention import RetentionRules
from rankmill.registry.stored_records import Entry
from tests.registry.conftest import FACTS

NAME, ALIASES = "web", ("blue", "green", "red")
RULES = RetentionRules(keep=5, grace=1.0)
Write = Callable[[Registry, random.Random, str], Entry | None]


def promote(registry: Registry, chance: random.Random, reason: str) -> Entry:
    """Move an alias: to any version, from what it was seen to mean, or back."""
    alias, state = chance.choice(ALIASES), registry.state(NAME)
    version, target = chance.randint(1, len(state.versions)), state.target(alias)
    way = chance.random()
    if way < 0.4:
        return registry.promote(NAME, version, alias=alias, reason=reason)
    if way < 0.8:
        return registry.promote(NAME, version, alias=alias, expect=target, reason=f"{reason} expects {target}")
    try:
        return registry.rollback(NAME, alias=alias, expect=target, reason=f"{reason} expects {target}")
    except InputError:  # the second of two in a row, or no version is left to go back to
        return registry.promote(NAME, version, alias=alias, reason=reason)


def register(registry: Registry, chance: random.Random, reason: str) -> Entry:
    """Register a model, of which somebody else may be registering the same."""
    time.sleep(chance.uniform(0, 0.02))
    model = b"%d" % chance.randrange(1000)
    return registry.register(NAME, model, manifest=FACTS, reason=reason).registered


def collect(registry: Registry, chance: random.Random, reason: str) -> None:
    """Mark and sweep what nothing keeps."""
    time.sleep(chance.uniform(0, 0.5))
    registry.gc(rules=RULES)


def write(root: Path, reported: Path, work: Write, seed: int) -> None:
    """Commit, and write down what was acknowledged, until somebody kills this process."""
    chance, registry = random.Random(seed), Registry(root)
    descriptor = os.open(reported, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in itertools.count():
        reason = f"{reported.stem} {step}"
        try:
            entry = work(registry, chance, reason)
        except (ConflictError, UnknownModel):
            line: dict[str, object] = {"refused": reason}
        except BaseException as error:
            line = {"error": f"{type(error).__name__}: {error}"}
        else:
            line = {"number": entry.number, "sha256": entry.digest} if entry is not None else {}
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.fsync(descriptor)


def born(work: Callable[[], None]) -> int:
    """Fork a process that does this and nothing else."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def main(
    root: Path, reported: Path, seconds: float, promoters: int, registrars: int, collectors: int, seed: int
) -> None:
    """Let them work, kill one at random again and again, and print what was seen."""
    chance, born_so_far = random.Random(seed), itertools.count(1)
    registry = Registry(root)

    def another(work: Write) -> int:
        number = next(born_so_far)
        return born(lambda: write(root, reported / f"writer {number}.jsonl", work, seed * 10**6 + number))

    works: list[Write] = [promote] * promoters + [register] * registrars + [collect] * collectors
    alive = {another(work): work for work in works}
    kills, last, began = 0, 0, time.monotonic()
    while time.monotonic() < began + seconds:
        time.sleep(chance.uniform(0, 0.04))
        state = registry.state(NAME)
        assert state.head >= last, f"entry {last} was there, and is not"
        assert set(state.set_aliases()) == set(ALIASES), f"of {ALIASES} only {state.set_aliases()} are set"
        last = state.head
        pid = chance.choice(list(alive))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"a writer died of itself: {status}"
        kills += 1
        work = alive.pop(pid)
        alive[another(work)] = work
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(json.dumps({"kills": kills, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:]))
