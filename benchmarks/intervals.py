"""Bootstrap intervals of paired differences, query by query, over several data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Differences:
    """Differences of two systems on one data set: one array (n_queries,) for each fold, averaged over seeds.

    ``redraw_folds``: the folds are independent data sets of one kind, each trained and tested on separately, so that
    other folds could have been drawn.  Where the folds are parts of one set of queries, only queries are drawn.
    """

    folds: Sequence[Values]
    redraw_folds: bool = False

    @property
    def mean(self) -> float:
        """Return the mean over the folds of the mean over their queries."""
        return float(np.mean([fold.mean() for fold in self.folds]))

    def resampled(self, draws: int, rng: np.random.Generator) -> Values:
        """Return that mean (draws,) on resampled queries."""
        means = np.stack([_resampled(fold, draws, rng) for fold in self.folds])
        if not self.redraw_folds:
            return np.asarray(means.mean(axis=0))
        total = np.zeros(draws)
        for _ in self.folds:  # draws of one fold that is taken twice are independent: each time in another order
            picked = rng.integers(len(means), size=draws)
            total += means[:, rng.permutation(draws)][picked, np.arange(draws)]
        return total / len(means)


@dataclass(frozen=True)
class Interval:
    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


def paired_interval(sets: Sequence[Differences], *, draws: int = 2000, seed: int = 1) -> Interval:
    """Return the mean over ``sets``, each with the same weight, and its 95 % bootstrap interval (percentiles)."""
    rng = np.random.default_rng(seed)
    found = np.mean([one.resampled(draws, rng) for one in sets], axis=0)
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(float(np.mean([one.mean for one in sets])), float(low), float(high))


def _resampled(values: Values, draws: int, rng: np.random.Generator, at_once: int = 2**21) -> Values:
    """Return the means of ``draws`` samples of ``values`` with replacement."""
    rows = max(1, at_once // len(values))
    blocks = [
        values[rng.integers(len(values), size=(min(rows, draws - first), len(values)))].mean(axis=1)
        for first in range(0, draws, rows)
    ]
    return np.concatenate(blocks)
