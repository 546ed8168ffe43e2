"""``@kernel`` compiles a function with Numba and keeps the machine code on disk, for every layer.

Numba's own ``cache=True`` falls short in five ways, so kernels have a cache of their own, a subclass of Numba 0.68's:

- It notices edits in the file of a function alone.  Kernels call functions of other files, so here machine code is used
  only while the function's module *and all that it imports of ours, directly or not,* are what they were.
- Several processes that start at once compile the same kernels.  Here one compiles a kernel and the others wait for it.
- Its files are written in two steps: another process may find machine code for other types.  Here each file is whole,
  has a checksum, and says what it was compiled from and for.
- It refuses a ``NUMBA_CACHE_DIR`` that cannot be written.  Here such a folder is read (the image's, under any user),
  and what it lacks is compiled in every process.
- It says nothing when a first command waits for half a minute: see :func:`compilation_announced`.

A wheel and the image come with kernels compiled for `LEVEL`, which most machines can run.  A kernel that has not been
compiled for this machine is looked for there, too: see :func:`shipped_kernels`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import llvmlite
import numba
import numpy as np
from numba import njit, types
from numba.core import config, event
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

FIRST = "compiling the kernels for this machine, once; this takes half a minute, or longer if other programs are busy"
MORE = "compiling kernels that were not needed here before; they are kept"
EVERY_TIME = "compiling the kernels, which takes half a minute or longer every time: {folder} cannot be written"
MORE_EVERY_TIME = "compiling kernels that are not kept here, now and every time: {folder} cannot be written"
WAITING = "waiting for another process that is compiling the same kernels"

_NOT_UNPICKLED = (pickle.UnpicklingError, AttributeError, ImportError, EOFError, IndexError, TypeError, ValueError)
_PATIENCE_SECONDS = 300.0  # for another process, which may have been stopped; after that, the kernel is compiled twice
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import\b[ \t]*(\([^)]*\)|(?:\\\n|[^\n])*)|import[ \t]+([^\n]*))", re.MULTILINE
)
TOOLS = f"py{sys.version_info[0]}{sys.version_info[1]}-{numba.__version__}-{llvmlite.__version__}-{np.__version__}"
_SETTINGS = ("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "DISABLE_INTEL_SVML", "LOOP_VECTORIZE", "OPT", "SLP_VECTORIZE")
_ANNOTATED = 6  # place of the text in what Numba keeps
_WAIT = "rankmill:wait"  # an event beside Numba's own
_X86_64_V3 = "sse3 ssse3 sse4.1 sse4.2 popcnt cx16 sahf avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
_LEVELS = {"x86_64": ("x86-64-v3", tuple(f"+{feature}" for feature in _X86_64_V3.split()))}
LEVEL, _NEEDED = _LEVELS.get(os.uname().machine, ("generic", ()))  # as LLVM names the CPU and its features
SHIPPED = Path(__file__).parents[2] / "compiled" / f"{LEVEL}-{TOOLS.rpartition('.')[0]}"  # without NumPy's last number
_folders: dict[str, set[str]] = {}  # layer -> cache folders of its kernels that have been imported


def kernel(function: Callable[..., Any] | None = None, *, allocates: bool = False, **options: Any) -> Any:
    """Compile ``function`` without the interpreter's lock and with NumPy's division; keep the machine code on disk.

    A kernel that calls another one with arrays would add to and take from the counts of references to each of them, in
    atomic steps of 5 ns: more than many kernels take themselves.  So references are not counted.  A kernel that makes
    arrays needs the count and ``allocates``.  No kernel returns an array: another one would not give it back.  One that
    returns a part of an array that it was given has ``inline="always"``, which compiles it into its callers.

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
        kept = dispatcher._cache = _KernelCache(function, dispatcher)  # noqa: SLF001 - what cache=True sets
        dispatcher.compile = kept.in_turn(dispatcher.compile)
    return dispatcher


def sources_digest(module: str, path: Path) -> str:
    """Return the sha256 over a module's source and the sources of all modules it imports.

    Only modules of its own package or of rankmill count.

    Imports are read from the sources, so that a constant counts as well as a function.  Those of other libraries do
    not, nor does this module: what it asks of Numba is in the key of each kernel.
    """
    digests = {__name__: ""}
    waiting = [(module, path)]
    while waiting:
        name, file = waiting.pop()
        if name not in digests:
            facts = file.stat()
            digests[name], imports = _read_source(name, file, facts.st_mtime_ns, facts.st_size)
            waiting += imports
    return hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()


@cache
def _read_source(module: str, path: Path, _mtime: int, _size: int) -> tuple[str, list[tuple[str, Path]]]:
    """Return the digest of a module, and names and files of the modules that it imports.

    Only modules of its package, of rankmill or of its folder count.
    """
    source = path.read_bytes()
    depth = module.count(".") + (path.name == "__init__.py")
    named: list[str] = []
    for origin, names, modules in _IMPORT.findall(source):
        if modules:
            named += re.findall(r"[.\w]+", modules.decode())
        else:
            start = origin.decode()
            if start.startswith("."):  # one dot is the folder of the module, two are the one above
                below = start.lstrip(".")
                above = module.split(".")[: depth + 1 - len(start) + len(below)]
                start = ".".join([*above, below] if below else above)
            named += [start, *(f"{start}.{name}" for name in re.findall(r"\w+", names.decode()))]
    folders = {
        module.partition(".")[0]: path.parents[min(depth, len(path.parents) - 1)],
        __name__.partition(".")[0]: Path(__file__).parents[__name__.count(".")],
    }
    found = []
    for name in dict.fromkeys(named):
        beside = path.parent if not depth and "." not in name else None  # a script finds modules in its own folder
        folder = folders.get(name.partition(".")[0], beside)
        if folder is not None:
            stem = folder / name.replace(".", "/")
            found += [
                (name, file) for file in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py") if file.is_file()
            ]
    return hashlib.sha256(source).hexdigest(), found


@cache
def shipped_kernels() -> Path | None:
    """Return the folder of the kernels shipped with this package; None if none match these versions and this CPU.

    ``NUMBA_CPU_NAME``, ``NUMBA_CPU_FEATURES`` and ``NUMBA_ENABLE_AVX`` say what Numba may use of the CPU, and are
    heeded.
    """
    if not SHIPPED.is_dir():
        return None
    _, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    runs = (cpu, features) == (LEVEL, "") or set(_NEEDED) <= set(features.split(","))
    return SHIPPED if runs else None


@contextmanager
def without_shipped_kernels() -> Iterator[None]:
    """Use no shipped kernel in this context, so that all are compiled for this machine."""
    _KernelFiles.shipped_are_used = False
    try:
        yield
    finally:
        _KernelFiles.shipped_are_used = True


class _NamedFolder(UserProvidedCacheLocator):
    """The folder that ``NUMBA_CACHE_DIR`` names, writable or not."""

    def ensure_cache_path(self) -> None:
        folder = Path(self._cache_path)
        if not folder.is_dir():  # create nothing on an image with read-only folders
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)


class _Implementation(CompileResultCacheImpl):
    """Kernels are kept in the named folder, else beside their sources, else in the user's home."""

    _locator_classes: list[type[object]] = [_NamedFolder, InTreeCacheLocator, UserWideCacheLocator]  # noqa: RUF012 - as Numba declares it

    def reduce(self, cres: Any) -> tuple[Any, ...]:
        """Return what is kept, without the annotated source that only ``inspect_types`` prints: a fifth of it."""
        found = list(super().reduce(cres))
        found[_ANNOTATED] = ""
        return tuple(found)


class _KernelFiles:
    """The files of one kernel: one for the types of arguments that it has been compiled for.

    Their names have digests of the sources and of the types, so that none is ever changed: it is published whole, and
    deleted when the same Python and Numba have compiled newer sources.  Shipped kernels have such files in one folder,
    which is only read; ``shipped_as`` is the kernel's name there.
    """

    shipped_are_used = True

    def __init__(self, folder: str, kernel: str, sources: str, shipped_as: str = "") -> None:
        self._folder, self._sources, self._shipped_as = Path(folder), sources, shipped_as
        self._prefix = f"{kernel}.{TOOLS}."

    def _name(self, key: object) -> str:
        return f"{self._sources[:16]}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"

    def load(self, key: Any) -> Any:
        """Return what was kept for ``key``, or was shipped for its types; None if neither is there and whole."""
        found = self._read(self._folder / f"{self._prefix}{self._name(key)}", key)
        if found is None and self._shipped_as and self.shipped_are_used:
            shipped = shipped_kernels()
            if shipped is not None:
                signature, (triple, *_), *others = key
                key = (signature, (triple, LEVEL, ""), *others)
                found = self._read(shipped / f"{self._shipped_as}.{self._name(key)}", key)
        return found

    def _read(self, path: Path, key: object) -> Any:
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data[_CHECKSUM_BYTES:]).digest() != data[:_CHECKSUM_BYTES]:
            return None
        with suppress(*_NOT_UNPICKLED):
            sources, kept_for, kept = pickle.loads(data[_CHECKSUM_BYTES:])  # noqa: S301 - as trusted as the sources beside it
            if (sources, kept_for) == (self._sources, key):
                return kept
        return None

    def save(self, key: object, kept: object) -> None:
        """Keep ``kept`` for ``key``, and delete what was compiled from older sources; OSError."""
        data = dumps((self._sources, key, kept))
        path = self._folder / f"{self._prefix}{self._name(key)}"
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            unfinished.write_bytes(hashlib.sha256(data).digest() + data)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        for other in self._folder.glob(f"{self._prefix}*"):
            if not other.name.startswith(f"{self._prefix}{self._sources[:16]}."):
                other.unlink(missing_ok=True)


class _Turns:
    """Locks of the kernels of one folder, between processes; the system frees those of a process that ends.

    Each is one byte of one file.  A process that compiles a kernel takes the locks of those that it calls, too: calls
    have no cycles, so nobody waits in a circle.  One thread of a process compiles at a time.
    """

    def __init__(self, folder: str) -> None:
        self._path = Path(folder, "compiling.lock")
        self._file: IO[bytes] | None = None  # open while any is held: closing it frees all
        self._held: set[str] = set()

    def holds(self, kernel: str) -> bool:
        return kernel in self._held

    def take(self, kernel: str, when_waiting: Callable[[], object]) -> None:
        """Wait for the lock of a kernel.

        Continue without it in a read-only folder, or if the other process takes too long.
        """
        until = 0.0
        with suppress(OSError):
            self._file = self._file or self._path.open("ab")
            while not self._try(kernel):
                if not until:
                    until = time.monotonic() + _PATIENCE_SECONDS
                    when_waiting()
                elif time.monotonic() > until:
                    return
                time.sleep(0.02)
            self._held.add(kernel)

    def _try(self, kernel: str) -> bool:
        with suppress(BlockingIOError, PermissionError):  # another process has it
            fcntl.lockf(self._file or -1, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte_of(kernel))
            return True
        return False

    def free(self, kernel: str) -> None:
        self._held.discard(kernel)
        if self._file is not None:
            with suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _byte_of(kernel))
            if not self._held:
                self._file.close()
                self._file = None


def _byte_of(kernel: str) -> int:
    return int.from_bytes(hashlib.sha256(kernel.encode()).digest()[:7], "little")


_turns: dict[str, _Turns] = {}  # by cache folder
_sources: dict[Path, tuple[object, str]] = {}  # specification and digest of a module as it was imported


def _sources_of(function: Callable[..., Any], path: Path) -> str:
    """Return the digest of the sources of the function's module.

    It is computed once for all its kernels, and again after a reload.
    """
    specification = function.__globals__.get("__spec__")
    known = _sources.get(path)
    if known is None or specification is None or known[0] is not specification:
        known = _sources[path] = specification, sources_digest(function.__module__, path)
    return known[1]


class _KernelCache(FunctionCache):
    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any], dispatcher: Any) -> None:
        super().__init__(function)
        path = function.__code__.co_filename
        self._kernel = f"{Path(path).stem}.{function.__qualname__.replace('<', '').replace('>', '')}"
        self._dispatcher = dispatcher
        module, name = function.__module__.removeprefix("rankmill."), self._kernel.partition(".")[2]
        self._cache_file: Any = _KernelFiles(
            self._cache_path,
            self._kernel,
            _sources_of(function, Path(path)),
            f"{module}.{name}" if module != function.__module__ else "",  # kernels of users are not shipped
        )
        self._turns = _turns.setdefault(self._cache_path, _Turns(self._cache_path))
        self.layer = module.partition(".")[0]  # trainer, for one
        _folders.setdefault(self.layer, set()).add(self._cache_path)

    def in_turn(self, compile_for: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a method of the dispatcher that loads, or compiles what no other process is compiling."""

        def compile_in_turn(signature: Any) -> Any:
            with global_compiler_lock:
                outermost = not self._turns.holds(self._kernel)  # a kernel that calls itself is compiled meanwhile
                try:
                    return compile_for(signature)
                finally:
                    if outermost:
                        self._turns.free(self._kernel)

        return compile_in_turn

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached kernel; if there is none, wait for the lock to compile it, then look again."""
        _spare_scipy()
        found = super().load_overload(sig, target_context)
        if found is None and not self._turns.holds(self._kernel):
            self._turns.take(self._kernel, self._say_waiting)
            found = super().load_overload(sig, target_context)
        return found

    def _say_waiting(self) -> None:
        with event.trigger_event(_WAIT, {"dispatcher": self._dispatcher}):
            pass

    def save_overload(self, sig: Any, data: Any) -> None:
        if _has_array(data.signature.return_type):
            raise TypeError(
                f"{self._py_func.__qualname__} returns an array, which a kernel that calls it would not free"
            )
        super().save_overload(sig, data)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Return what machine code depends on besides the sources.

        These are types, CPU, the function's own code and Numba's settings.
        """
        settings = tuple(getattr(config, name) for name in _SETTINGS)
        options = sorted(self._dispatcher.targetoptions.items())
        return (
            *super()._index_key(sig, codegen),
            _spelled(sig),
            self._py_func.__code__.co_firstlineno,
            settings,
            options,
        )

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        """Compile what cannot be read; what cannot be stored is compiled again next time."""
        with suppress(OSError):
            yield


@cache
def _spare_scipy() -> None:
    """Let Numba detect SciPy without importing its linear algebra.

    The import takes .15 s and 15 MB in each process, and no kernel uses it.

    Functions of users that do, import it when they are compiled.
    """
    from numba.np import linalg

    checked = linalg.ensure_blas
    if "scipy" in sys.modules and "numba.np.arraymath" not in sys.modules:  # Numba has looked for it
        linalg.ensure_blas = lambda: None
        try:
            from numba.np import arraymath
        finally:
            linalg.ensure_blas = checked
        arraymath.ensure_blas = checked  # type: ignore[attr-defined]


def _spelled(kind: Any) -> str:
    """Return a type with the names of its fields: of two named tuples, they may be all that differs."""
    parts = kind if isinstance(kind, tuple) else getattr(kind, "types", getattr(kind, "args", ()))
    return f"{kind}{getattr(kind, 'fields', '')}{''.join(map(_spelled, parts))}"


def _has_array(kind: types.Type) -> bool:
    return isinstance(kind, types.Array) or any(map(_has_array, getattr(kind, "types", ())))


def kernels_compiled(layer: str) -> bool:
    """Return whether the cache has any kernel of a layer, even of an older version, or any is shipped."""
    return shipped_kernels() is not None or any(any(Path(folder).glob("*.nbc")) for folder in _folders.get(layer, ()))


def cpu_and_folder() -> tuple[str, str]:
    """Return the CPU that kernels are compiled for, and the folder above those of the cache.

    Only modules imported so far count.
    """
    _, cpu, _ = cpu_target.target_context.codegen().magic_tuple()
    return cpu, os.path.commonpath(set().union(*_folders.values()))


class _First(event.Listener):
    """Calls ``say`` at the first compilation of a kernel that is to be kept; loading from the cache does not count."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say: Callable[[str], object] | None = say

    def on_start(self, compiling: event.Event) -> None:
        kept_in = compiling.data["dispatcher"]._cache  # noqa: SLF001 - Numba has no other way to ask
        if self._say is None or not isinstance(kept_in, _KernelCache):  # such as a user's own, not cached
            return
        say, self._say = self._say, None
        some = kernels_compiled(kept_in.layer)
        if not os.access(kept_in.cache_path, os.W_OK):
            say((MORE_EVERY_TIME if some else EVERY_TIME).format(folder=kept_in.cache_path))
        elif compiling.kind == _WAIT:
            say(WAITING)
        else:
            say(MORE if some else FIRST)

    def on_end(self, _: event.Event) -> None:
        """Do nothing."""


@contextmanager
def compilation_announced(say: Callable[[str], object]) -> Iterator[None]:
    """Call ``say`` with one line as soon as a kernel has to be compiled in this context, or awaited, and not again."""
    first = _First(say)
    with event.install_listener("numba:compile", first), event.install_listener(_WAIT, first):
        yield
