"""A re-ranking on a cluster: the workers score, deal out and write; here the ranges are made and the results put together.

    input  -> ranges of rows -> score -> spilled rows, rows by query
                                             |             |
                                             |      ranges of queries = whole shards
                                             v             v
                                   deal out to ranges of queries -> sort and write shards -> one folder

A single output file has one writer: it is sorted and written here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

from rankmill.foundation.cluster.workers import Cluster
from rankmill.foundation.errors import InputError, IntegrityError, NotFiniteScore
from rankmill.foundation.options import spelled
from rankmill.foundation.records import as_json, canonical_json, from_json
from rankmill.foundation.storage.local_copies import object_behind
from rankmill.foundation.storage.publish import fsync_folder, write_atomically
from rankmill.pipeline.read.file_ranges import ranges_of
from rankmill.pipeline.read.json_lines import JsonSource
from rankmill.scorer.rerank import ranked_writer
from rankmill.scorer.rerank.candidate_sources import say
from rankmill.scorer.rerank.candidates import check_rows, locate_features
from rankmill.scorer.rerank.query_counts import QueryRange, ranges_of_queries, total_counts
from rankmill.scorer.rerank.ranked_file import RankedPart
from rankmill.scorer.rerank.ranked_writer import RankedFiles, describe_lists, metadata_of, write_lists
from rankmill.scorer.rerank.run import RerankRun
from rankmill.scorer.rerank.scoring import DocumentBar, InputPosition
from rankmill.scorer.rerank.sorting import MOST_PARTS, DealtPart, ScoreSpill, Spilled, batches_of
from rankmill.scorer.rerank.tasks import (
    DealRange,
    DealtRange,
    Job,
    ScoredRange,
    ScoreRange,
    WriteQueries,
    WrittenQueries,
    deal_range,
    dealt_file,
    grades_file,
    queries_file,
    score_range,
    write_queries,
)


class _Numbered(Protocol):
    @property
    def number(self) -> int: ...


Task = TypeVar("Task", bound=_Numbered)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ClusterRun(RerankRun):
    """A run whose work is done by ``cluster``, with the same bytes."""

    cluster: Cluster

    @classmethod
    def of(cls, run: RerankRun, cluster: Cluster) -> ClusterRun:
        """Return ``run`` on ``cluster``; InputError for what cannot be done there yet."""
        plan, word = run.plan, spelled("cluster")
        if plan.stage is not None:
            raise InputError(f"{spelled('run')} does not work with {word} yet; leave one of them out")
        for source in plan.sources:
            if (behind := object_behind(source.path)) is not None:
                raise InputError(
                    f"{behind.url}: {word} reads no candidates from buckets yet; copy them to a shared folder"
                )
        run.journal.write(run.staging)
        return cls(plan, run.staging, run.journal, run.spills, cluster)

    def score(self) -> None:
        """Score all ranges of the input."""
        plan = self.plan
        layouts = [
            locate_features(source, model.predictor, plan.reading)
            for source in plan.sources
            for model in plan.models.values()
        ]
        ranges, scored = self._scored()
        rows = sum(each.rows for each in scored)
        width = max((each.width for each in scored), default=0)
        check_rows(plan.sources, layouts, plan.reading, rows, width)
        self.journal.place = InputPosition(source=len(plan.sources), tasks=len(ranges), all_rows=rows, width=width)
        self.journal.scored = True
        self.journal.write(self.staging)

    def write(self) -> list[RankedFiles]:
        """Deal out, sort and write the lists of each model."""
        plan = self.plan
        _, scored = self._scored()
        spilled = [
            Spilled(
                files=len(scored),
                n_rows=sum(each.spilled[model].n_rows for each in scored),
                n_bytes=sum(each.spilled[model].n_bytes for each in scored),
            )
            for model in range(len(plan.models))
        ]
        queries = [self._ranges_of_queries(model, scored) for model in range(len(plan.models))]
        parts = self._dealt(scored, queries)
        out = self.staging / "out"
        if plan.single:
            shutil.rmtree(out, ignore_errors=True)
        out.mkdir(exist_ok=True)
        if plan.single:
            return [self._write_file(out, parts[0], spilled[0])]
        return self._write_folders(out, queries, parts, spilled)

    def _job(self) -> Job:
        plan, models = self.plan, []
        for number, model in enumerate(plan.models.values()):
            path = self.staging.absolute() / f"model-{number}.rankmill"
            if not path.exists():
                write_atomically(path, model.model.to_bytes())
            models.append(path)
        of_json = {name for source in plan.sources if isinstance(source, JsonSource) for name in source.columns or ()}
        options = plan.options
        return Job(
            staging=self.staging.absolute(), models=tuple(models), format=options.format, reading=plan.reading,
            features=tuple(sorted(of_json)), n_rounds=options.n_rounds, start_round=options.start_round, top_k=options.top_k,
            memory=plan.memory, n_threads=options.n_threads,
        )  # fmt: skip

    def _scored(self) -> tuple[list[ScoreRange], list[ScoredRange]]:
        """Return the ranges of the input, and what they have become; those that are not scored yet are."""
        job = self._job()
        ranges = [
            ScoreRange(job=job, number=number, files=files) for number, files in enumerate(ranges_of(self.plan.sources))
        ]
        done, rows = 0, 0
        with DocumentBar("scoring", sum(each.files.n_bytes for each in ranges)) as bar:

            def show(task: ScoreRange, result: ScoredRange) -> None:
                nonlocal done, rows
                done, rows = done + task.files.n_bytes, rows + result.rows
                bar.update(rows, done)

            try:
                return ranges, self._results("scored", score_range, ScoredRange, ranges, show)
            except NotFiniteScore as error:  # all ranges before it are scored
                before = [self._known("scored", ScoredRange, number) for number in range(error.part or 0)]
                found = NotFiniteScore(
                    error.where, error.row + sum(each.rows for each in before if each), error.qid, error.score
                )
                raise found from None

    def _ranges_of_queries(self, model: int, scored: Sequence[ScoredRange]) -> list[QueryRange]:
        plan, folder = self.plan, self.staging / "counting"
        files = [queries_file(self.staging / "scored" / each.folder, model) for each in scored]
        counts = total_counts(
            files, plan.options.top_k, folder, sort_bytes=plan.memory.sort_bytes, n_threads=plan.options.threads
        )
        with closing(counts):
            return ranges_of_queries(counts, ranked_writer.SHARD_ROWS, MOST_PARTS)

    def _dealt(self, scored: Sequence[ScoredRange], queries: Sequence[Sequence[QueryRange]]) -> list[list[DealtPart]]:
        """Return the files of each range of queries, for each model."""
        job, before, tasks = self._job(), 0, []
        bounds = tuple(tuple(each.first_qid or "" for each in of_model[1:]) for of_model in queries)
        for number, each in enumerate(scored):
            tasks.append(DealRange(job=job, number=number, scored=each, before=before, bounds=bounds))
            before += each.rows
        folders = [
            job.staging / "dealt" / each.folder for each in self._results("dealt", deal_range, DealtRange, tasks)
        ]

        def files(model: int, part: int, kind: str) -> tuple[Path, ...]:
            return tuple(dealt_file(folder, model, part, kind) for folder in folders)

        return [
            [
                DealtPart(files(model, part, "scored"), files(model, part, "dropped"))
                for part in range(len(queries[model]))
            ]
            for model in range(len(queries))
        ]

    def _write_file(self, folder: Path, parts: Sequence[DealtPart], spilled: Spilled) -> RankedFiles:
        """Write the one file here."""
        plan, (label,) = self.plan, self.plan.models
        sorting = self.staging / "sorting"
        shutil.rmtree(sorting, ignore_errors=True)
        sorting.mkdir()
        memory, n_threads = plan.memory, plan.options.threads
        (folder / label).mkdir(exist_ok=True)
        with ScoreSpill.of_parts(sorting, parts, spilled, sort_bytes=memory.sort_bytes, n_threads=n_threads) as spill:
            facts, rows = self.facts_of(plan.models[label]), self.journal.place.ranked
            return write_lists(spill, folder / label, plan.target, facts, rows=rows, counted=self.counted)

    def _write_folders(
        self,
        out: Path,
        queries: Sequence[Sequence[QueryRange]],
        parts: Sequence[Sequence[DealtPart]],
        spilled: Sequence[Spilled],
    ) -> list[RankedFiles]:
        """Let workers write the shards, and put them together."""
        plan, job = self.plan, self._job()
        tasks: list[WriteQueries] = []
        for model, to_rank in enumerate(plan.models.values()):
            metadata = metadata_of(self.facts_of(to_rank))
            for each, part in zip(queries[model], parts[model], strict=True):
                task = WriteQueries(
                    job=job, number=len(tasks), part=part, spilled=spilled[model], metadata=metadata,
                    first_shard=each.first_shard, shard_rows=ranked_writer.SHARD_ROWS,
                )  # fmt: skip
                tasks.append(task)
        results = iter(self._results("written", write_queries, WrittenQueries, tasks))
        lists = []
        for (label, to_rank), of_model in zip(plan.models.items(), queries, strict=True):
            written = [next(results) for _ in of_model]
            folder = out / label
            folder.mkdir(exist_ok=True)
            shards, listed = [], []
            for result, expected in zip(written, of_model, strict=True):
                if sum(shard.rows for shard in result.shards) != expected.rows or len(result.shards) != expected.shards:
                    raise IntegrityError(
                        f"{self.staging}: the rows of {expected.first_qid!r} on are not those that were counted"
                    )
                for shard in result.shards:
                    made = self.staging / "written" / result.folder / shard.name
                    if made.exists():  # an earlier run has moved it otherwise
                        made.replace(folder / shard.name)
                    shards.append(shard)
                of_result = [RankedPart(shard.name, shard.rows, shard.queries) for shard in result.shards]
                listed += [replace(of_result[0], repeated=result.repeated), *of_result[1:]]
            fsync_folder(folder)
            counted = [grades_file(self.staging / "written" / each.folder) for each in written]
            described = describe_lists(
                folder, plan.target, self.facts_of(to_rank),
                tuple(listed),
                {shard.name: shard.sha256 for shard in shards},
                _tables_of(counted), rows=self.journal.place.ranked,
            )  # fmt: skip
            lists.append(described)
        return lists

    def _results(
        self,
        stage: str,
        function: Callable[[Task, int], Result],
        kind: type[Result],
        tasks: Sequence[Task],
        show: Callable[[Task, Result], object] = lambda *_: None,
    ) -> list[Result]:
        """Return the result of each task; those that an earlier run has are read."""
        (self.staging / stage).mkdir(exist_ok=True)
        found: dict[int, Result] = {}
        for task in tasks:
            known = self._known(stage, kind, task.number)
            if known is not None:
                found[task.number] = known
                show(task, known)
        waiting = [task for task in tasks if task.number not in found]
        if found and waiting and self.plan.options.announce:
            say(f"resuming: {len(found):,} of {len(tasks):,} tasks of an earlier run are done ({stage})")
        with closing(self.cluster.run(function, waiting, self.staging)) as results:
            for task, result in results:
                write_atomically(self._record(stage, task.number), canonical_json(as_json(result)))
                found[task.number] = result
                show(task, result)
        return [found[task.number] for task in tasks]

    def _known(self, stage: str, kind: type[Result], number: int) -> Result | None:
        path = self._record(stage, number)
        try:
            return from_json(kind, path.read_bytes(), str(path))
        except (OSError, IntegrityError):
            return None

    def _record(self, stage: str, number: int) -> Path:
        return self.staging / stage / f"{number:05d}.json"


def _tables_of(paths: Sequence[Path]) -> Generator[pa.Table, None, None]:
    for batch in batches_of(paths):
        yield pa.Table.from_batches([batch])
