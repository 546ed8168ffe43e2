"""Statistical significance: bootstrap intervals, the sign-flip test, and paired comparison of two rankings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.scorer.metrics import _kernels
from rankmill.scorer.metrics.per_query import TIED, mean_of

FEW_QUERIES = 50  # below, a percentile interval is narrower than it should be: docs/gates.md has figures

REPLICATES = 1000
BOOTSTRAP_SEED = 20080131
NORMAL_FROM = 50_000  # queries

FLIPS = 100_000
FLIP_SEED = 19350101
EXACT_UP_TO = 20  # queries that differ
_BITS, _SUM_BITS = 40, 62  # of a difference, and of their sum

MOST_SHOWN = 20  # queries that lost most
_BELOW_ONE_IN_40, _BELOW_ONE_IN_5 = 1.959963984540054, 0.8416212335729143  # standard deviations of a normal variable
_SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

Values = npt.NDArray[np.float64]


def percentile_interval(
    values: npt.NDArray[np.float64],
    *,
    weights: npt.NDArray[np.float64] | None = None,
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = BOOTSTRAP_SEED,
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean of the values that are not NaN; None if fewer than two count.

    ``values`` is (q,) float64, one a query; queries are drawn with replacement.  Replicate b draws from the Philox
    counter generator with key (seed, b), whose raw stream NumPy guarantees: the same values and seed give the same
    interval everywhere.  Source: Efron & Tibshirani 1993, chapter 13.

    With ``weights`` (q,) of the queries, a value is its query's part of the metric, and each replicate's mean of values
    is divided by its mean of weights.
    """
    counts = ~np.isnan(values)
    counted = values[counts]
    if counted.size < 2:
        return None
    means = np.empty(replicates)
    for b in range(replicates):
        raw = np.random.Philox(key=np.array([seed, b], np.uint64)).random_raw(counted.size)
        means[b] = _kernels.resampled_mean(counted, raw)
        if weights is not None:
            means[b] /= _kernels.resampled_mean(weights[counts], raw)
    means.sort()
    lowest = round((1.0 - level) / 2.0 * replicates)  # number of replicates below the interval, and above it
    return float(means[lowest]), float(means[replicates - 1 - lowest])


def interval_of_mean(
    values: npt.NDArray[np.float64], *, weights: npt.NDArray[np.float64] | None = None
) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean, quickly for any number of queries.

    Arguments and None are those of `percentile_interval`.

    Up to ``NORMAL_FROM`` values that count it is the percentile bootstrap interval, above that the normal interval.
    The two then differ by some ``(z^2 - 1) g / (6 sqrt(n))`` standard errors, z = 1.96 and g the skewness of the values
    (first term of Cornish & Fisher 1937).  That is 0.01 for a skewness of 4, while limits from 1000 replicates vary by
    0.08.
    """
    counts = ~np.isnan(values)
    n = int(np.count_nonzero(counts))
    if n < NORMAL_FROM:
        return percentile_interval(values, weights=weights)
    counted = values[counts]
    whole = n if weights is None else math.fsum(weights[counts].tolist())
    mean = math.fsum(counted.tolist()) / whole
    deviations = counted - (mean if weights is None else mean * weights[counts])  # with weights: the linearised ratio
    half = _BELOW_ONE_IN_40 * math.sqrt(math.fsum((deviations * deviations).tolist())) / whole
    return mean - half, mean + half


def sign_flip_p(
    differences: npt.NDArray[np.float64], *, flips: int = FLIPS, seed: int = FLIP_SEED
) -> npt.NDArray[np.float64]:
    """Return the two-sided p-value of each row of ``differences`` (c, q) float64.

    The hypothesis is that their mean is 0.

    If two rankings are equally good, the sign of each query's difference is random.  If at most 20 queries differ, all
    2^m choices of signs are counted, and p is the share of those whose sum is at least as far from 0 as the observed
    one.  Else ``flips`` choices are drawn, and ``p = (1 + their number) / (1 + flips)``, which is valid for any
    ``flips`` (Phipson & Smyth 2010).  Source: Fisher 1935; Smucker, Allan & Carterette, CIKM 2007, for rankings.

    Each row's differences are rounded to whole multiples of its largest one divided by 2^40, so that sums are exact in
    any order.  Sums within rounding of the observed one count as equal to it, which can only raise p.

    The signs are bits of Philox counters with key (seed, 64 queries): the same for every row and any number of threads.
    NaN counts as 0.  Memory: 8 ``flips`` bytes per row.
    """
    found = [_rounded(row) for row in differences]
    p = np.ones(len(found))
    drawn = []
    for i, (whole, least) in enumerate(found):
        moving = np.abs(whole[whole != 0])
        if moving.size > EXACT_UP_TO:
            drawn.append(i)
        elif moving.size:
            p[i] = _kernels.count_all_signs(moving, least) / 2**moving.size
    sums = np.zeros((len(drawn), flips), dtype=np.int64)
    table = np.empty((8, 256), dtype=np.int64)
    n = differences.shape[1]
    for word, first in enumerate(range(0, n, 64) if drawn else ()):
        raw = np.random.Philox(key=np.array([seed, word], np.uint64)).random_raw(flips)
        for row, i in zip(sums, drawn, strict=True):
            part = np.zeros(64, dtype=np.int64)
            part[: min(64, n - first)] = found[i][0][first : first + 64]
            if part.any():
                _kernels.add_flipped(part, raw, table, row)
    for row, i in zip(sums, drawn, strict=True):
        p[i] = (1 + int(np.count_nonzero(np.abs(row) >= found[i][1]))) / (1 + flips)
    return p


def holm(p: Sequence[float]) -> list[float]:
    """Adjust the p-values of several comparisons to control the family-wise error rate.

    The i-th smallest of m is multiplied by m - i + 1, never below its predecessor, at most 1 (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p)
    least = 0.0
    for done, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        least = max(least, min(1.0, (len(p) - done) * p[i]))
        adjusted[i] = least
    return adjusted


def _rounded(differences: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the differences as whole numbers, and the distance from 0 from which a sum counts as extreme as theirs."""
    values = np.where(np.isnan(differences), 0.0, differences)
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0.0:
        return np.zeros(len(values), dtype=np.int64), 0
    bits = min(_BITS, _SUM_BITS - len(values).bit_length())
    whole = np.rint(np.ldexp(values, bits - math.frexp(largest)[1])).astype(np.int64)
    return whole, abs(int(whole.sum())) - int(np.count_nonzero(whole))


@dataclass(frozen=True, slots=True)
class LostQuery:
    """A query that the candidate ranks worse, with the metric of both rankings."""

    qid: str
    candidate: float
    other: float
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """How intervals were computed."""

    level: float = 0.95
    replicates: int = REPLICATES
    seed: int = BOOTSTRAP_SEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """How much better one ranking of the same queries is than another.

    Attributes
    ----------
    n_queries
        Queries that count: the two rankings can differ in them.
    candidate, other
        Means over them.
    difference
        Mean over the queries of candidate - other, or of other - candidate if lower is better: above 0 the candidate
        is better.
    interval
        95 % percentile bootstrap interval of ``difference`` (see `percentile_interval`).
    wins, ties, losses
        Number of queries in which the candidate is better, equal within 1e-9, or worse.
    effect_size
        ``difference`` divided by the standard deviation of the differences (Cohen's d of paired samples); None if
        it is 0 or they do not vary.
    quantiles
        Quantiles of the differences: the least value that at least this share of them does not exceed.
    worst
        The queries that lost most, the largest loss first.
    """

    n_queries: int
    candidate: float
    other: float
    difference: float
    interval: tuple[float, float]
    wins: int
    ties: int
    losses: int
    effect_size: float | None
    quantiles: dict[str, float]
    worst: tuple[LostQuery, ...]


def paired_differences(
    candidate: Values, other: Values, can_differ: npt.NDArray[np.bool_], *, higher_is_better: bool = True
) -> Values:
    """Return by how much each query is better (q,), NaN if it does not count.

    Parameters and errors are those of `compare_paired`.
    """
    if candidate.shape != other.shape or not np.array_equal(np.isnan(candidate), np.isnan(other)):
        raise ValueError("the two rankings are not about the same queries")
    differences = candidate - other if higher_is_better else other - candidate
    differences[np.abs(differences) <= TIED] = 0.0  # no -0.0: equal differences have equal bytes
    differences[(differences == 0.0) & ~can_differ] = math.nan
    return differences


def compare_paired(
    candidate: Values,
    other: Values,
    qids: Any,
    *,
    can_differ: npt.NDArray[np.bool_],
    weights: Values | None = None,
    higher_is_better: bool = True,
    most_shown: int = MOST_SHOWN,
) -> Paired | None:
    """Compare a metric of the same queries under two rankings; None if fewer than two queries count.

    Differences within 1e-9 are rounding, and count as 0.

    Parameters
    ----------
    candidate, other
        (q,) float64 values, NaN if a query does not count, for both or for neither.
    qids
        (q,) ids, an Arrow array of strings.
    can_differ
        (q,) whether two rankings can differ in the query
        (`rankmill.scorer.metrics.per_query.PreparedQueries.can_differ`). Others are left out, as they would only dilute
        the differences; those that do differ count in any case.
    weights
        (q,) weights of the queries in the mean, if they differ
        (`rankmill.scorer.metrics.per_query.PreparedQueries.weights`).
    higher_is_better
        Whether a larger value is a better one.
    most_shown
        How many queries ``worst`` may name.

    Raises
    ------
    ValueError
        The values are not of the same queries.
    """
    differences = paired_differences(candidate, other, can_differ, higher_is_better=higher_is_better)
    interval = percentile_interval(differences, weights=weights)
    if interval is None:
        return None
    place = np.flatnonzero(~np.isnan(differences))
    found = differences[place]
    lost = place[np.argsort(found, kind="stable")[:most_shown]]
    ordered = np.sort(found)
    n = len(found)
    return Paired(
        n_queries=n,
        candidate=mean_of(candidate[place]),
        other=mean_of(other[place]),
        difference=mean_of(differences),
        interval=interval,
        wins=int(np.count_nonzero(found > 0.0)),
        ties=int(np.count_nonzero(found == 0.0)),
        losses=int(np.count_nonzero(found < 0.0)),
        effect_size=_effect_size(found),
        quantiles={str(share): float(ordered[max(0, math.ceil(share * n) - 1)]) for share in _SHARES},
        worst=tuple(
            LostQuery(str(qids[int(q)]), float(candidate[q]), float(other[q]), float(differences[q]))
            for q in lost
            if differences[q] < 0.0
        ),
    )


def queries_for(margin: float, found: Paired, difference: float = 0.0) -> int | None:
    """Return about how many such queries would pass ``margin`` with a power of 80 % if ``difference`` is the true one.

    The lower limit is the mean minus 1.96 standard errors.  The mean is 0.84 standard errors below the true difference
    once in five times.  Both together may not exceed margin + difference.  The standard error falls with the square
    root of the number of queries.  So the number of queries grows by the factor
    ``((1.96 + 0.84) / 1.96 * width / (margin + difference))^2``, with the width from mean to lower limit.  None if the
    interval is already narrow enough, or no number is enough.
    """
    width, room = found.difference - found.interval[0], margin + difference
    if room <= 0.0 or width <= room:
        return None
    exact = found.n_queries * ((_BELOW_ONE_IN_40 + _BELOW_ONE_IN_5) / _BELOW_ONE_IN_40 * width / room) ** 2
    digits = int(10 ** max(0, math.floor(math.log10(exact)) - 1))
    return math.ceil(exact / digits) * digits


def _effect_size(differences: Values) -> float | None:
    n = len(differences)
    mean = math.fsum(differences.tolist()) / n
    if abs(mean) <= TIED or differences.max() - differences.min() <= TIED:
        return None
    deviations = differences - mean
    return mean / math.sqrt(math.fsum((deviations * deviations).tolist()) / (n - 1))
