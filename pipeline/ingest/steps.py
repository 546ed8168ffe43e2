"""The steps of an ingest besides reading and writing rows.

These are judgments and pairs, the common layout of shards, and the manifest.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from rankmill.foundation.cures import NAME, spelled_with
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import release_freed
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
    Tally,
)
from rankmill.pipeline.group.bucket import Layout
from rankmill.pipeline.group.spill import SpilledRows, SpillFile, spill_by_query
from rankmill.pipeline.judgments.judgment_files import spilled_columns
from rankmill.pipeline.pairs.pair_files import SPILLED
from rankmill.pipeline.read.column_roles import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rankmill.pipeline.dataset.manifest import ColumnName, GradesFrom, PairShard, SplitName
    from rankmill.pipeline.group.shard_writer import ShardSummary
    from rankmill.pipeline.ingest.inputs import Inputs
    from rankmill.pipeline.ingest.read_rows import RowFacts
    from rankmill.pipeline.judgments.aggregate import Grading
    from rankmill.pipeline.judgments.judgment_files import JudgmentFile
    from rankmill.pipeline.options import IngestOptions
    from rankmill.pipeline.pairs.pair_files import PairFile


def layout_of(inputs: Inputs, options: IngestOptions, width: int, facts: RowFacts, grading: Grading | None) -> Layout:
    """Return what all shards have in common, once all rows are read, of which the widest has ``width`` values.

    Raises
    ------
    DataRejected
        No row has a feature, or one that is named as categorical.
    """
    features = inputs.columns or inputs.sources[0].names(width)
    if not features:
        raise DataRejected(f"{inputs.rows[0].path}: no row has a feature")
    for name in sorted(inputs.categorical):
        if name not in features:
            raise DataRejected(
                f"{inputs.rows[0].path}: no row has the feature {name!r}, which {spelled('categorical')} names;"
                f" the last one is {features[-1]!r}"
            )
    extras = inputs.extras
    if grading is not None:
        extras = tuple(name for name in TYPES if name in {*extras, *grading.extras})
    return Layout(
        features=features,
        absent=options.read.absent_value,
        rule=options.rule,
        source_split=[SPLITS.index(file.split) for file in inputs.rows],
        source_name=[str(file.path) for file in inputs.rows],
        extras=extras,
        goals=inputs.goals,
        labels_are_grades=facts.labels_are_grades and not inputs.judgments,
        grading=grading,
        categorical=tuple(number for number, name in enumerate(features) if name in inputs.categorical),
    )


def grading_of(
    inputs: Inputs, options: IngestOptions, staging: Path, advance: Callable[[int, int], None]
) -> Grading | None:
    """Read separate judgments; return how grades are determined, None if by each row alone."""
    sources = inputs.judgments
    if not sources and options.aggregate is None:
        return None
    from rankmill.pipeline.judgments.aggregate import Grading

    spilled, first = None, len(inputs.sources)
    if sources:
        schema = spilled_columns(sources)
        spilled = _spilled(
            sources, staging / "judgments", options, schema, lambda number, at: advance(first + number, at)
        )
        release_freed()
    return Grading(
        aggregate=options.aggregate,
        judgments=spilled,
        unjudged=options.read.unjudged,
        goals=inputs.goals,
        labels_are_grades=bool(sources) and all(source.labels_are_grades for source in sources),
    )


def pairs_of(inputs: Inputs, options: IngestOptions, staging: Path, advance: Callable[[int, int], None]) -> SpilledRows:
    """Read the pairs."""
    first = len(inputs.sources) + len(inputs.judgments)
    return _spilled(inputs.pairs, staging / "pairs", options, SPILLED, lambda number, at: advance(first + number, at))


def _spilled(
    sources: Sequence[JudgmentFile | PairFile],
    path: Path,
    options: IngestOptions,
    schema: pa.Schema,
    done: Callable[[int, int], None],
) -> SpilledRows:
    """Spill all judgments or pairs by query.

    Call ``done`` with (number of the file, bytes read of it) from time to time.

    A column of ``schema`` that a file lacks has the number of the file for ``source``, and 1 for ``weight``; other ones
    are null.
    """
    file = SpillFile(path, options.buckets, schema)
    for number, source in enumerate(sources):
        found, values = 0, {"source": number, "weight": 1.0}
        for batch in source.batches(options.block_size):
            found += len(batch)
            names = {*batch.schema.names}
            columns = [
                batch.column(field.name)
                if field.name in names
                else pa.repeat(pa.scalar(values.get(field.name), field.type), len(batch))
                for field in schema
            ]
            spill_by_query(file, columns)
            done(number, source.position)
        if not found:
            raise DataRejected(f"{source.path}: contains no {source.holds}")
    return file.finish()


def grades_from(inputs: Inputs, facts: RowFacts) -> GradesFrom:
    """Return the origin of the grades."""
    if inputs.judgments:
        return "qrels"
    if facts.labels_are_grades:
        return "label"
    return "grade" if inputs.graded else "nothing"


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
    same = ("absent", "index_base", "labels", "negative_grades", "time_column", "n_features", "max_grade")
    split_time = None if options.split_time is None else cast("dict[SplitName, str]", dict(options.split_time))
    folds = None
    if options.folds is not None and options.fold is not None:
        folds = FoldChoice(folds=options.folds, fold=options.fold)
    return Meaning(
        **{name: getattr(options.read, name) for name in same},
        split=None if options.split is None else dict(options.split),
        grades=dict(options.read.words),
        no_grade=options.read.unjudged,
        split_time=split_time,
        folds=folds,
        split_prefix=options.split_prefix,
        grades_from=grades_from,
        aggregate=options.aggregate,
    )


def nothing_judged(judgments: Tally) -> str:
    """Say why no row has a grade."""
    if not judgments.judgments:
        return (
            f"no row has a grade, so there is nothing to learn; give judgments with {spelled('qrels')}"
            f" FILE, or pairs with {spelled('pairs')} FILE and {spelled('unjudged')} zero"
        )
    if not judgments.rows_with_id:
        return (
            f"no row has a grade: {judgments.judgments:,} judgments name documents by (qid, doc_id),"
            " but no row has a document id; add a column doc_id, or name the column with"
            f" {spelled_with('columns', {'doc_id': NAME})} (in LETOR text: #docid = X)"
        )
    alike = "; check that both spell the ids alike" if judgments.without_row == judgments.judgments else ""
    return (
        f"no row has a grade: of {judgments.judgments:,} judgments {judgments.without_row:,} name"
        f" documents (qid, doc_id) that have no row{alike}"
    )
