"""From what a user names to files: names as they are, all files of a folder, and patterns that the shell left alone."""

from __future__ import annotations

import os
from collections import defaultdict
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError
from rankmill.foundation.storage.publish import file_digest
from rankmill.pipeline.places import FEATURES, MANIFEST_NAME, UNJUDGED, earlier_name, path_in
from rankmill.pipeline.sources.names import COMPANIONS, SUFFIXES, check_file, uncompressed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_DOCUMENTS = frozenset({"readme", "license", "licence", "notice", "copying", "authors", "changelog"})


def find_files(given: Iterable[str | os.PathLike[str]], root: Path | None = None) -> list[Path]:
    """Return the files that are meant, sorted by path.

    A name of something that is there is that, whatever characters it has.  A folder stands for all files directly in it
    whose name has a known suffix or none, but for hidden ones (``.name``, ``_name``) and what is there to be read by people
    (``README``, ``LICENSE.txt``), or by programs (``manifest.json``).  Any other name with ``*``, ``?`` or
    ``[`` in it is a pattern, in which ``**`` stands for any number of folders; it matches files only.  Neither a folder nor
    a pattern means companions (:data:`~rankmill.pipeline.sources.names.COMPANIONS`).  A file that several patterns or folders mean is there once.

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
                raise InputError(f"{first} and {path}: have the same bytes; their rows would count twice")


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
            f"{folder}: is a dataset, not a folder of files with rows; {cure}, and 'rankmill evaluate {folder} --model NAME "
            "--split test' measures a model on it"
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
