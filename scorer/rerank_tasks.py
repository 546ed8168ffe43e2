"""What workers of a cluster do in a re-ranking: score a range of the input, deal it out by query, write the lists of a range of queries.

Each call writes to a new folder and returns its name, so a call may be made twice, also at the same time.  Rows of a range
are numbered from its first one; dealing adds the rows before it, when all ranges are scored.
"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from rankmill.foundation.cluster.duty import stopper
from rankmill.foundation.errors import InputError, NotFiniteScore
from rankmill.foundation.storage.publish import file_digest, fsync_file, fsync_folder
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.options import Format, ReadOptions
from rankmill.pipeline.sources.batch import Source
from rankmill.pipeline.sources.open_source import share_features
from rankmill.pipeline.sources.parquet import ParquetSource
from rankmill.scorer.candidate_sources import open_sources
from rankmill.scorer.candidates import named_by_row
from rankmill.scorer.memory import MemoryPlan
from rankmill.scorer.models import load_model_file, predictor_of
from rankmill.scorer.predictor import Predictor
from rankmill.scorer.query_counts import QUERY_COUNT, count_queries
from rankmill.scorer.ranked_file import GRADE_COUNTS, SCORED_ROW
from rankmill.scorer.ranked_writer import ListedShard, ParquetWriter
from rankmill.scorer.scoring import InputPosition, Scored, ScoringLimits, score_in_order
from rankmill.scorer.sorting import SPILLED, DealtPart, ScoreSpill, Spilled, open_spill_file, partition_files

RANGE_BYTES = 256 << 20
"""Bytes of the input that a task scores at most, if files and row groups allow it."""
LEAST_BYTES = 8 << 20
"""Bytes that a task scores at least, if there are so many."""
SYNCED_AT_ONCE = 16
"""Files that are made durable at a time: the disk does it together."""
USUAL_TASKS = 64
"""Number of ranges if they fit between the two."""


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
        folder = self.staging / stage / f"{number:05d}-{uuid.uuid4().hex[:12]}"
        folder.mkdir(parents=True)
        return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRange:
    """Score whole files, or some row groups of one Parquet file."""

    job: Job
    number: int
    paths: tuple[Path, ...]
    sizes: tuple[int, ...]
    groups: tuple[int, int] | None
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRange:
    """The folder of a scored range, its rows, the widest text in it, and what each model has spilled."""

    folder: str
    rows: int
    width: int
    spilled: tuple[Spilled, ...]


def ranges_of(job: Job, sources: Sequence[Source]) -> list[ScoreRange]:
    """Divide the input into ranges of consecutive rows; they depend on the files alone."""
    sizes = [source.path.stat().st_size for source in sources]
    wanted = min(max(sum(sizes) // USUAL_TASKS, LEAST_BYTES), RANGE_BYTES)
    found: list[ScoreRange] = []
    held: list[int] = []

    def add(indices: Sequence[int], n_bytes: int, groups: tuple[int, int] | None = None) -> None:
        paths = tuple(sources[index].path.absolute() for index in indices)
        of_files = tuple(sizes[index] for index in indices)
        found.append(
            ScoreRange(job=job, number=len(found), paths=paths, sizes=of_files, groups=groups, n_bytes=n_bytes)
        )

    def add_held() -> None:
        if held:
            add(held, sum(sizes[index] for index in held))
            held.clear()

    for index, source in enumerate(sources):
        if held and sum(sizes[other] for other in held) + sizes[index] > wanted:
            add_held()
        if sizes[index] > wanted and isinstance(source, ParquetSource):
            add_held()
            sized = source.row_groups()
            shrunk = sizes[index] / max(1, sum(n_bytes for _, n_bytes in sized))  # compressed
            first, n_bytes = 0, 0.0
            for number, (_, of_group) in enumerate(sized):
                if number > first and n_bytes + of_group * shrunk > wanted:
                    add([index], int(n_bytes), (first, number))
                    first, n_bytes = number, 0.0
                n_bytes += of_group * shrunk
            add([index], int(n_bytes), (first, len(sized)))
        else:
            held.append(index)
    add_held()
    return found


def score_range(task: ScoreRange, threads: int) -> ScoredRange:
    """Score a range with all models, and spill its rows and their numbers by query."""
    job, stop = task.job, stopper()
    predictors = _predictors(job.models, job.n_rounds, job.start_round)
    sources = open_sources(task.paths, job.format, job.reading)
    for path, size in zip(task.paths, task.sizes, strict=True):
        if path.stat().st_size != size:
            raise InputError(f"{path}: is another file for the worker on {platform.node()}, or has changed meanwhile")
    share_features(sources, job.features)
    begin = InputPosition()
    if task.groups is not None:
        (source,) = sources
        assert isinstance(source, ParquetSource)  # noqa: S101 - only these have row groups
        begin = InputPosition(rows=source.keep_row_groups(*task.groups))
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
    """The folder of written shards, and the shards in their order."""

    folder: str
    shards: tuple[ListedShard, ...]


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
        shards.append(ListedShard(**asdict(file), sha256=file_digest(folder / file.name)))
    fsync_folder(folder)
    return WrittenQueries(folder=folder.name, shards=tuple(shards))


def grades_file(folder: Path) -> Path:
    """Return the file with the counts of grades of written shards."""
    return folder / "grades.arrows"


@lru_cache(maxsize=1)
def _predictors(models: tuple[Path, ...], n_rounds: int | None, start_round: int) -> list[Predictor]:
    """Return the models, laid out; a worker keeps those of its last task."""
    return [predictor_of(load_model_file(path), n_rounds=n_rounds, start_round=start_round) for path in models]
