"""The number of cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "max 100000", or "150000 100000" for one and a half cores


def available_cores(quota_file: Path = _QUOTA) -> int:
    """Return the number of cores this process may use, 1 or more: its affinity, or less under a container's quota.

    ``quota_file`` holds quota and period in microseconds, as cgroup v2 writes them; a part of a core counts only if
    there is no whole one.  If there is no such file, or it holds something else, there is no quota.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text(encoding="ascii").split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return cores
