"""Every list of a few grades, every pattern of ties, every metric: the kernels against the mean over all orders."""

import functools
import itertools
import math

import numpy as np
import pytest

from scorer.metrics import Metric, Policy
from scorer.metrics.queries import PreparedQueries, evaluate_queries
from tests import naive

CUTS = (None, 1, 2, 3, 7)
METRICS = [
    Metric(name, k)
    for name in ("ndcg", "dcg", "err", "map", "mrr", "precision")
    for k in CUTS
    if not (name == "precision" and k is None)
]


def lists(longest, levels):
    """Every list of grades with every descending pattern of scores: 2^(n - 1) ways to tie neighbours."""
    for n in range(1, longest + 1):
        for steps in itertools.product((0, 1), repeat=n - 1):
            scores = tuple(float(-s) for s in itertools.accumulate((0, *steps)))
            for grades in itertools.product(levels, repeat=n):
                yield grades, scores


def prepared(cases, policy, **more):
    grades = np.array([y for ys, _ in cases for y in ys], np.int32)
    scores = np.array([s for _, ss in cases for s in ss])
    starts = np.cumsum([0] + [len(ys) for ys, _ in cases])
    return PreparedQueries(grades, starts, policy, **more), scores


def naive_over_orders(metric, policy, summary):
    of_order = functools.lru_cache(maxsize=None)(
        lambda ordered: naive.metric_of_order(
            metric.name,
            metric.k,
            ordered,
            gain=policy.gain,
            relevant_from=policy.relevant_from,
            max_grade=policy.max_grade,
        )
    )
    orders = functools.lru_cache(maxsize=None)(lambda scores: list(naive.orders_of(scores)))

    def value(grades, scores):
        found = [of_order(tuple(grades[i] for i in order)) for order in orders(scores)]
        return math.nan if found[0] is None else summary(found)

    return value


def mean(values):
    return math.fsum(values) / len(values)


@pytest.mark.parametrize(
    ("ties", "summary"),
    [("expected", mean), ("pessimistic", min), ("optimistic", max)],
    ids=("expected", "pessimistic", "optimistic"),
)
@pytest.mark.parametrize(("gain", "relevant_from"), [("exp", 1), ("linear", 2)])
def test_every_list_of_up_to_four_grades(ties, summary, gain, relevant_from):
    policy = Policy(gain=gain, relevant_from=relevant_from, ties=ties, max_grade=3)
    cases = list(lists(4, (0, 1, 3)))
    queries, scores = prepared(cases, policy)
    for metric, ours in queries.evaluate(METRICS, scores).items():
        twin = naive_over_orders(metric, policy, summary)
        expected = [twin(*case) for case in cases]
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-13, err_msg=str(metric))


def test_every_list_of_five_grades_counts_the_mean_over_all_orders_of_its_ties():
    policy = Policy(max_grade=2)
    cases = [case for case in lists(5, (0, 1, 2)) if len(case[0]) == 5]
    queries, scores = prepared(cases, policy)
    for metric, ours in queries.evaluate(METRICS, scores).items():
        twin = naive_over_orders(metric, policy, mean)
        np.testing.assert_allclose(ours, [twin(*case) for case in cases], rtol=0, atol=1e-13, err_msg=str(metric))


@pytest.mark.parametrize("ties", ["doc_id", "doc_id_descending", "row_order"])
def test_ties_broken_by_id_or_row_are_one_of_the_orders(ties):
    policy = Policy(ties=ties, max_grade=3)
    cases = list(lists(4, (0, 1, 3)))
    rng = np.random.default_rng(5)
    ids = [rng.permutation(len(grades)) for grades, _ in cases]
    queries, scores = prepared(cases, policy, doc_order=np.concatenate(ids))
    key = {"doc_id": lambda i, of: of[i], "doc_id_descending": lambda i, of: -of[i], "row_order": lambda i, of: i}[ties]
    for metric, ours in queries.evaluate(METRICS, scores).items():
        for (grades, ss), of, value in zip(cases, ids, ours, strict=True):
            order = sorted(range(len(grades)), key=lambda i: (-ss[i], key(i, of)))
            true = naive.metric_of_order(metric.name, metric.k, [grades[i] for i in order], max_grade=3)
            assert value == pytest.approx(math.nan if true is None else true, abs=1e-13, nan_ok=True)


def test_the_ideal_may_know_more_documents_than_the_list():
    """All lists of up to three grades within all pools that add up to two documents that were not retrieved."""
    policy = Policy(max_grade=3)
    cases = [
        (grades, scores, extra)
        for grades, scores in lists(3, (0, 1, 3))
        for m in range(3)
        for extra in itertools.combinations_with_replacement((-1, 0, 1, 3), m)
    ]
    pools = [[*grades, *extra] for grades, _, extra in cases]
    queries, scores = prepared(
        [case[:2] for case in cases],
        policy,
        ideal_grades=np.array([y for pool in pools for y in pool], np.int32),
        ideal_starts=np.cumsum([0] + [len(pool) for pool in pools]),
    )
    for metric, ours in queries.evaluate(METRICS, scores).items():
        for (grades, ss, _), pool, value in zip(cases, pools, ours, strict=True):
            found = [
                naive.metric_of_order(metric.name, metric.k, [grades[i] for i in order], max_grade=3, pool=pool)
                for order in naive.orders_of(ss)
            ]
            true = math.nan if found[0] is None else mean(found)
            assert value == pytest.approx(true, abs=1e-13, nan_ok=True), (metric, grades, ss, pool)


def test_a_long_tie_agrees_with_drawn_orders():
    """One group of sixty documents: the mean over 4,000 shuffles lies within five standard errors."""
    rng = np.random.default_rng(3)
    n, draws = 60, 4000
    grades = rng.choice([0, 1, 2, 3, 4], size=n, p=[0.7, 0.15, 0.1, 0.03, 0.02]).astype(np.int32)
    metrics = [
        Metric("ndcg", 10),
        Metric("err"),
        Metric("err", 10),
        Metric("map"),
        Metric("mrr"),
        Metric("precision", 5),
    ]
    policy = Policy(max_grade=4)
    tied = evaluate_queries(metrics, np.zeros(n), grades, np.array([0, n]), policy)
    drawn = evaluate_queries(
        metrics, rng.random(n * draws), np.tile(grades, draws), np.arange(0, n * draws + 1, n), policy
    )
    for metric in metrics:
        error = drawn[metric].std() / math.sqrt(draws)
        assert abs(drawn[metric].mean() - tied[metric][0]) < 5 * error


def test_a_very_long_tie_stays_between_zero_and_one():
    n = 3000
    grades = np.arange(n, dtype=np.int32) % 5
    values = evaluate_queries(
        [Metric("err"), Metric("mrr")], np.zeros(n), grades, np.array([0, n]), Policy(max_grade=4)
    )
    for value in values.values():
        assert 0.0 < value[0] < 1.0
