"""Digest of the installed code. Artefacts record it, and caches are rebuilt when it changes."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib import import_module
from pathlib import Path

OF_TRAINING = ("rankmill.pipeline", "rankmill.scorer", "rankmill.trainer")  # what determines a model


@cache
def code_digest(*packages: str) -> str:
    """Return the sha256 over every ``.py`` file of ``packages`` (dotted names) and of the foundation, which all use.

    Paths in the package and bytes count, so it is the same wherever the same code is installed; a comment changes it,
    too. Files are read once a process, 1 MB in all.

    >>> code_digest("rankmill.pipeline", "rankmill.scorer") == code_digest("rankmill.scorer", "rankmill.pipeline")
    True
    """
    digest = hashlib.sha256()
    for package in sorted({"rankmill.foundation", *packages}):
        digest.update(_of_package(package))
    return digest.hexdigest()


def digest_of_folder(package: str, folder: Path) -> bytes:
    """Return the sha256 over the ``.py`` files below ``folder``, in the order of their paths, as of ``package``."""
    digest = hashlib.sha256()
    # In a checkout rankmill/pipeline and others are links, in an installation folders: links are followed.
    paths = [Path(root, name) for root, _, names in os.walk(folder, followlinks=True) for name in names]
    files = {path.relative_to(folder).as_posix(): path for path in paths if path.suffix == ".py"}
    for name in sorted(files):
        data = files[name].read_bytes()
        digest.update(f"{package}/{name}\n{len(data)}\n".encode() + data)
    return digest.digest()


@cache
def _of_package(package: str) -> bytes:
    return b"".join(digest_of_folder(package, Path(folder)) for folder in import_module(package).__path__)
