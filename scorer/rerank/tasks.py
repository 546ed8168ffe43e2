"""What workers of a cluster do: score a range of the input, deal it out by query, write the lists of a range of queries.

Each call writes to a new folder and returns its name, so a call may be made twice, also at the same time.  Rows of a range
are numbered from its first one; `numbered` adds the rows before it, when all ranges are scored.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rankmill.foundation.cluster.duty import folder_of_call, stopper
from rankmill.foundation.errors import NotFiniteScore
from rankmill.foundation.storage.publish import file_digest, fsync_file, fsync_folder
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import Manifest
from rankmill.pipeline.options import Format, ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.file_ranges import FileRange
from rankmill.pipeline.read.made_ids import named_by_row
from rankmill.pipeline.read.open_source import share_features
from rankmill.scorer.models.loading import laid_out
from rankmill.scorer.models.model import Predictor
from rankmill.scorer.rerank.candidate_sources import DatasetSource, open_sources
from rankmill.scorer.rerank.memory import MemoryPlan
from rankmill.scorer.rerank.query_counts import QUERY_COUNT, count_queries
from rankmill.scorer.rerank.ranked_file import GRADE_COUNTS, RankedPart, scored_schema
from rankmill.scorer.rerank.score import InputPosition, Scored, ScoringLimits, score_in_order
from rankmill.scorer.rerank.spill import (
    SPILLED,
    DealtPart,
    ScoreSpill,
    Spilled,
    open_spill_file,
    partition_files,
    sorted_parts,
    spill_file,
)
from rankmill.scorer.rerank.write import ParquetWriter

SYNCED_AT_ONCE = 16
"""Files that are made durable at a time: the disk does it together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all tasks have in common; every path is absolute, and seen by all workers.

    ``models`` are files; ``features``: the names that all files of JSON lines have in common.
    """

    staging: Path
    models: tuple[Path, ...]
    format: Format
    reading: ReadOptions
    features: tuple[str, ...]
    n_rounds: int | None
    start_round: int
    top_k: int | None = None
    memory: MemoryPlan | None = None
    n_threads: int

    def limits(self, threads: int) -> ScoringLimits:
        """Return the limits of scoring in a worker with so many threads."""
        wanted = self.n_threads or threads
        return ScoringLimits.unlimited(wanted) if self.memory is None else ScoringLimits.within(self.memory, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRange:
    """Some shards of a split of a dataset, whose manifest has only these."""

    path: Path
    manifest: Manifest
    split: str | None

    @property
    def n_bytes(self) -> int:
        """The bytes of their rows."""
        return sum(shard.features_bytes for shard in self.manifest.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRange:
    """Score a range of the input; ``counted``: count its rows by query, too."""

    job: Job
    number: int
    rows: FileRange | ShardRange
    counted: bool = True

    def open(self, predictors: list[Predictor]) -> tuple[list[Source], InputPosition]:
        """Open the range, and return where its rows begin."""
        job, rows = self.job, self.rows
        if isinstance(rows, ShardRange):
            dataset = Dataset(rows.path, rows.manifest)
            return [DatasetSource.of_model(dataset, rows.split, predictors[0], job.reading.goals)], InputPosition()
        rows.check_files()
        sources = open_sources(rows.paths, job.format, job.reading)
        share_features(sources, job.features)
        return sources, InputPosition(rows=rows.narrow(sources))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRange:
    """The folder of a scored range, its rows, the widest text in it, and what each model has spilled."""

    folder: str
    rows: int
    width: int
    spilled: tuple[Spilled, ...]


def score_range(task: ScoreRange, threads: int) -> ScoredRange:
    """Score a range with all models, and spill its rows and their numbers by query."""
    job, stop = task.job, stopper()
    predictors = laid_out(job.models, job.n_rounds, job.start_round)
    sources, begin = task.open(predictors)
    folder = folder_of_call(job.staging, "scored", task.number)
    kept = scored_schema(job.reading.goals, alone=True)
    with ExitStack() as stack:
        spills = []
        for number in range(len(predictors)):
            (folder / str(number)).mkdir()
            spills.append(stack.enter_context(closing(ScoreSpill(folder / str(number), kept=kept))))

        def take(results: list[list[Scored]], place: InputPosition) -> None:  # noqa: ARG001
            stop()
            for spill, parts in zip(spills, results, strict=True):
                for part in parts:
                    spill.write(part.rows, part.dropped)

        try:
            limits, top_k = job.limits(threads), job.top_k
            end = score_in_order(sources, predictors, job.reading, take, limits, top_k=top_k, begin=begin, part=True)
        except NotFiniteScore as error:
            error.part = task.number
            raise
        spilled = tuple(spill.checkpoint() for spill in spills)
    for number, state in enumerate(spilled if task.counted else ()):
        counts = count_queries(state.paths(folder / str(number), "scored"))
        path = queries_file(folder, number)
        with open_spill_file(path, QUERY_COUNT) as file:
            file.write_table(counts)
        fsync_file(path)
    fsync_folder(folder)
    return ScoredRange(folder=folder.name, rows=end.all_rows, width=end.width, spilled=spilled)


def queries_file(folder: Path, model: int) -> Path:
    """Return the file with the rows by query of a scored range."""
    return folder / str(model) / "queries.arrows"


def numbered(batch: pa.RecordBatch, before: int) -> pa.RecordBatch:
    """Return scored rows of a range, numbered in the whole input; those without an id are named by that."""
    row = batch.column("row").to_numpy() + before
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns |= {"doc_id": named_by_row(columns["doc_id"], row), "row": as_array(row)}
    return pa.record_batch(list(columns.values()), schema=batch.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class DealRange:
    """Deal the rows of a scored range out to ranges of queries, which begin at ``bounds`` (of each model); ``before`` rows come before."""

    job: Job
    number: int
    scored: ScoredRange
    before: int
    bounds: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtRange:
    """The folder of a range that was dealt out."""

    folder: str


def deal_range(task: DealRange, threads: int) -> DealtRange:  # noqa: ARG001
    """Divide the rows of a range by query, numbered in the whole input."""
    folder, stop = folder_of_call(task.job.staging, "dealt", task.number), stopper()

    def in_whole(batch: pa.RecordBatch) -> pa.RecordBatch:
        stop()
        return numbered(batch, task.before)

    changes: dict[str, Callable[[pa.RecordBatch], pa.RecordBatch]] = {"scored": in_whole}
    for model, (bounds, state) in enumerate(zip(task.bounds, task.scored.spilled, strict=True)):
        (folder / str(model)).mkdir()
        scored = task.job.staging / "scored" / task.scored.folder / str(model)
        for kind, schema in SPILLED.items():
            paths = [spill_file(folder / str(model), kind, part) for part in range(len(bounds) + 1)]
            change = changes.get(kind, lambda batch: batch)
            partition_files(state.paths(scored, kind), paths, pa.array(bounds, pa.string()), schema, change)
            with ThreadPoolExecutor(SYNCED_AT_ONCE) as pool:
                list(pool.map(fsync_file, paths))
        fsync_folder(folder / str(model))
    return DealtRange(folder=folder.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteQueries:
    """Write the shards of a range of queries, of which ``part`` has the rows."""

    job: Job
    number: int
    part: DealtPart
    spilled: Spilled
    sort_bytes: int
    metadata: dict[str, str]
    first_shard: int
    shard_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenQueries:
    """The folder of written shards, and the shards in their order with their digests."""

    folder: str
    shards: tuple[RankedPart, ...]
    sha256: tuple[str, ...]


def write_queries(task: WriteQueries, threads: int) -> WrittenQueries:
    """Sort the rows of a range of queries, and write its shards and its counts of grades."""
    job, stop = task.job, stopper()
    folder = folder_of_call(job.staging, "written", task.number)
    writer = ParquetWriter(
        folder, "part-{:05d}.parquet", task.metadata, shard_rows=task.shard_rows, first=task.first_shard
    )
    n_threads = job.n_threads or threads
    with sorted_parts(folder, [task.part], task.spilled, sort_bytes=task.sort_bytes, n_threads=n_threads) as rows:
        try:
            for batch in rows.ranked(job.top_k):
                stop()
                writer.write(batch)
            files = writer.close()
        except BaseException:
            writer.abandon()
            raise
        if job.top_k is not None:
            with open_spill_file(grades_file(folder), GRADE_COUNTS) as counts:
                for table in rows.grade_counts():
                    stop()
                    counts.write_table(table)
            fsync_file(grades_file(folder))
    for file in files:
        fsync_file(folder / file.name)
    digests = tuple(file_digest(folder / file.name) for file in files)
    fsync_folder(folder)
    return WrittenQueries(folder=folder.name, shards=tuple(files), sha256=digests)


def grades_file(folder: Path) -> Path:
    """Return the file with the counts of grades of written shards."""
    return folder / "grades.arrows"
