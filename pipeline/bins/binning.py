"""Bin a dataset: compute edges from its train split, then write the bins of every row.

The edges are exact quantiles if one column of the train split can be sorted in the given memory; otherwise they are
quantiles of a sample of rows (`rankmill.pipeline.bins.sampled_bins`).
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from rankmill.foundation.cluster.workers import open_cluster
from rankmill.foundation.errors import DataRejected, DatasetFormatError
from rankmill.foundation.process_memory import DEFAULT_MEMORY
from rankmill.foundation.storage.locks import alone
from rankmill.foundation.storage.publish import file_digest, fsync_folder, write_atomically
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.bins.layout import SplitFiles, lanes_of, n_lanes
from rankmill.pipeline.bins.on_cluster import begin_on_cluster, bins_on_cluster, write_bins_on_cluster
from rankmill.pipeline.bins.quantiles import checked_max_bin
from rankmill.pipeline.bins.spec import BinSpec, checked_max_bins
from rankmill.pipeline.bins.write import bins_of_dataset, write_bins
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import BINS, BinSet
from rankmill.pipeline.dataset.stored_shards import read_manifest
from rankmill.pipeline.memory_plans import BinPlan
from rankmill.pipeline.options import MAX_BIN, MIN_MAX_BIN, BinOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rankmill.foundation.cluster.workers import Cluster


def find_bins(
    dataset: Dataset,
    max_bin: int = MAX_BIN,
    sampled_rows: int | None = None,
    max_bin_of: Mapping[str, int] | None = None,
) -> BinSpec | None:
    """Return the newest usable bins of ``dataset`` with ``max_bin`` and ``max_bin_of``.

    None if there are none or they are damaged.

    Exact bins are always usable, those of a sample if it has at least ``sampled_rows`` rows.
    """
    asked = (max_bin, checked_max_bins(max_bin_of or {}, max_bin, dataset.feature_names))
    for entry in reversed(dataset.manifest.bins):
        if (entry.max_bin, entry.max_bin_of) != asked or not all(
            _is_whole(file) for file in dataset.bin_files(entry).values()
        ):
            continue
        try:
            spec = dataset.binspec(entry.binspec)
        except DatasetFormatError:
            continue
        if spec.sampled_rows is None or spec.sampled_rows >= (sampled_rows or dataset.manifest.rows):
            return spec
    return None


def _is_whole(file: Path) -> bool:
    return file.is_file() and file_digest(file) == file.stem


def bin_plan(dataset: Dataset, memory: int = DEFAULT_MEMORY) -> BinPlan:
    """Return the plan of `bin_dataset` with ``memory`` bytes, and its peak memory.

    Raises
    ------
    InputError
        ``memory`` is less than 512 MB.
    DataRejected
        The train split has no rows.
    """
    if "train" not in dataset.manifest.splits:
        raise DataRejected(f"{dataset.path}: the train split has no rows, and edges come from it; ingest training data")
    return BinPlan.of(dataset.manifest, memory)


def bin_dataset(
    dataset: Dataset,
    max_bin: int = MAX_BIN,
    memory: int = DEFAULT_MEMORY,
    plan: BinPlan | None = None,
    *,
    max_bin_of: Mapping[str, int] | None = None,
    cluster: str | Cluster | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> BinSpec:
    """Bin ``dataset``: compute edges, then write the bins of every split.

    Edges are quantiles of the train split. The bins have the layout of the trainer.

    A categorical feature has bins for its most frequent categories in the train split, ``max_bin - 1`` at most, and one
    for all others.

    The quantiles are exact if one column of the train split can be sorted in ``memory`` bytes, minus the resident
    memory of the process.  Otherwise they are from a sample, with exact counts of heavy values, zero and the extremes.
    Counts are always exact.

    Files are written to ``bins/<digest>/`` and become valid when the manifest names them.  Existing bins with the same
    ``max_bin`` (15..255) and ``max_bin_of``, maxima of single features (2..255), are reused and become the newest,
    which readers get by default. Bins from a smaller sample than this memory allows are computed again.  Reopen the
    dataset to read the bins.  ``plan`` replaces the plan for ``memory``.

    ``cluster`` names workers that do it, each in ``memory`` bytes: ``local:N``, or the address of a Dask scheduler; or
    is an open cluster.  ``say`` is called with a line about each that is lost.

    Raises
    ------
    InputError
        ``max_bin`` or ``memory`` out of range, or ``max_bin_of`` names an unknown feature.
    DataRejected
        The train split has no rows.
    ConflictError
        The dataset was replaced meanwhile, or too many workers were lost.
    ClusterUnavailable
        The scheduler of ``cluster`` does not answer, or has no workers.
    """
    most = BinOptions(max_bin=checked_max_bin(max_bin, MIN_MAX_BIN), max_bin_of=max_bin_of or {})
    plan = bin_plan(dataset, memory) if plan is None else plan
    folder = dataset.path / BINS
    folder.mkdir(exist_ok=True)
    with alone(folder):
        # another process may have finished while this one waited
        current = Dataset(dataset.path, read_manifest(dataset.path))
        same = current.digest == dataset.digest
        found = find_bins(current, max_bin, plan.sampled_rows, most.max_bin_of) if same else None
        if found is not None:
            current.commit_bins(current.bin_set(found.digest))
            return found
        max_bins = checked_max_bins(most.max_bin_of, max_bin, dataset.feature_names)
        return _write_bins(dataset, max_bin, plan, max_bins, cluster, say)


def _write_bins(
    dataset: Dataset,
    max_bin: int,
    plan: BinPlan,
    max_bin_of: Mapping[str, int],
    cluster: str | Cluster | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> BinSpec:
    most = dict.fromkeys(dataset.feature_names, max_bin) | {**max_bin_of}
    with staging_folder(dataset.bins_folder("new")) as staging, ExitStack() as stack:
        workers = None if cluster is None else stack.enter_context(open_cluster(cluster, say))
        if workers is None:
            features = bins_of_dataset(dataset, plan, most)
        else:
            job = begin_on_cluster(dataset, plan, staging)
            features = bins_on_cluster(workers, job, dataset, most)
        spec = BinSpec(features, max_bin, plan.sampled_rows, max_bin_of)
        files = SplitFiles(dataset.manifest, n_lanes(lanes_of(spec.n_bins)), staging)
        if workers is None:
            counts = write_bins(dataset, plan, spec, files)
        else:
            counts = write_bins_on_cluster(workers, job, dataset, spec, files)
        if spec.sampled_rows is not None:
            counted = zip(spec.features, counts, strict=True)
            spec = replace(spec, features=tuple(replace(f, counts=row[: f.n_bins].copy()) for f, row in counted))
        folder = dataset.bins_folder(spec.digest)
        splits = files.keep(folder)
    write_atomically(folder / "binspec.json", spec.to_json().encode())
    fsync_folder(folder.parent)
    fsync_folder(dataset.path)
    entry = BinSet(binspec=spec.digest, max_bin=max_bin, splits=splits, max_bin_of={**max_bin_of})
    named = dataset.commit_bins(entry).manifest.bins
    for old in folder.parent.iterdir():  # bins of replaced data
        if old.name not in {entry.binspec for entry in named}:
            shutil.rmtree(old, ignore_errors=True)
    return spec
