"""Metrics per query.  Parts that depend only on grades are computed once; each evaluation then sorts and sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import CandidatesRejected
from rankmill.scorer.metrics import _kernels
from rankmill.scorer.metrics.arrangement import (
    Grades,
    Offsets,
    count_pairs,
    grade_levels,
    offsets,
    queries_of,
    rows_by,
    tie_order,
    whole_numbers,
)
from rankmill.scorer.metrics.discount import discounts, gains, persistence, stop_probabilities
from rankmill.scorer.metrics.metric import Metric
from rankmill.scorer.metrics.metric_options import Policy

_OF_RELEVANT = {_kernels.HITS, _kernels.PRECISIONS, _kernels.FIRST, _kernels.ERRORS}
_WHOLE_LIST = 2**62
TIED = 1e-9  # differences up to this are rounding

Scores = npt.NDArray[np.float64]
ItemT = TypeVar("ItemT")


class PreparedQueries:
    """Queries with fixed grades, policy and ideal list, to be evaluated with many sets of scores.

    Parameters
    ----------
    grades
        (n,) int32, in the order in which scores will come; below 0 counts as 0.
    starts
        (q + 1,) int64: query ``i`` has rows ``starts[i]`` to ``starts[i + 1] - 1``, possibly none.
    policy
        The conventions.
    doc_order
        (n,) integers that ascend with the document id (within each query is enough); needed for ties by document id.
    ideal_grades, ideal_starts
        Grades of all documents known to exist for each query, (p,) int32 with offsets (q + 1,) int64, if these are
        more than the rows: judged documents that were not retrieved, or candidates cut off.  They define the ideal DCG,
        the number of relevant documents in ``map``, and whether a query has anything relevant.

    Raises
    ------
    ValueError
        Shapes or offsets do not fit together.
    InputError
        Ties by document id without ``doc_order``; grades too high for the gain.

    Notes
    -----
    R is the number of relevant documents, r counts ranks from 1, and y_r is the grade at rank r.  The cutoff k, if
    there is one, ends every sum.

    ==================== =============================================================================================
    dcg, ndcg            sum of gain(y_r) * discount(r); divided by that of the ideal order
    err                  sum over r of (1/r) * stop(y_r) * prod over i < r of (1 - stop(y_i))
    map                  sum over the relevant ranks r of (relevant documents up to r) / r, divided by R
    mrr                  1 / rank of the first relevant document
    precision, recall    relevant documents up to k, divided by k; by R
    rbp                  sum over the relevant ranks r of (1 - p) p^(r - 1) (Moffat & Zobel 2008)
    wta                  1 if the first document has the best grade that the query has
    concordance          pairs of different grade with the better document above, divided by all pairs of different
                         grade among the ranked documents; a query without such a pair has nothing relevant
    concordance_micro    the same over the pairs of all queries together; queries without such a pair are left out
    balanced_error       (relevant documents whose score is not above the threshold) / (2 n+) + (others above it) /
                         (2 n-), n+ and n- counted over all queries (Burges 2010, 6.1).  A score on the threshold
                         itself is half an error, a whole one if ties are pessimistic, none if optimistic, and is
                         not above it under the other rules.  NaN if one of the two kinds is missing.
    ==================== =============================================================================================

    The last two are over all queries together.  A query's value is its share of the metric, times the number of queries
    that count, so that the plain mean is the metric.

    Evaluation is deterministic; with ties ``expected`` the order of rows within a query changes no bit.  Instances may
    be shared between threads.
    """

    def __init__(
        self,
        grades: Grades,
        starts: Offsets,
        policy: Policy,
        *,
        doc_order: npt.NDArray[np.int64] | None = None,
        ideal_grades: Grades | None = None,
        ideal_starts: Offsets | None = None,
    ) -> None:
        grades = np.maximum(whole_numbers("grades", grades, np.int32), 0)
        starts = offsets("starts", starts, grades.shape[0])
        if (ideal_grades is None) != (ideal_starts is None):
            raise ValueError("ideal_grades and ideal_starts go together")
        self.policy = policy
        self.starts: Offsets = starts
        self.n_queries: int = starts.shape[0] - 1
        self.n_rows: int = grades.shape[0]
        self._rows = tie_order(policy, grades, starts, doc_order)
        self._grades = grades[self._rows]
        self._gain = gains(self._grades, policy.gain)
        self._relevant = (self._grades >= policy.relevant_from).astype(np.uint8)
        self._stop: npt.NDArray[np.float64] | None = None
        if ideal_grades is None or ideal_starts is None:
            pool, pool_starts = grades, starts
        else:
            pool = np.maximum(whole_numbers("ideal_grades", ideal_grades, np.int32), 0)
            pool_starts = offsets("ideal_starts", ideal_starts, pool.shape[0])
            if pool_starts.shape != starts.shape:
                raise ValueError(f"ideal_starts {pool_starts.shape} and starts {starts.shape} must be equal")
        query_of_pool = queries_of(pool_starts)
        if ideal_grades is None and policy.ties in {"expected", "optimistic"}:
            pool = self._grades  # already sorted by grade
        else:
            pool = pool[rows_by(-pool, pool_starts)]
        self._pool_gain = gains(pool, policy.gain)
        self._pool_starts = pool_starts
        self._highest_grade = max(int(grades.max(initial=0)), int(pool.max(initial=0)))
        self._n_gaining = np.bincount(query_of_pool[self._pool_gain > 0.0], minlength=self.n_queries)
        self._n_positive = np.bincount(query_of_pool[pool > 0], minlength=self.n_queries)
        self._n_relevant = np.bincount(query_of_pool[pool >= policy.relevant_from], minlength=self.n_queries)
        longest = max(int(np.diff(starts).max(initial=0)), int(np.diff(pool_starts).max(initial=0)))
        self._discount = discounts(longest, policy.discount)
        self._best = np.zeros(self.n_queries, dtype=np.int32)  # best grade of each query, ranked or not
        filled = np.diff(pool_starts) > 0
        self._best[filled] = pool[pool_starts[:-1][filled]]
        self._levels: npt.NDArray[np.int64] | None = None
        self._plans: dict[tuple[Metric, ...], _Plan] = {}

    def evaluate(self, metrics: Sequence[Metric], scores: Scores) -> dict[Metric, npt.NDArray[np.float64]]:
        """Each metric per query, (q,) float64; NaN if the policy skips the query.  ``scores`` is (n,) float64.

        Raises
        ------
        CandidatesRejected
            A score is NaN (infinities are ordered as usual).
        InputError
            ``err`` without a usable ``max_grade``.
        """
        scores = self._checked(scores)
        plan = self._plan(tuple(metrics))
        out = np.empty((len(plan.metrics), self.n_queries))
        self._run(plan, scores, 0, self.n_queries, out)
        return dict(zip(plan.metrics, out, strict=True))

    def evaluate_into(
        self, metrics: Sequence[Metric], scores: Scores, first: int, last: int, out: npt.NDArray[np.float64]
    ) -> None:
        """Fill ``out[:, first:last]`` of ``out`` (n_metrics, q) float64 for these queries only, without the GIL.

        For callers that divide the queries among threads; all ranges together give the bits of `evaluate`.  NaN scores
        are not detected here, and ``metrics`` must not repeat one.
        """
        self._run(self._plan(tuple(metrics)), np.ascontiguousarray(scores, np.float64), first, last, out)

    def means(self, metrics: Sequence[Metric], scores: Scores) -> dict[Metric, float]:
        """Mean of each metric over the queries that count; see `mean_of`."""
        return {metric: mean_of(values) for metric, values in self.evaluate(metrics, scores).items()}

    def nothing_relevant(self, metric: Metric) -> npt.NDArray[np.bool_]:
        """Return a mask (q,) of the queries that have no relevant document in the sense of this metric.

        For ``concordance`` these are the queries without two grades; for ``balanced_error`` it is all or none of them.
        """
        if metric.measure.counts == "pairs":
            return np.equal(count_pairs(self._grade_levels(), self.starts), 0)
        if metric.measure.counts == "both":
            lacking = self._relevant.all() or not self._relevant.any()
            return np.full(self.n_queries, lacking, dtype=np.bool_)
        found = {"positive": self._n_positive, "relevant": self._n_relevant, "gain": self._n_gaining}
        return np.equal(found[metric.measure.counts], 0)

    def can_differ(self, metrics: Sequence[Metric]) -> dict[Metric, npt.NDArray[np.bool_]]:
        """Return for each metric a mask (q,) of the queries in which two rankings of these documents can differ.

        These are the queries whose best and worst order have different values.  So they have two documents of different
        grades that the metric under the policy distinguishes.  Queries without are those with two grades on one side of
        ``relevant_from`` for ``map``, with ten documents for ``precision@10``, or with grades that share a gain.  So
        are queries to which the policy gives 0 or 1 because nothing is relevant.  The metrics over all queries together
        (`Measure.pooled`) keep all queries that are part of them.
        """
        grades = np.empty(self.n_rows)
        grades[self._rows] = self._grades
        best, worst = self.evaluate(metrics, grades), self.evaluate(metrics, -grades)
        return {
            metric: ~self.nothing_relevant(metric)
            if metric.measure.pooled
            else np.abs(best[metric] - worst[metric]) > TIED
            for metric in best
        }

    def _checked(self, scores: Scores) -> Scores:
        scores = np.ascontiguousarray(scores, dtype=np.float64)
        if scores.shape != (self.n_rows,):
            raise ValueError(f"scores {scores.shape} and grades ({self.n_rows},) must be equal")
        bad = np.isnan(scores)
        if bad.any():
            row = int(np.argmax(bad))
            query = int(np.searchsorted(self.starts, row, side="right")) - 1
            raise CandidatesRejected(f"score of row {row} (query number {query}, both from 0) is not a number")
        return scores

    def _run(self, plan: _Plan, scores: Scores, first: int, last: int, out: npt.NDArray[np.float64]) -> None:
        kinds = {*plan.kinds.tolist()}
        relevant = self._relevant if kinds & _OF_RELEVANT else None
        stop = self._stop if _kernels.ERR in kinds else None
        levels = self._levels if _kernels.PAIRS in kinds else None
        expected = self.policy.ties == "expected"
        _kernels.evaluate(
            scores, self._rows, self.starts, plan.gains, relevant, stop, levels, plan.discounts, expected,
            plan.kinds, plan.cuts, plan.sources, plan.parameters, plan.divisors, plan.fills, first, last, out,
        )  # fmt: skip

    def _plan(self, metrics: tuple[Metric, ...]) -> _Plan:
        metrics = tuple(dict.fromkeys(metrics))
        plan = self._plans.get(metrics)
        if plan is None:
            if self._stop is None and any(metric.name == "err" for metric in metrics):
                stop_probabilities(np.array([self._highest_grade], np.int32), self.policy.max_grade)
                self._stop = stop_probabilities(self._grades, self.policy.max_grade)
            plan = self._plans[metrics] = _Plan(metrics, self)
        return plan

    def _grade_levels(self) -> npt.NDArray[np.int64]:
        if self._levels is None:
            self._levels = grade_levels(self._grades, self.starts)
        return self._levels

    def divisor(self, metric: Metric) -> npt.NDArray[np.float64]:
        """Return the divisor of the metric's sum, (q,) float64: ideal DCG, R, k, pairs or 1.

        It is 0 if nothing is relevant.

        It is infinite if the policy counts a short list as 0.
        """
        sizes = np.diff(self.starts)
        k = _cut(metric)
        by = metric.measure.divisor
        by = self.policy.map_normalisation if by == "map" else by
        if by == "ideal":
            out = np.empty(self.n_queries)
            _kernels.ideal_dcg(self._pool_gain, self._pool_starts, self._discount, k, out)
            if self.policy.short_lists == "zero" and metric.k is not None:
                out[(sizes < k) & (out > 0.0)] = math.inf
            return out
        if by == "R":
            return self._n_relevant.astype(np.float64)
        if by == "min(R,k)":
            return np.minimum(self._n_relevant, k).astype(np.float64)
        if by == "pairs":
            return count_pairs(self._grade_levels(), self.starts).astype(np.float64)
        nothing = self.nothing_relevant(metric)
        divisor = np.ones(self.n_queries)
        if by == "k":
            divisor[:] = k
            if self.policy.precision_normalisation == "min(k,n)":
                divisor = np.maximum(np.minimum(sizes, k), 1).astype(np.float64)
        elif by == "mean pairs":
            pairs = count_pairs(self._grade_levels(), self.starts)
            divisor[:] = int(pairs.sum()) / max(1, int(np.count_nonzero(pairs)))
        return np.where(nothing, 0.0, divisor)

    def weights(self, metric: Metric) -> npt.NDArray[np.float64] | None:
        """Return the query weights (q,), 1 on average over the queries that count; None if all are equal.

        They differ only in ``concordance_micro``, by the number of pairs; an interval of its mean must resample them
        too.
        """
        if metric.measure.divisor != "mean pairs":
            return None
        pairs = count_pairs(self._grade_levels(), self.starts).astype(np.float64)
        divisor = self.divisor(metric)
        return np.divide(pairs, divisor, out=np.zeros(self.n_queries), where=divisor > 0.0)

    def gain_rows(self, names: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return values of documents for each of ``gain``, ``best`` and ``relevant``.

        Each is a row (n,) in tie order.
        """
        rows = {"gain": lambda: self._gain}
        rows["best"] = lambda: (self._grades == self._best[queries_of(self.starts)]).astype(np.float64)
        rows["relevant"] = lambda: self._relevant.astype(np.float64)
        if list(names) == ["gain"]:
            return self._gain.reshape(1, -1)  # no copy: the case of training
        return np.stack([rows[name]() for name in names])

    def discount_rows(self, persistences: Sequence[float | None]) -> npt.NDArray[np.float64]:
        """Return the weights of ranks, a row each: the policy's discount for None, else that of `persistence`."""
        if list(persistences) == [None]:
            return self._discount.reshape(1, -1)
        longest = self._discount.shape[0]
        return np.stack([self._discount if p is None else persistence(longest, p) for p in persistences])

    def error_costs(self, metric: Metric) -> tuple[float, ...]:
        """Return the threshold, the costs of the two kinds of errors, and their shares for a score on the threshold."""
        n_relevant = int(np.count_nonzero(self._relevant))
        n_others = self.n_rows - n_relevant
        on_it = {"expected": (0.5, 0.5), "pessimistic": (1.0, 1.0), "optimistic": (0.0, 0.0)}
        costs = (self.n_queries / (2 * max(1, n)) for n in (n_relevant, n_others))
        return (metric.parameter or 0.0, *costs, *on_it.get(self.policy.ties, (1.0, 0.0)))


class _Plan:
    """Kernel arguments that depend on grades and metrics, not on scores."""

    def __init__(self, metrics: tuple[Metric, ...], queries: PreparedQueries) -> None:
        fill = {"skip": math.nan, "zero": 0.0, "one": 1.0}[queries.policy.nothing_relevant]
        value_rows: list[str] = ["gain"]
        persistences: list[float | None] = [None]
        self.metrics = metrics
        self.kinds = np.array([getattr(_kernels, metric.measure.loop) for metric in metrics], np.int64)
        self.cuts = np.array([_cut(metric) for metric in metrics], np.int64)
        self.fills = np.array([_fill(metric, fill) for metric in metrics], np.float64)
        self.parameters = np.zeros((len(metrics), 5))
        self.divisors = np.empty((len(metrics), queries.n_queries))
        self.sources = np.zeros((len(metrics), 2), np.int64)
        for i, metric in enumerate(metrics):
            self.divisors[i] = queries.divisor(metric)
            if metric.measure.values != "gain":
                discount = _place(metric.parameter or 0.0, persistences)
                self.sources[i] = _place(metric.measure.values, value_rows), discount
            elif metric.measure.counts == "both":
                self.parameters[i] = queries.error_costs(metric)
        self.gains = queries.gain_rows(value_rows)
        self.discounts = queries.discount_rows(persistences)


def evaluate_queries(
    metrics: Sequence[Metric],
    scores: Scores,
    grades: Grades,
    starts: Offsets,
    policy: Policy,
    doc_order: npt.NDArray[np.int64] | None = None,
) -> dict[Metric, npt.NDArray[np.float64]]:
    """Each metric per query, (q,) float64, NaN if a query is skipped; for one evaluation (see `PreparedQueries`).

    >>> from rankmill.scorer.metrics import Policy, parse_metric
    >>> grades, starts = np.array([0, 1, 0, 0], np.int32), np.array([0, 2, 4])
    >>> evaluate_queries([parse_metric("mrr")], np.array([2.0, 1.0, 0.0, 0.0]), grades, starts, Policy())
    {Metric(name='mrr', k=None, parameter=None, goal=''): array([0.5, nan])}
    """
    return PreparedQueries(grades, starts, policy, doc_order=doc_order).evaluate(metrics, scores)


def mean_of(values: npt.NDArray[np.float64]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none.

    The sum is exact, and thus independent of their order.
    """
    counted = values[~np.isnan(values)].tolist()
    return math.fsum(counted) / len(counted) if counted else math.nan


def _cut(metric: Metric) -> int:
    if metric.measure.of_top:
        return 1  # the rest needs no order
    return _WHOLE_LIST if metric.k is None else metric.k


def _fill(metric: Metric, fill: float) -> float:
    if metric.measure.pooled:
        return math.nan
    return 0.0 if metric.name == "dcg" and fill == 1.0 else fill


def _place(item: ItemT, items: list[ItemT]) -> int:
    """Return the index of ``item`` in ``items``; append it if it is missing."""
    if item not in items:
        items.append(item)
    return items.index(item)
