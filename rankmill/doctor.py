"""Facts about the machine for bug reports: versions, cores, memory, compiled kernels, and the file system of the registry."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import rankmill
from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import RankmillError, one_line
from rankmill.foundation.records import to_line
from rankmill.foundation.storage.disk import Disk
from rankmill.foundation.storage.location import Location, ObjectUrl
from rankmill.foundation.storage.locks import try_lock
from rankmill.foundation.storage.staging import Staging
from rankmill.foundation.terminal import labelled
from rankmill.registry.blob_store import Store
from rankmill.registry.registry_format import WAYS
from rankmill.registry.rendering import size_text

OPTIONAL = ("altair", "pandas", "scikit-learn")
SETTINGS = ("NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_DISABLE_JIT", "RANKMILL_REGISTRY")
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2 and 1
_UNLIMITED = 1 << 60  # version 1 writes a number just below 2**63 for "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Total and available memory of the machine, and the limit of the container in bytes; None: unknown or none."""

    total: int
    available: int | None
    limit: int | None

    @classmethod
    def read(cls) -> Memory:
        """Read the values from the system."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        available = re.search(r"^MemAvailable: *(\d+)", _text("/proc/meminfo"), flags=re.MULTILINE)
        limits = [int(text) for path in LIMITS if (text := _text(path).strip()).isdecimal()]
        limit = min((limit for limit in limits if limit < _UNLIMITED), default=None)
        return cls(total=total, available=None if available is None else int(available[1]) * 1024, limit=limit)

    def words(self) -> str:
        """Say it in one line."""
        available = "" if self.available is None else f", {size_text(self.available)} available"
        limit = "no container limit" if self.limit is None else f"container limit {size_text(self.limit)}"
        return f"{size_text(self.total)}{available}; {limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCache:
    """Folder of compiled kernels, and how many kernels are compiled for this version, Numba and CPU."""

    folder: str
    writable: bool
    kernels: int
    compiled: int

    @classmethod
    def read(cls) -> KernelCache:
        """Import all kernels and look up their machine code; nothing is compiled."""
        caches = [(kernel, kernel._cache) for kernel in _kernels()]  # noqa: SLF001 - Numba has no public way
        folders = {cache.cache_path for _, cache in caches}
        compiled = 0
        for kernel, cache in caches:
            machine = kernel.targetctx.codegen().magic_tuple()
            with suppress(OSError):
                compiled += any(key[1] == machine for key in cache._cache_file._load_index())  # noqa: SLF001 - as above
        return cls(
            folder=_short(os.path.commonpath(folders)) if folders else "",
            writable=all(os.access(_nearest(Path(folder)), os.W_OK) for folder in folders),
            kernels=len(caches),
            compiled=compiled,
        )

    def words(self) -> str:
        """Say it in one line."""
        cold = "" if self.compiled else "; the first commands compile the kernels that they need"
        how = "writable" if self.writable else "NOT writable: missing kernels are compiled in every process"
        return f"{self.folder}: {how}; {self.compiled} of {self.kernels} kernels compiled{cold}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """Abilities of the file system of a registry's folder; ``problem``: why it cannot hold a registry, None if it can."""

    folder: str
    exists: bool
    """Whether the folder exists; if not, its nearest existing parent was tested."""
    publishes_by: str | None = None
    """``link`` or ``rename``: how files are published."""
    flushes_files: bool = False
    flushes_folders: bool = False
    locks: bool | None = False
    """None: nothing to lock, as in a bucket."""
    free: int
    problem: str | None = None

    @classmethod
    def probe(cls, folder: Location) -> FileSystem:
        """Test everything with a few small files in a temporary folder; of a bucket, that one of two writers wins."""
        if isinstance(folder, ObjectUrl):
            return cls._of_bucket(folder)
        place = _nearest(folder)
        inside = folder / "tmp"  # the staging folder of a registry: if this process dies, the next writer cleans it up
        found = cls(folder=_short(folder), exists=folder.is_dir(), free=shutil.disk_usage(place).free)
        try:
            with tempfile.TemporaryDirectory(prefix="doctor.", dir=inside if inside.is_dir() else place) as trial:
                return found._tested(Path(trial))
        except OSError as error:
            return replace(found, problem=f"cannot hold a registry: {error.strerror or error}")

    @classmethod
    def _of_bucket(cls, url: ObjectUrl) -> FileSystem:
        found = cls(folder=str(url), exists=False, free=0)
        try:
            store = Store(url)
            exists, way = store.exists(), store.storage.probe()
        except (OSError, RankmillError) as error:
            return replace(found, problem=one_line(error))
        return replace(found, exists=exists, publishes_by=way, flushes_files=True, flushes_folders=True, locks=None)

    def _tested(self, trial: Path) -> FileSystem:
        """Return the abilities found in the folder ``trial``; OSError if files cannot be published there."""
        disk, file = Disk(), trial / "file"
        file.write_bytes(b"")
        found = replace(self, publishes_by=Staging(trial / "staged", disk).probe())
        with file.open("r+b") as first, file.open("r+b") as second:
            with suppress(OSError):
                disk.fsync(first.fileno())
                found = replace(found, flushes_files=True)
            with suppress(OSError):
                disk.fsync_folder(trial)
                found = replace(found, flushes_folders=True)
            with suppress(OSError):
                found = replace(found, locks=try_lock(first) and not try_lock(second))
        return found

    def words(self) -> str:
        """Say it in one line."""
        where = self.folder if self.exists else f"{self.folder} (not created yet)"
        free = f"{size_text(self.free)} free"
        if self.publishes_by is None:
            return f"{where}: {self.problem}; {free}"
        if self.locks is None:
            return f"{where}: {WAYS[self.publishes_by]}"
        able = {"fsync of files": self.flushes_files, "fsync of folders": self.flushes_folders, "locks": self.locks}
        return f"{where}: {WAYS[self.publishes_by]}; {', '.join(name if can else f'NO {name}' for name, can in able.items())}; {free}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """All facts.  Paths in the home folder begin with ``~``."""

    rankmill: str
    installed_in: str
    python: str
    system: str
    libraries: Mapping[str, str]
    """Versions by name: required libraries, then installed optional ones."""
    cores: int
    usable_cores: int
    memory: Memory
    kernel_cache: KernelCache
    registry: FileSystem
    settings: Mapping[str, str]
    """Environment variables that affect rankmill."""

    @classmethod
    def of(cls, registry: Location) -> Doctor:
        """Inspect this installation and the folder ``registry``, where no file is left."""
        return cls(
            rankmill=rankmill.__version__,
            installed_in=_short(Path(rankmill.__file__).parent),
            python=f"{platform.python_version()} ({platform.python_implementation()})",
            system=platform.platform(),
            libraries=dict(_versions([*_required(), *OPTIONAL])),
            cores=os.cpu_count() or 1,
            usable_cores=available_cores(),
            memory=Memory.read(),
            kernel_cache=KernelCache.read(),
            registry=FileSystem.probe(registry),
            settings={name: _short(os.environ[name]) for name in SETTINGS if name in os.environ},
        )

    def render(self, *, json: bool = False) -> str:
        """Return it as text, or as one JSON object."""
        if json:
            return to_line(self)
        lines = [
            ("rankmill", f"{self.rankmill}, in {self.installed_in}"),
            ("Python", f"{self.python} on {self.system}"),
            ("libraries", ", ".join(f"{name} {version}" for name, version in self.libraries.items())),
            ("cores", f"{self.usable_cores} usable of {self.cores}"),
            ("memory", self.memory.words()),
            ("kernel cache", self.kernel_cache.words()),
            ("registry", self.registry.words()),
            ("settings", ", ".join(f"{name}={value}" for name, value in self.settings.items()) or "none"),
        ]
        return "\n".join(labelled(label, words) for label, words in lines)

    def require(self) -> None:
        """Raise OSError if the folder cannot hold a registry."""
        if self.registry.problem is not None:
            raise OSError(errno.EOPNOTSUPP, self.registry.problem, self.registry.folder)


def _kernels() -> Iterator[Any]:
    """Yield every compiled function of the package with a cache: all except those always inlined."""
    from rankmill.foundation.kernels import compiling

    seen = set()
    for module in walk_packages(rankmill.__path__, "rankmill."):
        if module.name.endswith("_kernels") or module.name.startswith(compiling.__package__ or ""):
            for found in vars(import_module(module.name)).values():
                kept = isinstance(getattr(found, "_cache", None), compiling._KernelCache)  # noqa: SLF001 - as above
                if kept and found.targetoptions.get("inline") != "always" and id(found) not in seen:
                    seen.add(id(found))
                    yield found


def _required() -> list[str]:
    """Return the names of the required libraries."""
    try:
        lines = metadata.requires("rankmill") or []
    except metadata.PackageNotFoundError:  # a source tree without installation
        lines = []
    return [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in lines if "extra ==" not in line]


def _versions(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _nearest(folder: Path) -> Path:
    """Return ``folder`` or its nearest existing parent."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def _short(path: str | Path) -> str:
    text, home = os.fspath(path), os.path.expanduser("~")  # noqa: PTH111 - Path.home() fails without a home
    return "~" + text[len(home) :] if home != "/" and (text + os.sep).startswith(home + os.sep) else text


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
