"""Say so when kernels are compiled: the first training on a machine waits for it, later ones load them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any

from numba.core import event
from numba.core.caching import FunctionCache

FIRST = "compiling the kernels for this machine, once; this takes some 20 seconds"
MORE = "compiling kernels that were not needed here before; they are kept"
EVERY_TIME = "compiling the kernels, which takes some 20 seconds every time: {folder} cannot be written"


class _First(event.Listener):
    """Calls ``say`` at the first compilation of a kernel that is to be kept; loading from the cache is none."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say: Callable[[str], object] | None = say

    def on_start(self, compiling: event.Event) -> None:
        kept_in = compiling.data["dispatcher"]._cache  # noqa: SLF001 - Numba has no other way to ask
        if self._say is None or not isinstance(kept_in, FunctionCache):  # a user's own function, say: nobody keeps it
            return
        say, self._say = self._say, None
        folder = Path(kept_in.cache_path)
        if not os.access(folder, os.W_OK):
            say(EVERY_TIME.format(folder=folder))
        else:
            say(MORE if kernels_compiled() else FIRST)

    def on_end(self, _: event.Event) -> None:
        """Nothing to say."""


def kernels_compiled() -> bool:
    """Return whether kernels that every training needs are in the cache, be it those of an older version."""
    from rankmill.trainer.growing import _kernels

    kernel: Any = _kernels.partition
    return any(Path(kernel._cache.cache_path).glob("*.nbi"))  # noqa: SLF001


@contextmanager
def compilation_announced(say: Callable[[str], object]) -> Iterator[None]:
    """Call ``say`` with one line as soon as a kernel has to be compiled in this context, and not again."""
    with event.install_listener("numba:compile", _First(say)):
        yield


@cache
def guard_cache() -> None:
    """Let this process, from now on, take turns with others of its kind at Numba's files of compiled kernels.

    Numba numbers the machine code of a function for several types of arguments, and writes number and code in two steps: of
    two processes that compile at once, one may find the code of other types under its number.  Written against
    `numba.core.caching` of Numba 0.68; where its folder cannot be written there is nothing to take turns at.
    """
    from numba.core.caching import IndexDataCacheFile

    for name in ("save", "load"):
        setattr(IndexDataCacheFile, name, _in_turn(getattr(IndexDataCacheFile, name)))


def _in_turn(method: Callable[..., Any]) -> Callable[..., Any]:
    import fcntl

    @wraps(method)
    def in_turn(self: Any, *arguments: Any) -> Any:
        if not os.access(self._cache_path, os.W_OK):
            return method(self, *arguments)
        try:
            lock = Path(self._cache_path, "turns.lock").open("ab")  # noqa: SIM115 - closed below
        except OSError:
            return method(self, *arguments)
        with lock:  # closing it lets go
            fcntl.flock(lock, fcntl.LOCK_EX)
            return method(self, *arguments)

    return in_turn
