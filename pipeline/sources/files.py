"""Find input files from paths, folders and patterns, and infer format and compression from their names."""

from __future__ import annotations

import os
from collections import defaultdict
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.publish import file_digest
from rankmill.pipeline.dataset_manifest import FEATURES, MANIFEST_NAME, UNJUDGED, earlier_name, path_in
from rankmill.pipeline.options import Format
from rankmill.pipeline.sources.blocks import COMPRESSED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_DOCUMENTS = frozenset({"readme", "license", "licence", "notice", "copying", "authors", "changelog"})


def find_files(given: Iterable[str | os.PathLike[str]], root: Path | None = None) -> list[Path]:
    """Return the files that are meant, sorted by path.

    A name of something that is there is that, whatever characters it has.  A folder stands for all files directly in it
    whose name has a known suffix or none, but for hidden ones (``.name``, ``_name``) and what is there to be read by people
    (``README``, ``LICENSE.txt``), or by programs (``manifest.json``).  Any other name with ``*``, ``?`` or
    ``[`` in it is a pattern, in which ``**`` stands for any number of folders; it matches files only.  Neither a folder nor
    a pattern means companions (:data:`~rankmill.pipeline.sources.files.COMPANIONS`).  A file that several patterns or folders mean is there once.

    Parameters
    ----------
    given
        Names of files and folders, and patterns.
    root
        What relative names start from, and no pattern itself; the current folder if left out.

    Raises
    ------
    InputError
        A name is of nothing, or a folder or pattern means no file.
    """
    plain: list[Path] = []
    expanded: dict[Path, Path] = {}
    for item in given:
        name = os.fspath(item)
        path = Path(name) if root is None else root / name
        if path.is_dir():
            found = _in_folder(path)
        elif path.exists() or not has_magic(name):
            check_file(path)
            plain.append(path)
            continue
        else:
            found = _matching(name, path, root)
        for file in found:
            check_file(file)
            place = file.resolve()
            expanded[place] = min(expanded.get(place, file), file)
    for path in plain:
        expanded.pop(path.resolve(), None)
    return sorted([*plain, *expanded.values()])


def refuse_copies(files: Sequence[Path]) -> None:
    """Raise InputError if two of ``files`` have the same bytes; only files of one size are read for that."""
    of_size: defaultdict[int, list[Path]] = defaultdict(list)
    for path in files:
        of_size[path.stat().st_size].append(path)
    for size, alike in of_size.items():
        if not size or len(alike) == 1:  # without any bytes there are no rows
            continue
        seen: dict[str, Path] = {}
        for path in alike:
            first = seen.setdefault(file_digest(path), path)
            if first is not path:
                raise InputError(
                    f"{first} and {path}: have the same bytes, so their rows would be counted twice; leave one out"
                )


def _matching(pattern: str, path: Path, root: Path | None) -> list[Path]:
    names = glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207  root is no pattern
    places = (Path(name) if root is None else root / name for name in names)
    found = [place for place in places if place.is_file() and not _is_companion(place)]
    if not found:
        raise InputError(f"no file matches {os.fspath(path)!r}")
    return found


def _in_folder(folder: Path) -> list[Path]:
    if folder.name in {UNJUDGED, earlier_name(UNJUDGED)} and path_in(folder.parent, MANIFEST_NAME).is_file():
        return _unjudged_of(folder.parent)
    if path_in(folder, MANIFEST_NAME).is_file() and (folder / FEATURES).is_dir():
        unjudged = path_in(folder, UNJUDGED)
        cure = f"{unjudged} has rows to re-rank" if unjudged.is_dir() else "it has no rows to re-rank"
        raise InputError(
            f"{folder}: is a dataset, not a folder of input files; {cure}. To evaluate a model on it:"
            f" rankmill evaluate {folder} --model NAME --split test"
        )
    found = [path for path in folder.iterdir() if _holds_rows(path) and path.is_file()]
    if not found:
        known = " ".join(sorted(SUFFIXES))
        raise InputError(f"{folder}: no file in this folder has a known suffix ({known}, compressed or not) or none")
    return found


def _unjudged_of(dataset: Path) -> list[Path]:
    """Return the files that the dataset has now: those it had before may lie beside them."""
    from rankmill.pipeline.dataset import Dataset

    opened = Dataset.open(dataset)
    found = [opened.unjudged_path(shard) for shard in opened.manifest.unjudged]
    if not found:
        raise InputError(f"{dataset}: the dataset has no unjudged rows")
    return found


def _holds_rows(path: Path) -> bool:
    """Say whether the name of a file in a folder is one of a file of rows."""
    suffix = uncompressed(path).suffix.lower()
    if path.name.split(".")[0].lower() in _DOCUMENTS:
        return False
    return (
        not path.name.startswith((".", "_"))
        and path.name != earlier_name(MANIFEST_NAME)
        and (not suffix or suffix in SUFFIXES)
    )


def _is_companion(path: Path) -> bool:
    return uncompressed(path).suffix.lower() in COMPANIONS


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
        raise InputError(f"{path}: is a folder; give the files in it")
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
