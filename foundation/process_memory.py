"""Memory of the process: the limit given by the user, and how many threads fit into it.

Each command has a plan of its own (`rankmill.pipeline.memory_plans`, `rankmill.scorer.rerank.memory`); all of them
start from here.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.units import MIN_MEMORY

DEFAULT_MEMORY = 2 * 10**9
_M_MMAP_THRESHOLD = -3  # of malloc.h
_LARGE = 4 << 20

_beside: list[int] = []


def checked_memory(memory: int) -> int:
    """Return ``memory``, a bound in bytes on the process; InputError if it is less than any command needs."""
    if memory < MIN_MEMORY:
        raise InputError(f"{spelled('memory')} must be at least {MIN_MEMORY // 10**6}MB, got {memory:,} bytes")
    return memory


def fitting_threads(free: int, each: int, wanted: int) -> int:
    """Return how many of ``wanted`` threads, which take ``each`` bytes, fit into ``free`` bytes; 1 or more.

    >>> fitting_threads(10, 3, 8), fitting_threads(1, 3, 8)
    (3, 1)
    """
    return max(1, min(wanted, free // each))


def hold_beside(size: int) -> Callable[[], None]:
    """Reserve ``size`` bytes of every memory limit for helper threads. The returned function gives them back."""
    _beside.append(size)
    return lambda: _beside.remove(size)


def beside_bytes() -> int:
    """Return how many bytes of a limit are left to what works beside a command, such as fetching its files."""
    return sum(_beside)


def return_large_arrays() -> None:
    """Let glibc's malloc return large arrays to the system when they are freed; elsewhere nothing is done.

    By default it raises its threshold when the first large array is freed. Then it keeps up to 32 MiB for every thread
    that allocates, more than a small limit allows.  The setting is for the process; it costs fresh pages, about 5 % of
    the time of an ingest.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and sys.platform == "linux":
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def release_freed() -> None:
    """Return memory that is free within the process to the system: Arrow's pool, and with glibc that of malloc."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None and sys.platform == "linux":
        trim(0)


def peak_bytes() -> int:
    """Return the most memory that this process has had so far."""
    if sys.platform == "linux":  # getrusage there includes the parent process
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
