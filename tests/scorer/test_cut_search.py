"""The code of a value is 1 plus the number of cuts below it, wherever the cuts lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankmill.scorer import _kernels
from rankmill.scorer.tree_layout import search_of
from tests.scorer.forests import random_forest

INF = np.float32(np.inf)
GREATEST = np.finfo(np.float32).max


def drawn(kind: str, n: int, generator: np.random.Generator) -> np.ndarray:
    values = {
        "even": lambda: np.linspace(-1, 1, n),
        "normal": lambda: generator.normal(size=n),
        "skewed": lambda: np.exp(3 * generator.normal(size=n)),
        "whole numbers": lambda: np.arange(n) - n // 2,
        "close together": lambda: 1.0 + np.arange(n) * 2.0**-23,
        "one far off": lambda: np.append(np.linspace(0, 1, n - 1), 1e30),
        "all there is": lambda: np.linspace(-3.4e38, 3.4e38, n),
        "subnormal": lambda: np.arange(n) * 1e-44,
        "infinite ends": lambda: np.concatenate([[-np.inf], np.linspace(0, 5, n - 2), [np.inf]]),
    }[kind]()
    return np.unique(values.astype(np.float32))


@pytest.mark.parametrize("n", [1, 3, 254, 700])
@pytest.mark.parametrize(
    "kind",
    [
        "even", "normal", "skewed", "whole numbers", "close together", "one far off", "all there is", "subnormal",
        "infinite ends",
    ],
)  # fmt: skip
def test_codes_count_the_cuts_below(kind: str, n: int) -> None:
    generator = np.random.default_rng(n)
    cuts = drawn(kind, max(n, 3), generator)[:n] if kind == "infinite ends" else drawn(kind, n, generator)
    forest = replace(
        random_forest(1, n_features=1, n_trees=0), cuts=cuts, cut_starts=np.array([0, len(cuts)], dtype=np.int32)
    )
    search = search_of(forest, [0])
    with np.errstate(all="ignore"):
        around = [cuts, np.nextafter(cuts, INF), np.nextafter(cuts, -INF)]
        between = cuts[:-1] + (cuts[1:] - cuts[:-1]) * np.float32(0.5)
    special = np.float32([np.nan, INF, -INF, 0.0, -0.0, GREATEST, -GREATEST, 1e-45])
    values = np.concatenate([*around, between, special, generator.normal(size=100).astype(np.float32)])
    codes = np.zeros((1, len(values)), dtype=np.uint16)
    _kernels.bin_rows(values[:, None].copy(), 0, len(values), np.zeros(1, np.int64), np.float32(0), *search, codes)
    with np.errstate(invalid="ignore"):
        below = (cuts[None, :] < values[:, None]).sum(axis=1)
    assert codes[0].tolist() == np.where(np.isnan(values), 0, below + 1).tolist()
    tiles = np.zeros((len(values) // 128 + 2, 1, 128), dtype=np.uint16)
    values.flags.writeable = False
    _kernels.bin_column(values[:70], 37, 0, *search, tiles)
    _kernels.bin_column(values[70:], 107, 0, *search, tiles)
    assert tiles.ravel()[37 : 37 + len(values)].tolist() == codes[0].tolist()
    assert np.count_nonzero(tiles) == np.count_nonzero(codes)
