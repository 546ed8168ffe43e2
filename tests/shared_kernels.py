"""A cache of compiled kernels that several processes may fill at once: those of ``pytest -n 2`` and what they start.

Numba's cache takes no lock: of two processes that save at the same time, one may name the file of the other in its index.
The environment names the class below (``NUMBA_CACHE_LOCATOR_CLASSES``), beside ``NUMBA_CACHE_DIR``; Numba imports this module
before it looks for the first kernel.  Compiling takes no lock, only reading and writing the files.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from numba.core import config
from numba.core.caching import FunctionCache, UserProvidedCacheLocator


class SharedCacheLocator(UserProvidedCacheLocator):
    """The folder that ``NUMBA_CACHE_DIR`` names."""


@contextlib.contextmanager
def _locked(_cache: FunctionCache) -> Iterator[None]:
    folder = Path(config.CACHE_DIR)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


FunctionCache._guard_against_spurious_io_errors = _locked  # around each load and each save
