"""From judgments in files to a dataset: read, spill by query, sort, write, join pairs, publish.

Each step of `build_dataset` is a function of what the steps before it returned::

    collect_rows    -> SpilledRows, RowFacts    the rows by bucket, and what only all of them together show
    grading_of      -> Grading                  how grades are determined, if not by each row alone
    layout_of       -> Layout                   what all shards have in common
    write_shards    -> [ShardSummary]           the sorted shards
    join_pairs      -> [PairShard]              the pairs of documents of these shards
    described       -> Manifest                 counts, digests and how the files were read

On a cluster `collect_rows` and `write_shards` are tasks of its workers (`rankmill.pipeline.ingest.on_cluster`).

Peak memory: see :mod:`rankmill.pipeline.memory_plans`; after the two passes, the ids and the pairs of one bucket.
Disk: the spilled rows, four bytes per value, and the dataset.  The bytes of the dataset do not depend on the memory
limit, the block size or the number of threads.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.cluster.workers import open_cluster
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.process_memory import beside_bytes, release_freed, return_large_arrays
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.digests import source_digests
from rankmill.pipeline.dataset.manifest import (
    CATEGORIES,
    FEATURES,
    JUDGMENT_REJECTS_NAME,
    PAIR_REJECTS_NAME,
    REJECTS_NAME,
    CategorySet,
    Tally,
)
from rankmill.pipeline.dataset.publish import check_destination, publish_dataset
from rankmill.pipeline.group.shard_writer import keep_table, write_shards
from rankmill.pipeline.group.spill import SpillFile, row_schema
from rankmill.pipeline.ingest.inputs import check_for_cluster, open_inputs
from rankmill.pipeline.ingest.read_rows import RowFacts, collect_rows, require_rows
from rankmill.pipeline.ingest.steps import (
    described,
    grades_from,
    grading_of,
    layout_of,
    nothing_judged,
    pair_set,
    pairs_of,
    source_files,
)
from rankmill.pipeline.ingest_report import IngestReport
from rankmill.pipeline.judgments.judgment_files import judgment_set
from rankmill.pipeline.options import IngestOptions
from rankmill.pipeline.pairs.pair_files import join_pairs
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.columns import guesses_line, guesses_of, index_line
from rankmill.pipeline.read.delimited import delimiter_lines
from rankmill.pipeline.read.rejects import listing_rejects, write_rejects
from rankmill.pipeline.statistics.feature_statistics import statistics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rankmill.foundation.cluster.workers import Cluster
    from rankmill.pipeline.dataset.manifest import Manifest, SourceFile, SplitName
    from rankmill.pipeline.ingest.inputs import Given, Inputs
    from rankmill.pipeline.ingest_report import Stage
    from rankmill.pipeline.read.batch import Source

    Progress = Callable[[Stage, int, int], None]
    Digests = Mapping[Path, tuple[int, str]]


def ingest(
    train: Given,
    out: Path,
    *,
    valid: Given = (),
    test: Given = (),
    pairs: Given = (),
    qrels: Given = (),
    options: IngestOptions | None = None,
    cluster: Cluster | None = None,
    progress: Callable[[Stage, int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> IngestReport:
    """Build the dataset ``out`` from judgments in files and return a report.

    Parameters
    ----------
    train, valid, test
        The files of each split, folders of them and patterns (see :func:`rankmill.pipeline.read.files.find_files`), in
        any order. With ``options.rule`` all files are given as ``train``.
    pairs
        Files with preference pairs of these judgments.
    qrels
        Files with judgments, which replace the grades of the rows.
    out
        The folder to create.
    options
        See :class:`IngestOptions`.
    cluster
        An open cluster, instead of ``options.cluster``.
    progress
        Called from time to time with ``"reading"``, bytes read and total bytes, later with ``"writing"``, documents
        written and total.
    say
        Called with a line about inferred columns, before the data are read, and about each lost worker of a cluster.

    Raises
    ------
    InputError
        A file is missing, options contradict each other, or ``out`` exists.
    DataRejected
        The data are invalid; nothing was written except, if rejects were allowed, a list of the malformed rows next to
        ``out``.
    ConflictError
        Too many workers of ``options.cluster`` were lost.
    ClusterUnavailable
        Its scheduler does not answer, or has no workers.
    """
    started = time.perf_counter()
    return_large_arrays()
    options = IngestOptions() if options is None else options
    check_destination(out, overwrite=options.overwrite)
    quarantine = Quarantine(options.max_rejects)
    rows: dict[SplitName, Given] = {"train": train, "valid": valid, "test": test}
    inputs = open_inputs(rows, qrels, pairs, options, quarantine, say)
    where = options.cluster if cluster is None else cluster
    if where is not None:
        check_for_cluster(inputs)
    of_judgments = guesses_of(source.table for source in inputs.judgments)
    for what, guessed in (("", inputs.guessed), ("judgments: ", of_judgments)):
        if guessed and say is not None:
            say(what + guesses_line(guessed))
    if inputs.index and say is not None:
        say(index_line(inputs.index))
    if say is not None:
        for line in delimiter_lines(inputs.sources):
            say(line)
    with (
        staging_folder(out) as staging,
        ExitStack() as stack,
        source_digests(inputs.paths) as digests,
        listing_rejects(out, quarantine),
    ):
        if where is not None:
            cluster = stack.enter_context(open_cluster(where, say or (lambda _: None)))
        manifest, files = build_dataset(inputs, options, quarantine, staging, digests, progress, cluster)
        publish_dataset(staging / "dataset", out, manifest, overwrite=options.overwrite)
    made = Dataset(out, manifest)
    return IngestReport(
        path=out,
        manifest=manifest,
        seconds=time.perf_counter() - started,
        read=files,
        columns_guessed=inputs.guessed,
        statistics=statistics_of(made),
        vocabulary=made.vocabulary,
        empty_files=len(inputs.empty),
    )


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
        raise DataRejected(nothing_judged(judged))

    def ids_of(bucket: int) -> pa.Table | None:
        path = shards.get(bucket)
        return None if path is None else pq.read_table(path, columns=["qid", "doc_id"], partitioning=None)

    pair_shards = [] if pairs is None else join_pairs(pairs, ids_of, inputs.pairs, quarantine, folder)
    rejects = quarantine.rejects
    known = digests()
    files = inputs.row_files(known, by_split=options.rule is None)
    manifest = described(layout, summaries, files, options, ends[0], grades_from(inputs, facts))
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


def _advance(inputs: Inputs, progress: Progress | None) -> Callable[[int, int], None]:
    """Return a callback that reports the bytes read of a file, given by number, to ``progress``.

    It adds the bytes of all files before it.
    """
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
