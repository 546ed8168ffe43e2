"""Weights of a blend that few queries cannot fool: the mean of the best weights over bootstrap samples of the queries.

With few queries the samples disagree, and the weights are near to even; with many, or where one model is clearly
better, they are the best ones.  Sums over samples are sums of whole numbers, so that the weights have the same bits on
every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from rankmill.foundation.kernels.randoms import random_keys

STEPS = 12  # weights that are tried are multiples of a twelfth
SAMPLES = 200
LEAST_SHARE = 0.05  # a model with less is left out: it costs as much to score as the others
_SEED, _STREAM = 0x5EED, 1
_DIGITS = 1 << 24  # of a metric, in whole numbers

Floats = npt.NDArray[np.float64]


def mixes_of(n_models: int) -> npt.NDArray[np.int64]:
    """Return all weights of ``n_models`` in twelfths, (n_mixes, n_models), those nearest to even first.

    >>> mixes_of(2)[:3].tolist()
    [[6, 6], [5, 7], [7, 5]]
    """
    mixes = np.array([mix for mix in product(range(STEPS + 1), repeat=n_models) if sum(mix) == STEPS], dtype=np.int64)
    return mixes[np.argsort((mixes**2).sum(axis=1), kind="stable")]


def steady_shares(
    scaled: Sequence[Floats], measured: Callable[[Floats], Floats], *, higher_is_better: bool = True
) -> tuple[float, ...]:
    """Return the shares of models in a blend, which sum to 1.

    Parameters
    ----------
    scaled
        Scores (n_rows,) of each model on rows that it did not learn from, divided by their spread.
    measured
        Returns the metric of each query (n_queries,), NaN where it does not count, for scores.
    """
    mixes = mixes_of(len(scaled))
    values = np.stack([measured(sum_of(scaled, mix / STEPS)) for mix in mixes])
    return mean_of_best(mixes, values if higher_is_better else -values)


def mean_of_best(mixes: npt.NDArray[np.int64], values: Floats) -> tuple[float, ...]:
    """Return the mean over samples of queries of the best of ``mixes`` (n_mixes, n_models).

    ``values`` (n_mixes, n_queries) decide.

    Of equally good ones the first counts.  A model with a share below ``LEAST_SHARE`` gets none.
    """
    values = values[:, np.isfinite(values).all(axis=0)]
    n = values.shape[1]
    _, exponent = np.frexp(np.abs(values).max(initial=0.0))
    whole = np.round(np.ldexp(values, -exponent) * _DIGITS).astype(np.int64)
    total = np.zeros(mixes.shape[1], dtype=np.int64)
    for sample in range(SAMPLES if n else 1):
        drawn = random_keys(_SEED, _STREAM, sample, np.arange(n)) % np.uint64(max(n, 1))
        times = np.bincount(drawn.astype(np.int64), minlength=n)
        total += mixes[np.argmax(whole @ times)]
    total[total < LEAST_SHARE * total.sum()] = 0
    shares: list[float] = (total / total.sum()).tolist()
    return tuple(shares)


def sum_of(scores: Sequence[Floats], weights: Sequence[float] | Floats) -> Floats:
    """Return the weighted sum of ``scores`` (n_rows,) each, added in their order."""
    total = np.zeros(len(scores[0]))
    for weight, each in zip(np.asarray(weights).tolist(), scores, strict=True):
        total += weight * each
    return total
