"""A cache of compiled kernels that is read where nobody may write: the image's, under any user and a read-only root.

Numba takes a folder for its cache only after it has written a file into it, so a cache that was filled where the image
was built is of no use to a user who may not write there: the import fails with "no locator available".  The environment
names the class below, ``NUMBA_CACHE_LOCATOR_CLASSES=rankmill.kernel_cache.ReadableCacheLocator`` (Numba's own door for
this), beside ``NUMBA_CACHE_DIR``; where it does not, Numba is as it was.  Numba imports this module by itself, before it
looks for the first function.  Written against `numba.core.caching` of Numba 0.68.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from numba.core.caching import FunctionCache, UserProvidedCacheLocator


class ReadableCacheLocator(UserProvidedCacheLocator):
    """Take the folder that ``NUMBA_CACHE_DIR`` names, be it writable or not."""

    def ensure_cache_path(self) -> None:
        """Make the folder where there is none and that is possible."""
        folder = Path(self._cache_path)
        if not folder.is_dir():
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True)


@contextlib.contextmanager
def _forgive(_cache: FunctionCache) -> Iterator[None]:
    with contextlib.suppress(OSError):
        yield


# Numba forgives errors of the file system on Windows alone.  Here too: what cannot be read is compiled, and what cannot be
# kept (a function that a user wrote, say) is compiled again next time.
FunctionCache._guard_against_spurious_io_errors = _forgive  # type: ignore[method-assign, assignment]  # noqa: SLF001
