"""Bins, gradients and hessians that are small enough to try everything on."""

from __future__ import annotations

import numpy as np

TOP = 8  # bins that the small cases use


def small_case(seed, n=40, n_features=5, missing=0.2):
    """Gradients that are multiples of 2^-10, so that fixed point holds them exactly and gains can be compared."""
    rng = np.random.default_rng(seed)
    bins = rng.integers(1, TOP, size=(n, n_features), dtype=np.uint8)
    bins[rng.random(bins.shape) < missing] = 0
    g = rng.integers(-1000, 1000, size=n) / 1024
    h = rng.integers(1, 500, size=n) / 1024
    return bins, g, h
