"""Quantile bins: where the edges of a feature lie, and which bin a value falls into.

Bin 0 holds the missing values (NaN).  Bin b >= 1 holds ``edges[b - 2] < x <= edges[b - 1]``; the first has no lower and
the last no upper edge, so values outside the training range fall into the end bins.  An edge is the float32 midpoint of
two neighbouring observed values ``a < b`` and obeys ``a <= edge < b``: comparing ``x <= edge`` in float32 is exact, so a
tree split at an edge sends every value, binned or raw, to the same side.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline import _kernels
from pipeline.errors import DataRejected, DatasetFormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.dataset import Dataset
    from pipeline.manifest import Shard, SplitName

BIN = np.uint8  # 0 is "missing", 1..255 are value bins
EDGE = np.float32  # so that x <= edge compares exactly
MAX_BIN = 255
MIN_MAX_BIN = 15
BINSPEC_FORMAT = 1
_LARGEST = float(np.finfo(EDGE).max)
_COLUMN_BYTES = 64 << 20  # columns read together while edges are sought: at least one, however long
_TABLE_WIDTH = 255  # one less than a power of two: a search of eight steps

Values = npt.NDArray[np.float32]
Masses = npt.NDArray[np.int64]


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


def edges_of(values: Values, max_bin: int = MAX_BIN) -> Values:
    """Return the ascending float32 edges of at most ``max_bin`` (2..255) quantile bins of ``values`` (n,).

    With at most ``max_bin`` distinct values each has a bin of its own.  Otherwise the bins are those whose heaviest is
    as light as can be, where a bin of one value does not count: a value commoner than the others' bins (such as the zero
    of a sparse feature) stands alone, and what lies between such values is cut into parts of equal mass, as far as
    repeated values allow.  A bin of two or more values thus holds at most ``2 n / (max_bin - 1) + 1`` rows.  NaN are left
    out, -0.0 is 0.0, and infinite values are the outermost values.  The edges depend on the multiset of values only.

    >>> edges_of(np.array([3, 1, 2, 2, np.nan], dtype=np.float32)).tolist()
    [1.5, 2.5]
    """
    distinct, counts, _ = _distinct(values)
    return _edges(distinct, _bin_ends(counts, _checked(max_bin, 2)))


def feature_bins(name: str, values: Values, max_bin: int = MAX_BIN) -> FeatureBins:
    """Return the bins of one feature from its training ``values`` (n,); see `edges_of`."""
    distinct, counts, missing = _distinct(values)
    ends = _bin_ends(counts, _checked(max_bin, 2))
    masses = np.diff(np.concatenate(([0], np.cumsum(counts)))[np.concatenate(([0], ends))])
    return FeatureBins(
        name=name,
        edges=_edges(distinct, ends),
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
    """Return the bins of ``dataset`` made earlier with ``max_bin``, made the newest again; None if there are none."""
    for entry in dataset.manifest.bins:
        folder = dataset.path / "bins" / entry.binspec
        files = [folder / f"{digest}.parquet" for digest in entry.shards]
        if entry.max_bin == max_bin and all(file.is_file() for file in (folder / "binspec.json", *files)):
            spec = dataset.binspec(entry.binspec)
            if spec.digest == entry.binspec:
                dataset.commit_bins(entry)
                return spec
    return None


def bin_dataset(dataset: Dataset, max_bin: int = MAX_BIN) -> BinSpec:
    """Bin ``dataset``: exact quantiles of its train split give the edges, then every shard is written as bins.

    Reads a few columns at a time for the edges and one row group at a time for the bins.  Files appear under
    ``bins/<digest>/`` and count from the moment the manifest names them.  Bins made earlier with the same ``max_bin``
    (15..255) are returned as they are.  Open the dataset anew to read the bins.

    Raises
    ------
    InputError
        ``max_bin`` out of range.
    DataRejected
        The train split has no rows.
    """
    from pipeline.manifest import BinSet
    from pipeline.publish import fsync_folder, keep_by_digest, staging_folder, write_atomically

    _checked(max_bin, MIN_MAX_BIN)
    found = find_bins(dataset, max_bin)
    if found is not None:
        return found
    spec = _train_bins(dataset, max_bin)
    folder = dataset.path / "bins" / spec.digest
    shards = []
    with staging_folder(folder) as staging:
        for shard in dataset.manifest.shards:
            staged = staging / f"{shard.bucket}.parquet"
            _write_shard(staged, dataset, shard, spec)
            shards.append(keep_by_digest(staged, folder))
    write_atomically(folder / "binspec.json", spec.to_json().encode())
    fsync_folder(folder.parent)
    fsync_folder(dataset.path)
    dataset.commit_bins(BinSet(binspec=spec.digest, max_bin=max_bin, shards=shards))
    return spec


def columns_of(dataset: Dataset, split: SplitName | None = None) -> Iterator[tuple[str, Values]]:
    """Yield every feature of ``split`` with its values (n,) in canonical order; a few columns are in memory at a time."""
    rows = dataset.manifest.rows if split is None else dataset.manifest.splits[split].rows
    together = max(1, _COLUMN_BYTES // (4 * max(1, rows)))
    for first in range(0, len(dataset.feature_names), together):
        names = dataset.feature_names[first : first + together]
        table = dataset.rows(split, names)
        for name in names:
            yield name, table.column(name).to_numpy()


def _train_bins(dataset: Dataset, max_bin: int) -> BinSpec:
    train = dataset.manifest.splits.get("train")
    if train is None or train.rows == 0:
        raise DataRejected(f"{dataset.path}: the train split has no rows, and edges come from it; ingest training data")
    features = [feature_bins(name, values, max_bin) for name, values in columns_of(dataset, "train")]
    return BinSpec(tuple(features), max_bin)


def _write_shard(path: Path, dataset: Dataset, shard: Shard, spec: BinSpec) -> None:
    """Write the bins of ``shard``: one uint8 column a feature, dictionary-encoded, that is a byte a value before zstd."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(name, pa.uint8(), nullable=False) for name in spec.feature_names])
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=True, write_statistics=False) as writer:
        for values in dataset.shard_batches(shard):
            columns = np.ascontiguousarray(apply_bins(values, spec).T)
            writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema=schema))


def _checked(max_bin: int, least: int) -> int:
    if not least <= max_bin <= MAX_BIN:
        raise InputError(f"max_bin must be {least} to {MAX_BIN}, got {max_bin}")
    return max_bin


def _distinct(values: Values) -> tuple[Values, Masses, int]:
    """Return the distinct values ascending, their counts, and the number of NaN."""
    present = values[~np.isnan(values)].astype(EDGE)
    missing = values.shape[0] - present.shape[0]
    present += EDGE(0)  # -0.0 becomes 0.0, so that equal values have equal bytes
    present.sort()
    if not len(present):
        return present, np.zeros(0, dtype=np.int64), missing
    starts = np.flatnonzero(np.concatenate(([True], present[1:] != present[:-1])))
    return present[starts], np.diff(np.append(starts, len(present))).astype(np.int64), missing


def _bin_ends(counts: Masses, max_bin: int) -> Masses:
    """Return where each bin ends, as an index behind its last distinct value; the last end is ``len(counts)``."""
    if len(counts) <= max_bin:
        return np.arange(1, len(counts) + 1, dtype=np.int64)
    cumulative = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    low, high = 1, int(cumulative[-1])
    while low < high:  # the least capacity that max_bin bins can do with
        middle = (low + high) // 2
        if _kernels.count_bins(cumulative, middle, max_bin) <= max_bin:
            high = middle
        else:
            low = middle + 1
    capacity = low
    ends = np.empty(max_bin, dtype=np.int64)
    used = int(_kernels.fill_bins(cumulative, capacity, ends))
    runs = _runs(counts, ends[:used], capacity)
    _spend(runs, cumulative, max_bin - used)
    parts = []
    for start, stop, bins in runs:
        part = np.empty(bins, dtype=np.int64)
        _kernels.split_run(cumulative, start, stop, capacity, np.empty_like(part), part)
        parts.append(part)
    return np.concatenate(parts)


def _runs(counts: Masses, ends: Masses, capacity: int) -> list[list[int]]:
    """Return [start, stop, bins] of every value heavier than ``capacity`` and of every run of values between them."""
    heavy = np.flatnonzero(counts > capacity)
    borders = np.unique(np.concatenate(([0], heavy, heavy + 1, [len(counts)])))
    # a bin never crosses a heavy value, so every border is the end of a bin
    bins = np.diff(np.searchsorted(ends, borders, side="right"))
    return [[int(a), int(b), int(k)] for a, b, k in zip(borders[:-1], borders[1:], bins, strict=True)]


def _spend(runs: list[list[int]], cumulative: Masses, spare: int) -> None:
    """Give each bin that is left over to the run whose bins are the heaviest and which has values to cut."""
    mass = [int(cumulative[stop] - cumulative[start]) for start, stop, _ in runs]
    waiting = [(-mass[i] / run[2], i) for i, run in enumerate(runs) if run[2] < run[1] - run[0]]
    heapq.heapify(waiting)
    for _ in range(spare):
        if not waiting:
            return
        _, i = heapq.heappop(waiting)
        start, stop, bins = runs[i]
        runs[i][2] = bins + 1
        if bins + 1 < stop - start:
            heapq.heappush(waiting, (-mass[i] / (bins + 1), i))


def _edges(distinct: Values, ends: Masses) -> Values:
    """Return the float32 midpoints at the ends of all bins but the last: ``a <= edge < b``, finite where possible."""
    below, above = distinct[ends[:-1] - 1].astype(np.float64), distinct[ends[:-1]].astype(np.float64)
    with np.errstate(invalid="ignore"):  # -inf and +inf as neighbours: the edge is 0
        middle = np.nan_to_num((below + above) / 2.0, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
    edges = middle.astype(EDGE) + EDGE(0)
    low, high = below.astype(EDGE), above.astype(EDGE)
    return np.where((edges >= high) | (edges < low), low, edges)


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)
