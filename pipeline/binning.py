"""Quantile bins: where the edges of a feature lie, and which bin a value falls into.

Bin 0 holds the missing values (NaN).  Bin b >= 1 holds ``edges[b - 2] < x <= edges[b - 1]``; the first has no lower and
the last no upper edge, so values outside the training range fall into the end bins.  An edge is the float32 midpoint of
two neighbouring observed values ``a < b`` and obeys ``a <= edge < b``: comparing ``x <= edge`` in float32 is exact, so a
tree split at an edge sends every value, binned or raw, to the same side.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline import _kernels
from pipeline.dataset import Dataset, read_manifest
from pipeline.errors import DataRejected, DatasetFormatError
from pipeline.manifest import BinSet
from pipeline.publish import file_digest, fsync_folder, keep_by_digest, staging_folder, write_atomically
from pipeline.quantiles import (
    EDGE,
    MAX_BIN,
    Masses,
    Values,
    bin_ends,
    checked_max_bin,
    distinct_values,
    edges_between,
    edges_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.manifest import Shard, SplitName

__all__ = ["MAX_BIN", "BinSpec", "FeatureBins", "apply_bins", "bin_dataset", "edges_of", "feature_bins", "find_bins"]

BIN = np.uint8  # 0 is "missing", 1..255 are value bins
MIN_MAX_BIN = 15
BINSPEC_FORMAT = 1
_COLUMN_BYTES = 64 << 20  # columns read together while edges are sought: at least one, however long
_TABLE_WIDTH = 255  # one less than a power of two: a search of eight steps


@dataclass(frozen=True, slots=True)
class FeatureBins:
    """The bins of one feature and how many training rows fall into each."""

    name: str
    edges: Values
    """Ascending, shape (n_value_bins - 1,)."""
    counts: Masses
    """Training rows a bin, shape (n_value_bins + 1,); ``counts[0]`` are the missing ones."""
    minimum: float | None
    """Least observed training value; None where all are missing."""
    maximum: float | None

    @property
    def missing(self) -> int:
        """Training rows without a value."""
        return int(self.counts[0])

    @property
    def n_bins(self) -> int:
        """Bins in use, the one for missing values included."""
        return len(self.edges) + 2

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; every float32 is written exactly, an infinite one as a word."""
        return {
            "name": self.name,
            "edges": [_number(edge) for edge in self.edges.tolist()],
            "counts": self.counts.tolist(),
            "minimum": None if self.minimum is None else _number(self.minimum),
            "maximum": None if self.maximum is None else _number(self.maximum),
            "missing": self.missing,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FeatureBins:
        """Read what `to_json` wrote.  Raises KeyError, TypeError or ValueError where it is something else."""
        edges = np.array([float(edge) for edge in data["edges"]], dtype=EDGE)
        counts = np.array(data["counts"], dtype=np.int64)
        if counts.shape != (len(edges) + 2,) or np.any(counts < 0) or counts[0] != data["missing"]:
            raise ValueError(f"feature {data['name']!r}: the counts do not fit its {len(edges)} edges")
        if len(edges) >= MAX_BIN or np.isnan(edges).any() or np.any(edges[1:] <= edges[:-1]):
            raise ValueError(f"feature {data['name']!r}: the edges are not at most {MAX_BIN - 1} ascending numbers")
        minimum, maximum = (None if data[key] is None else float(data[key]) for key in ("minimum", "maximum"))
        return cls(str(data["name"]), edges, counts, minimum, maximum)


@dataclass(frozen=True)
class BinSpec:
    """The bins of all features of a dataset, in its feature order.  Part of every model trained on it."""

    features: tuple[FeatureBins, ...]
    max_bin: int = MAX_BIN

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names in dataset order."""
        return tuple(feature.name for feature in self.features)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def tables(self) -> Values:
        """Edges for the search kernel, shape (F, 255), filled up with +inf."""
        tables = np.full((len(self.features), _TABLE_WIDTH), np.inf, dtype=EDGE)
        for row, feature in zip(tables, self.features, strict=True):
            row[: len(feature.edges)] = feature.edges
        return tables

    def to_json(self) -> str:
        """Return canonical JSON: sorted keys, no spaces, floats so that they read back exactly."""
        content = {
            "format": BINSPEC_FORMAT,
            "max_bin": self.max_bin,
            "features": [feature.to_json() for feature in self.features],
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, where: str = "binspec") -> BinSpec:
        """Read what `to_json` wrote; ``where`` names it in messages.

        Raises
        ------
        DatasetFormatError
            Another format number, or not a bin specification.

        >>> spec = BinSpec((feature_bins("bm25", np.array([1, 2, 2, np.nan], dtype=np.float32)),))
        >>> BinSpec.from_json(spec.to_json()).digest == spec.digest
        True
        """
        try:
            content = json.loads(text)
            if content["format"] != BINSPEC_FORMAT:
                raise DatasetFormatError(
                    f"{where}: expected bin specification format {BINSPEC_FORMAT}, found {content['format']!r};"
                    " bin the dataset again with this version"
                )
            features = tuple(FeatureBins.from_json(feature) for feature in content["features"])
            return cls(features, int(content["max_bin"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetFormatError(f"{where}: not a bin specification ({error}); bin the dataset again") from error


def feature_bins(name: str, values: Values, max_bin: int = MAX_BIN) -> FeatureBins:
    """Return the bins of one feature from its training ``values`` (n,); see `edges_of`."""
    distinct, counts, missing = distinct_values(values)
    ends = bin_ends(counts, checked_max_bin(max_bin, 2))
    masses = np.diff(np.concatenate(([0], np.cumsum(counts)))[np.concatenate(([0], ends))])
    return FeatureBins(
        name=name,
        edges=edges_between(distinct, ends),
        counts=np.concatenate(([missing], masses if len(distinct) else [0])).astype(np.int64),
        minimum=float(distinct[0]) if len(distinct) else None,
        maximum=float(distinct[-1]) if len(distinct) else None,
    )


def apply_bins(values: Values, spec: BinSpec) -> npt.NDArray[np.uint8]:
    """Return the bin of every value, (n, F) uint8 row-major; ``values`` is (n, F) float32 in the order of ``spec``.

    >>> spec = BinSpec((feature_bins("bm25", np.array([1, 2, 3], dtype=np.float32)),))
    >>> apply_bins(np.array([[np.nan], [-np.inf], [1.5], [1.6], [9.0]], dtype=np.float32), spec).ravel().tolist()
    [0, 1, 1, 2, 3]
    """
    if values.ndim != 2 or values.shape[1] != len(spec.features):
        raise ValueError(f"values must have shape (n, {len(spec.features)}), got {values.shape}")
    out = np.empty(values.shape, dtype=BIN)
    _kernels.find_bins(np.ascontiguousarray(values, dtype=EDGE), spec.tables, out)
    return out


def find_bins(dataset: Dataset, max_bin: int = MAX_BIN) -> BinSpec | None:
    """Return the bins of ``dataset`` made earlier with ``max_bin``; None if there are none or their files are damaged."""
    for entry in dataset.manifest.bins:
        folder = dataset.path / "bins" / entry.binspec
        if entry.max_bin != max_bin or not all(_is_whole(folder / f"{digest}.parquet") for digest in entry.shards):
            continue
        try:
            spec = dataset.binspec(entry.binspec)
        except DatasetFormatError:
            continue
        if spec.digest == entry.binspec:
            return spec
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


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)
