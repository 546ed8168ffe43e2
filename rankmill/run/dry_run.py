"""A dry run: the same stages on links to the work folder and the registry, which both stay unchanged.

All that a run leaves is written aside and put in its place by a rename, and never changed there: a second name for such a
file costs no room, and what is put in the place of one name leaves the other as it was.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.registry import Registry
from rankmill.run import DRIFT, EVALUATION, GATE, LAST_RUN, REPORT
from rankmill.run.run_lock import LEASE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DRY_RUN = "dry-run"
REGISTRY = ".registry"  # a name that no stage has
OF_REGISTRY = ("FORMAT.json", "blobs", "models")
KEPT = (EVALUATION, GATE, DRIFT, REPORT, LAST_RUN)
"""What stays of a dry run to be looked at."""


@contextmanager
def links_to(work: Path, registry: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the work folder ``work / "dry-run"`` and a registry in it that hold what ``work`` and ``registry`` do.

    At the end only `KEPT` stays there, until the next dry run.
    """
    dry = work / DRY_RUN
    shutil.rmtree(dry, ignore_errors=True)
    dry.mkdir()
    try:
        _link_tree(work, dry, [path.name for path in work.iterdir() if _is_of_runs(path)])
        if Registry(registry).exists():
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
    """Tell whether what stages have made is in ``path``, and not what is appended to, or of a run that was killed."""
    return path.name not in {DRY_RUN, LEASE} and path.suffix != ".jsonl" and not path.name.startswith(".")


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
