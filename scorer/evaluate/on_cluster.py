"""The scores of a model by workers of a cluster: each scores some files, row groups or shards, and the rows are put together here.

While it works, there is a folder beside the input, with the model and the scored rows.  Each call writes to a new folder in it and
returns its name, so a call may be made twice, also at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rankmill.foundation.cluster.duty import folder_of_call, stopper
from rankmill.foundation.cluster.workers import Cluster, open_cluster
from rankmill.foundation.errors import InputError, NotFiniteScore
from rankmill.foundation.options import spelled
from rankmill.foundation.storage.local_copies import object_behind
from rankmill.foundation.storage.publish import fsync_file, fsync_folder, write_atomically
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import Manifest, Shard
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.file_ranges import FileRange, ranges_of
from rankmill.pipeline.read.json_lines import JsonSource
from rankmill.pipeline.read.made_ids import named_by_row
from rankmill.pipeline.read.open_source import share_features
from rankmill.scorer.models.loading import laid_out
from rankmill.scorer.models.predictor import Predictor
from rankmill.scorer.options import JudgedOptions
from rankmill.scorer.rerank.candidate_sources import DatasetSource, open_sources, say
from rankmill.scorer.rerank.candidates import check_rows, locate_features
from rankmill.scorer.rerank.scored_rows import limits_of, scored_schema
from rankmill.scorer.rerank.scoring import DocumentBar, InputPosition, Scored, score_in_order
from rankmill.scorer.rerank.sorting import batches_of, open_spill_file

TASKS_A_WORKER = 4
"""Ranges of shards for each worker: so many that the last one to finish is not waited for long."""


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
class ScoreRows:
    """Score a range of the input; ``model`` is a file, ``features`` are those that all files of JSON lines have in common."""

    staging: Path
    number: int
    rows: FileRange | ShardRange
    model: Path
    reading: ReadOptions
    options: JudgedOptions
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsScored:
    """The folder of the scored rows of a range, their number, and the widest text."""

    folder: str
    rows: int
    width: int


def score_rows(task: ScoreRows, threads: int) -> RowsScored:
    """Score a range."""
    stop, options = stopper(), task.options
    (predictor,) = laid_out((task.model,), options.n_rounds, options.start_round)
    sources: list[Source]
    if isinstance(task.rows, ShardRange):
        dataset = Dataset(task.rows.path, task.rows.manifest)
        sources = [DatasetSource.of_model(dataset, task.rows.split, predictor, task.reading.goals)]
        begin = InputPosition()
    else:
        task.rows.check_files()
        sources = open_sources(task.rows.paths, options.format, task.reading)
        share_features(sources, task.features)
        begin = InputPosition(rows=task.rows.narrow(sources))
    folder = folder_of_call(task.staging, "scored", task.number)
    with open_spill_file(rows_file(folder), scored_schema(task.reading.goals)) as file:

        def take(results: list[list[Scored]], _: InputPosition) -> None:
            stop()
            for part in results[0]:
                file.write_batch(part.rows)

        try:
            limits = limits_of(options.n_threads or threads)
            end = score_in_order(sources, [predictor], task.reading, take, limits, begin=begin, part=True)
        except NotFiniteScore as error:
            error.part = task.number
            raise
    fsync_file(rows_file(folder))
    fsync_folder(folder)
    return RowsScored(folder=folder.name, rows=end.all_rows, width=end.width)


def rows_file(folder: Path) -> Path:
    """Return the file with the scored rows of a range."""
    return folder / "rows.arrows"


def rows_scored_on_cluster(
    sources: Sequence[Source],
    predictor: Predictor,
    reading: ReadOptions,
    options: JudgedOptions,
    dataset: Dataset | None = None,
    split: str | None = None,
) -> pa.Table:
    """Let the workers of ``options.cluster`` score ``sources``, or a split of ``dataset``; the table is that of `rankmill.scorer.rerank.scored_rows.scored_rows`.

    Raises
    ------
    InputError
        The input is in a bucket, or nothing can be written beside it.
    ConflictError
        Too many workers were lost.
    ClusterUnavailable
        The scheduler does not answer, or has no workers.
    """
    assert options.cluster is not None  # noqa: S101 - the caller asks
    for source in sources:
        if (behind := object_behind(source.path)) is not None:
            raise InputError(
                f"{behind.url}: {spelled('cluster')} reads no candidates from buckets yet; copy them to a shared folder"
            )
    layouts = [locate_features(source, predictor, reading) for source in sources]
    try:
        with (
            staging_folder(sources[0].path.absolute()) as staging,
            open_cluster(options.cluster, say if options.announce else lambda _: None) as cluster,
        ):
            write_atomically(staging / "model.rankmill", predictor.model.to_bytes())
            of_json = {name for each in sources if isinstance(each, JsonSource) for name in each.columns or ()}
            ranges: Sequence[FileRange | ShardRange] = (
                ranges_of(sources) if dataset is None else _ranges_of_shards(dataset, split, cluster.size)
            )
            tasks = [
                ScoreRows(
                    staging=staging, number=number, rows=rows, model=staging / "model.rankmill", reading=reading,
                    options=options, features=tuple(sorted(of_json)),
                )
                for number, rows in enumerate(ranges)
            ]  # fmt: skip
            results = _scored(cluster, tasks, staging)
            check_rows(
                sources,
                layouts,
                reading,
                sum(each.rows for each in results),
                max((each.width for each in results), default=0),
            )
            return _put_together(staging, results, scored_schema(reading.goals))
    except PermissionError as error:
        raise InputError(
            f"{sources[0].path.absolute().parent}: {spelled('cluster')} writes scores beside the input while it works, and"
            " this folder cannot be written to; copy the input to another one"
        ) from error


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


def _scored(cluster: Cluster, tasks: Sequence[ScoreRows], staging: Path) -> list[RowsScored]:
    found: dict[int, RowsScored] = {}
    with (
        DocumentBar("scoring", sum(task.rows.n_bytes for task in tasks)) as bar,
        closing(cluster.run(score_rows, tasks, staging, resumes=False)) as results,
    ):
        done = rows = 0
        try:
            for task, result in results:
                found[task.number] = result
                done, rows = done + task.rows.n_bytes, rows + result.rows
                bar.update(rows, done)
        except NotFiniteScore as error:  # all ranges before it are scored
            before = sum(found[number].rows for number in range(error.part or 0))
            raise NotFiniteScore(error.where, error.row + before, error.qid, error.score) from None
    return [found[task.number] for task in tasks]


def _put_together(staging: Path, results: Sequence[RowsScored], schema: pa.Schema) -> pa.Table:
    """Return the rows of all ranges, numbered in the whole input; those without an id are named by that."""
    batches, before = [], 0
    for result in results:
        for batch in batches_of([rows_file(staging / "scored" / result.folder)]):
            row = batch.column("row").to_numpy() + before
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns |= {"doc_id": named_by_row(columns["doc_id"], row), "row": as_array(row)}
            batches.append(pa.record_batch(list(columns.values()), schema=schema))
        before += result.rows
    return pa.Table.from_batches(batches, schema)
