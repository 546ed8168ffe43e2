"""Fit the inputs of a net to the train split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
import numpy.typing as npt

from rankmill.foundation.kernels.randoms import random_bits_of, uniform
from rankmill.scorer.nets._kernels import FIRST_CATEGORY, MOST_KNOTS
from rankmill.scorer.nets.inputs import FEATURE, INPUT, LINEAR, LOG1P, QUANTILE, NetInputs
from rankmill.trainer.nets import _kernels
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.team import Team

_EMBEDDINGS = 0x656D626564  # key of the draws of embeddings, besides the seed
_LEAST_VARIANCE = 1e-12  # relative to the square of the mean: less is rounding
_LARGEST = float(np.finfo(INPUT).max)  # infinite values count as that
_DEVIATION = 0.1  # of embeddings at the start


@dataclass(slots=True)
class _Fitted:
    """What is known of one numeric feature."""

    centre: float = 0.0
    scale: float = 0.0
    knots: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, INPUT))
    heights: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, INPUT))
    missing: bool = False


def fit_inputs(
    values: npt.NDArray[np.float32], categorical: Sequence[int], options: NetOptions, team: Team
) -> NetInputs:
    """Return the inputs that ``options`` describe, fitted to ``values`` (n, n_features) float32; the same for any team.

    ``categorical`` are the positions of categorical features.  Of each, the ``max_categories`` most frequent get
    embeddings, of equal frequency those with the lower codes.  Quantiles are exact; sums are added up in a fixed order.
    """
    numeric = [f for f in range(values.shape[1]) if f not in set(categorical)]
    found = [_Fitted() for _ in numeric]
    kind = options.transform

    def fit(worker: int) -> None:
        for place in range(worker, len(numeric), team.size):
            found[place] = _fit(np.ascontiguousarray(values[:, numeric[place]]), kind)

    team.each(fit)
    codes = [_most_frequent(values[:, f], options.max_categories) for f in categorical]
    width = options.embedding_width if categorical else 0
    n_rows = sum(map(len, codes)) + FIRST_CATEGORY * len(codes)
    return NetInputs(
        transform=kind,
        numeric=np.array(numeric, dtype=FEATURE),
        centres=np.array([each.centre for each in found]),
        scales=np.array([each.scale for each in found]),
        knot_starts=_starts([len(each.knots) for each in found]),
        knots=np.concatenate([np.zeros(0, INPUT), *(each.knots for each in found)]),
        heights=np.concatenate([np.zeros(0, INPUT), *(each.heights for each in found)]),
        indicators=np.array(
            [f for f, each in zip(numeric, found, strict=True) if each.missing and options.missing_indicators],
            dtype=FEATURE,
        ),
        categorical=np.array(categorical, dtype=FEATURE),
        code_starts=_starts([len(each) for each in codes]),
        codes=np.concatenate([np.zeros(0, INPUT), *codes]),
        embeddings=(_DEVIATION * normal_draws(n_rows * width, options.seed, _EMBEDDINGS)).reshape(n_rows, width),
    )


def normal_draws(n: int, seed: int, stream: int) -> npt.NDArray[np.float32]:
    """Return ``n`` draws of the standard normal distribution, keyed by seed and stream."""
    key = np.array([seed], dtype=np.uint64)
    seeds = np.repeat(random_bits_of(key, np.array([stream], dtype=np.uint64)), n)
    bits = random_bits_of(seeds, np.arange(1, n + 1, dtype=np.uint64))
    return _normal_of(getattr(uniform, "py_func", uniform)(bits))


def _normal_of(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    out = np.empty(len(shares), dtype=INPUT)
    _kernels.normal_of(shares, out)
    return out


def _fit(column: npt.NDArray[np.float32], kind: str) -> _Fitted:
    known = column[~np.isnan(column)]
    fitted = _Fitted(missing=len(known) < len(column))
    if kind == QUANTILE:
        known.sort()
        fitted.knots, fitted.heights = _normal_scores(known)
    if len(known):
        transforms = _transformed(known, kind, fitted)
        gaps = transforms - transforms[0]  # differences from it lose no digits
        gap, square = (float(np.add.accumulate(each)[-1]) / len(known) for each in (gaps, gaps * gaps))
        mean, variance = float(transforms[0]) + gap, max(0.0, square - gap * gap)
        fitted.centre = mean
        fitted.scale = 1.0 / sqrt(variance) if variance > _LEAST_VARIANCE * mean * mean else 0.0
    return fitted


def _transformed(values: npt.NDArray[np.float32], kind: str, fitted: _Fitted) -> npt.NDArray[np.float64]:
    """Return what :func:`rankmill.scorer.nets._kernels.write_numbers` makes of values before it scales them."""
    if kind == LINEAR:
        return np.clip(values.astype(np.float64), -_LARGEST, _LARGEST)
    if kind == LOG1P:
        out = np.empty(len(values))
        _kernels.logarithms(values, out)
        return out
    knots, heights = fitted.knots.astype(np.float64), fitted.heights.astype(np.float64)
    low = np.searchsorted(fitted.knots, values, side="right") - 1
    out = heights[np.maximum(low, 0)]
    inside = (low >= 0) & (low < len(knots) - 1)
    low = low[inside]
    share = (values[inside] - knots[low]) / (knots[low + 1] - knots[low])
    out[inside] += share * (heights[low + 1] - heights[low])
    return out


def _normal_scores(ascending: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return knots at quantiles of the values, and the normal quantile of the middle of each knot's ranks.

    A value that many rows share has all their ranks, so that its knot is at the middle of them.
    """
    n = len(ascending)
    finite = np.abs(ascending) < np.inf
    if not finite.any():
        return np.zeros(1, INPUT), np.zeros(1, INPUT)
    inner = ascending[finite]
    knots = np.unique(inner[np.linspace(0, len(inner) - 1, min(len(inner), MOST_KNOTS)).round().astype(np.int64)])
    knots = np.unique(knots + INPUT(0.0))  # one zero, not two
    low, high = (np.searchsorted(ascending, knots, side=side) for side in ("left", "right"))
    return knots, _normal_of((low + high) / (2.0 * n))


def _most_frequent(column: npt.NDArray[np.float32], most: int) -> npt.NDArray[np.float32]:
    """Return the codes of the ``most`` most frequent categories, ascending."""
    codes, rows = np.unique(column[np.isfinite(column)], return_counts=True)
    return np.sort(codes[np.argsort(-rows, kind="stable")[:most]]).astype(INPUT)


def _starts(sizes: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.concatenate(([0], np.cumsum(sizes))).astype(FEATURE)
