"""Scores by the workers of a cluster: here the ranges of the input are made, and their rows put in order.

    input -> ranges of rows -> score, in the workers -> spilled rows of each range -> rows in the order of the input

What is done with the rows does not depend on where they were scored (`rankmill.scorer.rerank.run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa

from rankmill.foundation.cluster.workers import TASKS_A_WORKER, Cluster, open_cluster
from rankmill.foundation.errors import InputError, IntegrityError, NotFiniteScore
from rankmill.foundation.options import spelled
from rankmill.foundation.records import as_json, canonical_json, from_json
from rankmill.foundation.storage.local_copies import object_behind
from rankmill.foundation.storage.publish import write_atomically
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import Shard
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.file_ranges import FileRange, ranges_of
from rankmill.pipeline.read.json_lines import JsonSource
from rankmill.scorer.models.model import Predictor
from rankmill.scorer.options import CandidateOptions, JudgedOptions, RerankOptions
from rankmill.scorer.rerank.candidate_sources import say
from rankmill.scorer.rerank.candidates import check_rows, locate_features
from rankmill.scorer.rerank.memory import MemoryPlan
from rankmill.scorer.rerank.plan import RerankPlan
from rankmill.scorer.rerank.ranked_file import SCORED_ROW, scored_schema
from rankmill.scorer.rerank.score import DocumentBar, InputPosition, Scored, Take, numbered
from rankmill.scorer.rerank.spill import batches_of
from rankmill.scorer.rerank.tasks import Job, ScoredRange, ScoreRange, ShardRange, score_range


def check(plan: RerankPlan) -> None:
    """Raise InputError for what cannot be done on a cluster yet."""
    if plan.stage is not None:
        raise InputError(f"{spelled('run')} does not work with {spelled('cluster')} yet; leave one of them out")
    refuse_buckets(plan.sources)


def refuse_buckets(sources: Sequence[Source]) -> None:
    """Raise InputError if one of ``sources`` is an object of a bucket."""
    for source in sources:
        if (behind := object_behind(source.path)) is not None:
            raise InputError(
                f"{behind.url}: {spelled('cluster')} reads no candidates from buckets yet; copy them to a shared folder"
            )


def score(plan: RerankPlan, staging: Path, take: Take, begin: InputPosition) -> InputPosition:
    """Let the workers score all ranges of the input, then hand their rows to ``take``; return the final position."""
    predictors = [model.predictor for model in plan.models.values()]
    with _opened(plan.options) as cluster:
        scored = scored_ranges(
            cluster, staging, plan.sources, predictors, plan.reading, plan.options, ranges_of(plan.sources),
            top_k=plan.options.top_k, memory=plan.memory,
        )  # fmt: skip
    nothing = pa.RecordBatch.from_pylist([], SCORED_ROW)
    for model in range(len(predictors)):
        counts = batches_of(
            [path for each in scored for path in each.spilled[model].paths(each.of_model(staging, model), "dropped")]
        )
        for rows, dropped in zip_longest(rows_of_ranges(staging, scored, model), counts):
            results: list[list[Scored]] = [[] for _ in predictors]
            results[model] = [Scored(nothing if rows is None else rows, dropped)]
            take(results, begin)
    rows, width = sum(each.rows for each in scored), max((each.width for each in scored), default=0)
    return InputPosition(source=len(plan.sources), tasks=len(scored), all_rows=rows, width=width)


def _opened(options: RerankOptions | JudgedOptions) -> AbstractContextManager[Cluster]:
    assert options.cluster is not None  # noqa: S101 - the caller asks
    return open_cluster(options.cluster, say if options.announce else lambda _: None)


def rows_of_ranges(staging: Path, scored: Sequence[ScoredRange], model: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a model, by its number, in the order of the input, numbered and named as in one process."""
    before = 0
    for each in scored:
        for batch in batches_of(each.spilled[model].paths(each.of_model(staging, model), "scored")):
            yield numbered(batch, before)
        before += each.rows


def scored_ranges(
    cluster: Cluster,
    staging: Path,
    sources: Sequence[Source],
    predictors: Sequence[Predictor],
    reading: ReadOptions,
    options: CandidateOptions,
    ranges: Sequence[FileRange | ShardRange],
    *,
    top_k: int | None = None,
    memory: MemoryPlan | None = None,
    resumes: bool = True,
) -> list[ScoredRange]:
    """Return the results of the ``ranges`` of ``sources``.

    Results that an earlier run recorded in ``staging`` are read.

    ``resumes``: a later run may use the records.

    Raises
    ------
    CandidatesRejected
        As `rankmill.scorer.rerank.score.score_in_order`.
    """
    layouts = [locate_features(source, predictor, reading) for source in sources for predictor in predictors]
    models = [staging.absolute() / f"model-{number}.rankmill" for number in range(len(predictors))]
    for path, predictor in zip(models, predictors, strict=True):
        if not path.exists():  # an earlier run has written it otherwise
            write_atomically(path, predictor.model.to_bytes())
    of_json = {name for source in sources if isinstance(source, JsonSource) for name in source.columns or ()}
    job = Job(
        staging=staging.absolute(), models=tuple(models), format=options.format, reading=reading,
        features=tuple(sorted(of_json)),
        n_rounds=options.n_rounds, start_round=options.start_round, top_k=top_k, memory=memory,
        n_threads=options.n_threads,
    )  # fmt: skip
    tasks = [ScoreRange(job=job, number=number, rows=rows) for number, rows in enumerate(ranges)]
    (staging / "scored").mkdir(exist_ok=True)
    found = {task.number: result for task in tasks if (result := _recorded(staging, task.number)) is not None}
    waiting = [task for task in tasks if task.number not in found]
    if found and waiting and options.announce:
        say(f"resuming: {len(found):,} of {len(tasks):,} tasks of an earlier run are done (scored)")
    done = sum(task.rows.n_bytes for task in tasks if task.number in found)
    with (
        DocumentBar("scoring", sum(each.n_bytes for each in ranges)) as bar,
        closing(cluster.run(score_range, waiting, staging, resumes=resumes)) as results,
    ):
        try:
            for task, result in results:
                write_atomically(_record(staging, task.number), canonical_json(as_json(result)))
                found[task.number] = result
                done += task.rows.n_bytes
                bar.update(sum(each.rows for each in found.values()), done)
        except NotFiniteScore as error:  # all ranges before it are scored
            row = error.row + sum(found[number].rows for number in range(error.part or 0))
            raise NotFiniteScore(error.where, row, error.qid, error.score) from None
    scored = [found[task.number] for task in tasks]
    rows, width = sum(each.rows for each in scored), max((each.width for each in scored), default=0)
    check_rows(sources, layouts, reading, rows, width)
    return scored


def rows_scored_on_cluster(
    sources: Sequence[Source],
    predictor: Predictor,
    reading: ReadOptions,
    options: JudgedOptions,
    dataset: Dataset | None = None,
    split: str | None = None,
) -> pa.Table:
    """Let the workers of ``options.cluster`` score ``sources``, or a split of ``dataset``.

    The table is that of `rankmill.scorer.rerank.score.scored_rows`.

    Raises
    ------
    InputError
        The input is in a bucket, or nothing can be written beside it.
    ConflictError
        Too many workers were lost.
    ClusterUnavailable
        The scheduler does not answer, or has no workers.
    """
    refuse_buckets(sources)
    try:
        with (
            staging_folder(sources[0].path.absolute()) as staging,
            _opened(options) as cluster,
        ):
            ranges: Sequence[FileRange | ShardRange] = (
                ranges_of(sources) if dataset is None else _ranges_of_shards(dataset, split, cluster.size)
            )
            scored = scored_ranges(cluster, staging, sources, [predictor], reading, options, ranges, resumes=False)
            batches = list(rows_of_ranges(staging, scored, 0))
    except PermissionError as error:
        raise InputError(
            f"{sources[0].path.absolute().parent}: {spelled('cluster')} writes scores beside the input while it "
            "works, and this folder cannot be written to; copy the input to another one"
        ) from error
    return pa.Table.from_batches(batches, scored_schema(reading.goals))


def _ranges_of_shards(dataset: Dataset, split: str | None, workers: int) -> list[ShardRange]:
    shards: list[Shard] = dataset.manifest.shards
    together = max(1, len(shards) // (TASKS_A_WORKER * workers))
    return [
        ShardRange(
            path=dataset.path.absolute(),
            manifest=dataset.manifest.model_copy(update={"shards": shards[first : first + together]}),
            split=split,
        )
        for first in range(0, len(shards), together)
    ]


def _recorded(staging: Path, number: int) -> ScoredRange | None:
    path = _record(staging, number)
    try:
        return from_json(ScoredRange, path.read_bytes(), str(path))
    except (OSError, IntegrityError):
        return None


def _record(staging: Path, number: int) -> Path:
    return staging / "scored" / f"{number:05d}.json"
