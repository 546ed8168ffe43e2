"""Judgments from files of their own as part of an ingest: opened, read and spilled, and what the manifest says of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.pipeline.judgments.rules import WITH_LABEL
from rankmill.pipeline.manifest import JudgmentSet
from rankmill.pipeline.sources.times import TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankmill.pipeline.judgments.batch import JudgmentSource
    from rankmill.pipeline.judgments.rules import Aggregate
    from rankmill.pipeline.judgments.spill import JudgmentSpill
    from rankmill.pipeline.judgments.tally import Tally
    from rankmill.pipeline.manifest import SourceFile
    from rankmill.pipeline.sources.batch import ReadOptions, Source


_BLOCK_BYTES = 4 << 20  # a judgment is a short line: many at once take many times their text


def without_grades(read: ReadOptions, *, timed: bool) -> ReadOptions:
    """Return how to read rows whose grades come from judgments: theirs need not be there, and mean nothing.

    ``timed`` says whether the rows must have the times that ``read`` names a column for; else it may be there.
    """
    anything = {"max_grade": None, "negative_grades": "zero", "unjudged": "zero"}
    return replace(read, ungraded=True, time_optional=not timed, **cast("Any", anything))


def check_times_and_labels(
    how: Aggregate, sources: Sequence[Source], judgments: Sequence[JudgmentSource], time_column: str | None
) -> None:
    """Raise InputError if there is not what the aggregate ``how`` needs, or if it would make what is there already."""
    brought = sources[0].fields
    if how in WITH_LABEL and "label" in brought:
        raise InputError(
            f"--aggregate {how} stores the {how} as the column label, and {sources[0].path} has labels; leave them out, or take"
            " another aggregate"
        )
    if not judgments and "grade" not in brought:
        raise InputError(f"--aggregate {how} makes one grade of several; {sources[0].path} has no grades")
    if how != "latest":
        return
    if time_column is None:
        raise InputError("--aggregate latest goes by the times of judgments; name their column with --time-column")
    for source in judgments:
        if source.table is None:
            raise InputError(
                f"{source.path}: --aggregate latest goes by the times of judgments, and TREC's text has none; give a table"
            )
        if TIME not in source.table.column_of:
            raise InputError(
                f"{source.path}: no column {time_column!r}, which --time-column names; --aggregate latest goes by it"
            )


def read_judgments(
    sources: Sequence[JudgmentSource],
    spill: JudgmentSpill,
    block_bytes: int,
    done: Callable[[int, int], None] | None = None,
) -> None:
    """Spill the judgments of all files; calls ``done`` with (number of the file, bytes read of it) now and then."""
    for number, source in enumerate(sources):
        judgments = 0
        for batch in source.batches(min(block_bytes, _BLOCK_BYTES)):
            judgments += len(batch)
            spill.add(batch)
            if done is not None:
                done(number, source.position)
        if not judgments:
            raise DataRejected(f"{source.path}: no judgments in it")


def judgment_set(tally: Tally, files: Sequence[SourceFile], rejected: int) -> JudgmentSet:
    """Return the manifest's entry."""
    return JudgmentSet(
        judgments=tally.judgments,
        ungraded=tally.ungraded,
        without_row=tally.without_row,
        repeated=tally.repeated,
        conflicting=tally.conflicting,
        rejected=rejected,
        sources=sorted(files, key=lambda file: (file.name, file.sha256)),
    )
