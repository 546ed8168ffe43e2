"""The scores of a model by workers of a cluster: each scores some files, row groups or shards, and the rows are put together here.

While it works, there is a folder beside the input, with the model and the scored rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rankmill.foundation.cluster.workers import TASKS_A_WORKER, open_cluster
from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import Shard
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import Source
from rankmill.pipeline.read.file_ranges import FileRange, ranges_of
from rankmill.scorer.models.model import Predictor
from rankmill.scorer.options import JudgedOptions
from rankmill.scorer.rerank.candidate_sources import say
from rankmill.scorer.rerank.on_cluster import refuse_buckets, rows_of_ranges, scored_ranges
from rankmill.scorer.rerank.ranked_file import scored_schema
from rankmill.scorer.rerank.tasks import ShardRange


def rows_scored_on_cluster(
    sources: Sequence[Source],
    predictor: Predictor,
    reading: ReadOptions,
    options: JudgedOptions,
    dataset: Dataset | None = None,
    split: str | None = None,
) -> pa.Table:
    """Let the workers of ``options.cluster`` score ``sources``, or a split of ``dataset``; the table is that of `rankmill.scorer.rerank.score.scored_rows`.

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
    refuse_buckets(sources)
    try:
        with (
            staging_folder(sources[0].path.absolute()) as staging,
            open_cluster(options.cluster, say if options.announce else lambda _: None) as cluster,
        ):
            ranges: Sequence[FileRange | ShardRange] = (
                ranges_of(sources) if dataset is None else _ranges_of_shards(dataset, split, cluster.size)
            )
            scored = scored_ranges(cluster, staging, sources, [predictor], reading, options, ranges, resumes=False)
            batches = list(rows_of_ranges(staging, scored, 0))
    except PermissionError as error:
        raise InputError(
            f"{sources[0].path.absolute().parent}: {spelled('cluster')} writes scores beside the input while it works, and"
            " this folder cannot be written to; copy the input to another one"
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
