"""What the name of a file says: its format, its compression, and whether it belongs to another file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

from rankmill.foundation.errors import InputError
from rankmill.pipeline.sources.batch import Format
from rankmill.pipeline.sources.blocks import COMPRESSED

_TEXT = (".txt", ".letor", ".svm", ".svmlight", ".libsvm", ".dat", ".train", ".valid", ".vali", ".test")
SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    ".run": "run",
    **dict.fromkeys(_TEXT, "letor"),
}
"""Format by suffix of the name, a compression's left out; a file of another suffix is taken for LETOR text if it is named."""
COMPANIONS = (".query", ".group")
"""Suffixes of files that belong to the file whose name they follow, and hold no rows."""


def check_file(path: Path) -> None:
    """Raise InputError unless ``path`` is a file whose name is text: it is written down in manifests."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        name = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise InputError(f"{name}: the bytes of this name are not UTF-8; rename it") from None
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name the files in it")
    if not path.is_file():
        near = path.with_name(f"_{path.name}")  # as the folders of a dataset are called now
        raise InputError(f"{path}: no such file" + (f"; did you mean {near}?" if near.exists() else ""))


def format_of(path: Path, wanted: str = "auto") -> Format:
    """Return the format of ``path``: ``wanted``, or by its suffix for ``auto`` (LETOR text where that says nothing)."""
    formats: tuple[Format, ...] = get_args(Format)
    for known in formats:
        if wanted == known != "auto":
            return known
    if wanted != "auto":
        raise InputError.unknown("format", wanted, formats)
    return SUFFIXES.get(uncompressed(path).suffix.lower(), "letor")


def uncompressed(path: Path) -> Path:
    """Return ``path`` without the suffix of a compression."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
