"""Metrics per query.  What depends on grades only is computed once; each evaluation then sorts and sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from scorer.errors import CandidatesRejected, InputError
from scorer.metrics import _kernels
from scorer.metrics.discount import discounts, gains, stop_probabilities
from scorer.metrics.metric import Metric
from scorer.metrics.policy import Policy

_KINDS = {
    "ndcg": _kernels.NDCG,
    "dcg": _kernels.DCG,
    "err": _kernels.ERR,
    "precision": _kernels.PRECISION,
    "map": _kernels.MAP,
    "mrr": _kernels.MRR,
}
_WHOLE_LIST = 2**62

Grades = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float64]
Offsets = npt.NDArray[np.int64]
IntegerT = TypeVar("IntegerT", np.int32, np.int64)


class PreparedQueries:
    """Queries whose grades, policy and ideal are fixed, to be evaluated on many scorings.

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
        Grades of all documents known to exist for each query, (p,) int32 with offsets (q + 1,) int64, where these are
        more than the rows: judged documents that were not retrieved, or candidates cut off.  They rule the ideal DCG,
        the number of relevant documents in ``map``, and whether a query has anything relevant.

    Raises
    ------
    ValueError
        Shapes or offsets do not fit together.
    InputError
        Ties by document id without ``doc_order``; grades too high for the gain.

    Notes
    -----
    Evaluation is deterministic; with ties ``expected`` the order of rows within a query changes no bit.  Instances may be
    shared between threads.
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
        grades = np.maximum(_whole_numbers("grades", grades, np.int32), 0)
        starts = _offsets("starts", starts, grades.shape[0])
        if (ideal_grades is None) != (ideal_starts is None):
            raise ValueError("ideal_grades and ideal_starts go together")
        self.policy = policy
        self.starts: Offsets = starts
        self.n_queries: int = starts.shape[0] - 1
        self.n_rows: int = grades.shape[0]
        query_of_row = np.repeat(np.arange(self.n_queries), np.diff(starts))
        self._rows = _tie_order(policy, grades, query_of_row, doc_order)
        self._grades = grades[self._rows]
        self._gain = gains(self._grades, policy.gain)
        self._relevant = (self._grades >= policy.relevant_from).astype(np.uint8)
        self._stop: npt.NDArray[np.float64] | None = None
        if ideal_grades is None or ideal_starts is None:
            pool, pool_starts = grades, starts
        else:
            pool = np.maximum(_whole_numbers("ideal_grades", ideal_grades, np.int32), 0)
            pool_starts = _offsets("ideal_starts", ideal_starts, pool.shape[0])
            if pool_starts.shape != starts.shape:
                raise ValueError(f"ideal_starts {pool_starts.shape} and starts {starts.shape} must be equal")
        query_of_pool = np.repeat(np.arange(self.n_queries), np.diff(pool_starts))
        pool = pool[np.lexsort((-pool, query_of_pool))]
        self._pool_gain = gains(pool, policy.gain)
        self._pool_starts = pool_starts
        self._highest_grade = max(int(grades.max(initial=0)), int(pool.max(initial=0)))
        self._n_positive = np.bincount(query_of_pool[pool > 0], minlength=self.n_queries)
        self._n_relevant = np.bincount(query_of_pool[pool >= policy.relevant_from], minlength=self.n_queries)
        longest = max(int(np.diff(starts).max(initial=0)), int(np.diff(pool_starts).max(initial=0)))
        self._discount = discounts(longest)
        self._plans: dict[tuple[Metric, ...], _Plan] = {}

    def evaluate(self, metrics: Sequence[Metric], scores: Scores) -> dict[Metric, npt.NDArray[np.float64]]:
        """Each metric per query, (q,) float64; NaN where the policy skips the query.  ``scores`` is (n,) float64.

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

        For callers that share the queries out among threads; all ranges together give the bits of `evaluate`.  NaN scores
        are not looked for here, and ``metrics`` must not repeat one.
        """
        self._run(self._plan(tuple(metrics)), np.ascontiguousarray(scores, np.float64), first, last, out)

    def means(self, metrics: Sequence[Metric], scores: Scores) -> dict[Metric, float]:
        """Mean of each metric over the queries that count; see `mean_of`."""
        return {metric: mean_of(values) for metric, values in self.evaluate(metrics, scores).items()}

    def nothing_relevant(self, metric: Metric) -> npt.NDArray[np.bool_]:
        """Tell the queries, (q,) bool, that have no relevant document in the sense of this metric."""
        binary = metric.name in {"precision", "map", "mrr"}
        found: npt.NDArray[np.int64] = self._n_relevant if binary else self._n_positive
        return np.equal(found, 0)

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
        stop = self._gain if self._stop is None else self._stop  # a stand-in of the right type where err is not asked
        expected = self.policy.ties == "expected"
        _kernels.evaluate(
            scores, self._rows, self.starts, self._gain, self._relevant, stop, self._discount,
            expected, plan.kinds, plan.cuts, plan.divisors, plan.fills, first, last, out,
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

    def divisor(self, metric: Metric) -> npt.NDArray[np.float64]:
        """Return what the metric's sum is divided by, (q,) float64: ideal DCG, R, k or 1; 0 where nothing is relevant."""
        if metric.name == "ndcg":
            out = np.empty(self.n_queries)
            _kernels.ideal_dcg(self._pool_gain, self._pool_starts, self._discount, _cut(metric), out)
            return out
        if metric.name == "map":
            return self._n_relevant.astype(np.float64)
        whole = float(_cut(metric)) if metric.name == "precision" else 1.0
        return np.where(self.nothing_relevant(metric), 0.0, whole)


class _Plan:
    """Arrays by which the kernel knows what to compute; depends on grades and metrics, not on scores."""

    def __init__(self, metrics: tuple[Metric, ...], queries: PreparedQueries) -> None:
        fill = {"skip": math.nan, "zero": 0.0, "one": 1.0}[queries.policy.nothing_relevant]
        self.metrics = metrics
        self.kinds = np.array([_KINDS[metric.name] for metric in metrics], np.int64)
        self.cuts = np.array([_cut(metric) for metric in metrics], np.int64)
        self.fills = np.array([0.0 if metric.name == "dcg" and fill == 1.0 else fill for metric in metrics], np.float64)
        self.divisors = np.empty((len(metrics), queries.n_queries))
        for row, metric in zip(self.divisors, metrics, strict=True):
            row[:] = queries.divisor(metric)


def evaluate_queries(
    metrics: Sequence[Metric],
    scores: Scores,
    grades: Grades,
    starts: Offsets,
    policy: Policy,
    doc_order: npt.NDArray[np.int64] | None = None,
) -> dict[Metric, npt.NDArray[np.float64]]:
    """Each metric per query, (q,) float64, NaN where a query is skipped; for one evaluation (see `PreparedQueries`).

    >>> from scorer.metrics import Policy, parse_metric
    >>> grades, starts = np.array([0, 1, 0, 0], np.int32), np.array([0, 2, 4])
    >>> evaluate_queries([parse_metric("mrr")], np.array([2.0, 1.0, 0.0, 0.0]), grades, starts, Policy())
    {Metric(name='mrr', k=None): array([0.5, nan])}
    """
    return PreparedQueries(grades, starts, policy, doc_order=doc_order).evaluate(metrics, scores)


def mean_of(values: npt.NDArray[np.float64]) -> float:
    """Mean of the values that are not NaN, from their correctly rounded sum, so in any order; NaN if there are none."""
    counted = values[~np.isnan(values)].tolist()
    return math.fsum(counted) / len(counted) if counted else math.nan


def _cut(metric: Metric) -> int:
    return _WHOLE_LIST if metric.k is None else metric.k


def _tie_order(
    policy: Policy,
    grades: Grades,
    query_of_row: npt.NDArray[np.int64],
    doc_order: npt.NDArray[np.int64] | None,
) -> npt.NDArray[np.int64]:
    """Rows of each query in the order in which documents of equal score are to stand; the sort by score is stable.

    For ``expected`` they go by grade, so that sums inside a tie group do not depend on the order of rows.
    """
    if policy.ties == "row_order":
        return np.arange(grades.shape[0], dtype=np.int64)
    if policy.ties in {"expected", "optimistic"}:
        return np.lexsort((-grades, query_of_row))
    if policy.ties == "pessimistic":
        return np.lexsort((grades, query_of_row))
    if doc_order is None:
        raise InputError(f"ties {policy.ties} needs document ids; where there are none, choose ties expected")
    order = _whole_numbers("doc_order", doc_order, np.int64)
    if order.shape != grades.shape:
        raise ValueError(f"doc_order {order.shape} and grades {grades.shape} must be equal")
    return np.lexsort((-order if policy.ties == "doc_id_descending" else order, query_of_row))


def _whole_numbers(name: str, values: npt.ArrayLike, dtype: type[IntegerT]) -> npt.NDArray[IntegerT]:
    array = np.ascontiguousarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be one row of integers, got shape {array.shape} of {array.dtype}")
    return array.astype(dtype, copy=False)


def _offsets(name: str, values: Offsets, n: int) -> Offsets:
    starts = _whole_numbers(name, values, np.int64)
    if starts.shape[0] < 1 or starts[0] != 0 or starts[-1] != n or np.any(np.diff(starts) < 0):
        raise ValueError(f"{name} must ascend from 0 to the number of rows, {n}")
    return starts
