"""Binning on a cluster.

Each worker computes the bins of some features, then writes those of some shards. The caller joins the files.

Each call writes to a new folder and returns its name, so a call may be made twice, also at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.cluster.duty import folder_of_call, stopper
from rankmill.foundation.cluster.workers import TASKS_A_WORKER, Cluster
from rankmill.foundation.storage.publish import fsync_file, fsync_folder, write_atomically
from rankmill.pipeline.bins.layout import lanes_of, n_lanes
from rankmill.pipeline.bins.spec import BinSpec, FeatureBins
from rankmill.pipeline.bins.write import bins_of_features, codes_of, no_counts, places_of
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import MANIFEST_NAME, SPLITS
from rankmill.pipeline.dataset.stored_shards import read_manifest
from rankmill.pipeline.memory_plans import BinPlan

if TYPE_CHECKING:
    from rankmill.pipeline.bins.layout import OfSplits, SplitFiles


Result = TypeVar("Result")
Some = TypeVar("Some")


@dataclass(frozen=True, slots=True, kw_only=True)
class BinJob:
    """What all tasks of a binning have in common; both folders are absolute, and seen by all workers.

    ``staging`` has the manifest of the dataset as the command has opened it.
    """

    dataset: Path
    plan: BinPlan
    staging: Path
    most: Mapping[str, int] = field(default_factory=dict)
    """Maximum number of bins by feature."""
    places: Path | None = None
    """The file with the sampled rows, if there is a sample."""
    spec: BinSpec | None = None
    """The bins, once they are known."""

    def opened(self) -> Dataset:
        """Return the dataset; a worker keeps it for the next tasks, and so checks each file once."""
        return _opened(self.dataset, self.staging)


@lru_cache(maxsize=1)
def _opened(dataset: Path, staging: Path) -> Dataset:
    return Dataset(dataset, read_manifest(staging))


class BinTask(NamedTuple, Generic[Some]):
    """A part of a job: some features by name, or shards by their places in the manifest."""

    job: BinJob
    number: int
    some: Sequence[Some]


def bin_features(task: BinTask[str], threads: int) -> list[FeatureBins]:  # noqa: ARG001
    """Return the bins of some features."""
    job, stop, found = task.job, stopper(), []
    places = None if job.places is None else np.load(job.places)
    for bins in bins_of_features(job.opened(), task.some, job.most, job.plan, places):
        stop()
        found.append(bins)
    return found


def write_bins_of_shards(task: BinTask[int], threads: int) -> str:  # noqa: ARG001
    """Write the lanes of some shards, row by row, to a file for each split; return the name of their folder."""
    job, stop = task.job, stopper()
    folder, dataset = folder_of_call(job.staging, "written", task.number), job.opened()
    assert job.spec is not None  # noqa: S101  known by now
    counts = no_counts(job.spec)
    for place in task.some:
        stop()
        for name, codes in codes_of(dataset, dataset.manifest.shards[place], job.spec, job.plan.batch_rows, counts):
            with (folder / name).open("ab") as file:
                file.write(codes.data)
    np.save(counts_file(folder), counts)
    for path in folder.iterdir():
        fsync_file(path)
    fsync_folder(folder)
    return folder.name


def written_codes(folder: Path, lanes: int, rows: int) -> OfSplits:
    """Yield what `write_bins_of_shards` has written to ``folder``, ``rows`` at a time."""
    for name in SPLITS:
        if (folder / name).exists():
            with (folder / name).open("rb") as file:
                while data := file.read(rows * lanes):
                    yield name, np.frombuffer(data, dtype=np.uint8).reshape(-1, lanes)


def counts_file(folder: Path) -> Path:
    """Return the file with the rows of the train split in each bin, of the shards in ``folder``."""
    return folder / "counts.npy"


def begin_on_cluster(dataset: Dataset, plan: BinPlan, staging: Path) -> BinJob:
    """Return the job of a binning; workers see the folder ``staging``."""
    write_atomically(staging / MANIFEST_NAME, dataset.manifest.to_bytes())
    return BinJob(dataset=dataset.path.absolute(), plan=plan, staging=staging.absolute())


def bins_on_cluster(
    cluster: Cluster, job: BinJob, dataset: Dataset, most: Mapping[str, int]
) -> tuple[FeatureBins, ...]:
    """Return the bins of all features, as `rankmill.pipeline.bins.write.bins_of_dataset`."""
    places, path = places_of(dataset, job.plan), None
    if places is not None:
        path = job.staging / "places.npy"
        np.save(path, places)
        fsync_file(path)
    some = _divided(dataset.feature_names, job.plan.columns, cluster.size)
    return tuple(
        bins for found in _results(cluster, bin_features, replace(job, most=most, places=path), some) for bins in found
    )


def write_bins_on_cluster(
    cluster: Cluster, job: BinJob, dataset: Dataset, spec: BinSpec, files: SplitFiles
) -> npt.NDArray[np.int64]:
    """Write the bins of all rows to ``files``, as `rankmill.pipeline.bins.write.write_bins`."""
    shards = range(len(dataset.manifest.shards))
    counts, lanes = no_counts(spec), n_lanes(lanes_of(spec.n_bins))
    for name in _results(
        cluster, write_bins_of_shards, replace(job, spec=spec), _divided(shards, len(shards), cluster.size)
    ):
        folder = job.staging / "written" / name
        counts += np.load(counts_file(folder))
        files.add(written_codes(folder, lanes, job.plan.batch_rows))
    return counts


def _divided(items: Sequence[Some], most: int, workers: int) -> list[tuple[Some, ...]]:
    """Divide ``items`` among the workers, at most ``most`` to a task."""
    together = min(most, -(-len(items) // (TASKS_A_WORKER * workers)))
    return [tuple(items[first : first + together]) for first in range(0, len(items), together)]


def _results(
    cluster: Cluster, function: Callable[[BinTask[Some], int], Result], job: BinJob, parts: Sequence[Sequence[Some]]
) -> list[Result]:
    """Return the results in the order of ``parts`` of ``job``."""
    tasks = [BinTask(job, number, some) for number, some in enumerate(parts)]
    with closing(cluster.run(function, tasks, job.staging, resumes=False)) as results:
        found = {task.number: result for task, result in results}
    return [found[task.number] for task in tasks]
