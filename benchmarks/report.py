"""Common output of the benchmarks: date, machine, versions, and Markdown tables."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from rankmill.foundation.cores import available_cores

_OURS = ("numpy", "numba", "llvmlite")


def surroundings(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return the date, the command, the machine and the versions as JSON values."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": _command(),
        "machine": f"{_cpu()}, {available_cores()} cores, {_memory_gib():.0f} GiB, {platform.system()}",
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in (*_OURS, *packages)},
    }


def render(facts: dict[str, Any]) -> str:
    """Return `surroundings` as lines of Markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return f"{facts['date']}, {facts['machine']}; {versions}:\n\n```\n{facts['command']}\n```\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, and the range if there are several values.

    >>> spread([2.0, 1.0, 4.0])
    '2.00 (1.00 to 4.00)'
    """
    middle = f"{np.median(values):.{digits}f}"
    return middle if len(values) < 2 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _command() -> str:
    """Return the command line with paths shortened to their last part."""
    words = [Path(word).name if os.sep in word else word for word in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _version(name: str) -> str:
    for distribution in (name, f"{name}-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "absent"
