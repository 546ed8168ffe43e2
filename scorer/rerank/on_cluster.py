"""A re-ranking on a cluster: the workers score, deal out and write; here the ranges are made and the results put together.

    input  -> ranges of rows -> score -> spilled rows, rows by query
                                             |             |
                                             |      ranges of queries = whole shards
                                             v             v
                                   deal out to ranges of queries -> sort and write shards -> one folder

A single output file has one writer: it is sorted and written here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

from rankmill.foundation.cluster.workers import Cluster
from rankmill.foundation.errors import InputError, IntegrityError, NotFiniteScore
from rankmill.foundation.options import spelled
from rankmill.foundation.records import as_json, canonical_json, from_json
from rankmill.foundation.storage.local_copies import object_behind
from rankmill.foundation.storage.publish import fsync_folder, write_atomically
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.file_ranges import FileRange, ranges_of
from rankmill.pipeline.read.json_lines import JsonSource
from rankmill.scorer.models.model import Model, Predictor
from rankmill.scorer.options import CandidateOptions
from rankmill.scorer.rerank import write as ranked_writer
from rankmill.scorer.rerank.candidate_sources import say
from rankmill.scorer.rerank.candidates import Columns, check_rows, locate_features
from rankmill.scorer.rerank.journal import Journal
from rankmill.scorer.rerank.memory import MemoryPlan
from rankmill.scorer.rerank.plan import ModelToRank, RerankPlan
from rankmill.scorer.rerank.query_counts import QueryRange, ranges_of_queries, total_counts
from rankmill.scorer.rerank.run import output_folder, write_parts
from rankmill.scorer.rerank.score import DocumentBar, InputPosition
from rankmill.scorer.rerank.spill import MOST_PARTS, DealtPart, Spilled, batches_of, spill_file
from rankmill.scorer.rerank.tasks import (
    DealRange,
    DealtRange,
    Job,
    ScoredRange,
    ScoreRange,
    ShardRange,
    WriteQueries,
    WrittenQueries,
    deal_range,
    grades_file,
    queries_file,
    score_range,
    write_queries,
)
from rankmill.scorer.rerank.write import RankedFiles, describe_lists, metadata_of


class _Numbered(Protocol):
    @property
    def number(self) -> int: ...


Task = TypeVar("Task", bound=_Numbered)
Result = TypeVar("Result")


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


def score(cluster: Cluster, plan: RerankPlan, staging: Path, journal: Journal) -> None:
    """Let the workers score all ranges of the input."""
    layouts = locate_all(plan.sources, [model.predictor for model in plan.models.values()], plan.reading)
    scored = _scored(cluster, plan, staging)
    rows, width = check_ranges(plan.sources, layouts, plan.reading, scored)
    journal.place = InputPosition(source=len(plan.sources), tasks=len(scored), all_rows=rows, width=width)
    journal.scored = True
    journal.write(staging)


def write(cluster: Cluster, plan: RerankPlan, staging: Path, journal: Journal) -> list[RankedFiles]:
    """Let the workers deal out, sort and write the lists of each model, and put them together."""
    scored = _scored(cluster, plan, staging)
    spilled = [
        Spilled(
            files=len(scored),
            n_rows=sum(each.spilled[model].n_rows for each in scored),
            n_bytes=sum(each.spilled[model].n_bytes for each in scored),
        )
        for model in range(len(plan.models))
    ]
    queries = [_ranges_of_queries(plan, staging, model, scored) for model in range(len(plan.models))]
    parts = _dealt(cluster, plan, staging, scored, queries)
    models = list(plan.models.items())
    if plan.single:
        sorting = staging / "sorting"
        sorting.mkdir(exist_ok=True)
        ((label, model),) = models
        out = output_folder(plan, staging, label)
        return [write_parts(plan, sorting, out, model, parts[0], spilled[0], journal)]
    tasks: list[WriteQueries] = []
    job = _job(plan, staging)
    for (_, model), of_model, parts_of_model, state in zip(models, queries, parts, spilled, strict=True):
        for each, part in zip(of_model, parts_of_model, strict=True):
            task = WriteQueries(
                job=job, number=len(tasks), part=part, spilled=state, sort_bytes=plan.memory.sort_bytes,
                metadata=metadata_of(plan.facts_of(model)), first_shard=each.first_shard, shard_rows=ranked_writer.SHARD_ROWS,
            )  # fmt: skip
            tasks.append(task)
    announce = plan.options.announce
    results = iter(results_of(cluster, staging, "written", write_queries, WrittenQueries, tasks, announce=announce))
    return [
        _put_together(
            plan,
            staging,
            output_folder(plan, staging, label),
            model,
            of_model,
            [next(results) for _ in of_model],
            journal,
        )
        for (label, model), of_model in zip(models, queries, strict=True)
    ]


def job_of(
    staging: Path,
    models: Sequence[Model],
    sources: Sequence[Source],
    reading: ReadOptions,
    options: CandidateOptions,
    *,
    top_k: int | None = None,
    memory: MemoryPlan | None = None,
) -> Job:
    """Write ``models`` to ``staging`` for the workers, unless an earlier run has, and return what all tasks share."""
    paths = [staging.absolute() / f"model-{number}.rankmill" for number in range(len(models))]
    for path, model in zip(paths, models, strict=True):
        if not path.exists():
            write_atomically(path, model.to_bytes())
    of_json = {name for source in sources if isinstance(source, JsonSource) for name in source.columns or ()}
    return Job(
        staging=staging.absolute(), models=tuple(paths), format=options.format, reading=reading, features=tuple(sorted(of_json)),
        n_rounds=options.n_rounds, start_round=options.start_round, top_k=top_k, memory=memory, n_threads=options.n_threads,
    )  # fmt: skip


def scored_ranges(
    cluster: Cluster,
    job: Job,
    ranges: Sequence[FileRange | ShardRange],
    *,
    counted: bool = True,
    announce: bool = False,
    resumes: bool = True,
) -> list[ScoredRange]:
    """Return what the ranges of the input have become; those that are not scored yet are.

    ``counted``: their rows are counted by query; ``announce`` and ``resumes`` as in `results_of`.
    """
    tasks = [ScoreRange(job=job, number=number, rows=rows, counted=counted) for number, rows in enumerate(ranges)]
    done, rows = 0, 0
    with DocumentBar("scoring", sum(each.n_bytes for each in ranges)) as bar:

        def show(task: ScoreRange, result: ScoredRange) -> None:
            nonlocal done, rows
            done, rows = done + task.rows.n_bytes, rows + result.rows
            bar.update(rows, done)

        try:
            return results_of(
                cluster,
                job.staging,
                "scored",
                score_range,
                ScoredRange,
                tasks,
                show,
                announce=announce,
                resumes=resumes,
            )
        except NotFiniteScore as error:  # all ranges before it are scored
            before = [_known(job.staging, "scored", ScoredRange, number) for number in range(error.part or 0)]
            row = error.row + sum(each.rows for each in before if each)
            raise NotFiniteScore(error.where, row, error.qid, error.score) from None


def locate_all(sources: Sequence[Source], predictors: Sequence[Predictor], reading: ReadOptions) -> list[Columns]:
    """Find the features of all models in all ``sources``; errors as `locate_features`."""
    return [locate_features(source, predictor, reading) for source in sources for predictor in predictors]


def check_ranges(
    sources: Sequence[Source], layouts: Sequence[Columns], reading: ReadOptions, scored: Sequence[ScoredRange]
) -> tuple[int, int]:
    """Return the rows of all ranges and the widest text, if `check_rows` has nothing against them."""
    rows, width = sum(each.rows for each in scored), max((each.width for each in scored), default=0)
    check_rows(sources, layouts, reading, rows, width)
    return rows, width


def results_of(
    cluster: Cluster,
    staging: Path,
    stage: str,
    function: Callable[[Task, int], Result],
    kind: type[Result],
    tasks: Sequence[Task],
    show: Callable[[Task, Result], object] = lambda *_: None,
    *,
    announce: bool = False,
    resumes: bool = True,
) -> list[Result]:
    """Return the result of each task; those that an earlier run has recorded in ``staging`` are read.

    ``show`` gets each task with its result; ``announce`` says how many are done; ``resumes``: a later run may use the records.
    """
    (staging / stage).mkdir(exist_ok=True)
    known = {task.number: _known(staging, stage, kind, task.number) for task in tasks}
    found = {number: result for number, result in known.items() if result is not None}
    for task in tasks:
        if task.number in found:
            show(task, found[task.number])
    waiting = [task for task in tasks if task.number not in found]
    if found and waiting and announce:
        say(f"resuming: {len(found):,} of {len(tasks):,} tasks of an earlier run are done ({stage})")
    with closing(cluster.run(function, waiting, staging, resumes=resumes)) as results:
        for task, result in results:
            write_atomically(_record(staging, stage, task.number), canonical_json(as_json(result)))
            found[task.number] = result
            show(task, result)
    return [found[task.number] for task in tasks]


def _job(plan: RerankPlan, staging: Path) -> Job:
    models, options = [each.model for each in plan.models.values()], plan.options
    return job_of(staging, models, plan.sources, plan.reading, options, top_k=options.top_k, memory=plan.memory)


def _scored(cluster: Cluster, plan: RerankPlan, staging: Path) -> list[ScoredRange]:
    return scored_ranges(cluster, _job(plan, staging), ranges_of(plan.sources), announce=plan.options.announce)


def _ranges_of_queries(plan: RerankPlan, staging: Path, model: int, scored: Sequence[ScoredRange]) -> list[QueryRange]:
    files = [queries_file(staging / "scored" / each.folder, model) for each in scored]
    sort_bytes, n_threads = plan.memory.sort_bytes, plan.options.threads
    counts = total_counts(files, plan.options.top_k, staging / "counting", sort_bytes=sort_bytes, n_threads=n_threads)
    with closing(counts):
        return ranges_of_queries(counts, ranked_writer.SHARD_ROWS, MOST_PARTS)


def _dealt(
    cluster: Cluster,
    plan: RerankPlan,
    staging: Path,
    scored: Sequence[ScoredRange],
    queries: Sequence[Sequence[QueryRange]],
) -> list[list[DealtPart]]:
    """Return the files of each range of queries, for each model."""
    job, before, tasks = _job(plan, staging), 0, []
    bounds = tuple(tuple(each.first_qid or "" for each in of_model[1:]) for of_model in queries)
    for number, each in enumerate(scored):
        tasks.append(DealRange(job=job, number=number, scored=each, before=before, bounds=bounds))
        before += each.rows
    dealt = results_of(cluster, staging, "dealt", deal_range, DealtRange, tasks, announce=plan.options.announce)
    folders = [job.staging / "dealt" / each.folder for each in dealt]

    def files(model: int, part: int, kind: str) -> tuple[Path, ...]:
        return tuple(spill_file(folder / str(model), kind, part) for folder in folders)

    return [
        [DealtPart(files(model, part, "scored"), files(model, part, "dropped")) for part in range(len(of_model))]
        for model, of_model in enumerate(queries)
    ]


def _put_together(
    plan: RerankPlan,
    staging: Path,
    folder: Path,
    model: ModelToRank,
    queries: Sequence[QueryRange],
    written: Sequence[WrittenQueries],
    journal: Journal,
) -> RankedFiles:
    """Move the shards of a model to ``folder``, and describe them."""
    for result, expected in zip(written, queries, strict=True):
        if sum(shard.rows for shard in result.shards) != expected.rows or len(result.shards) != expected.shards:
            raise IntegrityError(f"{staging}: the rows of {expected.first_qid!r} on are not those that were counted")
        for shard in result.shards:
            made = staging / "written" / result.folder / shard.name
            if made.exists():  # an earlier run has moved it otherwise
                made.replace(folder / shard.name)
    fsync_folder(folder)
    counted = [grades_file(staging / "written" / each.folder) for each in written]
    shards = tuple(shard for result in written for shard in result.shards)
    digests = {shard.name: sha256 for each in written for shard, sha256 in zip(each.shards, each.sha256, strict=True)}
    facts, rows = plan.facts_of(model), journal.place.ranked
    return describe_lists(folder, plan.target, facts, shards, digests, _tables_of(counted), rows=rows)


def _known(staging: Path, stage: str, kind: type[Result], number: int) -> Result | None:
    path = _record(staging, stage, number)
    try:
        return from_json(kind, path.read_bytes(), str(path))
    except (OSError, IntegrityError):
        return None


def _record(staging: Path, stage: str, number: int) -> Path:
    return staging / stage / f"{number:05d}.json"


def _tables_of(paths: Sequence[Path]) -> Generator[pa.Table, None, None]:
    for batch in batches_of(paths):
        yield pa.Table.from_batches([batch])
