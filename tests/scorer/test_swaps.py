"""Swap deltas against what the metrics themselves change by, for every short list."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rankmill.foundation.errors import InputError
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from rankmill.scorer.metrics.metric import NEED_CUTOFF, WITHOUT_CUTOFF
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.metrics.swaps import BY_PLACE, SWAPPABLE, TABLE, swap_deltas
from tests import naive_pairs
from tests.refusals import refused

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


def lists(longest):
    return [g for n in range(1, longest + 1) for g in itertools.product(range(MAX_GRADE + 1), repeat=n)]


def measured(metric, longest):
    """The metric of every list by ``rankmill.scorer.metrics``, or by the twin where it is not among them."""
    every = lists(longest)
    grades = np.array([y for g in every for y in g], dtype=np.int32)
    starts = np.concatenate(([0], np.cumsum([len(g) for g in every])))
    falling = np.concatenate([-np.arange(len(g), dtype=np.float64) for g in every])
    values = PreparedQueries(grades, starts, POLICY).evaluate([metric], falling)[metric]
    return dict(zip(every, np.nan_to_num(values).tolist(), strict=True))


def metrics_of(name, *cuts):
    if name in WITHOUT_CUTOFF:
        return [Metric(name)]
    if name == "rbp":
        return [Metric(name, k, 0.7) for k in cuts]
    return [Metric(name, k) for k in cuts if k is not None or name not in NEED_CUTOFF]


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
    with refused(InputError, "divisor"):
        swap_matrix(Metric("map"), grades, Policy(map_normalisation="hits"))
