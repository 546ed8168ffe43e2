"""From a path to the source of pairs that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError
from rankmill.pipeline.pairs.tables import DelimitedPairs, ParquetPairs
from rankmill.pipeline.pairs.text import TextPairs
from rankmill.pipeline.sources.names import check_file, format_of

if TYPE_CHECKING:
    from rankmill.pipeline.pairs.batch import PairSource
    from rankmill.pipeline.sources.batch import Quarantine


def open_pairs(path: Path, quarantine: Quarantine) -> PairSource:
    """Open one file of pairs; its suffix says whether it is CSV, TSV or Parquet, else it is text.

    Raises
    ------
    InputError
        There is no such file, or pairs do not come in its format.
    DataRejected
        The header breaks the rules; the batches raise it for pairs.
    """
    check_file(path)
    chosen = format_of(path)
    if chosen == "parquet":
        return ParquetPairs(path, quarantine)
    if chosen in {"csv", "tsv"}:
        return DelimitedPairs(path, "," if chosen == "csv" else "\t", quarantine)
    if chosen not in {"letor", "run"}:
        raise InputError(f"{path}: pairs come as text, CSV, TSV or Parquet, not as {chosen}")
    return TextPairs(path, quarantine)
