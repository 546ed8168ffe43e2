"""Build a dataset from opened files: spill rows by query, write them as sorted shards, join pairs, describe all in a manifest.

Each step is a function of what the steps before it returned::

    collect_rows    -> RowSpill, RowFacts   the rows by bucket, and what only all of them together show
    settling_of     -> Settling             how grades are determined, if not by each row alone
    layout_of       -> Layout               what all shards have in common
    write_shards    -> [ShardSummary]       the sorted shards
    join_pairs      -> [PairShard]          the pairs of documents of these shards
    described       -> Manifest             counts, digests and how the files were read

On a cluster `collect_rows` and `write_shards` are tasks of its workers (`rankmill.pipeline.ingest.on_cluster`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from rankmill.foundation.cures import NAME, spelled_with
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import beside_bytes, release_freed
from rankmill.pipeline.bins.vocabulary import check_number, summed
from rankmill.pipeline.dataset.manifest import (
    CATEGORIES,
    FEATURES,
    JUDGMENT_REJECTS_NAME,
    PAIR_REJECTS_NAME,
    REJECTS_NAME,
    SPLITS,
    CategorySet,
    GradesFrom,
)
from rankmill.pipeline.group.bucket_files import BucketFiles
from rankmill.pipeline.group.bucket_rows import RowSpill, spilled_schema
from rankmill.pipeline.group.graded_bucket import Layout
from rankmill.pipeline.group.query_spill import QuerySpill
from rankmill.pipeline.group.shard_writer import keep_table, share_of, write_shards
from rankmill.pipeline.ingest.manifest import described, pair_set, source_files
from rankmill.pipeline.ingest.read_rows import RowFacts, collect_rows, require_rows
from rankmill.pipeline.judgments.judgment_counts import Tally
from rankmill.pipeline.judgments.judgment_files import judgment_set, read_judgments, spilled_columns
from rankmill.pipeline.pairs.pair_files import read_pairs
from rankmill.pipeline.pairs.pair_join import SPILLED, join_pairs
from rankmill.pipeline.read.column_roles import TYPES

if TYPE_CHECKING:
    from rankmill.foundation.cluster.workers import Cluster
    from rankmill.pipeline.bins.vocabulary import Tally as Tallied
    from rankmill.pipeline.dataset.manifest import Manifest, SourceFile
    from rankmill.pipeline.ingest.inputs import Inputs
    from rankmill.pipeline.ingest_report import Stage
    from rankmill.pipeline.judgments.aggregate import Settling
    from rankmill.pipeline.options import IngestOptions
    from rankmill.pipeline.read.batch import Quarantine, Reject, Source

Progress = Callable[["Stage", int, int], None]
Digests = Mapping[Path, tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The files of a dataset before they are published.

    Attributes
    ----------
    folder
        Has all of them but the manifest.
    manifest
        The manifest.
    files
        Its entries of the files of rows.
    rejects
        The malformed rows, judgments and pairs, by name of the file that will list them.
    """

    folder: Path
    manifest: Manifest
    files: list[SourceFile]
    rejects: dict[str, list[Reject]]


def build_dataset(
    inputs: Inputs,
    options: IngestOptions,
    quarantine: Quarantine,
    staging: Path,
    digests: Callable[[], Digests],
    progress: Progress | None = None,
    cluster: Cluster | None = None,
) -> Built:
    """Read all files of ``inputs``, and write the dataset in the folder ``staging``.

    Parameters
    ----------
    quarantine
        The quarantine with which the files were opened.
    digests
        Returns the size and the sha256 of every input file; called when all are read.
    progress
        Called with the stage, the amount done and the total.
    cluster
        Its workers, which see ``staging``, read the rows and write the shards; None: this process does.

    Raises
    ------
    DataRejected
        A file has no rows, or the data are invalid.
    """
    staging = staging.absolute()
    folder = staging / "dataset"
    folder.mkdir()
    advance = _advance(inputs, progress)
    facts = RowFacts.of(
        options, len(inputs.categorical), labels_are_grades=not inputs.graded and "label" in inputs.extras
    )
    if cluster is None:
        schema = spilled_schema((*inputs.extras, *inputs.goals))
        spill = RowSpill(BucketFiles(staging / "spill", options.buckets, schema))
        rows_of = collect_rows(
            inputs.sources, inputs.columns, spill, facts, quarantine, options,
            threads=options.allowed_threads, advance=advance,
        )  # fmt: skip
    else:
        from rankmill.pipeline.ingest.on_cluster import IngestJob, collect_rows_on_cluster, write_shards_on_cluster

        job = IngestJob.of(inputs, options, staging, facts)
        spill, rows_of = collect_rows_on_cluster(cluster, job, inputs, facts, quarantine, advance)
    require_rows(inputs.sources, rows_of)
    release_freed()
    ends = [len(quarantine.rejects)]
    settling = settling_of(inputs, options, staging, advance, keep=cluster is not None)
    ends.append(len(quarantine.rejects))
    pair_spill = QuerySpill(staging / "pairs-spill", options.buckets, SPILLED)
    first = len(inputs.sources) + len(inputs.judgments)
    read_pairs(inputs.pairs, pair_spill, options.block_size, lambda number, at: advance(first + number, at))

    layout = layout_of(inputs, options, spill, facts, settling)
    categories = _CategoryCounts(layout)
    written = _written(int(spill.rows.sum()), progress)
    if cluster is None:
        memory = options.memory - beside_bytes() - facts.vocabulary.bytes_held
        share = share_of(memory, options.allowed_threads, layout, spill.rows, spill.id_bytes)
        buckets = np.flatnonzero(spill.rows).tolist()
        summaries = write_shards(
            spill, layout, folder, buckets,
            threads=share.threads, memory=share.values, done=written, count=categories.add,
        )  # fmt: skip
    else:
        summaries = write_shards_on_cluster(cluster, job, spill, layout, folder, written, categories.add)
    judged = sum((summary.judgments_tally for summary in summaries), Tally())
    if settling is not None:
        judged += settling.left_over({summary.bucket for summary in summaries})
    shards = {
        summary.bucket: folder / FEATURES / f"{summary.shard.features}.parquet"
        for summary in summaries
        if summary.shard is not None
    }
    if not shards:
        raise DataRejected(_nothing_judged(judged))
    pair_shards = join_pairs(
        pair_spill,
        lambda bucket: (
            pq.read_table(shards[bucket], columns=["qid", "doc_id"], partitioning=None) if bucket in shards else None
        ),
        inputs.pairs,
        quarantine,
        folder,
    )

    rejects = quarantine.rejects
    known = digests()
    files = inputs.row_files(known, by_split=options.rule is None)
    manifest = described(layout, summaries, files, options, ends[0], _grades_from(inputs, facts))
    more: dict[str, object] = {}
    if inputs.pairs:
        more["pairs"] = pair_set(pair_shards, source_files(inputs.pairs, known), len(rejects) - ends[1])
    if inputs.judgments:
        more["judgments"] = judgment_set(judged, source_files(inputs.judgments, known), ends[1] - ends[0])
    if layout.categorical:
        more["categories"] = _keep_categories(facts, categories, staging / "categories.parquet", folder / CATEGORIES)
    return Built(
        folder=folder,
        manifest=manifest.model_copy(update=more),
        files=files,
        rejects={
            REJECTS_NAME: rejects[: ends[0]],
            JUDGMENT_REJECTS_NAME: rejects[ends[0] : ends[1]],
            PAIR_REJECTS_NAME: rejects[ends[1] :],
        },
    )


def layout_of(
    inputs: Inputs, options: IngestOptions, spill: RowSpill, facts: RowFacts, settling: Settling | None
) -> Layout:
    """Return what all shards have in common, once every row is in ``spill``.

    Raises
    ------
    DataRejected
        No row has a feature, or one that is named as categorical.
    """
    features = inputs.columns or inputs.sources[0].names(spill.width)
    if not features:
        raise DataRejected(f"{inputs.rows[0].path}: no row has a feature")
    for name in sorted(inputs.categorical):
        if name not in features:
            raise DataRejected(
                f"{inputs.rows[0].path}: no row has the feature {name!r}, which {spelled('categorical')} names;"
                f" the last one is {features[-1]!r}"
            )
    extras = inputs.extras
    if settling is not None:
        extras = tuple(name for name in TYPES if name in {*extras, *settling.extras})
    return Layout(
        features=features,
        absent=options.read.absent_value,
        rule=options.rule,
        source_split=[SPLITS.index(file.split) for file in inputs.rows],
        source_name=[str(file.path) for file in inputs.rows],
        extras=extras,
        goals=inputs.goals,
        labels_are_grades=facts.labels_are_grades and not inputs.judgments,
        settling=settling,
        categorical=tuple(number for number, name in enumerate(features) if name in inputs.categorical),
    )


def settling_of(
    inputs: Inputs, options: IngestOptions, staging: Path, advance: Callable[[int, int], None], *, keep: bool
) -> Settling | None:
    """Read separate judgments; return how grades are determined, None if by each row alone.

    ``keep``: judgments stay in their spill once they are used, as a worker may be lost.
    """
    sources = inputs.judgments
    if not sources and options.aggregate is None:
        return None
    from rankmill.pipeline.judgments.aggregate import Settling

    spill, first = None, len(inputs.sources)
    if sources:
        spill = QuerySpill(staging / "judgments-spill", options.buckets, spilled_columns(sources), keep=keep)
        read_judgments(sources, spill, options.block_size, lambda number, at: advance(first + number, at))
        release_freed()
    return Settling(
        aggregate=options.aggregate,
        judgments=spill,
        unjudged=options.read.unjudged,
        goals=inputs.goals,
        labels_are_grades=bool(sources) and all(source.labels_are_grades for source in sources),
    )


def _grades_from(inputs: Inputs, facts: RowFacts) -> GradesFrom:
    if inputs.judgments:
        return "qrels"
    if facts.labels_are_grades:
        return "label"
    return "grade" if inputs.graded else "nothing"


class _CategoryCounts:
    """Rows with each category, by categorical feature; threads may add those of a shard."""

    def __init__(self, layout: Layout) -> None:
        self.features = [layout.features[number] for number in layout.categorical]
        self.tallies: list[Tallied] = []
        self._adding = threading.Lock()

    def add(self, tallies: Sequence[Tallied]) -> None:
        """Add the rows of a shard; DataRejected if a feature has too many categories."""
        with self._adding:
            pairs = zip(self.tallies, tallies, strict=True) if self.tallies else ((tally,) for tally in tallies)
            self.tallies = [summed(pair) for pair in pairs]
            for name, (codes, _) in zip(self.features, self.tallies, strict=True):
                check_number(name, len(codes))


def _keep_categories(facts: RowFacts, counts: _CategoryCounts, staged: Path, folder: Path) -> CategorySet:
    """Write the vocabulary to ``folder``, via the file ``staged``; return the manifest's entry."""
    tallies = {name: [counts.tallies[place]] if counts.tallies else [] for place, name in enumerate(counts.features)}
    facts.vocabulary.count(tallies)
    digest, size = keep_table(facts.vocabulary.table(counts.features), staged, folder)
    return CategorySet(features=counts.features, digest=digest, size=size)


def _advance(inputs: Inputs, progress: Progress | None) -> Callable[[int, int], None]:
    """Return a callback that reports to ``progress`` the bytes read of a file, given by number, plus all files before it."""
    sources: list[Source] = [*inputs.sources, *inputs.judgments, *inputs.pairs]  # type: ignore[list-item]  # of all, the path
    sizes = [source.path.stat().st_size for source in sources]
    farthest = 0

    def advance(number: int, position: int) -> None:
        nonlocal farthest
        if progress is not None:
            farthest = max(farthest, sum(sizes[:number]) + position)  # threads may finish out of order
            progress("reading", farthest, sum(sizes))

    return advance


def _written(total: int, progress: Progress | None) -> Callable[[int], None]:
    """Return a callback for the number of rows of each written shard; several threads may call it."""
    done, adding = 0, threading.Lock()

    def written(rows: int) -> None:
        nonlocal done
        with adding:
            done += rows
            if progress is not None:
                progress("writing", done, total)

    return written


def _nothing_judged(judgments: Tally) -> str:
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
