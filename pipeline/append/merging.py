"""The manifest of a dataset that was added to: its new shards and files, and of the old ones what stays."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rankmill.pipeline.judgments.tally import Tally
from rankmill.pipeline.manifest import SPLITS, GradeCount, PairSet, Repeats, SplitCount

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rankmill.pipeline.append.rows import Counts
    from rankmill.pipeline.manifest import Manifest, PairShard


def extended(old: Manifest, replaced: Collection[Counts], made: Manifest, *, bounded: bool) -> Manifest:
    """Return the manifest of all rows.

    Parameters
    ----------
    old
        The dataset as it was.
    replaced
        What was in those of its shards whose buckets ``made`` has.
    made
        Manifest of the shards that were written (with their old rows and the new ones) and of the new files.
    bounded
        Whether ``made.max_grade`` was said by the caller, and is not the highest grade there is.
    """
    grades = Counter({count.grade: count.rows for count in old.grades})
    grades.update({count.grade: count.rows for count in made.grades})
    queries: Counter[str] = Counter({name: count.queries for name, count in old.splits.items()})
    rows: Counter[str] = Counter({name: count.rows for name, count in old.splits.items()})
    for name, count in made.splits.items():
        queries[name] += count.queries
        rows[name] += count.rows
    for counts in replaced:
        grades.subtract(counts.grades)
        queries.subtract(counts.queries)
        rows.subtract(counts.rows)
    grades = +grades
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
            "grades": [GradeCount(grade=grade, rows=grades[grade]) for grade in sorted(grades)],
            "splits": {name: SplitCount(queries=queries[name], rows=rows[name]) for name in SPLITS if queries[name]},
            "shards": sorted(shards, key=lambda shard: shard.bucket),
            "sources": sorted([*old.sources, *made.sources], key=lambda file: (file.name, file.sha256)),
            "rejected_rows": old.rejected_rows + made.rejected_rows,
            "repeats": _repeats(old.repeats, again, made.repeats),
            "unjudged": sorted(unjudged, key=lambda shard: shard.bucket),
        }
    )


def _repeats(old: Repeats | None, replaced: Tally, made: Repeats | None) -> Repeats | None:
    """Return what is counted of documents with several rows, less those of shards that were written again."""
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
    """Return all pairs: ``old`` ones but those of the buckets ``joined``, whose pairs are in ``shards`` now, and the files of ``made``."""
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
