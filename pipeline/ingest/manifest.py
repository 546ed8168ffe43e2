"""Build the manifest of an ingest: totals over the shards, how the input was read, and its files."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.dataset.manifest import (
    SPLITS,
    FoldChoice,
    GoalGrades,
    GradeCount,
    Manifest,
    Meaning,
    PairSet,
    Repeats,
    SourceFile,
    SplitCount,
)
from rankmill.pipeline.judgments.judgment_files import Tally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rankmill.pipeline.dataset.manifest import ColumnName, GradesFrom, PairShard, SplitName
    from rankmill.pipeline.group.bucket import Layout
    from rankmill.pipeline.group.shard_writer import ShardSummary
    from rankmill.pipeline.judgments.judgment_files import JudgmentFile
    from rankmill.pipeline.options import IngestOptions
    from rankmill.pipeline.pairs.pair_files import PairFile


def described(
    layout: Layout,
    summaries: Sequence[ShardSummary],
    files: Sequence[SourceFile],
    options: IngestOptions,
    rejected: int,
    grades_from: GradesFrom,
) -> Manifest:
    """Return the manifest of the written shards.

    Parameters
    ----------
    layout, summaries
        The common layout, and a summary of each shard.
    files
        The files of rows.
    options
        The options with which they were read.
    rejected
        Number of quarantined rows.
    grades_from
        The origin of the grades.
    """
    grades: Counter[int] = sum((summary.grades for summary in summaries), Counter())
    queries: Counter[str] = sum((summary.queries for summary in summaries), Counter())
    rows: Counter[str] = sum((summary.rows for summary in summaries), Counter())
    goals = {
        name: sum((summary.goals.get(name, Counter()) for summary in summaries), Counter()) for name in layout.goals
    }
    tally = sum((summary.rows_tally for summary in summaries), Tally())
    return Manifest(
        format=1,
        features=list(layout.features),
        max_grade=_highest(grades, options.read.max_grade),
        buckets=options.buckets,
        meaning=_meaning(options, grades_from),
        rows=rows.total(),
        queries=queries.total(),
        missing_values=sum(summary.missing_values for summary in summaries),
        grades=_counted(grades),
        splits={name: SplitCount(queries=queries[name], rows=rows[name]) for name in SPLITS if queries[name]},
        shards=[summary.shard for summary in summaries if summary.shard is not None],
        sources=sorted(files, key=lambda file: (file.name, file.sha256)),
        rejected_rows=rejected,
        columns=cast("list[ColumnName]", list(layout.extras)),
        repeats=None
        if tally == Tally()
        else Repeats(documents=tally.repeated, conflicting=tally.conflicting, merged_rows=tally.merged),
        unjudged=[summary.unjudged for summary in summaries if summary.unjudged is not None],
        goals=[_goal(name, counts, options.read.max_grade) for name, counts in goals.items()],
    )


def pair_set(shards: list[PairShard], files: list[SourceFile], rejected: int) -> PairSet:
    """Return the manifest's entry; DataRejected if no pair is left."""
    total = sum(shard.pairs for shard in shards)
    if not total:
        raise DataRejected(f"{files[0].name}: no valid pair is left; {rejected:,} were quarantined")
    return PairSet(
        pairs=total, shards=shards, sources=sorted(files, key=lambda file: (file.name, file.sha256)), rejected=rejected
    )


def source_files(
    sources: Sequence[JudgmentFile | PairFile], digests: Mapping[Path, tuple[int, str]]
) -> list[SourceFile]:
    """Return the manifest's entries of files of judgments or pairs; ``digests`` has the size and the sha256 of each."""
    return [
        SourceFile(name=source.path.name, size=digests[source.path][0], sha256=digests[source.path][1])
        for source in sources
    ]


def _highest(grades: Counter[int], given: int | None) -> int:
    """Return the highest grade allowed: the ``given`` one, by default the highest one found."""
    return max(grades, default=0) if given is None else given


def _counted(grades: Counter[int]) -> list[GradeCount]:
    return [GradeCount(grade=grade, rows=grades[grade]) for grade in sorted(grades)]


def _goal(name: str, grades: Counter[int], max_grade: int | None) -> GoalGrades:
    return GoalGrades(name=name, max_grade=_highest(grades, max_grade), grades=_counted(grades))


def _meaning(options: IngestOptions, grades_from: GradesFrom) -> Meaning:
    """Return the options with which the files were read."""
    return Meaning(
        absent=options.read.absent,
        index_base=options.read.index_base,
        split=None if options.split is None else dict(options.split),
        labels=options.read.labels,
        grades=dict(options.read.words),
        negative_grades=options.read.negative_grades,
        no_grade=options.read.unjudged,
        time_column=options.read.time_column,
        split_time=None if options.split_time is None else cast("dict[SplitName, str]", dict(options.split_time)),
        folds=None
        if options.folds is None or options.fold is None
        else FoldChoice(folds=options.folds, fold=options.fold),
        split_prefix=options.split_prefix,
        n_features=options.read.n_features,
        max_grade=options.read.max_grade,
        grades_from=grades_from,
        aggregate=options.aggregate,
    )
