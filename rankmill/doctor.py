"""Facts about the machine for bug reports.

These are versions, cores, memory, kernel cache, and the file system of the registry.
"""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import rankmill
from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import RankmillError, one_line
from rankmill.foundation.kernels.compiling import LEVEL, shipped_kernels
from rankmill.foundation.storage.location import Location, ObjectUrl
from rankmill.registry.blob_store import Store
from rankmill.registry.rendering import size_text

SETTINGS = ("NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_DISABLE_JIT", "RANKMILL_REGISTRY")
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2 and 1


def facts_of(registry: Location) -> dict[str, str]:
    """Inspect this installation and the folder or bucket ``registry``, where no file is left.

    Paths at home begin with ``~``.
    """
    kernels = Path(os.environ.get("NUMBA_CACHE_DIR") or rankmill.__path__[0])
    problem = _problem(registry)
    return {
        "rankmill": f"{rankmill.__version__}, in {_short(rankmill.__path__[0])}",
        "python": f"{platform.python_version()} ({platform.python_implementation()}) on {platform.platform()}",
        "libraries": ", ".join(_versions()),
        "cores": f"{available_cores()} usable of {os.cpu_count() or 1}",
        "memory": _memory(),
        "kernel cache": f"{_short(kernels)}: {'' if os.access(_nearest(kernels), os.W_OK) else 'NOT '}writable",
        "shipped kernels": f"for {LEVEL}, used" if shipped_kernels() else "none for these versions and this CPU",
        "registry": f"{_short(registry)}: {problem or 'can hold a registry'}",
        "settings": ", ".join(f"{name}={_short(os.environ[name])}" for name in SETTINGS if name in os.environ) or "-",
        "problem": problem,
    }


def _problem(registry: Location) -> str:
    """Return why that place cannot hold a registry; empty if it can."""
    try:
        if isinstance(registry, ObjectUrl):
            Store(registry).storage.probe()
            return ""
        with tempfile.TemporaryDirectory(prefix="doctor.", dir=_nearest(registry / "tmp")) as trial:
            Store(Path(trial)).storage.probe()
    except (OSError, RankmillError) as error:
        return f"cannot hold a registry: {one_line(error)}"
    return ""


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [Path(path).read_text() for path in LIMITS if os.access(path, os.R_OK)]
    limit = min((int(text) for text in limits if text.strip().isdecimal()), default=total)
    return f"{size_text(total)}; {f'container limit {size_text(limit)}' if limit < total else 'no container limit'}"


def _versions() -> Iterator[str]:
    with suppress(metadata.PackageNotFoundError):  # a source tree without installation
        lines = [line for line in metadata.requires("rankmill") or [] if "extra ==" not in line]
        for name in [*(re.split(r"[^A-Za-z0-9._-]", line)[0] for line in lines), "pandas", "scikit-learn"]:
            with suppress(metadata.PackageNotFoundError):
                yield f"{name} {metadata.version(name)}"


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def _short(path: object) -> str:
    text, home = str(path), os.path.expanduser("~")  # noqa: PTH111 - Path.home() fails without a home
    return "~" + text[len(home) :] if home != "/" and (text + os.sep).startswith(home + os.sep) else text
