"""Build a dataset from opened files: spill rows by query, write them as sorted shards, join pairs, describe all in a manifest.

Each step is a function of what the steps before it returned::

    collect_rows    -> SpilledRows, RowFacts    the rows by bucket, and what only all of them together show
    grading_of      -> Grading              how grades are determined, if not by each row alone
    layout_of       -> Layout               what all shards have in common
    write_shards    -> [ShardSummary]       the sorted shards
    join_pairs      -> [PairShard]          the pairs of documents of these shards
    described       -> Manifest             counts, digests and how the files were read

On a cluster `collect_rows` and `write_shards` are tasks of its workers (`rankmill.pipeline.ingest.on_cluster`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.cures import NAME, spelled_with
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import beside_bytes, release_freed
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
from rankmill.pipeline.group.bucket import Layout
from rankmill.pipeline.group.shard_writer import keep_table, write_shards
from rankmill.pipeline.group.spill import SpilledRows, SpillFile, row_schema, spill_by_query
from rankmill.pipeline.ingest.manifest import described, pair_set, source_files
from rankmill.pipeline.ingest.read_rows import RowFacts, collect_rows, require_rows
from rankmill.pipeline.judgments.judgment_files import Tally, judgment_set, spilled_columns
from rankmill.pipeline.pairs.pair_files import SPILLED, PairFile, join_pairs
from rankmill.pipeline.read.column_roles import TYPES
from rankmill.pipeline.read.rejects import write_rejects

if TYPE_CHECKING:
    from rankmill.foundation.cluster.workers import Cluster
    from rankmill.pipeline.dataset.manifest import Manifest, SourceFile
    from rankmill.pipeline.ingest.inputs import Inputs
    from rankmill.pipeline.ingest_report import Stage
    from rankmill.pipeline.judgments.aggregate import Grading
    from rankmill.pipeline.judgments.judgment_files import JudgmentFile
    from rankmill.pipeline.options import IngestOptions
    from rankmill.pipeline.read.batch import Quarantine, Source

Progress = Callable[["Stage", int, int], None]
Digests = Mapping[Path, tuple[int, str]]


def build_dataset(
    inputs: Inputs,
    options: IngestOptions,
    quarantine: Quarantine,
    staging: Path,
    digests: Callable[[], Digests],
    progress: Progress | None = None,
    cluster: Cluster | None = None,
) -> tuple[Manifest, list[SourceFile]]:
    """Read all files of ``inputs``, and write the dataset in the folder ``staging / "dataset"``, without its manifest.

    Returns the manifest, and its entries of the files of rows.

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
        file = SpillFile(staging / "spill", options.buckets, row_schema((*inputs.extras, *inputs.goals)))
        rows_of = collect_rows(
            inputs.sources, inputs.columns, file, facts, quarantine, options,
            threads=options.allowed_threads, advance=advance,
        )  # fmt: skip
        spilled = file.finish()
    else:
        from rankmill.pipeline.ingest.on_cluster import IngestJob, collect_rows_on_cluster, write_shards_on_cluster

        job = IngestJob.of(inputs, options, staging, facts)
        spilled, rows_of = collect_rows_on_cluster(cluster, job, inputs, facts, quarantine, advance)
    require_rows(inputs.sources, rows_of)
    release_freed()
    ends = [len(quarantine.rejects)]
    grading = grading_of(inputs, options, staging, advance)
    ends.append(len(quarantine.rejects))
    pairs = pairs_of(inputs, options, staging, advance) if inputs.pairs else None
    layout = layout_of(inputs, options, spilled.width, facts, grading)
    names = [layout.features[number] for number in layout.categorical]
    facts.vocabulary.begin(names)
    written = _written(int(spilled.rows.sum()), progress)
    if cluster is None:
        memory = options.memory - beside_bytes() - facts.vocabulary.bytes_held
        summaries = write_shards(
            spilled, layout, folder, np.flatnonzero(spilled.rows).tolist(), facts.vocabulary,
            threads=options.allowed_threads, memory=memory, done=written,
        )  # fmt: skip
    else:
        summaries = write_shards_on_cluster(cluster, job, spilled, layout, folder, facts.vocabulary, written)
    judged = sum((summary.judgments_tally for summary in summaries), Tally())
    if grading is not None:
        judged += grading.left_over({summary.bucket for summary in summaries})
    shards = {
        summary.bucket: folder / FEATURES / f"{summary.shard.features}.parquet"
        for summary in summaries
        if summary.shard is not None
    }
    if not shards:
        raise DataRejected(_nothing_judged(judged))

    def ids_of(bucket: int) -> pa.Table | None:
        path = shards.get(bucket)
        return None if path is None else pq.read_table(path, columns=["qid", "doc_id"], partitioning=None)

    pair_shards = [] if pairs is None else join_pairs(pairs, ids_of, inputs.pairs, quarantine, folder)
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
        digest, size = keep_table(facts.vocabulary.table(names), staging / "categories.parquet", folder / CATEGORIES)
        more["categories"] = CategorySet(features=names, digest=digest, size=size)
    parts = (rejects[: ends[0]], rejects[ends[0] : ends[1]], rejects[ends[1] :])
    for name, some in zip((REJECTS_NAME, JUDGMENT_REJECTS_NAME, PAIR_REJECTS_NAME), parts, strict=True):
        if some:
            write_rejects(folder / name, some)
    return manifest.model_copy(update=more), files


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
    """Spill all judgments or pairs by query; call ``done`` with (number of the file, bytes read of it) from time to time.

    A column of ``schema`` that a file lacks has the number of the file for ``source``, and 1 for ``weight``; other ones are null.
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


def _grades_from(inputs: Inputs, facts: RowFacts) -> GradesFrom:
    if inputs.judgments:
        return "qrels"
    if facts.labels_are_grades:
        return "label"
    return "grade" if inputs.graded else "nothing"


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
