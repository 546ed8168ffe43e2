"""Every list of a few grades, every pattern of ties, every metric: the kernels against the mean over all orders."""

import functools
import itertools
import math

import numpy as np
import pytest

from rankmill.foundation.errors import InputError
from rankmill.scorer.metrics import TIES, Metric, Policy, parse_metric
from rankmill.scorer.metrics.arrangement import queries_that_differ
from rankmill.scorer.metrics.metric import MEASURES
from rankmill.scorer.metrics.per_query import PreparedQueries, evaluate_queries
from rankmill.scorer.metrics.swaps import BY_PLACE, SWAPPABLE, TABLE, swap_deltas
from tests import naive_metrics, naive_pairs
from tests.refusals import refused
from tests.scorer.metrics.small_lists import CONVENTIONS, METRICS, ORDERS, Orders, cases_up_to, lists, orders_up_to


def prepared(cases, policy, **more):
    grades = np.array([y for ys, _ in cases for y in ys], np.int32)
    scores = np.array([s for _, ss in cases for s in ss])
    starts = np.cumsum([0] + [len(ys) for ys, _ in cases])
    return PreparedQueries(grades, starts, policy, **more), scores


@pytest.mark.parametrize(
    ("ties", "summary"),
    [("expected", np.add), ("pessimistic", np.minimum), ("optimistic", np.maximum)],
    ids=("expected", "pessimistic", "optimistic"),
)
@pytest.mark.parametrize(("gain", "relevant_from"), [("exp", 1), ("linear", 2)])
def test_every_list_of_up_to_five_grades(ties, summary, gain, relevant_from):
    policy = Policy(gain=gain, relevant_from=relevant_from, ties=ties, max_grade=3)
    queries, scores = prepared(cases_up_to(5), policy)
    for metric, ours in queries.evaluate(METRICS, scores).items():
        expected = orders_up_to(5).expected(metric, policy, summary)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-13, err_msg=str(metric))


@pytest.mark.parametrize("ties", sorted(set(TIES) - {"expected"}))
def test_a_rule_that_breaks_ties_picks_one_of_the_orders(ties):
    policy = Policy(ties=ties, max_grade=3, ties_seed=11)
    cases = cases_up_to(5)
    rng = np.random.default_rng(5)
    ids = [rng.permutation(len(grades)) for grades, _ in cases]
    queries, scores = prepared(cases, policy, doc_order=np.concatenate(ids))
    orders = Orders(cases, ties, [of.tolist() for of in ids], seed=11)
    assert len(orders.of_list) == len(cases)
    for metric, ours in queries.evaluate(METRICS, scores).items():
        np.testing.assert_allclose(ours, orders.expected(metric, policy), rtol=0, atol=1e-13, err_msg=str(metric))


@pytest.mark.parametrize("nothing_relevant", ["skip", "zero", "one"])
@pytest.mark.parametrize("ties", ["expected", "pessimistic", "random"])
@pytest.mark.parametrize("convention", range(len(CONVENTIONS)))
def test_every_list_under_every_other_convention(convention, ties, nothing_relevant):
    policy = Policy(**CONVENTIONS[convention], ties=ties, nothing_relevant=nothing_relevant, max_grade=3)
    longest = 5 if (ties, nothing_relevant) == ("expected", "skip") else 3
    queries, scores = prepared(cases_up_to(longest), policy)
    for metric, ours in queries.evaluate(METRICS, scores).items():
        expected = orders_up_to(longest, ties).expected(metric, policy)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-13, err_msg=str(metric))


@pytest.mark.parametrize("map_normalisation", ["R", "min(R,k)"])
def test_the_ideal_may_know_more_documents_than_the_list(map_normalisation):
    """All lists of up to three grades within all pools that add up to two documents that were not retrieved."""
    policy = Policy(max_grade=3, map_normalisation=map_normalisation)
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
        of_order = functools.cache(lambda order, pool, m=metric: naive_metrics.of_order(m, order, policy, pool))
        true = []
        for (grades, ss, _), pool in zip(cases, pools, strict=True):
            known = tuple(sorted(max(y, 0) for y in pool))  # no metric asks in which order they are known
            found = [of_order(tuple([grades[i] for i in order]), known) for order in ORDERS(ss)]
            true.append(math.nan if found[0] is naive_metrics.NOTHING else math.fsum(found) / len(found))
        np.testing.assert_allclose(ours, true, rtol=0, atol=1e-13, err_msg=str(metric))


@pytest.mark.parametrize("ties", ["expected", "pessimistic", "optimistic"])
def test_figures_of_all_queries_together_are_plain_means_of_their_shares(ties):
    policy = Policy(ties=ties, relevant_from=2)
    cases = list(lists(3, (-1, 0, 1, 3)))
    rng = np.random.default_rng(8)
    micro, error, shifted = Metric("concordance_micro"), Metric("balanced_error"), Metric("balanced_error", None, -1.5)
    for size in (1, 2, 5, 40, len(cases)):
        some = [cases[i] for i in rng.choice(len(cases), size, replace=False)]
        queries, scores = prepared(some, policy)
        means = queries.means([micro, error, shifted], scores)
        twin = naive_metrics.concordance_micro([(ss, ys) for ys, ss in some], policy)
        assert means[micro] == pytest.approx(twin, abs=1e-13, nan_ok=True)
        grades = [y for ys, _ in some for y in ys]
        for metric in (error, shifted):
            twin = naive_metrics.balanced_error(scores, grades, metric.parameter, policy)
            assert means[metric] == pytest.approx(twin, abs=1e-13, nan_ok=True)


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
        Metric("map", 10),
        Metric("mrr"),
        Metric("precision", 5),
        Metric("recall", 20),
        Metric("rbp", None, 0.9),
        Metric("wta"),
        Metric("concordance"),
    ]
    for policy in (Policy(max_grade=4), Policy(max_grade=4, map_normalisation="min(R,k)")):
        tied = evaluate_queries(metrics, np.zeros(n), grades, np.array([0, n]), policy)
        drawn = evaluate_queries(
            metrics, rng.random(n * draws), np.tile(grades, draws), np.arange(0, n * draws + 1, n), policy
        )
        for metric in metrics:
            error = drawn[metric].std() / math.sqrt(draws)
            assert abs(drawn[metric].mean() - tied[metric][0]) < 5 * error, metric


def test_a_very_long_tie_stays_between_zero_and_one():
    n = 3000
    grades = np.arange(n, dtype=np.int32) % 5
    policy = Policy(max_grade=4, map_normalisation="min(R,k)")
    metrics = [Metric("err"), Metric("mrr"), Metric("map", 1000), Metric("map", 5), Metric("map", n - 1)]
    values = evaluate_queries(metrics, np.zeros(n), grades, np.array([0, n]), policy)
    for value in values.values():
        assert 0.0 < value[0] < 1.0


@pytest.mark.parametrize("nothing_relevant", ["skip", "zero", "one"])
@pytest.mark.parametrize("rules", [{}, {"relevant_from": 2}, *CONVENTIONS], ids=str)
def test_a_query_can_differ_if_two_orders_of_it_have_different_values(rules, nothing_relevant):
    """Every list of up to four grades in all its orders, by every metric under every convention."""
    policy = Policy(**rules, nothing_relevant=nothing_relevant, max_grade=3)
    cases = [(grades, (0.0,) * len(grades)) for grades, scores in lists(4, (0, 1, 2, 3)) if len(set(scores)) == 1]
    queries, _ = prepared(cases, policy)
    orders = Orders(cases, "expected")
    for metric, found in queries.can_differ(METRICS).items():
        least, most = (orders.expected(metric, policy, summary) for summary in (np.minimum, np.maximum))
        np.testing.assert_array_equal(found, most - least > 1e-9, err_msg=str(metric))  # NaN: skipped


def test_the_order_of_a_query_matters_if_two_documents_have_different_grades():
    cases = [*cases_up_to(4), ((), ())]
    grades, starts = np.array([y for ys, _ in cases for y in ys], np.int32), np.cumsum([0] + [len(y) for y, _ in cases])
    found = queries_that_differ(grades, starts)
    assert found.tolist() == [len(set(ys)) > 1 for ys, _ in cases]
    by_pairs = PreparedQueries(grades, starts, Policy(nothing_relevant="zero")).can_differ([Metric("concordance")])
    np.testing.assert_array_equal(found, by_pairs[Metric("concordance")])


# ---- Swap deltas against what the metrics themselves change by, for every short list


MAX_GRADE = 3
POLICY = Policy(max_grade=MAX_GRADE, nothing_relevant="zero")
NAMES = [name for name in SWAPPABLE if name != "concordance_micro"]


def swap_matrix(metric, grades, policy, *, tail=False):
    """Return |dZ| of every pair of one list, (n, n) symmetric; ``grades`` (n,) int32 in the order of the ranks."""
    n = len(grades)
    starts, order = np.array([0, n], dtype=np.int64), np.arange(n, dtype=np.uint32)
    deltas = swap_deltas(metric, grades, starts, policy, tail=tail)
    deltas.prepare(order, 0, 1)
    if deltas.shape == TABLE:
        table = np.zeros(n * n)
        deltas.fill(order, 0, 1, n, np.array([0, n * n], dtype=np.int64), table)
        found = np.triu(table.reshape(n, n), 1)
    else:
        x = deltas.values
        found = np.triu(np.abs(x[:, None] - x) * (deltas.upper[:n, None] - deltas.lower[:n]), 1)
        if deltas.shape == BY_PLACE:
            found *= deltas.lift[:n, None]
    return (found + found.T) * deltas.scales[0]


def every_list(longest):
    return [g for n in range(1, longest + 1) for g in itertools.product(range(MAX_GRADE + 1), repeat=n)]


def measured(metric, longest):
    """The metric of every list by ``rankmill.scorer.metrics``, or by the twin where it is not among them."""
    every = every_list(longest)
    grades = np.array([y for g in every for y in g], dtype=np.int32)
    starts = np.concatenate(([0], np.cumsum([len(g) for g in every])))
    falling = np.concatenate([-np.arange(len(g), dtype=np.float64) for g in every])
    values = PreparedQueries(grades, starts, POLICY).evaluate([metric], falling)[metric]
    return dict(zip(every, np.nan_to_num(values).tolist(), strict=True))


def metrics_of(name, *cuts):
    if MEASURES[name].cutoff == "none":
        return [Metric(name)]
    if name == "rbp":
        return [Metric(name, k, 0.7) for k in cuts]
    return [Metric(name, k) for k in cuts if k is not None or MEASURES[name].cutoff != "needed"]


def matrices(metric, every):
    """|dZ| of all pairs i < j of many lists of one length at once, (lists, n, n), read as `SwapDeltas` says."""
    m, n = every.shape
    starts, order = np.arange(0, m * n + 1, n), np.arange(m * n, dtype=np.uint32)
    deltas = swap_deltas(metric, every.ravel(), starts, POLICY)
    deltas.prepare(order, 0, m)
    if deltas.shape == TABLE:
        found = np.zeros(m * n * n)
        deltas.fill(order, 0, m, n, np.arange(0, m * n * n + 1, n * n), found)
        found = found.reshape(m, n, n)
    else:
        x = deltas.values.reshape(m, n)
        by_place = deltas.shape == BY_PLACE
        upper, lower = (
            part[: m * n].reshape(m, n) if by_place else np.tile(part[:n], (m, 1))
            for part in (deltas.upper, deltas.lower)
        )
        found = np.abs(x[:, :, None] - x[:, None]) * (upper[:, :, None] - lower[:, None])
        if by_place:
            found *= deltas.lift[: m * n].reshape(m, n)[:, :, None]
    return np.triu(found, 1) * deltas.scales[:, None, None]


@pytest.mark.parametrize("name", NAMES)
def test_every_delta_is_what_the_metric_changes_by(name):
    for metric in metrics_of(name, None, 1, 2, 3, 4, 5, 6):
        values = measured(metric, 5)
        for n in range(1, 6):
            lists_of_n = [g for g in values if len(g) == n]
            every = np.array(lists_of_n, dtype=np.int32)
            digits = (MAX_GRADE + 1) ** np.arange(n - 1, -1, -1)
            assert (every @ digits == np.arange(len(every))).all()  # a list's number is its digits
            own = np.array([values[g] for g in lists_of_n])
            found = matrices(metric, every)
            for i, j in itertools.combinations(range(n), 2):
                swapped = every.copy()
                swapped[:, [i, j]] = every[:, [j, i]]
                expected = np.abs(own - own[swapped @ digits])
                np.testing.assert_allclose(found[:, i, j], expected, rtol=0, atol=1e-13, err_msg=f"{metric} {i} {j}")


@pytest.mark.parametrize("name", ["ndcg", "dcg"])
@pytest.mark.parametrize("gain", ["exp", "linear"])
def test_a_tail_lets_discounts_go_on_below_the_cutoff(name, gain):
    rng = np.random.default_rng(3)
    for k in (None, 1, 3, 20):
        for _ in range(20):
            grades = rng.integers(0, 4, size=9)
            found = swap_matrix(Metric(name, k), grades.astype(np.int32), Policy(gain=gain), tail=True)
            for i, j in itertools.combinations(range(9), 2):
                expected = naive_pairs.swap_delta(Metric(name, k), grades.tolist(), i, j, Policy(gain=gain), tail=True)
                assert found[i, j] == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_long_lists_agree_with_the_metric_too(name):
    rng = np.random.default_rng(1)
    grades = rng.choice(5, size=60, p=[0.5, 0.2, 0.15, 0.1, 0.05])
    for metric in metrics_of(name, None, 10):
        found = swap_matrix(metric, grades.astype(np.int32), Policy(max_grade=4))
        for i, j in rng.integers(0, 60, size=(150, 2)):
            if i != j:
                expected = naive_pairs.swap_delta(metric, grades.tolist(), i, j, Policy(max_grade=4))
                assert found[i, j] == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("ndcg@3", {"discount": "letor"}),
        ("dcg@4", {"gain": "table(0,2,3,10)", "discount": "table(1,0.5)"}),
        ("map@3", {"map_normalisation": "min(R,k)"}),
        ("precision@9", {"precision_normalisation": "min(k,n)"}),
        ("mrr", {"relevant_from": 2}),
        ("ndcg@7", {"short_lists": "zero"}),
    ],
)
def test_conventions_are_those_of_the_policy(text, policy):
    rng = np.random.default_rng(2)
    for _ in range(20):
        grades = rng.integers(0, 4, size=6)
        found = swap_matrix(parse_metric(text), grades.astype(np.int32), Policy(**policy))
        for i, j in itertools.combinations(range(6), 2):
            expected = naive_pairs.swap_delta(parse_metric(text), grades.tolist(), i, j, Policy(**policy))
            assert found[i, j] == pytest.approx(expected, abs=1e-13)


def test_micro_concordance_changes_by_pairs_of_all_queries():
    grades, starts = np.array([2, 0, 1, 1, 0], dtype=np.int32), np.array([0, 3, 5])
    one = swap_deltas(Metric("concordance"), grades, starts, Policy())
    micro = swap_deltas(Metric("concordance_micro"), grades, starts, Policy())
    assert one.scales == pytest.approx([1 / 3, 1.0])
    assert micro.scales == pytest.approx([2 / 4, 2 / 4])  # the mean over both queries is right of 4 pairs


def test_a_metric_without_deltas_is_refused():
    grades = np.array([0, 1], dtype=np.int32)
    with refused(InputError, "swap deltas", "ndcg, dcg"):
        swap_matrix(Metric("balanced_error"), grades, Policy())
    with pytest.raises(InputError, match="max_grade"):
        swap_matrix(Metric("err"), grades, Policy())
