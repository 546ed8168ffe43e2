"""What workers of a cluster do in an ingest: read a range of the input and spill its rows; settle some buckets as shards.

Each call writes to a new folder and returns its name, so a call may be made twice, also at the same time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankmill.foundation.cluster.duty import folder_of_call, stopper
from rankmill.foundation.process_memory import beside_bytes, release_freed, return_large_arrays
from rankmill.foundation.storage.publish import fsync_folder, write_atomically
from rankmill.pipeline.bins.vocabulary import Tally, summed
from rankmill.pipeline.group.bucket_rows import RowSpill, spilled_schema
from rankmill.pipeline.group.settled_bucket import Layout
from rankmill.pipeline.group.shard_writer import ShardSummary, share_of, write_shards
from rankmill.pipeline.group.spill_files import SpillFile, SpillParts
from rankmill.pipeline.ingest.collect_rows import RowFacts, collect_rows
from rankmill.pipeline.ingest.inputs import open_rows
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.batch import Quarantine, Reject
from rankmill.pipeline.read.file_ranges import FileRange

Numbers = npt.NDArray[np.int64]


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
    rows, id_bytes, width
        Those of `RowSpill`.
    labels_are_grades
        Whether all labels can be grades, if the job asks.
    rejects
        What the quarantine has found.
    error
        What ended the reading, after these rejects.
    """

    folder: str
    rows_of: tuple[int, ...] = ()
    rows: Numbers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    id_bytes: Numbers = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64))
    width: int = 0
    labels_are_grades: bool = False
    rejects: tuple[tuple[Reject, str], ...] = ()
    error: Exception | None = None


def read_range(task: ReadRange, threads: int) -> RowsRead:
    """Read a range, and spill its rows by bucket.  Errors in the data are returned, with the rows put aside before them."""
    job, stop = task.job, stopper()
    options = job.options
    return_large_arrays()
    task.files.check_files()
    quarantine = Quarantine(options.max_rejects)
    sources = open_rows(task.files.paths, options.format, job.read, quarantine, job.json_features, job.categories)
    task.files.narrow(sources)
    facts = RowFacts.of(options, job.n_categorical, labels_are_grades=job.labels_are_grades)
    folder = folder_of_call(job.staging, "read", task.number)
    with SpillFile(rows_file(folder), options.buckets, spilled_schema(job.extras)) as file:
        spill = RowSpill(file)
        try:
            rows_of = collect_rows(
                sources,
                job.columns,
                spill,
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
    if facts.vocabulary.texts:
        write_atomically(_texts_file(folder), json.dumps(facts.vocabulary.texts).encode())
    fsync_folder(folder)
    release_freed()
    return RowsRead(
        folder=folder.name,
        rows_of=tuple(rows_of),
        rows=spill.rows,
        id_bytes=spill.id_bytes,
        width=spill.width,
        labels_are_grades=facts.labels_are_grades,
        rejects=quarantine.found,
    )


def rows_file(folder: Path) -> Path:
    """Return the file with the spilled rows of a range."""
    return folder / "rows"


def texts_of(folder: Path) -> dict[str, dict[str, float]]:
    """Return the codes of the texts of categories in a range, by feature and text."""
    path = _texts_file(folder)
    found: dict[str, dict[str, float]] = json.loads(path.read_bytes()) if path.exists() else {}
    return found


def _texts_file(folder: Path) -> Path:
    return folder / "texts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleBuckets:
    """Write ``buckets`` as shards of ``layout``.

    ``folders`` are those of all ranges; ``rows`` (buckets of the dataset,) and ``id_bytes`` (2, buckets) are 0 for other buckets.
    """

    job: IngestJob
    number: int
    buckets: tuple[int, ...]
    layout: Layout
    folders: tuple[str, ...]
    rows: Numbers
    id_bytes: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketsSettled:
    """The folder of written shards, their summaries, and the rows with each category, by categorical feature."""

    folder: str
    summaries: list[ShardSummary]
    tallies: list[Tally]


def settle_buckets(task: SettleBuckets, threads: int) -> BucketsSettled:
    """Write the rows of some buckets, which are spilled in all ranges, as shards."""
    job, stop = task.job, stopper()
    return_large_arrays()
    paths = [rows_file(job.staging / "read" / folder) for folder in task.folders]
    spill = RowSpill(SpillParts(paths, task.rows, spilled_schema(job.extras)))
    share = share_of(
        job.options.memory - beside_bytes(), job.options.threads or threads, task.layout, task.rows, task.id_bytes
    )
    folder = folder_of_call(job.staging, "settled", task.number)
    tallies: list[list[Tally]] = []
    summaries = write_shards(
        spill,
        task.layout,
        folder,
        task.buckets,
        threads=share.threads,
        memory=share.values,
        before=lambda _: stop(),
        count=lambda found: tallies.append(list(found)),
    )
    for inner in folder.iterdir():
        if inner.is_dir():
            fsync_folder(inner)
    release_freed()
    return BucketsSettled(
        folder=folder.name,
        summaries=summaries,
        tallies=[summed(of_feature) for of_feature in zip(*tallies, strict=True)],
    )
