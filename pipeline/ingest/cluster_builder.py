"""An ingest on a cluster: the workers read and settle; here the ranges and groups of buckets are made and the results put together.

    files  ->  ranges  ->  read  ->  rows of all buckets, spilled in one file a range
                                         |
                                 groups of buckets  ->  settle  ->  shards  ->  one folder

Judgments and pairs in files of their own are read here, and pairs are joined here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TooManyRejects
from rankmill.pipeline.dataset.manifest import FEATURES, QUERIES, STATISTICS, UNJUDGED
from rankmill.pipeline.group.bucket_rows import RowSpill, spilled_schema
from rankmill.pipeline.group.spill_files import SpillParts
from rankmill.pipeline.ingest.cluster_tasks import (
    BucketsSettled,
    IngestJob,
    ReadRange,
    RowsRead,
    SettleBuckets,
    read_range,
    rows_file,
    settle_buckets,
    texts_of,
)
from rankmill.pipeline.ingest.dataset_builder import Building
from rankmill.pipeline.read.file_ranges import ranges_of
from rankmill.pipeline.read.json_lines import JsonSource

if TYPE_CHECKING:
    from rankmill.foundation.cluster.workers import Cluster
    from rankmill.pipeline.group.shard_writer import ShardSummary
    from rankmill.pipeline.ingest.inputs import Inputs
    from rankmill.pipeline.ingest_report import Stage
    from rankmill.pipeline.options import IngestOptions
    from rankmill.pipeline.read.batch import Quarantine

TASKS_A_WORKER = 4
"""Groups of buckets for each worker: so many that the last one to finish is not waited for long."""
USUAL_BUCKETS = 16
"""Buckets of a group for which more workers would be better: their threads settle buckets side by side."""


class ClusterBuilding(Building):
    """An ingest whose work is done by a cluster, with the same bytes."""

    keeps_judgments = True

    def __init__(
        self,
        inputs: Inputs,
        options: IngestOptions,
        quarantine: Quarantine,
        staging: Path,
        progress: Callable[[Stage, int, int], None] | None,
        cluster: Cluster,
    ) -> None:
        """Begin in the folder ``staging``, which all workers see."""
        super().__init__(inputs, options, quarantine, staging.absolute(), progress)
        self._cluster = cluster
        tables = [source.table for source in inputs.sources if source.table is not None]
        of_json = {name for source in inputs.sources if isinstance(source, JsonSource) for name in source.columns or ()}
        self._job = IngestJob(
            staging=self._staging,
            options=options,
            read=inputs.read,
            columns=inputs.columns,
            extras=self.spilled_columns,
            json_features=tuple(sorted(of_json)),
            categories=tuple(sorted({name for table in tables for name in table.categorical})),
            n_categorical=len(inputs.categorical),
            labels_are_grades=self._facts.labels_are_grades,
        )
        self._tasks = [
            ReadRange(job=self._job, number=number, files=files)
            for number, files in enumerate(ranges_of(inputs.sources))
        ]
        self._folders: list[str] = []

    def _read_rows(self) -> tuple[RowSpill, list[int]]:
        results = self._ranges_read()
        breaking: Exception | None = None
        for number, result in enumerate(results):
            self._quarantine.include(number, result.rejects)
            if result.error is not None and not isinstance(result.error, TooManyRejects):
                breaking = result.error
                break
        self._quarantine.settle()
        if breaking is not None:
            raise breaking
        rows_of = [0] * len(self._inputs.sources)
        for task, result in zip(self._tasks, results, strict=True):
            for number, rows in enumerate(result.rows_of, start=task.files.first):
                rows_of[number] += rows
            self._facts.labels_are_grades &= result.labels_are_grades
            self._facts.vocabulary.add(texts_of(self._staging / "read" / result.folder))
        self._folders = [result.folder for result in results]
        paths = [rows_file(self._staging / "read" / folder) for folder in self._folders]
        rows_of_bucket = np.sum([result.rows for result in results], axis=0)
        spill = RowSpill(SpillParts(paths, rows_of_bucket, spilled_schema(self.spilled_columns)))
        spill.width = max(result.width for result in results)
        spill.id_bytes = np.sum([result.id_bytes for result in results], axis=0)
        return spill, rows_of

    def _ranges_read(self) -> list[RowsRead]:
        """Return the rows of all ranges, or of the first ones up to an error or too many malformed rows."""
        found: dict[int, RowsRead] = {}
        stopped = False

        def waiting() -> Iterator[ReadRange]:
            for task in self._tasks:
                if stopped:
                    return
                yield task

        n_bytes = n_rejects = 0
        with closing(self._cluster.run(read_range, waiting(), self._staging, resumes=False)) as results:
            for task, result in results:
                found[task.number] = result
                n_bytes, n_rejects = n_bytes + task.files.n_bytes, n_rejects + len(result.rejects)
                stopped = stopped or result.error is not None or n_rejects > self._quarantine.limit
                self._advance(0, n_bytes)
        return [found[number] for number in sorted(found)]

    def _write_shards(
        self,
        rows_of_bucket: npt.NDArray[np.int64],
        done: Callable[[int], None],
    ) -> list[ShardSummary]:
        buckets = np.flatnonzero(rows_of_bucket)
        size = self._cluster.size
        together = max(-(-len(buckets) // (TASKS_A_WORKER * size)), min(USUAL_BUCKETS, -(-len(buckets) // size)))
        groups = [buckets[first : first + together] for first in range(0, len(buckets), together)]
        tasks = []
        for number, group in enumerate(groups):
            rows, id_bytes = np.zeros_like(rows_of_bucket), np.zeros_like(self._spill.id_bytes)
            rows[group], id_bytes[:, group] = rows_of_bucket[group], self._spill.id_bytes[:, group]
            task = SettleBuckets(
                job=self._job, number=number, buckets=tuple(group.tolist()), layout=self._layout,
                folders=tuple(self._folders), rows=rows, id_bytes=id_bytes,
            )  # fmt: skip
            tasks.append(task)
        summaries: list[ShardSummary] = []
        with closing(self._cluster.run(settle_buckets, tasks, self._staging, resumes=False)) as results:
            for task, result in results:
                self._move(result)
                if result.tallies:
                    self._count(result.tallies)
                summaries += result.summaries
                done(int(task.rows.sum()))
        return sorted(summaries, key=lambda summary: summary.bucket)

    def _move(self, result: BucketsSettled) -> None:
        """Move written shards to the others; they are named by their digests."""
        for name in (FEATURES, QUERIES, STATISTICS, UNJUDGED):
            written = self._staging / "settled" / result.folder / name
            if written.exists():
                (self.staged / name).mkdir(exist_ok=True)
                for file in written.iterdir():
                    file.replace(self.staged / name / file.name)
