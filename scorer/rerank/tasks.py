"""What workers of a cluster do: score a range of the input.

Each call writes to a new folder and returns its name, so a call may be made twice, also at the same time.  Rows of a
range are numbered from its first one; `rankmill.scorer.rerank.score.numbered` adds the rows before it, when all ranges
are scored.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from rankmill.foundation.cluster.duty import folder_of_call, stopper
from rankmill.foundation.errors import NotFiniteScore
from rankmill.foundation.storage.publish import fsync_folder
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import Manifest
from rankmill.pipeline.options import Format, ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.file_ranges import FileRange
from rankmill.pipeline.read.open_source import share_features
from rankmill.scorer.models.loading import laid_out
from rankmill.scorer.models.model import Predictor
from rankmill.scorer.rerank.candidate_sources import DatasetSource, open_sources
from rankmill.scorer.rerank.memory import MemoryPlan
from rankmill.scorer.rerank.ranked_file import scored_schema
from rankmill.scorer.rerank.score import InputPosition, Scored, ScoringLimits, score_in_order
from rankmill.scorer.rerank.spill import ScoreSpill, Spilled


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
    """Score a range of the input."""

    job: Job
    number: int
    rows: FileRange | ShardRange

    def open(self, predictors: list[Predictor]) -> tuple[list[Source], InputPosition]:
        """Open the range, and return where its rows begin."""
        job, rows = self.job, self.rows
        if isinstance(rows, ShardRange):
            dataset = Dataset(rows.path, rows.manifest)
            return [DatasetSource(dataset, rows.split, predictors[0], job.reading.goals)], InputPosition()
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

    def of_model(self, staging: Path, model: int) -> Path:
        """Return the folder of what a model, by its number, has spilled."""
        return staging / "scored" / self.folder / str(model)


def score_range(task: ScoreRange, threads: int) -> ScoredRange:
    """Score a range with all models, and spill its rows."""
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
            limits, top_k = ScoringLimits.within(job.memory, job.n_threads or threads), job.top_k
            end = score_in_order(sources, predictors, job.reading, take, limits, top_k=top_k, begin=begin, part=True)
        except NotFiniteScore as error:
            error.part = task.number
            raise
        spilled = tuple(spill.checkpoint() for spill in spills)
    fsync_folder(folder)
    return ScoredRange(folder=folder.name, rows=end.all_rows, width=end.width, spilled=spilled)
