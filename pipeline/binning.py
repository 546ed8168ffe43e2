"""Bin a dataset: compute edges from its train split, then write the bins of every shard.

The edges are exact quantiles if one column of the train split can be sorted in the given memory; otherwise they are quantiles
of a sample of rows (`rankmill.pipeline.sampled_bins`).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rankmill.foundation.errors import DataRejected, DatasetFormatError
from rankmill.foundation.process_memory import DEFAULT_MEMORY
from rankmill.foundation.storage.locks import alone
from rankmill.foundation.storage.publish import file_digest, fsync_folder, keep_by_digest, write_atomically
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline import _kernels
from rankmill.pipeline.binspec import (
    BinSpec,
    FeatureBins,
    apply_bins,
    category_bins,
    checked_max_bins,
    feature_bins,
)
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.dataset_manifest import BINS, BinSet, path_in
from rankmill.pipeline.memory_plans import BinPlan
from rankmill.pipeline.options import MAX_BIN, MIN_MAX_BIN, BinOptions
from rankmill.pipeline.quantiles import EDGE, Values, checked_max_bin
from rankmill.pipeline.sampled_bins import SampledColumn, sampled_places
from rankmill.pipeline.stored_shards import read_manifest
from rankmill.pipeline.vocabulary import EMPTY, summed, tally_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from rankmill.pipeline.dataset_manifest import Shard, SplitName

_COLUMN_BYTES = 64 << 20  # of columns processed together by default
_BATCH_ROWS = 65536  # rows read at a time


def find_bins(
    dataset: Dataset,
    max_bin: int = MAX_BIN,
    sampled_rows: int | None = None,
    max_bin_of: Mapping[str, int] | None = None,
) -> BinSpec | None:
    """Return the newest usable bins of ``dataset`` with ``max_bin`` and ``max_bin_of``; None if there are none or they are damaged.

    Exact bins are always usable, those of a sample if it has at least ``sampled_rows`` rows.
    """
    asked = (max_bin, checked_max_bins(max_bin_of or {}, max_bin, dataset.feature_names))
    for entry in reversed(dataset.manifest.bins):
        folder = dataset.bins_folder(entry.binspec)
        if (entry.max_bin, entry.max_bin_of) != asked or not all(
            _is_whole(folder / f"{digest}.parquet") for digest in entry.shards
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
) -> BinSpec:
    """Bin ``dataset``: compute edges as quantiles of its train split, then write every shard as bins.

    A categorical feature has bins for its most frequent categories in the train split, ``max_bin - 1`` at most, and one for all others.

    The quantiles are exact if one column of the train split can be sorted in ``memory`` bytes, minus the resident memory of the
    process; otherwise they are from a sample, with exact counts of heavy values, zero and the extremes.  Counts are always exact.

    Files are written to ``bins/<digest>/`` and become valid when the manifest names them.  Existing bins with the same ``max_bin``
    (15..255) and the same ``max_bin_of``, maxima of single features (2..255), are reused and become the newest, which readers get by default; bins from a smaller sample than this memory allows
    are computed again.  Reopen the dataset to read the bins.  ``plan`` replaces the plan for ``memory``.

    Raises
    ------
    InputError
        ``max_bin`` or ``memory`` out of range, or ``max_bin_of`` names an unknown feature.
    DataRejected
        The train split has no rows.
    """
    most = BinOptions(max_bin=checked_max_bin(max_bin, MIN_MAX_BIN), max_bin_of=max_bin_of or {})
    plan = bin_plan(dataset, memory) if plan is None else plan
    folder = path_in(dataset.path, BINS)
    folder.mkdir(exist_ok=True)
    with alone(folder):
        # another process may have finished while this one waited
        current = Dataset(dataset.path, read_manifest(dataset.path))
        same = current.digest == dataset.digest
        found = find_bins(current, max_bin, plan.sampled_rows, most.max_bin_of) if same else None
        if found is not None:
            current.commit_bins(current.bin_set(found.digest))
            return found
        return _write_bins(dataset, max_bin, plan, checked_max_bins(most.max_bin_of, max_bin, dataset.feature_names))


def _write_bins(dataset: Dataset, max_bin: int, plan: BinPlan, max_bin_of: Mapping[str, int]) -> BinSpec:
    most = dict.fromkeys(dataset.feature_names, max_bin) | {**max_bin_of}
    if plan.sampled_rows is None:
        spec = BinSpec(tuple(_exact_features(dataset, most, plan)), max_bin, max_bin_of=max_bin_of)
        counts = None
    else:
        spec = BinSpec(tuple(_sampled_features(dataset, most, plan)), max_bin, plan.sampled_rows, max_bin_of)
        counts = np.zeros((len(spec.features), MAX_BIN + 1), dtype=np.int64)
    with staging_folder(dataset.bins_folder("new")) as staging:
        staged = [staging / f"{shard.bucket}.parquet" for shard in dataset.manifest.shards]
        for file, shard in zip(staged, dataset.manifest.shards, strict=True):
            _write_shard(file, dataset, shard, spec, plan.batch_rows, counts)
        if counts is not None:
            features = zip(spec.features, counts, strict=True)
            spec = replace(spec, features=tuple(replace(f, counts=row[: f.n_bins].copy()) for f, row in features))
        folder = dataset.bins_folder(spec.digest)
        shards = [keep_by_digest(file, folder) for file in staged]
    write_atomically(folder / "binspec.json", spec.to_json().encode())
    fsync_folder(folder.parent)
    fsync_folder(dataset.path)
    entry = BinSet(binspec=spec.digest, max_bin=max_bin, shards=shards, max_bin_of={**max_bin_of})
    named = dataset.commit_bins(entry).manifest.bins
    for old in folder.parent.iterdir():  # bins of replaced data
        if old.name not in {entry.binspec for entry in named}:
            shutil.rmtree(old, ignore_errors=True)
    return spec


def columns_of(
    dataset: Dataset,
    split: SplitName | None = None,
    together: int | None = None,
    features: Sequence[str] | None = None,
) -> Iterator[tuple[str, Values]]:
    """Yield every feature of ``split`` (or only ``features``) with its values (n,) in canonical order; the caller may modify them.

    ``together`` columns are in memory at a time (None: a few), and later ones overwrite the values.
    """
    rows = dataset.manifest.rows if split is None else dataset.manifest.splits[split].rows
    together = together or max(1, _COLUMN_BYTES // (4 * max(1, rows)))
    features = dataset.feature_names if features is None else features
    columns = np.empty((min(together, len(features)), rows), dtype=EDGE)
    for names in _groups(features, together):
        first = 0
        for batch in dataset.column_batches(split, names, _BATCH_ROWS):
            for column, values in zip(columns, batch, strict=False):
                column[first : first + len(values)] = values
            first += len(batch[0])
        yield from zip(names, columns, strict=False)


def _groups(names: Sequence[str], together: int) -> Iterator[Sequence[str]]:
    return (names[first : first + together] for first in range(0, len(names), together))


def _exact_features(dataset: Dataset, most: Mapping[str, int], plan: BinPlan) -> Iterator[FeatureBins]:
    """Yield the bins of every feature, at most so many as ``most`` says, from the train split."""
    categorical = frozenset(dataset.manifest.categorical)
    for name, values in columns_of(dataset, "train", together=plan.columns):
        bins = feature_bins(name, values, most[name], in_place=True, categorical=name in categorical)
        yield _with_names(bins, dataset)


def _with_names(bins: FeatureBins, dataset: Dataset) -> FeatureBins:
    return replace(bins, names=dataset.vocabulary.named(bins.name, bins.edges)) if bins.categorical else bins


def _sampled_features(dataset: Dataset, most: Mapping[str, int], plan: BinPlan) -> Iterator[FeatureBins]:
    """Yield the bins of every feature from a sample of the train split, without counts.

    Categories are few enough to be counted exactly: those of a feature are the same as without a sample.
    """
    categorical = frozenset(dataset.manifest.categorical)
    places = sampled_places(lambda: dataset.query_batches("train"), plan.sampled_rows or 1)
    for names in _groups(dataset.feature_names, plan.columns):
        columns = [SampledColumn() for _ in names]
        tallies = {place: tally_of(EMPTY) for place, name in enumerate(names) if name in categorical}
        samples = np.empty((len(names), len(places)), dtype=EDGE)
        first = drawn = 0
        for batch in dataset.column_batches("train", names, _BATCH_ROWS):
            last = drawn + int(np.searchsorted(places[drawn:], first + len(batch[0])))
            for column, sample, values in zip(columns, samples, batch, strict=True):
                column.first_pass(values)
                sample[drawn:last] = values[places[drawn:last] - first]
            for place, tally in tallies.items():
                tallies[place] = summed([tally, tally_of(batch[place])])
            first, drawn = first + len(batch[0]), last
        for column in columns:
            column.end_first_pass()
        for batch in dataset.column_batches("train", names, _BATCH_ROWS):
            for column, values in zip(columns, batch, strict=True):
                column.second_pass(values)
        for place, (name, column, sample) in enumerate(zip(names, columns, samples, strict=True)):
            if place in tallies:
                bins = category_bins(name, *tallies[place], column.missing, most[name])
                yield _with_names(replace(bins, counts=np.zeros(bins.n_bins, dtype=np.int64)), dataset)
                continue
            edges = column.edges(sample, most[name])
            low, high = column.extremes or (None, None)
            yield FeatureBins(name, edges, np.zeros(len(edges) + 2, dtype=np.int64), low, high)


def _write_shard(
    path: Path,
    dataset: Dataset,
    shard: Shard,
    spec: BinSpec,
    batch_rows: int,
    counts: npt.NDArray[np.int64] | None,
) -> None:
    """Write the bins of ``shard``: a dictionary-encoded uint8 column per feature, one byte per value before zstd.

    Add the rows of the train split to ``counts`` (F, 256) unless they are known.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(name, pa.uint8(), nullable=False) for name in spec.feature_names])
    train = None if counts is None else dataset.rows_in(shard, "train")
    done = 0
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=True, write_statistics=False) as writer:
        for values in dataset.shard_batches(shard, batch_rows):
            bins = apply_bins(values, spec)
            if train is not None:
                _kernels.tally(bins, train[done : done + len(bins)], counts)
            done += len(bins)
            columns = np.ascontiguousarray(bins.T)
            writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema=schema))
