"""Binning a dataset: edges from its train split, then every shard written as bins beside its rows."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from pipeline.binspec import BinSpec, apply_bins, feature_bins
from pipeline.dataset import Dataset, read_manifest
from pipeline.errors import DataRejected, DatasetFormatError
from pipeline.manifest import BinSet
from pipeline.publish import file_digest, fsync_folder, keep_by_digest, staging_folder, write_atomically
from pipeline.quantiles import MAX_BIN, Values, checked_max_bin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.manifest import Shard, SplitName

MIN_MAX_BIN = 15
_COLUMN_BYTES = 64 << 20  # columns read together while edges are sought: at least one, however long


def find_bins(dataset: Dataset, max_bin: int = MAX_BIN) -> BinSpec | None:
    """Return the bins of ``dataset`` made earlier with ``max_bin``; None if there are none or their files are damaged."""
    for entry in dataset.manifest.bins:
        folder = dataset.path / "bins" / entry.binspec
        if entry.max_bin != max_bin or not all(_is_whole(folder / f"{digest}.parquet") for digest in entry.shards):
            continue
        try:
            return dataset.binspec(entry.binspec)
        except DatasetFormatError:
            continue
    return None


def _is_whole(file: Path) -> bool:
    return file.is_file() and file_digest(file) == file.stem


def bin_dataset(dataset: Dataset, max_bin: int = MAX_BIN) -> BinSpec:
    """Bin ``dataset``: exact quantiles of its train split give the edges, then every shard is written as bins.

    Reads a few columns at a time for the edges and one row group at a time for the bins.  Files appear under
    ``bins/<digest>/`` and count from the moment the manifest names them.  Bins made earlier with the same ``max_bin``
    (15..255) stay as they are and become the newest, which a reader gets who does not ask for others.  Open the dataset
    anew to read the bins.

    Raises
    ------
    InputError
        ``max_bin`` out of range.
    DataRejected
        The train split has no rows.
    """
    checked_max_bin(max_bin, MIN_MAX_BIN)
    if "train" not in dataset.manifest.splits:
        raise DataRejected(f"{dataset.path}: the train split has no rows, and edges come from it; ingest training data")
    with _alone(dataset.path / "bins"):
        # another process may have done it while this one waited
        current = Dataset(dataset.path, read_manifest(dataset.path))
        found = find_bins(current, max_bin) if current.digest == dataset.digest else None
        if found is not None:
            current.commit_bins(current.bin_set(found.digest))
            return found
        return _write_bins(dataset, max_bin)


def _write_bins(dataset: Dataset, max_bin: int) -> BinSpec:
    features = [feature_bins(name, values, max_bin) for name, values in columns_of(dataset, "train")]
    spec = BinSpec(tuple(features), max_bin)
    folder = dataset.path / "bins" / spec.digest
    with staging_folder(folder) as staging:
        staged = [staging / f"{shard.bucket}.parquet" for shard in dataset.manifest.shards]
        for file, shard in zip(staged, dataset.manifest.shards, strict=True):
            _write_shard(file, dataset, shard, spec)
        shards = [keep_by_digest(file, folder) for file in staged]
    write_atomically(folder / "binspec.json", spec.to_json().encode())
    fsync_folder(folder.parent)
    fsync_folder(dataset.path)
    named = dataset.commit_bins(BinSet(binspec=spec.digest, max_bin=max_bin, shards=shards)).manifest.bins
    for old in folder.parent.iterdir():  # bins of data that were replaced
        if old.name not in {entry.binspec for entry in named}:
            shutil.rmtree(old, ignore_errors=True)
    return spec


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes that bin the same dataset waiting."""
    import fcntl

    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def columns_of(dataset: Dataset, split: SplitName | None = None) -> Iterator[tuple[str, Values]]:
    """Yield every feature of ``split`` with its values (n,) in canonical order; a few columns are in memory at a time."""
    rows = dataset.manifest.rows if split is None else dataset.manifest.splits[split].rows
    together = max(1, _COLUMN_BYTES // (4 * max(1, rows)))
    for first in range(0, len(dataset.feature_names), together):
        names = dataset.feature_names[first : first + together]
        table = dataset.rows(split, names)
        for name in names:
            yield name, table.column(name).to_numpy()


def _write_shard(path: Path, dataset: Dataset, shard: Shard, spec: BinSpec) -> None:
    """Write the bins of ``shard``: one uint8 column a feature, dictionary-encoded, that is a byte a value before zstd."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(name, pa.uint8(), nullable=False) for name in spec.feature_names])
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=True, write_statistics=False) as writer:
        for values in dataset.shard_batches(shard):
            columns = np.ascontiguousarray(apply_bins(values, spec).T)
            writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema=schema))
