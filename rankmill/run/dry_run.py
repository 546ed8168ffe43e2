"""A dry run: the same stages on hard links to the work folder and the registry, which both stay unchanged.

Of a registry in a bucket the models of the configuration are copied.

All files of a run are written under a temporary name, published by a rename and never modified.  So hard links take no disk
space, and replacing a link does not change the original.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.storage.location import ObjectUrl
from rankmill.registry import Registry
from rankmill.run import CACHE, DRIFT, EVALUATION, GATE, LAST_RUN, REPORT
from rankmill.run.run_lock import LEASE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rankmill.config import TrainSection
    from rankmill.foundation.storage.location import Location

DRY_RUN = "dry-run"
REGISTRY = ".registry"  # not the name of a stage
OF_REGISTRY = ("FORMAT.json", "blobs", "models")
KEPT = (EVALUATION, GATE, DRIFT, REPORT, LAST_RUN)
"""The files of a dry run that are kept."""


@contextmanager
def links_to(work: Path, registry: Location, training: TrainSection) -> Iterator[tuple[Path, Path]]:
    """Yield the work folder ``work / "dry-run"`` and a registry in it, with links to the files of ``work`` and ``registry``.

    At the end only `KEPT` remains, until the next dry run.
    """
    dry = work / DRY_RUN
    shutil.rmtree(dry, ignore_errors=True)
    dry.mkdir()
    try:
        _link_tree(work, dry, [path.name for path in work.iterdir() if _is_of_runs(path)])
        if isinstance(registry, ObjectUrl):
            known = Registry(registry).names()
            needed = {training.name, (training.base_model or "").partition("@")[0]}
            Registry(registry).copy(Registry(dry / REGISTRY), [name for name in known if name in needed])
        elif Registry(registry).exists():
            _link_tree(registry, dry / REGISTRY, OF_REGISTRY)
        yield dry, dry / REGISTRY
    finally:
        for path in dry.iterdir():
            if path.name in KEPT:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _is_of_runs(path: Path) -> bool:
    """Whether ``path`` is output of stages, rather than a file for appending or of a killed run."""
    return path.name not in {DRY_RUN, LEASE, CACHE} and path.suffix != ".jsonl" and not path.name.startswith(".")


def _link_tree(source: Path, destination: Path, names: Iterable[str]) -> None:
    destination.mkdir(exist_ok=True)
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, destination / name, copy_function=_link)
        else:
            _link(source / name, destination / name)


def _link(source: str | Path, destination: str | Path) -> None:
    try:
        os.link(source, destination)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK}:
            raise
        shutil.copy2(source, destination)
