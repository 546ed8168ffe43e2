"""Find input files from paths, folders and patterns, and infer format and compression from their names."""

from __future__ import annotations

import os
from collections import defaultdict
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import ipc

from rankmill.foundation.cures import NAME, command
from rankmill.foundation.errors import DataRejected, InputError, RankmillError
from rankmill.foundation.options import spelled
from rankmill.foundation.storage.publish import file_digest
from rankmill.foundation.storage.special_files import refuse_special
from rankmill.foundation.storage.table_formats import refuse_table_format
from rankmill.pipeline.arrow import parquet_metadata
from rankmill.pipeline.dataset.manifest import FEATURES, MANIFEST_NAME, UNJUDGED
from rankmill.pipeline.options import Format
from rankmill.pipeline.read.blocks import COMPRESSED, compression_of, unchecked_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_DOCUMENTS = frozenset({"readme", "license", "licence", "notice", "copying", "authors", "changelog"})


def find_files(given: Iterable[str | os.PathLike[str]], root: Path | None = None) -> list[Path]:
    """Return the files, sorted by path.

    An existing path is taken literally, even with pattern characters.  A folder means all files directly in it with a
    known suffix or none. Hidden ones (``.name``, ``_name``), documentation (``README``, ``LICENSE.txt``) and
    ``manifest.json`` are left out. If it has none, it means all such files in its folders of Hive partitions
    (``key=value``).  Any other name with ``*``, ``?`` or ``[`` is a pattern for files, in which ``**`` matches any
    number of folders.  Folders and patterns skip companions (:data:`~rankmill.pipeline.read.files.COMPANIONS`).  A file
    that matches several times is returned once.

    Parameters
    ----------
    given
        Names of files and folders, and patterns.
    root
        Base of relative names, not a pattern; default: the working directory.

    Raises
    ------
    InputError
        A name does not exist, or a folder or pattern matches no file.
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
    """Raise InputError if two of ``files`` have the same bytes; only files of equal size are read."""
    of_size: defaultdict[int, list[Path]] = defaultdict(list)
    for path in files:
        of_size[path.stat().st_size].append(path)
    for size, alike in of_size.items():
        if not size or len(alike) == 1:  # an empty file has no rows
            continue
        seen: dict[str, Path] = {}
        for path in alike:
            first = seen.setdefault(file_digest(path), path)
            if first is not path:
                raise InputError(
                    f"{first} and {path}: have the same bytes, so their rows would be counted twice; leave one out"
                )


def _matching(pattern: str, path: Path, root: Path | None) -> list[Path]:
    names = glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207  root is not a pattern
    places = (Path(name) if root is None else root / name for name in names)
    found = [place for place in places if place.is_file() and not _is_companion(place)]
    if not found:
        raise InputError(f"no file matches {os.fspath(path)!r}")
    return found


def _in_folder(folder: Path) -> list[Path]:
    if folder.name == UNJUDGED and (folder.parent / MANIFEST_NAME).is_file():
        return _unjudged_of(folder.parent)
    if (folder / MANIFEST_NAME).is_file() and (folder / FEATURES).is_dir():
        unjudged = folder / UNJUDGED
        cure = f"{unjudged} has rows to re-rank" if unjudged.is_dir() else "it has no rows to re-rank"
        raise InputError(
            f"{folder}: is a dataset, not a folder of input files; {cure}. To evaluate a model on it:"
            f" {command('evaluate', folder, '--model', NAME, '--split', 'test')}"
        )
    refuse_table_format(folder)
    found = [path for path in folder.iterdir() if _holds_rows(path) and path.is_file()]
    if not found:
        found = [*_in_partitions(folder)]
    if not found:
        known = " ".join(sorted(SUFFIXES))
        raise InputError(f"{folder}: no file in this folder has a known suffix ({known}, compressed or not) or none")
    return found


def _in_partitions(folder: Path) -> Iterator[Path]:
    """Yield the files of rows in the folders of Hive partitions, ``key=value``, in ``folder``, at any depth."""
    for part in folder.iterdir():
        if part.is_dir() and partitions_of(part / "x").keys() - partitions_of(folder / "x").keys():
            yield from (path for path in part.iterdir() if _holds_rows(path) and path.is_file())
            yield from _in_partitions(part)


def _unjudged_of(dataset: Path) -> list[Path]:
    """Return the current unjudged files of the dataset; older ones may still be in the folder."""
    from rankmill.pipeline.dataset.dataset import Dataset

    opened = Dataset.open(dataset)
    found = [opened.unjudged_path(shard) for shard in opened.manifest.unjudged]
    if not found:
        raise InputError(f"{dataset}: the dataset has no unjudged rows")
    return found


def _holds_rows(path: Path) -> bool:
    """Whether a file in a folder has a name of a file of rows."""
    suffix = uncompressed(path).suffix.lower()
    if path.name.split(".")[0].lower() in _DOCUMENTS:
        return False
    return not path.name.startswith((".", "_")) and path.name != "manifest.json" and (not suffix or suffix in SUFFIXES)


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
"""Format by suffix, without a compression suffix; an explicitly named file with another suffix is read as LETOR
text."""
_OTHERS = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), "a spreadsheet; save it as CSV"),
    **dict.fromkeys((".html", ".htm", ".xml", ".pdf", ".docx"), "a document; give a table or LETOR text"),
    **dict.fromkeys((".orc", ".avro"), "a format that is not read; write it as Parquet, with pyarrow, Polars or Spark"),
    **dict.fromkeys((".xz", ".lzma", ".br", ".snappy"), "a compression that is not read; decompress it"),
    **dict.fromkeys((".zip", ".7z", ".rar", ".tar", ".tgz"), "an archive; unpack it"),
}
COMPANIONS = (".query", ".group")
"""Suffixes that are added to the name of a file of rows, for files that belong to it and have no rows."""


def partitions_of(path: Path) -> dict[str, str | None]:
    """Return the keys and values of Hive partitions in the folders above ``path``; None for a missing value.

    >>> partitions_of(Path("hive/date=2024-01-01/site=a%20b/part.parquet"))
    {'date': '2024-01-01', 'site': 'a b'}
    """
    parts = (part.partition("=") for part in path.parts[:-1])
    found = {unquote(name): unquote(value) for name, equals, value in parts if name and equals and value}
    return {name: None if value == "__HIVE_DEFAULT_PARTITION__" else value for name, value in found.items()}


def has_typed_columns(path: Path) -> bool:
    """Whether ``path`` has the suffix of a format with typed columns."""
    return SUFFIXES.get(path.suffix.lower()) in {"parquet", "arrow"}


def check_file(path: Path) -> None:
    """Raise InputError unless ``path`` is a file with a UTF-8 name, which manifests need, and not of a table format."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        name = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise InputError(f"{name}: the bytes of this name are not UTF-8; rename it") from None
    refuse_special(path)
    refuse_table_format(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the files in it")
    if not path.is_file():
        near = path.with_name(f"_{path.name}")  # current names of folders in a dataset
        raise InputError(f"{path}: no such file" + (f"; did you mean {near}?" if near.exists() else ""))


def format_of(path: Path, wanted: str = "auto") -> Format:
    """Return the format of ``path``: ``wanted`` or, for ``auto``, by its suffix (LETOR text if unknown).

    Raises
    ------
    InputError
        ``wanted`` is unknown, or ``auto`` and the suffix that of a file without rows, such as a spreadsheet.
    """
    formats: tuple[Format, ...] = get_args(Format)
    for known in formats:
        if wanted == known != "auto":
            return known
    if wanted != "auto":
        raise InputError.unknown("format", wanted, formats)
    suffix = uncompressed(path).suffix.lower()
    if suffix in _OTHERS and path.is_file():
        cure = f"if its content has another format, choose with {spelled('format')}: {', '.join(formats[1:])}"
        raise InputError(f"{path}: the suffix {suffix} is that of {_OTHERS[suffix]}; {cure}")
    return SUFFIXES.get(suffix, "letor")


def uncompressed(path: Path) -> Path:
    """Return ``path`` without a compression suffix."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED else path


_BLOCK_BYTES = 1 << 16
_MOST_ARROW_BYTES = 1 << 20  # an Arrow file without rows has little more than its schema
_WITH_HEADER = frozenset({"csv", "tsv"})


def with_rows(
    files: Sequence[Path],
    form: str = "auto",
    say: Callable[[str], None] | None = None,
    skipped: list[Path] | None = None,
) -> list[Path]:
    """Return ``files`` without those that have no rows; a single file is returned as it is.

    ``say`` reports those without rows, which are added to ``skipped``.

    Raises
    ------
    DataRejected
        There are several, and none has rows.
    """
    if len(files) < 2:
        return [*files]
    are_empty = [_is_empty(path, form) for path in files]
    kept, empty = (
        [path for path, without in zip(files, are_empty, strict=True) if without is which] for which in (False, True)
    )
    if empty and not kept:
        raise DataRejected(
            f"{empty[0]} and {len(empty) - 1:,} more: contain no rows; give at least one file that has some"
        )
    if skipped is not None:
        skipped += empty
    if empty and say is not None:
        say(
            f"skipped {len(empty):,} of {len(files):,} files, which have no rows: {empty[0]}{', ..' * (len(empty) > 1)}"
        )
    return kept


def _is_empty(path: Path, form: str) -> bool:
    """Whether a file has no rows; what cannot be read is left to its reader."""
    check_file(path)
    try:
        chosen = format_of(path, form)
        if not path.stat().st_size:
            return True
        if chosen == "parquet":
            return bool(parquet_metadata(path).num_rows == 0)
        return _arrow_is_empty(path) if chosen == "arrow" else _text_is_empty(path, has_header=chosen in _WITH_HEADER)
    except (RankmillError, OSError, pa.ArrowException):
        return False


def _arrow_is_empty(path: Path) -> bool:
    compression = compression_of(path)
    if path.stat().st_size > _MOST_ARROW_BYTES:
        return False
    with pa.input_stream(str(path), compression=cast("Any", compression)) as stream:
        data = stream.read(_MOST_ARROW_BYTES + 1)
    opened = ipc.open_file(data) if data.startswith(b"ARROW1") else ipc.open_stream(data)
    with opened as reader:
        return len(reader.read_all()) == 0


def _text_is_empty(path: Path, *, has_header: bool) -> bool:
    """Whether text has blank lines and comments alone, and in a table a header."""
    header_seen = not has_header
    for block in unchecked_blocks(path, _BLOCK_BYTES, cr_ends_lines=has_header):
        for line in bytes(block.data[block.start : block.stop]).splitlines():
            if not line.strip() or (not has_header and line.lstrip().startswith(b"#")):
                continue
            if header_seen:
                return False
            header_seen = True
    return True
