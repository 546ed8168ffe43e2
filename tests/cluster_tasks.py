"""Tasks of tests for the workers of a cluster, which import them by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from rankmill.foundation.errors import CandidatesRejected
from rankmill.foundation.options import spelled


def square(number: int, threads: int) -> tuple[int, int]:
    return number * number, os.getpid()


def killed_once(path: Path, threads: int) -> str:
    """Kill the worker, but not a second time."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return path.name
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def refused(number: int, threads: int) -> int:
    if number in {2, 3}:
        raise CandidatesRejected(f"{number}: see {spelled('max_rejects')}")
    return number
