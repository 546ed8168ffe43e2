"""From a path to the source of judgments that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.pipeline.sources.names import check_file, format_of

if TYPE_CHECKING:
    from rankmill.pipeline.judgments.batch import JudgmentSource
    from rankmill.pipeline.sources.batch import Quarantine, ReadOptions


def open_judgments(path: Path, options: ReadOptions, quarantine: Quarantine) -> JudgmentSource:
    """Open one file of judgments; its suffix says whether it is a table, else it is TREC's text.

    Parameters
    ----------
    path
        The file.  Text may be compressed.
    options
        How grades are read, and how a table calls its columns.
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
    if chosen not in {"letor", "run"}:
        from rankmill.pipeline.judgments.tables import TableJudgments

        return TableJudgments(path, chosen, options, quarantine)
    from rankmill.pipeline.judgments.text import TextJudgments

    return TextJudgments(path, options.grade_rules, quarantine)
