"""Quantile bins: the edges of every feature, and the bin of a value.

Bin 0 holds the missing values (NaN).  Bin b >= 1 holds ``edges[b - 2] < x <= edges[b - 1]``; the first has no lower and
the last no upper edge, so values outside the training range fall into the end bins.  An edge is the float32 midpoint of
two neighbouring observed values ``a < b``, with ``a <= edge < b``.  Comparing ``x <= edge`` in float32 is exact, so a
tree split at an edge sends a value to the same side whether it is binned or raw.

A categorical feature has bins for its most frequent categories instead.  Its ``edges`` are their codes, ascending: bin
b >= 1 holds the values equal to ``edges[b - 1]``, and the last bin all others, the rare and the unseen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import DatasetFormatError, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import as_json, infinite_as_words, other_format
from rankmill.pipeline import _kernels
from rankmill.pipeline.bins.quantiles import (
    EDGE,
    Masses,
    Values,
    bin_ends,
    checked_max_bin,
    cumulative_counts,
    edges_of_sorted,
    sort_values,
)
from rankmill.pipeline.options import MAX_BIN

BIN = np.uint8  # 0 is "missing", 1..255 are value bins
BINSPEC_FORMAT = 1
_TABLE_WIDTH = 255  # one less than a power of two: a search of eight steps
_COLUMNS = 16  # of a row-major matrix copied together: whole cache lines
_FEW_VALUES = 1_000_000  # below, starting threads (10 ms) costs more than it saves

Share = TypeVar("Share")


@dataclass(frozen=True, slots=True)
class FeatureBins:
    """The bins of one feature and the number of training rows in each."""

    name: str
    edges: Values
    """Ascending, shape (n_value_bins - 1,); of a categorical feature, the codes of its categories."""
    counts: Masses
    """Training rows per bin, shape (n_value_bins + 1,); ``counts[0]`` counts missing values."""
    minimum: float | None
    """Minimum training value; None if all values are missing."""
    maximum: float | None
    categorical: bool = False
    names: tuple[str, ...] = ()
    """The texts of the categories, in the order of ``edges``; empty if all codes are their own names."""

    @property
    def missing(self) -> int:
        """Number of training rows without a value."""
        return int(self.counts[0])

    @property
    def n_bins(self) -> int:
        """Number of bins, including the one for missing values."""
        return len(self.edges) + 2

    def to_json(self) -> Any:
        """Return JSON values; every float32 is written exactly, infinite ones as strings."""
        content = infinite_as_words(as_json(self)) | {"missing": self.missing}
        return {key: value for key, value in content.items() if value or key not in {"categorical", "names"}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FeatureBins:
        """Read what `to_json` wrote.  Raises KeyError, TypeError or ValueError if the value is invalid."""
        edges = np.array([float(edge) for edge in data["edges"]], dtype=EDGE)
        counts = np.array(data["counts"], dtype=np.int64)
        if counts.shape != (len(edges) + 2,) or np.any(counts < 0) or counts[0] != data["missing"]:
            raise ValueError(f"feature {data['name']!r}: the counts do not fit its {len(edges)} edges")
        if len(edges) >= MAX_BIN or np.isnan(edges).any() or np.any(edges[1:] <= edges[:-1]):
            raise ValueError(f"feature {data['name']!r}: the edges are not at most {MAX_BIN - 1} ascending numbers")
        categorical, names = data.get("categorical", False), tuple(map(str, data.get("names", ())))
        if len(names) not in {0, len(edges) if categorical else 0}:
            raise ValueError(f"feature {data['name']!r}: {len(names)} names for {len(edges)} categories")
        minimum, maximum = (None if data[key] is None else float(data[key]) for key in ("minimum", "maximum"))
        return cls(str(data["name"]), edges, counts, minimum, maximum, bool(categorical), names)


@dataclass(frozen=True)
class BinSpec:
    """The bins of all features of a dataset, in its feature order.  Part of every model trained on it."""

    features: tuple[FeatureBins, ...]
    max_bin: int = MAX_BIN
    sampled_rows: int | None = None
    """Number of sampled rows from which the edges were estimated; None: all rows.  Counts always cover all rows."""
    max_bin_of: Mapping[str, int] = field(default_factory=dict)
    """The maximum number of bins of features that have another one than ``max_bin``."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names in dataset order."""
        return tuple(feature.name for feature in self.features)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def n_bins(self) -> npt.NDArray[np.int32]:
        """The bins of each feature, the missing one included, shape (F,)."""
        return np.array([feature.n_bins for feature in self.features], dtype=np.int32)

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """The names of the categories of every categorical feature, in the order of its edges; empty: the codes."""
        return {feature.name: feature.names for feature in self.features if feature.categorical}

    @cached_property
    def categorical(self) -> npt.NDArray[np.bool_]:
        """Whether each feature is categorical, shape (F,)."""
        return np.array([feature.categorical for feature in self.features], dtype=np.bool_)

    @cached_property
    def tables(self) -> Values:
        """Edges for the search kernel, shape (F, 255), padded with +inf."""
        tables = np.full((len(self.features), _TABLE_WIDTH), np.inf, dtype=EDGE)
        for row, feature in zip(tables, self.features, strict=True):
            row[: len(feature.edges)] = feature.edges
        return tables

    def to_json(self) -> str:
        """Return canonical JSON: sorted keys, no spaces, floats that read back exactly."""
        content = {
            "format": BINSPEC_FORMAT,
            "max_bin": self.max_bin,
            "features": [feature.to_json() for feature in self.features],
        }
        if self.sampled_rows is not None:
            content["sampled_rows"] = self.sampled_rows
        if self.max_bin_of:
            content["max_bin_of"] = dict(self.max_bin_of)
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, where: str = "binspec") -> BinSpec:
        """Read what `to_json` wrote; ``where`` names it in messages.

        Raises
        ------
        DatasetFormatError
            The format number is unknown, or it is not a bin specification.

        >>> spec = BinSpec((feature_bins("bm25", np.array([1, 2, 2, np.nan], dtype=np.float32)),))
        >>> BinSpec.from_json(spec.to_json()).digest == spec.digest
        True
        """
        try:
            content = json.loads(text)
            if content["format"] != BINSPEC_FORMAT:
                what, cure = f"{where}: bin specification", "bin the dataset again"
                raise DatasetFormatError(other_format(what, content["format"], BINSPEC_FORMAT, cure))
            features = tuple(FeatureBins.from_json(feature) for feature in content["features"])
            sampled = content.get("sampled_rows")
            max_bin_of = {str(name): int(most) for name, most in content.get("max_bin_of", {}).items()}
            return cls(features, int(content["max_bin"]), None if sampled is None else int(sampled), max_bin_of)
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetFormatError(f"{where}: not a bin specification ({error}); bin the dataset again") from error


def feature_bins(
    name: str, values: Values, max_bin: int = MAX_BIN, *, in_place: bool = False, categorical: bool = False
) -> FeatureBins:
    """Return the at most ``max_bin`` (2..255) bins of one feature.

    ``values`` (n,) are its training values; see `most_frequent`.

    With at most ``max_bin`` distinct values, each has its own bin.  Otherwise the largest mass of a bin with several
    values is minimised. Very frequent values (such as the zero of a sparse feature) get their own bins. The values
    between them are divided into bins of equal mass, as far as repeated values allow.  So a bin with two or more values
    has at most ``2 n / (max_bin - 1) + 1`` rows.  NaN are ignored, -0.0 is 0.0, and infinite values are the outermost
    values.  The edges depend only on the multiset of values.

    ``in_place`` sorts ``values`` itself, which then needs only 8 bytes of extra memory per distinct value.

    >>> feature_bins("x", np.array([3, 1, 2, 2, np.nan], dtype=np.float32)).edges.tolist()
    [1.5, 2.5]
    """
    present, missing = sort_values(values if in_place else values.astype(EDGE))
    cumulative = cumulative_counts(present)
    checked_max_bin(max_bin, 2)
    if categorical:
        return category_bins(name, present[cumulative[:-1]], np.diff(cumulative), missing, max_bin)
    ends = bin_ends(cumulative, max_bin)
    masses = np.diff(cumulative[np.concatenate(([0], ends))])
    return FeatureBins(
        name=name,
        edges=edges_of_sorted(present, cumulative, ends),
        counts=np.concatenate(([missing], masses if len(present) else [0])).astype(np.int64),
        minimum=float(present[0]) if len(present) else None,
        maximum=float(present[-1]) if len(present) else None,
    )


def category_bins(name: str, codes: Values, rows: Masses, missing: int, max_bin: int = MAX_BIN) -> FeatureBins:
    """Return the bins of a categorical feature with these ascending ``codes`` (c,) in so many ``rows`` (c,).

    >>> category_bins("brand", np.array([3, 5, 8], dtype=np.float32), np.array([2, 1, 9]), 4, 3).edges.tolist()
    [3.0, 8.0]
    """
    finite = np.isfinite(codes)
    chosen = most_frequent(np.where(finite, rows, 0), min(checked_max_bin(max_bin, 2) - 1, int(finite.sum())))
    others = rows.sum() - rows[chosen].sum()
    return FeatureBins(
        name=name,
        edges=codes[chosen],
        counts=np.concatenate(([missing], rows[chosen], [others])).astype(np.int64),
        minimum=float(codes[0]) if len(codes) else None,
        maximum=float(codes[-1]) if len(codes) else None,
        categorical=True,
    )


def most_frequent(counts: Masses, most: int) -> npt.NDArray[np.int64]:
    """Return the positions, ascending, of the ``most`` highest of ``counts`` (n,); on ties the first.

    >>> most_frequent(np.array([5, 1, 7, 5]), 2).tolist()
    [0, 2]
    """
    return np.sort(np.argsort(-counts, kind="stable")[:most])


def matrix_bins(
    names: Sequence[str],
    values: Values,
    max_bin: int = MAX_BIN,
    *,
    n_threads: int = 1,
    categorical: Collection[str] = (),
    max_bin_of: Mapping[str, int] | None = None,
) -> BinSpec:
    """Return the bins of all features of a training matrix (n, F) float32, the same for any ``n_threads``.

    ``categorical`` names the categorical features, and ``max_bin_of`` those with another maximum number of bins.

    >>> matrix_bins(["a", "b"], np.array([[1, 5], [2, 5]], dtype=np.float32)).features[0].edges.tolist()
    [1.5]
    """
    most = checked_max_bins(max_bin_of or {}, max_bin, names)
    groups = range(0, len(names), _COLUMNS)
    found: list[FeatureBins | None] = [None] * len(names)

    def work(groups: Sequence[int]) -> None:
        # one buffer for all: allocating takes longer than sorting
        columns = np.empty((min(_COLUMNS, len(names)), len(values)), dtype=EDGE)
        for first in groups:
            block = values[:, first : first + _COLUMNS].T
            columns[: len(block)] = block
            for i in range(len(block)):
                name = names[first + i]
                found[first + i] = feature_bins(
                    name, columns[i], most.get(name, max_bin), in_place=True, categorical=name in categorical
                )

    n_threads = max(1, min(n_threads, len(groups))) if values.size >= _FEW_VALUES else 1
    _in_threads(work, [groups[worker::n_threads] for worker in range(n_threads)])
    return BinSpec(tuple(feature for feature in found if feature is not None), max_bin, max_bin_of=most)


def checked_max_bins(max_bin_of: Mapping[str, int], max_bin: int, features: Collection[str]) -> dict[str, int]:
    """Return ``max_bin_of`` without what equals ``max_bin``; InputError if it names none of ``features``."""
    for name in max_bin_of:
        if name not in features:
            raise InputError.unknown(f"feature in {spelled('max_bin_of')}", name, features)
    return {name: most for name, most in sorted(max_bin_of.items()) if most != max_bin}


def apply_bins(values: Values, spec: BinSpec, *, n_threads: int = 1) -> npt.NDArray[np.uint8]:
    """Return the bin of every value, (n, F) uint8 row-major; ``values`` is (n, F) float32 in the order of ``spec``.

    >>> spec = BinSpec((feature_bins("bm25", np.array([1, 2, 3], dtype=np.float32)),))
    >>> apply_bins(np.array([[np.nan], [-np.inf], [1.5], [1.6], [9.0]], dtype=np.float32), spec).ravel().tolist()
    [0, 1, 1, 2, 3]
    """
    if values.ndim != 2 or values.shape[1] != len(spec.features):
        raise ValueError(f"values must have shape (n, {len(spec.features)}), got {values.shape}")
    out = np.empty(values.shape, dtype=BIN)
    values, tables = np.ascontiguousarray(values, dtype=EDGE), spec.tables
    n_threads = n_threads if values.size >= _FEW_VALUES else 1
    cuts = [worker * len(values) // n_threads for worker in range(n_threads + 1)]
    _in_threads(
        lambda rows: _kernels.find_bins(values[rows], tables, spec.categorical, out[rows]),
        [slice(*pair) for pair in pairwise(cuts)],
    )
    return out


def _in_threads(work: Callable[[Share], object], shares: Sequence[Share]) -> None:
    """Call ``work`` with every share, each in its own thread."""
    if len(shares) == 1:
        work(shares[0])
    else:
        from joblib import Parallel, delayed  # takes a tenth of a second to import

        Parallel(n_jobs=len(shares), require="sharedmem")(delayed(work)(share) for share in shares)
