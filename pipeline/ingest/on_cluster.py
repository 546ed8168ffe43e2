"""The two passes of an ingest as tasks of a cluster: workers read ranges of the files, and write buckets as shards.

    files  ->  ranges  ->  read_range  ->  rows of all buckets, spilled in one file a range
                                               |
                                       groups of buckets  ->  write_buckets  ->  shards  ->  one folder

Each task writes to a new folder and returns its name, so it may be done twice, also at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from rankmill.foundation.cluster.duty import folder_of_call, stopper
from rankmill.foundation.cluster.workers import TASKS_A_WORKER, Cluster
from rankmill.foundation.errors import TooManyRejects
from rankmill.foundation.process_memory import beside_bytes, release_freed, return_large_arrays
from rankmill.foundation.storage.publish import fsync_file, fsync_folder, write_atomically
from rankmill.pipeline.bins.vocabulary import Tally, Vocabulary
from rankmill.pipeline.dataset.manifest import FEATURES, QUERIES, STATISTICS, UNJUDGED
from rankmill.pipeline.group.bucket import Layout
from rankmill.pipeline.group.shard_writer import ShardSummary, write_shards
from rankmill.pipeline.group.spill import SpilledRows, SpillFile, row_schema
from rankmill.pipeline.ingest.inputs import open_rows
from rankmill.pipeline.ingest.read_rows import RowFacts, collect_rows
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.batch import Quarantine, Reject
from rankmill.pipeline.read.file_ranges import FileRange, ranges_of
from rankmill.pipeline.read.json_lines import JsonSource

if TYPE_CHECKING:
    from rankmill.pipeline.ingest.inputs import Inputs

ROWS, TEXTS = "rows", "texts.json"  # the spilled rows of a range, and the codes of its categories by feature and text
USUAL_BUCKETS = 16
"""Buckets of a group for which more workers would be better: their threads write buckets side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestJob:
    """What all tasks of an ingest have in common; every path is absolute, and seen by all workers.

    Attributes
    ----------
    read
        How files of rows are read.
    columns, extras
        Their features in order, None if the files do not name them; their optional columns and goals.
    json_features, categories
        The features that all files of JSON lines, and the categories that all tables, have in common.
    n_categorical
        Number of categorical features.
    labels_are_grades
        Whether the rows have labels without grades.
    """

    staging: Path
    options: IngestOptions
    read: ReadOptions
    columns: tuple[str, ...] | None
    extras: tuple[str, ...]
    json_features: tuple[str, ...]
    categories: tuple[str, ...]
    n_categorical: int
    labels_are_grades: bool

    @classmethod
    def of(cls, inputs: Inputs, options: IngestOptions, staging: Path, facts: RowFacts) -> Self:
        """Return the job of an ingest of ``inputs``; workers see the folder ``staging``."""
        tables = [source.table for source in inputs.sources if source.table is not None]
        of_json = {name for source in inputs.sources if isinstance(source, JsonSource) for name in source.columns or ()}
        return cls(
            staging=staging,
            options=options,
            read=inputs.read,
            columns=inputs.columns,
            extras=(*inputs.extras, *inputs.goals),
            json_features=tuple(sorted(of_json)),
            categories=tuple(sorted({name for table in tables for name in table.categorical})),
            n_categorical=len(inputs.categorical),
            labels_are_grades=facts.labels_are_grades,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Read a range of the input."""

    job: IngestJob
    number: int
    files: FileRange


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRead:
    """The rows of a range.

    Attributes
    ----------
    folder
        Has their spill file, and texts of categories.
    rows_of
        Rows of each file.
    labels_are_grades
        Whether all labels can be grades, if the job asks.
    rejects
        What the quarantine has found.
    error
        What ended the reading, after these rejects.
    """

    folder: str
    rows_of: tuple[int, ...] = ()
    labels_are_grades: bool = False
    rejects: tuple[tuple[Reject, str], ...] = ()
    error: Exception | None = None


def read_range(task: ReadRange, threads: int) -> RowsRead:
    """Read a range, and spill its rows by bucket.  Errors in the data are returned, with the rejects before them."""
    job, stop = task.job, stopper()
    options = job.options
    return_large_arrays()
    task.files.check_files()
    quarantine = Quarantine(options.max_rejects)
    sources = open_rows(task.files.paths, options.format, job.read, quarantine, job.json_features, job.categories)
    task.files.narrow(sources)
    facts = RowFacts.of(options, job.n_categorical, labels_are_grades=job.labels_are_grades)
    folder = folder_of_call(job.staging, "read", task.number)
    file = SpillFile(folder / ROWS, options.buckets, row_schema(job.extras))
    try:
        rows_of = collect_rows(
            sources,
            job.columns,
            file,
            facts,
            quarantine,
            options,
            threads=options.threads or threads,
            advance=lambda *_: stop(),
            first=task.files.first,
        )
    except Exception as error:
        return RowsRead(folder=folder.name, rejects=quarantine.found, error=error)
    file.finish()
    for path in folder.iterdir():
        fsync_file(path)
    if facts.vocabulary.texts:
        write_atomically(folder / TEXTS, json.dumps(facts.vocabulary.texts).encode())
    fsync_folder(folder)
    release_freed()
    return RowsRead(
        folder=folder.name,
        rows_of=tuple(rows_of),
        labels_are_grades=facts.labels_are_grades,
        rejects=quarantine.found,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteBuckets:
    """Write ``buckets`` of the rows of all ranges as shards of ``layout``."""

    job: IngestJob
    number: int
    buckets: tuple[int, ...]
    layout: Layout
    spilled: SpilledRows


def write_buckets(task: WriteBuckets, threads: int) -> tuple[str, list[ShardSummary], list[Tally]]:
    """Write the rows of some buckets, which are spilled in all ranges, as shards.

    Returns the name of their folder, their summaries, and the rows with each category, by categorical feature.
    """
    job, stop = task.job, stopper()
    return_large_arrays()
    folder = folder_of_call(job.staging, "written", task.number)
    vocabulary = Vocabulary()
    vocabulary.begin(task.layout.features[number] for number in task.layout.categorical)
    summaries = write_shards(
        task.spilled,
        task.layout,
        folder,
        task.buckets,
        vocabulary,
        threads=job.options.threads or threads,
        memory=job.options.memory - beside_bytes(),
        done=lambda _: stop(),
    )
    for inner in folder.iterdir():
        if inner.is_dir():
            fsync_folder(inner)
    release_freed()
    return folder.name, summaries, [*vocabulary.tallies.values()]


def collect_rows_on_cluster(
    cluster: Cluster,
    job: IngestJob,
    inputs: Inputs,
    facts: RowFacts,
    quarantine: Quarantine,
    advance: Callable[[int, int], None],
) -> tuple[SpilledRows, list[int]]:
    """Read all files of rows; return the spilled rows and the number of those of each file.

    Adds to ``facts`` and ``quarantine``, and raises the errors, as `rankmill.pipeline.ingest.read_rows.collect_rows`
    does.
    """
    tasks = [ReadRange(job=job, number=number, files=files) for number, files in enumerate(ranges_of(inputs.sources))]
    results = _ranges_read(cluster, tasks, quarantine.limit, advance)
    breaking: Exception | None = None
    for number, result in enumerate(results):
        quarantine.include(number, result.rejects)
        if result.error is not None and not isinstance(result.error, TooManyRejects):
            breaking = result.error
            break
    quarantine.sort()
    if breaking is not None:
        raise breaking
    rows_of = [0] * len(inputs.sources)
    folders = [job.staging / "read" / result.folder for result in results]
    for task, result, folder in zip(tasks, results, folders, strict=True):
        for number, rows in enumerate(result.rows_of, start=task.files.first):
            rows_of[number] += rows
        facts.labels_are_grades &= result.labels_are_grades
        if (folder / TEXTS).exists():
            facts.vocabulary.add(json.loads((folder / TEXTS).read_bytes()))
    return SpilledRows.of([folder / ROWS for folder in folders], job.options.buckets, row_schema(job.extras)), rows_of


def _ranges_read(
    cluster: Cluster, tasks: Sequence[ReadRange], most_rejects: int, advance: Callable[[int, int], None]
) -> list[RowsRead]:
    """Return the rows of all ranges, or of the first ones up to an error or too many malformed rows."""
    found: dict[int, RowsRead] = {}
    stopped = False

    def waiting() -> Iterator[ReadRange]:
        for task in tasks:
            if stopped:
                return
            yield task

    n_bytes = n_rejects = 0
    with closing(cluster.run(read_range, waiting(), tasks[0].job.staging, resumes=False)) as results:
        for task, result in results:
            found[task.number] = result
            n_bytes, n_rejects = n_bytes + task.files.n_bytes, n_rejects + len(result.rejects)
            stopped = stopped or result.error is not None or n_rejects > most_rejects
            advance(0, n_bytes)
    return [found[number] for number in sorted(found)]


def write_shards_on_cluster(
    cluster: Cluster,
    job: IngestJob,
    spilled: SpilledRows,
    layout: Layout,
    folder: Path,
    vocabulary: Vocabulary,
    done: Callable[[int], None],
) -> list[ShardSummary]:
    """Write all buckets of ``spilled``, made by `collect_rows_on_cluster`, to ``folder``, as `write_shards` does."""
    buckets = np.flatnonzero(spilled.rows)
    size = cluster.size
    together = max(-(-len(buckets) // (TASKS_A_WORKER * size)), min(USUAL_BUCKETS, -(-len(buckets) // size)))
    tasks = []
    for number, first in enumerate(range(0, len(buckets), together)):
        group = buckets[first : first + together]
        tasks.append(
            WriteBuckets(job=job, number=number, buckets=tuple(group.tolist()), layout=layout, spilled=spilled)
        )
    summaries: list[ShardSummary] = []
    with closing(cluster.run(write_buckets, tasks, job.staging, resumes=False)) as results:
        for task, (name, some, tallies) in results:
            _move(job.staging / "written" / name, folder)
            vocabulary.count(tallies)
            summaries += some
            done(int(spilled.rows[[*task.buckets]].sum()))
    return sorted(summaries, key=lambda summary: summary.bucket)


def _move(written: Path, folder: Path) -> None:
    """Move shards, which are named by their digests, to ``folder``."""
    for name in (FEATURES, QUERIES, STATISTICS, UNJUDGED):
        if (written / name).exists():
            (folder / name).mkdir(exist_ok=True)
            for file in (written / name).iterdir():
                file.replace(folder / name / file.name)
