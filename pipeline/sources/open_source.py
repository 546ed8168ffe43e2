"""From a path to the source that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankmill.pipeline.sources.batch import Quarantine, ReadOptions
from rankmill.pipeline.sources.files import check_file, format_of

if TYPE_CHECKING:
    from pathlib import Path

    from rankmill.pipeline.sources.batch import Source


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
        from rankmill.pipeline.sources.parquet import ParquetSource

        return ParquetSource(path, options, quarantine)
    if chosen in {"csv", "tsv"}:
        from rankmill.pipeline.sources.delimited import DelimitedSource

        return DelimitedSource(path, "," if chosen == "csv" else "\t", options, quarantine)
    if chosen == "arrow":
        from rankmill.pipeline.sources.arrow_ipc import ArrowSource

        return ArrowSource(path, options, quarantine)
    if chosen == "jsonl":
        from rankmill.pipeline.sources.jsonl.source import JsonSource

        return JsonSource(path, options, quarantine)
    if chosen == "run":
        from rankmill.pipeline.sources.trec_run import RunSource

        return RunSource(path, options, quarantine)
    from rankmill.pipeline.sources.letor import LetorSource

    return LetorSource(path, options, quarantine)
