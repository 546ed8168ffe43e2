"""Find the best mixture ``(1 - a) s + a t`` of the scores of two rankers by an exact sweep over a.

In one query the order of ``(1 - a) s + a t`` changes only where two documents tie, at ``a = d / (d - e)`` with d and e
their differences in s and in t.  These are at most ``n (n - 1) / 2`` weights, between which every metric of ranks is
constant.  The mean over queries is therefore a step function, known exactly from one evaluation a query and open
interval (Burges 2010, section 7.1; Wu, Burges, Svore & Gao 2008).  Only pairs of different grade can change a metric.

The best weight is never a change point itself, where documents tie.  It is an end of the range if that is better than
all weights between: there one of the rankers is alone with its own ties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.scorer.inspect import _kernels
from rankmill.scorer.metrics import Metric, Policy
from rankmill.scorer.metrics.per_query import PreparedQueries

MAX_CHANGE_POINTS = 1 << 24  # of all queries together: some 700 MB
_CLOSE = 1e-10  # intervals with running sums this close to the greatest are evaluated again
_LOOKED_AT = 64
_MeanAt: TypeAlias = Callable[[float], float]
_Floats: TypeAlias = npt.NDArray[np.float64]
_Integers: TypeAlias = npt.NDArray[np.int64]
_Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Combination:
    """The best weight of the second ranker, and the whole curve."""

    metric: Metric
    weight: float
    """The middle of ``interval``; the first ranker weighs 1 - ``weight``."""
    interval: tuple[float, float]
    """Between these weights no query changes; both are equal if only an end of the range is that good."""
    value: float
    """Mean of the metric at ``weight``."""
    range: tuple[float, float]
    at_ends: tuple[float, float]
    """Mean at both ends of ``range``: by default the first ranker alone, and the second."""
    borders: npt.NDArray[np.float64]
    """(m + 1,) the range, divided where the mean changes."""
    means: npt.NDArray[np.float64]
    """(m,) the mean between them, up to the rounding of a running sum."""
    n_queries: int
    """Number of queries in the mean."""


def combine(
    first: npt.NDArray[np.float64],
    second: npt.NDArray[np.float64],
    grades: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    metric: Metric,
    policy: Policy,
    *,
    low: float = 0.0,
    high: float = 1.0,
    doc_order: npt.NDArray[np.int64] | None = None,
) -> Combination:
    """Find the mixture ``(1 - a) first + a second``, low <= a <= high, with the greatest mean of ``metric``.

    Of equally good intervals it is the widest, then the one with the lowest weights.

    Parameters
    ----------
    first, second
        (n,) scores of the same documents.
    grades, starts
        (n,) int32 grades; (q + 1,) int64 offsets of the queries.
    metric, policy
        What to maximise, under which conventions.
    low, high
        Range of the weight of ``second``; outside [0, 1] one of the two has a negative weight.
    doc_order
        (n,) integers that ascend with the document id, needed for ties by it.

    Raises
    ------
    InputError
        The range is empty or not finite, the metric is not one of ranks (``balanced_error``), no query counts, or there
        are more than ``MAX_CHANGE_POINTS`` change points.
    CandidatesRejected
        A score is not a number.
    ValueError
        Shapes do not fit together.
    """
    _check(metric, low, high)
    starts = np.asarray(starts, dtype=np.int64)
    queries = PreparedQueries(grades, starts, policy, doc_order=doc_order)
    scores = [_checked_scores(column, queries, metric) for column in (first, second)]

    def mean_at(weight: float) -> float:
        return queries.means([metric], (1.0 - weight) * scores[0] + weight * scores[1])[metric]

    counted = ~np.isnan(queries.evaluate([metric], scores[0])[metric])
    if not counted.any():
        raise InputError(f"no query counts in {metric}: none has a relevant document")
    at_ends = mean_at(low), mean_at(high)
    lists = _Lists(np.asarray(grades), starts, doc_order)
    cuts = _cuts(lists, scores, counted, low, high)
    values = _values(lists, metric, policy, scores, cuts)
    borders, means = _mean_curve(cuts, values, counted, low, high)
    value, weight, interval = _best(borders, means, mean_at, {low: at_ends[0], high: at_ends[1]})
    return Combination(
        metric=metric, weight=weight, interval=interval, value=value, range=(low, high), at_ends=at_ends,
        borders=borders,
        means=means, n_queries=int(counted.sum()),
    )  # fmt: skip


def _checked_scores(column: npt.ArrayLike, queries: PreparedQueries, metric: Metric) -> _Floats:
    scores = np.ascontiguousarray(column, dtype=np.float64)
    queries.means([metric], scores)  # checks that they are numbers, one per document
    if not np.isfinite(scores).all():
        raise InputError("a score is infinite; only finite scores can be mixed")
    return scores


def _check(metric: Metric, low: float, high: float) -> None:
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise InputError(
            f"the weights from {low:g} to {high:g} are not a range; give two finite numbers, the lower one first"
        )
    if metric.name == "balanced_error":
        raise InputError(f"{metric} depends on a score threshold, not on ranks; choose a metric such as ndcg@10")


@dataclass(frozen=True, slots=True)
class _Lists:
    """The documents without their scores."""

    grades: npt.NDArray[np.int32]
    starts: _Integers
    doc_order: _Integers | None


@dataclass(frozen=True, slots=True)
class _Cuts:
    """The range of weights of each query, cut at its change points.

    Query q has the intervals ``starts[q]`` to ``starts[q + 1] - 1``.
    """

    starts: _Integers
    lower: _Floats
    middle: _Floats


def _cuts(lists: _Lists, scores: list[_Floats], counted: _Mask, low: float, high: float) -> _Cuts:
    grades, starts = np.maximum(lists.grades, 0), lists.starts
    longest = int(np.diff(starts).max(initial=0))
    buffer = np.empty(min(longest * (longest - 1) // 2, MAX_CHANGE_POINTS + 1))
    lower, middle, counts = [], [], np.zeros(len(starts), dtype=np.int64)
    total = 0
    for q in range(len(starts) - 1):
        rows = slice(starts[q], starts[q + 1])
        n = 0
        if counted[q]:
            n = _kernels.change_points(scores[0][rows], scores[1][rows], grades[rows], low, high, buffer)
        if total + n > MAX_CHANGE_POINTS:
            raise InputError(
                f"the orders of the first {q + 1:,} queries change at more than {MAX_CHANGE_POINTS:,} weights; choose "
                "fewer queries or a narrower range"
            )
        borders = np.concatenate([[low], np.unique(buffer[:n]), [high]])
        between = borders[:-1] + 0.5 * np.diff(borders)
        inside = (borders[:-1] < between) & (between < borders[1:])  # two neighbouring doubles have none between them
        lower.append(borders[:-1][inside])
        middle.append(between[inside])
        counts[q + 1] = len(lower[-1])
        total += len(lower[-1])
    return _Cuts(np.cumsum(counts), np.concatenate([*lower, []]), np.concatenate([*middle, []]))


def _values(lists: _Lists, metric: Metric, policy: Policy, scores: list[_Floats], cuts: _Cuts) -> _Floats:
    """Evaluate every query in every interval: the i-th interval of all queries that have one, then the next.

    Queries with many intervals come first, so that unfinished queries are adjacent.  If the shuffle of ties depends on
    the query number, they keep their places.
    """
    counts = np.diff(cuts.starts)
    order = np.arange(len(counts)) if policy.ties == "random" else np.argsort(-counts, kind="stable")
    sizes = np.diff(lists.starts)[order]
    rows = np.concatenate([np.arange(*lists.starts[q : q + 2]) for q in order])
    doc_order = None if lists.doc_order is None else lists.doc_order[rows]
    queries = PreparedQueries(lists.grades[rows], np.concatenate([[0], np.cumsum(sizes)]), policy, doc_order=doc_order)
    left, right = (column[rows] for column in scores)
    begins = cuts.starts[order]
    values = np.empty(len(cuts.middle))
    out = np.empty((1, len(counts)))
    mixed = left.copy()
    active = np.arange(len(counts))
    for i in range(int(counts.max(initial=0))):
        active = active[counts[order[active]] > i]
        weights = np.zeros(len(counts))
        weights[active] = cuts.middle[begins[active] + i]
        for first, last in _runs(active):
            part = slice(queries.starts[first], queries.starts[last])
            weight = np.repeat(weights[first:last], sizes[first:last])
            mixed[part] = (1.0 - weight) * left[part] + weight * right[part]
            queries.evaluate_into([metric], mixed, first, last, out)
        values[begins[active] + i] = out[0, active]
    return values


def _runs(numbers: _Integers) -> list[tuple[int, int]]:
    """Cut ascending numbers into runs (first, last + 1) of neighbours."""
    gaps = np.flatnonzero(np.diff(numbers) > 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, gaps) if len(run)]


def _mean_curve(cuts: _Cuts, values: _Floats, counted: _Mask, low: float, high: float) -> tuple[_Floats, _Floats]:
    """Add up the curves of the queries that count: borders (m + 1,) and the mean between them (m,)."""
    opening = np.zeros(len(values), dtype=np.bool_)
    opening[cuts.starts[:-1]] = True
    query = np.repeat(np.arange(len(counted)), np.diff(cuts.starts))
    steps = np.diff(values, prepend=0.0)
    changed = np.flatnonzero(~opening & counted[query] & (steps != 0.0))
    changed = changed[np.argsort(cuts.lower[changed], kind="stable")]
    places, first = np.unique(cuts.lower[changed], return_index=True)
    start = values[opening & counted[query]].sum()
    steps_at = np.add.reduceat(steps[changed], first) if len(first) else np.empty(0)
    means = (start + np.concatenate([[0.0], np.cumsum(steps_at)])) / int(counted.sum())
    return np.concatenate([[low], places, [high]]), means


def _best(
    borders: _Floats, means: _Floats, mean_at: _MeanAt, at_ends: Mapping[float, float]
) -> tuple[float, float, tuple[float, float]]:
    """Return the best value, weight and interval; intervals that running sums cannot distinguish are evaluated again.

    ``at_ends`` has the values at both ends of the range, which win only if they are better than every interval.
    """
    middle = borders[:-1] + 0.5 * np.diff(borders)
    usable = np.flatnonzero((borders[:-1] < middle) & (middle < borders[1:]))
    near = usable[means[usable] >= means[usable].max() - _CLOSE]
    near = near[np.lexsort((near, -np.diff(borders)[near], -np.round(means[near], 12)))][:_LOOKED_AT]
    found = [(mean_at(float(middle[i])), float(borders[i + 1] - borders[i]), -float(borders[i]), int(i)) for i in near]
    value, _, _, i = max(found)
    weight, interval = float(middle[i]), (float(borders[i]), float(borders[i + 1]))
    for end, alone in at_ends.items():
        if alone > value:
            value, weight, interval = alone, end, (end, end)
    return value, weight, interval
