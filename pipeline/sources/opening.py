"""From a path to the source that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pipeline.errors import InputError
from pipeline.sources.batch import Format, Quarantine, ReadOptions
from pipeline.sources.blocks import COMPRESSED

if TYPE_CHECKING:
    from pipeline.sources.batch import Source

_TEXT = (".txt", ".letor", ".svm", ".svmlight", ".libsvm", ".dat", ".train", ".valid", ".vali", ".test")
SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".run": "run",
    **dict.fromkeys(_TEXT, "letor"),
}
"""Format by suffix of the name, a compression's left out; a file of another suffix is taken for LETOR text if it is named."""


def check_file(path: Path) -> None:
    """Raise InputError unless ``path`` is a file."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name the files in it")
    if not path.is_file():
        raise InputError(f"{path}: no such file")


def format_of(path: Path, wanted: str = "auto") -> Format:
    """Return the format of ``path``: ``wanted``, or by its suffix for ``auto`` (LETOR text where that says nothing)."""
    formats: tuple[Format, ...] = get_args(Format)
    for known in formats:
        if wanted == known != "auto":
            return known
    if wanted != "auto":
        raise InputError.unknown("format", wanted, formats)
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return SUFFIXES.get(name.suffix.lower(), "letor")


def open_source(
    path: Path,
    format: str = "auto",  # noqa: A002  the option's name
    options: ReadOptions | None = None,
    quarantine: Quarantine | None = None,
) -> Source:
    """Open one input file.

    Parameters
    ----------
    path
        The file.  Text may be compressed: ``.gz``, ``.bz2``, ``.zst``, ``.lz4``.
    format
        ``letor``, ``csv``, ``tsv``, ``parquet``, ``arrow``, ``jsonl``, ``run``; ``auto`` goes by the suffix.
    options, quarantine
        How to read, and where bad rows go; by default the first bad row is an error.

    Raises
    ------
    InputError
        There is no such file or format.
    DataRejected
        The header breaks the rules; the batches raise it for rows.
    """
    options = ReadOptions() if options is None else options
    quarantine = Quarantine() if quarantine is None else quarantine
    chosen = format_of(path, format)
    check_file(path)
    if chosen == "parquet":
        from pipeline.sources.parquet import ParquetSource

        return ParquetSource(path, options, quarantine)
    if chosen in {"csv", "tsv"}:
        from pipeline.sources.delimited import DelimitedSource

        return DelimitedSource(path, "," if chosen == "csv" else "\t", options, quarantine)
    if chosen == "arrow":
        from pipeline.sources.arrow_ipc import ArrowSource

        return ArrowSource(path, options, quarantine)
    if chosen == "jsonl":
        from pipeline.sources.jsonl.source import JsonSource

        return JsonSource(path, options, quarantine)
    if chosen == "run":
        from pipeline.sources.trec_run import RunSource

        return RunSource(path, options, quarantine)
    from pipeline.sources.letor import LetorSource

    return LetorSource(path, options, quarantine)
