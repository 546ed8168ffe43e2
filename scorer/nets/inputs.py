"""What a net sees of a document: numbers, indicators of missing values, and embeddings of categories.

inputs of a row = [ numeric features, scaled | indicators | embedding of category 1 | embedding of category 2 | .. ]
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.scorer.nets import _kernels
from rankmill.scorer.nets._kernels import FIRST_CATEGORY, LARGEST_INPUT, MOST_KNOTS, TOGETHER

TRANSFORMS = LINEAR, LOG1P, QUANTILE = ("linear", "log1p", "quantile")
INPUT = np.float32  # of nets: half the memory and twice the speed of float64
FEATURE = np.int32
MAX_CATEGORIES = 1 << 24
MAX_WIDTH = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class NetInputs:
    """How the values of a document become the inputs of a net.

    A numeric value x becomes ``scale (t(x) - centre)``.  The transform t is the identity (``linear``),
    ``sign(x) log(1 + |x|)`` (``log1p``), or the line through the feature's knots and heights, flat outside
    (``quantile``).  A missing value is 0, the centre.  If the feature is one of ``indicators``, its indicator is then
    1.  A category has a row of the embeddings.  Row 0 of its feature is that of all other categories, row 1 that of a
    missing one, and row 2 + k that of ``codes[k]``.
    """

    transform: str
    numeric: npt.NDArray[np.int32]  # (n_numeric,) positions of features
    centres: npt.NDArray[np.float64]  # (n_numeric,)
    scales: npt.NDArray[np.float64]  # (n_numeric,)
    knot_starts: npt.NDArray[np.int32]  # (n_numeric + 1,)
    knots: npt.NDArray[np.float32]  # (n_knots,) ascending within a feature
    heights: npt.NDArray[np.float32]  # (n_knots,)
    indicators: npt.NDArray[np.int32]  # (n_indicators,) positions of features
    categorical: npt.NDArray[np.int32]  # (n_categorical,) positions of features
    code_starts: npt.NDArray[np.int32]  # (n_categorical + 1,)
    codes: npt.NDArray[np.float32]  # (n_codes,) ascending within a feature
    embeddings: npt.NDArray[np.float32]  # (n_codes + 2 n_categorical, width)

    def __post_init__(self) -> None:
        """Check all places; ValueError with the first fault."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                with np.errstate(over="ignore"):  # infinite: refused
                    value = np.array(value, dtype=_DTYPES[each.name], order="C")
                value.flags.writeable = False
                object.__setattr__(self, each.name, value)
        fault = self._fault()
        if fault is not None:
            raise ValueError(fault)

    def _fault(self) -> str | None:
        n, m = len(self.numeric), len(self.categorical)
        if self.transform not in TRANSFORMS:
            return f"unknown transform {self.transform!r}"
        if self.centres.shape != (n,) or self.scales.shape != (n,):
            return f"centres and scales must have one number for each of the {n} numeric features"
        for name, starts, total, least, count in (
            ("knot_starts", self.knot_starts, len(self.knots), int(self.transform == QUANTILE), n),
            ("code_starts", self.code_starts, len(self.codes), 0, m),
        ):
            if starts.shape != (count + 1,) or starts[0] != 0 or starts[-1] != total:
                return f"{name} does not divide {total} values among {count} features"
            sizes = np.diff(starts.astype(np.int64))
            if np.any(sizes < least):
                return f"{name} is not ascending"
            if name == "knot_starts" and np.any(sizes > MOST_KNOTS):
                return f"a feature has {sizes.max()} knots, at most {MOST_KNOTS} are allowed"
        if len(self.heights) != len(self.knots):
            return f"{len(self.heights)} heights for {len(self.knots)} knots"
        if self.transform != QUANTILE and len(self.knots):
            return f"the transform {self.transform} has no knots"
        for name, values, starts in (
            ("knots", self.knots, self.knot_starts),
            ("codes", self.codes, self.code_starts),
        ):
            inner = np.setdiff1d(np.arange(max(len(values) - 1, 0)), starts[1:-1] - 1)
            if not np.all(np.isfinite(values)) or np.any(values[inner + 1] <= values[inner]):
                return f"the {name} of a feature are not finite and ascending"
        if self.embeddings.ndim != 2 or len(self.embeddings) != len(self.codes) + FIRST_CATEGORY * m:
            return f"embeddings of shape {self.embeddings.shape} for {len(self.codes)} categories of {m} features"
        if len(self.codes) > MAX_CATEGORIES or self.n_inputs > MAX_WIDTH:
            return f"{len(self.codes)} categories and {self.n_inputs} inputs are too many"
        for name in ("centres", "scales", "heights", "embeddings"):
            if not np.all(np.isfinite(getattr(self, name))):
                return f"{name} has a value that is not finite"
        used = np.concatenate([self.numeric, self.categorical])
        if len(np.unique(used)) != len(used) or np.any(used < 0) or not np.all(np.isin(self.indicators, self.numeric)):
            return "a feature is used twice, or has an indicator and is not numeric"
        return None

    @property
    def n_base(self) -> int:
        """NetInputs that are no embeddings."""
        return len(self.numeric) + len(self.indicators)

    @property
    def n_inputs(self) -> int:
        """NetInputs of the first layer."""
        return self.n_base + len(self.categorical) * int(self.embeddings.shape[1])

    @property
    def n_features(self) -> int:
        """The least number of columns that values must have."""
        return int(max(self.numeric.max(initial=-1), self.categorical.max(initial=-1))) + 1

    @property
    def table_starts(self) -> npt.NDArray[np.int32]:
        """The first row of the embeddings of each categorical feature, (n_categorical,)."""
        return self.code_starts[:-1] + FIRST_CATEGORY * np.arange(len(self.categorical), dtype=FEATURE)

    def codes_of(self, place: int) -> npt.NDArray[np.float32]:
        """Return the codes of the known categories of the feature ``categorical[place]``, ascending."""
        return self.codes[self.code_starts[place] : self.code_starts[place + 1]]

    @property
    def largest(self) -> float:
        """Bound on the absolute value of an input."""
        return max(LARGEST_INPUT, float(np.abs(self.embeddings).max(initial=0.0)))

    @cached_property
    def padded(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Knots and heights of ``quantile``, (n_numeric, MOST_KNOTS + 1): see `_kernels.write_numbers`."""
        shape = len(self.numeric), MOST_KNOTS + 1
        knots, heights = np.full(shape, np.inf, dtype=INPUT), np.zeros(shape, dtype=INPUT)
        for j in range(len(self.numeric)):
            first, last = self.knot_starts[j], self.knot_starts[j + 1]
            knots[j, : last - first] = self.knots[first:last]
            heights[j] = self.heights[last - 1]
            heights[j, : last - first] = self.heights[first:last]
        return knots, heights

    def write_numbers(
        self, values: npt.NDArray[np.float32], first: int, last: int, out: npt.NDArray[np.float32]
    ) -> None:
        """Write the inputs of the rows first .. last of ``values`` into the rows 0 .. of ``out``.

        Embeddings are left out.
        """
        quantile = self.transform == QUANTILE
        kind, knots, heights = (None, *self.padded) if quantile else (TRANSFORMS.index(self.transform), None, None)
        scratch = tuple(np.empty(TOGETHER, dtype) for dtype in (np.float32, np.float64, np.int64))
        _kernels.write_numbers(
            values, first, last, self.numeric, kind, self.centres, self.scales, knots, heights, self.indicators,
            scratch, out,
        )  # fmt: skip

    def find_categories(
        self, values: npt.NDArray[np.float32], first: int, last: int, out: npt.NDArray[np.int32]
    ) -> None:
        """Write the row of the embeddings of each category, (rows, n_categorical), into the rows 0 .. of ``out``."""
        _kernels.find_categories(
            values, first, last, self.categorical, self.code_starts, self.codes, self.table_starts, out
        )

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name, one-dimensional, in the order of :data:`ARRAYS`."""
        return {name: getattr(self, name).reshape(-1) for name, _ in ARRAYS}


ARRAYS: tuple[tuple[str, np.dtype[Any]], ...] = (
    ("numeric", np.dtype("<i4")),
    ("centres", np.dtype("<f8")),
    ("scales", np.dtype("<f8")),
    ("knot_starts", np.dtype("<i4")),
    ("knots", np.dtype("<f4")),
    ("heights", np.dtype("<f4")),
    ("indicators", np.dtype("<i4")),
    ("categorical", np.dtype("<i4")),
    ("code_starts", np.dtype("<i4")),
    ("codes", np.dtype("<f4")),
    ("embeddings", np.dtype("<f4")),
)
_DTYPES = dict(ARRAYS)
