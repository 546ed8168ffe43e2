"""What workers of a cluster do in a re-ranking: score a range of the input, deal it out by query, write the lists of a range of queries.

Each call writes to a new folder and returns its name, so a call may be made twice, also at the same time.  Rows of a range
are numbered from its first one; dealing adds the rows before it, when all ranges are scored.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rankmill.foundation.cluster.duty import folder_of_call, stopper
from rankmill.foundation.errors import NotFiniteScore
from rankmill.foundation.storage.publish import file_digest, fsync_file, fsync_folder
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.options import Format, ReadOptions
from rankmill.pipeline.read.file_ranges import FileRange
from rankmill.pipeline.read.made_ids import named_by_row
from rankmill.pipeline.read.open_source import share_features
from rankmill.scorer.models.loading import laid_out
from rankmill.scorer.rerank.candidate_sources import open_sources
from rankmill.scorer.rerank.memory import MemoryPlan
from rankmill.scorer.rerank.query_counts import QUERY_COUNT, count_queries
from rankmill.scorer.rerank.ranked_file import GRADE_COUNTS, SCORED_ROW
from rankmill.scorer.rerank.ranked_writer import ListedShard, ParquetWriter
from rankmill.scorer.rerank.scoring import InputPosition, Scored, ScoringLimits, score_in_order
from rankmill.scorer.rerank.sorting import SPILLED, DealtPart, ScoreSpill, Spilled, open_spill_file, partition_files

SYNCED_AT_ONCE = 16
"""Files that are made durable at a time: the disk does it together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all tasks of a re-ranking have in common; every path is absolute, and seen by all workers.

    ``models`` are files; ``features``: the names that all files of JSON lines have in common.
    """

    staging: Path
    models: tuple[Path, ...]
    format: Format
    reading: ReadOptions
    features: tuple[str, ...]
    n_rounds: int | None
    start_round: int
    top_k: int | None
    memory: MemoryPlan
    n_threads: int

    def new_folder(self, stage: str, number: int) -> Path:
        """Make a new folder for a call."""
        return folder_of_call(self.staging, stage, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRange:
    """Score a range of the input."""

    job: Job
    number: int
    files: FileRange


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
    task.files.check_files()
    sources = open_sources(task.files.paths, job.format, job.reading)
    share_features(sources, job.features)
    begin = InputPosition(rows=task.files.narrow(sources))
    folder = job.new_folder("scored", task.number)
    plan, n_threads = job.memory, job.memory.scoring_threads(job.n_threads or threads)
    limits = ScoringLimits(n_threads, plan.block_bytes, plan.columns_bytes(n_threads), plan.best_bytes)
    with ExitStack() as stack:
        spills = []
        for number in range(len(predictors)):
            (folder / str(number)).mkdir()
            spill = ScoreSpill(folder / str(number), sort_bytes=plan.sort_bytes, n_threads=1)
            spills.append(stack.enter_context(spill))

        def take(results: list[list[Scored]], place: InputPosition) -> None:  # noqa: ARG001
            stop()
            for spill, parts in zip(spills, results, strict=True):
                for part in parts:
                    spill.write(part.rows, part.dropped)

        try:
            end = score_in_order(
                sources, predictors, job.reading, take, limits, top_k=job.top_k, begin=begin, part=True
            )
        except NotFiniteScore as error:
            error.part = task.number
            raise
        spilled = tuple(spill.checkpoint() for spill in spills)
    for number, state in enumerate(spilled):
        counts = count_queries(scored_files(folder, number, state, "scored"))
        path = queries_file(folder, number)
        with open_spill_file(path, QUERY_COUNT) as file:
            file.write_table(counts)
        fsync_file(path)
    fsync_folder(folder)
    return ScoredRange(folder=folder.name, rows=end.all_rows, width=end.width, spilled=spilled)


def scored_files(folder: Path, model: int, state: Spilled, kind: str) -> list[Path]:
    """Return the files of ``kind`` that a scored range has of a model."""
    return [folder / str(model) / f"{kind}-{number}.arrows" for number in range(state.files)]


def queries_file(folder: Path, model: int) -> Path:
    """Return the file with the rows by query of a scored range."""
    return folder / str(model) / "queries.arrows"


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
    """Divide the rows of a range by query, numbered in the whole input; those without an id are named by that."""
    folder, stop = task.job.new_folder("dealt", task.number), stopper()

    def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
        stop()
        row = batch.column("row").to_numpy() + task.before
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {"doc_id": named_by_row(columns["doc_id"], row), "row": as_array(row)}
        return pa.record_batch(list(columns.values()), schema=SCORED_ROW)

    changes: dict[str, Callable[[pa.RecordBatch], pa.RecordBatch]] = {
        "scored": numbered,
        "dropped": lambda batch: batch,
    }
    for model, (bounds, state) in enumerate(zip(task.bounds, task.scored.spilled, strict=True)):
        (folder / str(model)).mkdir()
        for kind, schema in SPILLED.items():
            paths = [dealt_file(folder, model, part, kind) for part in range(len(bounds) + 1)]
            sources = scored_files(task.job.staging / "scored" / task.scored.folder, model, state, kind)
            partition_files(sources, paths, pa.array(bounds, pa.string()), schema, changes[kind])
            with ThreadPoolExecutor(SYNCED_AT_ONCE) as pool:
                list(pool.map(fsync_file, paths))
        fsync_folder(folder / str(model))
    return DealtRange(folder=folder.name)


def dealt_file(folder: Path, model: int, part: int, kind: str) -> Path:
    """Return the file of ``kind`` that a range, dealt out to ``folder``, has for a range of queries."""
    return folder / str(model) / f"{kind}-{part}.arrows"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteQueries:
    """Write the shards of a range of queries, of which ``part`` has the rows."""

    job: Job
    number: int
    part: DealtPart
    spilled: Spilled
    metadata: dict[str, str]
    first_shard: int
    shard_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenQueries:
    """The folder of written shards, the shards in their order, and the number of rows with a repeated document."""

    folder: str
    shards: tuple[ListedShard, ...]
    repeated: int = 0


def write_queries(task: WriteQueries, threads: int) -> WrittenQueries:
    """Sort the rows of a range of queries, and write its shards and its counts of grades."""
    job, stop = task.job, stopper()
    folder = job.new_folder("written", task.number)
    (folder / "sorting").mkdir()
    n_threads = job.n_threads or threads
    writer = ParquetWriter(
        folder, "part-{:05d}.parquet", task.metadata, shard_rows=task.shard_rows, first=task.first_shard
    )
    spill = ScoreSpill.of_parts(
        folder / "sorting", [task.part], task.spilled, sort_bytes=job.memory.sort_bytes, n_threads=n_threads
    )
    with spill:
        try:
            for batch in spill.ranked(job.top_k):
                stop()
                writer.write(batch)
            files = writer.close()
        except BaseException:
            writer.abandon()
            raise
        if job.top_k is not None:
            with open_spill_file(grades_file(folder), GRADE_COUNTS) as counts:
                for table in spill.grade_counts():
                    stop()
                    counts.write_table(table)
            fsync_file(grades_file(folder))
    shards = []
    for file in files:
        fsync_file(folder / file.name)
        shards.append(ListedShard.of(file, file_digest(folder / file.name)))
    fsync_folder(folder)
    return WrittenQueries(folder=folder.name, shards=tuple(shards), repeated=sum(file.repeated for file in files))


def grades_file(folder: Path) -> Path:
    """Return the file with the counts of grades of written shards."""
    return folder / "grades.arrows"
