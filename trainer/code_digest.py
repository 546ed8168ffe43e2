"""A digest of the code that makes a model of a dataset: our own, as it is installed."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib import import_module
from pathlib import Path

PACKAGES = ("rankmill.pipeline", "rankmill.scorer", "rankmill.trainer")


@cache
def code_digest() -> str:
    """Return the sha256 over every ``.py`` file of pipeline, scorer and trainer: its path in the package and its bytes.

    The same wherever the same code is installed; a comment changes it, too.  Files are read once a process, 1 MB in all.
    """
    digest = hashlib.sha256()
    for package in PACKAGES:
        for folder in import_module(package).__path__:
            digest.update(digest_of_folder(package, Path(folder)))
    return digest.hexdigest()


def digest_of_folder(package: str, folder: Path) -> bytes:
    """Return the sha256 over the ``.py`` files below ``folder``, in the order of their paths, as of ``package``."""
    digest = hashlib.sha256()
    # In a checkout rankmill/pipeline and the like are links: they are followed, as installed they are folders.
    paths = [Path(root, name) for root, _, names in os.walk(folder, followlinks=True) for name in names]
    files = {path.relative_to(folder).as_posix(): path for path in paths if path.suffix == ".py"}
    for name in sorted(files):
        data = files[name].read_bytes()
        digest.update(f"{package}/{name}\n{len(data)}\n".encode() + data)
    return digest.digest()
