"""What the manifest says of an ingest: counts added up over the shards, the meaning of the input, and its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rankmill.pipeline.judgments.tally import Tally
from rankmill.pipeline.manifest import SPLITS, GradeCount, Manifest, Meaning, Repeats, SourceFile, SplitCount

if TYPE_CHECKING:
    from rankmill.pipeline.group.layout import Layout
    from rankmill.pipeline.group.shards import ShardSummary
    from rankmill.pipeline.ingest.inputs import Inputs
    from rankmill.pipeline.ingest.options import IngestOptions
    from rankmill.pipeline.manifest import ColumnName, GradesFrom, SplitName

Digests = Mapping[Path, tuple[int, str]]


def row_files(inputs: Inputs, digests: Digests, *, by_split: bool) -> list[SourceFile]:
    """Return the entries of the files of rows; ``by_split``: which split each is of is said by the file."""
    found = []
    for file in inputs.rows:
        size, sha256 = digests[file.path]
        companion = inputs.companions.get(file.path)
        found.append(
            SourceFile(
                name=file.path.name,
                size=size,
                sha256=sha256,
                split=file.split if by_split else None,
                sizes=None if companion is None else digests[companion][1],
            )
        )
    return found


def described(
    layout: Layout,
    summaries: Sequence[ShardSummary],
    files: Sequence[SourceFile],
    options: IngestOptions,
    rejected: int,
    grades_from: GradesFrom,
) -> Manifest:
    """Return the manifest of the shards that were written.

    Parameters
    ----------
    layout, summaries
        What they have in common, and what is in each.
    files
        The files of rows.
    options
        How they were read.
    rejected
        Rows that were put aside.
    grades_from
        What the grades were taken from.
    """
    grades: Counter[int] = sum((summary.grades for summary in summaries), Counter())
    queries: Counter[str] = sum((summary.queries for summary in summaries), Counter())
    rows: Counter[str] = sum((summary.rows for summary in summaries), Counter())
    tally = sum((summary.rows_tally for summary in summaries), Tally())
    return Manifest(
        format=1,
        features=list(layout.features),
        max_grade=max(grades, default=0) if options.read.max_grade is None else options.read.max_grade,
        buckets=options.buckets,
        meaning=Meaning(
            absent=options.read.absent,
            index_base=options.read.index_base,
            split=None if options.shares is None else dict(options.shares),
            labels=options.read.labels,
            grades=dict(options.read.grades),
            negative_grades=options.read.negative_grades,
            no_grade=options.read.unjudged,
            time_column=options.read.time_column,
            split_time=None
            if options.split_time is None
            else cast("dict[SplitName, str]", options.split_time.bounds()),
            folds=options.folds,
            n_features=options.read.n_features,
            max_grade=options.read.max_grade,
            grades_from=grades_from,
            aggregate=options.aggregate,
        ),
        rows=rows.total(),
        queries=queries.total(),
        missing_values=sum(summary.missing_values for summary in summaries),
        grades=[GradeCount(grade=grade, rows=grades[grade]) for grade in sorted(grades)],
        splits={name: SplitCount(queries=queries[name], rows=rows[name]) for name in SPLITS if queries[name]},
        shards=[summary.shard for summary in summaries if summary.shard is not None],
        sources=sorted(files, key=lambda file: (file.name, file.sha256)),
        rejected_rows=rejected,
        columns=cast("list[ColumnName]", list(layout.extras)),
        repeats=None
        if tally == Tally()
        else Repeats(documents=tally.repeated, conflicting=tally.conflicting, merged_rows=tally.merged),
        unjudged=[summary.unjudged for summary in summaries if summary.unjudged is not None],
    )
