"""From a path to the source of judgments that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.sources.opening import check_file, format_of

if TYPE_CHECKING:
    from pipeline.judgments.batch import JudgmentSource
    from pipeline.sources.batch import Quarantine
    from pipeline.sources.grades import GradeRules


def open_judgments(path: Path, rules: GradeRules, time_column: str | None, quarantine: Quarantine) -> JudgmentSource:
    """Open one file of judgments; its suffix says whether it is CSV, TSV or Parquet, else it is TREC's text.

    Parameters
    ----------
    path
        The file.  Text may be compressed.
    rules
        How grades are read.
    time_column
        Column of a table that has the times of its judgments; None: they have none.
    quarantine
        Where bad lines go.

    Raises
    ------
    InputError
        There is no such file.
    DataRejected
        The header breaks the rules; the batches raise it for judgments.
    """
    check_file(path)
    chosen = format_of(path)
    if chosen == "parquet":
        from pipeline.judgments.tables import ParquetJudgments

        return ParquetJudgments(path, rules, time_column, quarantine)
    if chosen in {"csv", "tsv"}:
        from pipeline.judgments.tables import DelimitedJudgments

        return DelimitedJudgments(path, "," if chosen == "csv" else "\t", rules, time_column, quarantine)
    from pipeline.judgments.text import TextJudgments

    return TextJudgments(path, rules, quarantine)
