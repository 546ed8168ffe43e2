"""Build the manifest of an ingest: totals over the shards, how the input was read, its files, and earlier ingests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

from rankmill.pipeline.dataset_manifest import (
    SPLITS,
    GoalGrades,
    GradeCount,
    Manifest,
    Meaning,
    PairSet,
    Repeats,
    SourceFile,
    SplitCount,
)
from rankmill.pipeline.judgments.judgment_counts import Tally

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rankmill.pipeline.dataset_manifest import ColumnName, GradesFrom, PairShard, SplitName
    from rankmill.pipeline.grouping.settled_bucket import Layout
    from rankmill.pipeline.grouping.shard_writer import ShardSummary
    from rankmill.pipeline.ingest.stored_input import StoredCounts
    from rankmill.pipeline.options import IngestOptions


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
        folds=options.fold_choice,
        split_prefix=options.split_prefix,
        n_features=options.read.n_features,
        max_grade=options.read.max_grade,
        grades_from=grades_from,
        aggregate=options.aggregate,
    )


def extended(old: Manifest, replaced: Collection[StoredCounts], made: Manifest, *, bounded: bool) -> Manifest:
    """Return the manifest of all rows.

    Parameters
    ----------
    old
        The dataset before the change.
    replaced
        Counts of its shards that ``made`` replaces.
    made
        Manifest of the written shards (with old and new rows) and of the new files.
    bounded
        Whether ``made.max_grade`` was given by the caller, rather than found in the rows.
    """
    grades = _total(old.grades, made.grades, [counts.grades for counts in replaced])
    goals = []
    for before, now in zip(old.goals, made.goals, strict=True):
        of_goal = _total(before.grades, now.grades, [counts.goals.get(now.name, Counter()) for counts in replaced])
        goals.append(_goal(now.name, of_goal, now.max_grade if bounded else None))
    queries: Counter[str] = Counter({name: count.queries for name, count in old.splits.items()})
    rows: Counter[str] = Counter({name: count.rows for name, count in old.splits.items()})
    for name, count in made.splits.items():
        queries[name] += count.queries
        rows[name] += count.rows
    for counts in replaced:
        queries.subtract(counts.queries)
        rows.subtract(counts.rows)
    again = sum((counts.repeats for counts in replaced), Tally())
    written = {shard.bucket for shard in made.shards} | {shard.bucket for shard in made.unjudged}
    unjudged = [*made.unjudged, *(shard for shard in old.unjudged if shard.bucket not in written)]
    shards = [*made.shards, *(shard for shard in old.shards if shard.bucket not in written)]
    return made.model_copy(
        update={
            "max_grade": made.max_grade if bounded else max(grades),
            "rows": rows.total(),
            "queries": queries.total(),
            "missing_values": old.missing_values
            + made.missing_values
            - sum(counts.missing_values for counts in replaced),
            "grades": _counted(grades),
            "splits": {name: SplitCount(queries=queries[name], rows=rows[name]) for name in SPLITS if queries[name]},
            "shards": sorted(shards, key=lambda shard: shard.bucket),
            "sources": sorted([*old.sources, *made.sources], key=lambda file: (file.name, file.sha256)),
            "rejected_rows": old.rejected_rows + made.rejected_rows,
            "repeats": _repeats(old.repeats, again, made.repeats),
            "unjudged": sorted(unjudged, key=lambda shard: shard.bucket),
            "goals": goals,
        }
    )


def _total(old: Sequence[GradeCount], made: Sequence[GradeCount], replaced: Collection[Counter[int]]) -> Counter[int]:
    """Return the counts of ``old`` and ``made`` together, without those of shards that were ``replaced``."""
    total: Counter[int] = Counter({count.grade: count.rows for count in old})
    total.update({count.grade: count.rows for count in made})
    for counts in replaced:
        total.subtract(counts)
    return +total


def _repeats(old: Repeats | None, replaced: Tally, made: Repeats | None) -> Repeats | None:
    """Return the counts of documents with several rows, without those of rewritten shards."""
    counts = dict.fromkeys(Repeats.model_fields, 0)
    for found in (old, made):
        for name in counts if found is not None else ():
            counts[name] += getattr(found, name)
    counts["documents"] -= replaced.repeated
    counts["conflicting"] -= replaced.conflicting
    return Repeats(**counts) if any(counts.values()) else None


def with_pairs(
    old: PairSet | None, made: PairSet | None, shards: Sequence[PairShard], joined: Collection[int]
) -> PairSet | None:
    """Return all pairs: the ``old`` ones, with the buckets ``joined`` replaced by ``shards``, and the files of ``made``."""
    if old is None:
        return made
    shards = [*shards, *(shard for shard in old.shards if shard.bucket not in joined)]
    sources = [*old.sources, *(() if made is None else made.sources)]
    return PairSet(
        pairs=sum(shard.pairs for shard in shards),
        rejected=old.rejected + (0 if made is None else made.rejected),
        shards=sorted(shards, key=lambda shard: shard.bucket),
        sources=sorted(sources, key=lambda file: (file.name, file.sha256)),
    )
