"""``@kernel`` compiles a function with Numba and keeps the machine code on disk, for every room.

Numba's own ``cache=True`` falls short in four ways, so kernels have a cache of their own, a subclass of Numba 0.68's:

- It notices edits in the file of a function alone.  Kernels call functions of other files, so here machine code is used
  only while *all* kernel sources are what they were: every ``*_kernels.py`` and everything in this folder.
- Its files are written in two steps without a lock: of two processes, one may find machine code for other types under its
  number.  Here processes take turns, and the index names only files that are complete.
- It refuses a ``NUMBA_CACHE_DIR`` that cannot be written.  Here such a folder is read (the image's, under any user), and
  what it lacks is compiled in every process.
- It says nothing when a first command waits for half a minute: see :func:`compilation_announced`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit, types
from numba.core import event
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)

FIRST = "compiling the kernels for this machine, once; this takes half a minute, or longer if other programs are busy"
MORE = "compiling kernels that were not needed here before; they are kept"
EVERY_TIME = "compiling the kernels, which takes half a minute or longer every time: {folder} cannot be written"

_NOT_UNPICKLED = (pickle.UnpicklingError, AttributeError, ImportError, EOFError, IndexError, TypeError, ValueError)
_ROOMS = ("foundation", "pipeline", "scorer", "trainer")
_folders: dict[str, set[str]] = {}  # room -> cache folders of its kernels that have been imported


def kernel(function: Callable[..., Any] | None = None, *, allocates: bool = False, **options: Any) -> Any:
    """Compile ``function`` without the interpreter's lock and with NumPy's division; keep the machine code on disk.

    A kernel that calls another one with arrays would add to and take from the counts of references to each of them, in atomic
    steps of 5 ns: more than many kernels take themselves.  So references are not counted.  A kernel that makes arrays needs the
    count and ``allocates``.  No kernel returns an array: another one would not give it back.  One that returns a part of an array
    that it was given has ``inline="always"``, which compiles it into its callers.

    >>> @kernel
    ... def twice(x):
    ...     return x + x
    >>> twice(21)
    42
    """
    if function is None:
        return lambda f: kernel(f, allocates=allocates, **options)
    options |= {"_nrt": allocates}  # not in Numba's annotations
    dispatcher = njit(nogil=True, error_model="numpy", **options)(function)
    if dispatcher is not function and os.path.exists(function.__code__.co_filename):  # noqa: PTH110 - not for doctests
        dispatcher._cache = _KernelCache(function)  # noqa: SLF001 - what cache=True sets
    return dispatcher


@cache
def kernel_sources_digest() -> str:
    """Return the sha256 over all kernel sources as they are installed, in the order of their paths."""
    root, paths = Path(__file__).parents[2], []
    for room in _ROOMS:
        for folder, _, names in os.walk(root / room):
            shared = folder.endswith(os.path.join("foundation", "kernels"))  # noqa: PTH118
            paths += [Path(folder, name) for name in names if name.endswith("_kernels.py" if not shared else ".py")]
    digest = hashlib.sha256()
    for path in sorted(paths):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\n{len(data)}\n".encode() + data)
    return digest.hexdigest()


class _KeyedBySources:
    """Machine code is valid while its own file, which may be outside of the package, and all kernel sources are unchanged."""

    def get_source_stamp(self) -> tuple[Any, str]:
        return super().get_source_stamp(), kernel_sources_digest()  # type: ignore[misc]


class _NamedFolder(_KeyedBySources, UserProvidedCacheLocator):
    """The folder that ``NUMBA_CACHE_DIR`` names, writable or not."""

    def ensure_cache_path(self) -> None:
        folder = Path(self._cache_path)
        if not folder.is_dir():  # create nothing on an image with read-only folders
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)


class _BesideTheSource(_KeyedBySources, InTreeCacheLocator):
    """The ``__pycache__`` of an installation that may be written."""


class _OfTheUser(_KeyedBySources, UserWideCacheLocator):
    """A folder in the user's home."""


class _Implementation(CompileResultCacheImpl):
    _locator_classes: list[type[object]] = [_NamedFolder, _BesideTheSource, _OfTheUser]  # noqa: RUF012 - as Numba declares it


class _LockedFiles(IndexDataCacheFile):
    """The files of one kernel: an index, and one file for the types of arguments it has been compiled for."""

    def load(self, key: Any) -> Any:
        with _turn(self._cache_path, fcntl.LOCK_SH), suppress(*_NOT_UNPICKLED):
            return super().load(key)
        return None

    def save(self, key: Any, data: Any) -> None:
        with _turn(self._cache_path, fcntl.LOCK_EX):
            names = self._load_index()
            if key not in names:
                taken = set(names.values())
                names[key] = next(name for n in range(1, len(taken) + 2) if (name := self._data_name(n)) not in taken)
            self._save_data(names[key], data)  # before the index names it: a killed process leaves no wrong entry
            self._save_index(names)

    def _load_index(self) -> dict[Any, str]:
        """Return the names of files by types; none if the index names types of an older version that no longer exist."""
        with suppress(*_NOT_UNPICKLED):
            return dict(super()._load_index())
        return {}


class _KernelCache(FunctionCache):
    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _LockedFiles(self._cache_path, self._impl.filename_base, stamp)
        self.room = function.__module__.removeprefix("rankmill.").partition(".")[0]  # trainer, for one
        _folders.setdefault(self.room, set()).add(self._cache_path)

    def save_overload(self, sig: Any, data: Any) -> None:
        if _has_array(data.signature.return_type):
            raise TypeError(
                f"{self._py_func.__qualname__} returns an array, which a kernel that calls it would not free"
            )
        super().save_overload(sig, data)

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        """Compile what cannot be read; what cannot be stored is compiled again next time."""
        with suppress(OSError):
            yield


def _has_array(kind: types.Type) -> bool:
    return isinstance(kind, types.Array) or any(map(_has_array, getattr(kind, "types", ())))


@contextmanager
def _turn(folder: str, kind: int) -> Iterator[None]:
    """Hold the lock of a cache folder; a read-only folder needs no lock."""
    path = Path(folder, "turns.lock")
    try:
        lock = path.open("rb" if kind == fcntl.LOCK_SH and path.exists() else "ab")
    except OSError:
        yield
        return
    with lock:  # closing it releases the lock
        fcntl.flock(lock, kind)
        yield


def kernels_compiled(room: str) -> bool:
    """Return whether any kernel of a room, of those imported so far, is in the cache, even that of an older version."""
    return any(any(Path(folder).glob("*.nbi")) for folder in _folders.get(room, ()))


class _First(event.Listener):
    """Calls ``say`` at the first compilation of a kernel that is to be kept; loading from the cache does not count."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say: Callable[[str], object] | None = say

    def on_start(self, compiling: event.Event) -> None:
        kept_in = compiling.data["dispatcher"]._cache  # noqa: SLF001 - Numba has no other way to ask
        if self._say is None or not isinstance(kept_in, _KernelCache):  # such as a user's own, not cached
            return
        say, self._say = self._say, None
        if not os.access(kept_in.cache_path, os.W_OK):
            say(EVERY_TIME.format(folder=kept_in.cache_path))
        else:
            say(MORE if kernels_compiled(kept_in.room) else FIRST)

    def on_end(self, _: event.Event) -> None:
        """Do nothing."""


@contextmanager
def compilation_announced(say: Callable[[str], object]) -> Iterator[None]:
    """Call ``say`` with one line as soon as a kernel has to be compiled in this context, and not again."""
    with event.install_listener("numba:compile", _First(say)):
        yield
