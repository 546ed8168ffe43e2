"""The sweep over all mixtures of two rankers: never beaten by a grid, exact on every small case."""

import itertools
import math

import numpy as np
import pytest

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.scorer.inspect import combine as combining
from rankmill.scorer.inspect.combine import combine
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries, evaluate_queries, mean_of
from tests.refusals import refused

METRICS = (
    "ndcg@3",
    "ndcg",
    "err@5",
    "map",
    "mrr",
    "precision@2",
    "wta",
    "concordance",
    "concordance_micro",
    "rbp(0.7)",
)


def lists(seed, sizes, integers=False, max_grade=3):
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    grades = rng.integers(0, max_grade + 1, size=starts[-1]).astype(np.int32)
    noise = rng.integers(0, 5, size=(2, starts[-1])).astype(float) if integers else rng.normal(size=(2, starts[-1]))
    first, second = noise * 1.5 + grades * np.array([[0.7], [0.9]]) * (not integers)
    return first, second, grades, starts


def mean_at(metric, policy, weight, first, second, grades, starts):
    mixed = (1.0 - weight) * first + weight * second
    return mean_of(evaluate_queries([metric], mixed, grades, starts, policy)[metric])


@pytest.mark.parametrize("name", METRICS)
def test_no_weight_of_a_grid_is_better(name):
    metric, policy = parse_metric(name), Policy(max_grade=3)
    first, second, grades, starts = lists(7, [9, 12, 1, 0, 17, 6])
    found = combine(first, second, grades, starts, metric, policy)
    queries = PreparedQueries(grades, starts, policy)
    grid = [queries.means([metric], (1.0 - a) * first + a * second)[metric] for a in np.linspace(0.0, 1.0, 2_001)]
    assert max(grid) <= found.value
    assert found.interval[0] <= found.weight <= found.interval[1]
    assert found.value == mean_at(metric, policy, found.weight, first, second, grades, starts)
    assert found.at_ends == (grid[0], grid[-1])
    for a, expected in zip(np.linspace(0.0, 1.0, 2_001)[1:-1:97], grid[1:-1:97], strict=True):
        piece = np.searchsorted(found.borders, a) - 1
        assert found.means[piece] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("policy", [Policy(), Policy(ties="pessimistic"), Policy(ties="random", gain="linear")])
def test_every_open_interval_of_every_small_case(policy):
    """All change points by brute force, and the mean between each two of them; scores with many ties."""
    metric = parse_metric("ndcg@2")
    for seed in range(8):
        first, second, grades, starts = lists(seed, [4, 3], integers=True)
        if not grades.any():
            continue
        found = combine(first, second, grades, starts, metric, policy, low=-0.5, high=1.75)
        points = {-0.5, 1.75}
        for q in range(2):
            for i, j in itertools.combinations(range(starts[q], starts[q + 1]), 2):
                d, e = first[i] - first[j], second[i] - second[j]
                if d != e and -0.5 < d / (d - e) < 1.75:
                    points.add(d / (d - e))
        borders = sorted(points)
        best = -math.inf
        for low, high in itertools.pairwise(borders):
            if high - low < 1e-12:
                continue
            middle = (low + high) / 2
            value = mean_at(metric, policy, middle, first, second, grades, starts)
            piece = np.searchsorted(found.borders, middle) - 1
            assert found.means[piece] == pytest.approx(value, abs=1e-12)
            best = max(best, value)
        assert found.value == pytest.approx(max(best, *found.at_ends), abs=1e-15)
        assert set(found.borders) <= points


def test_a_ranker_and_its_reverse_and_a_ranker_and_itself():
    metric = parse_metric("ndcg@10")
    first, _, grades, starts = lists(3, [8, 8, 8])
    perfect = grades.astype(float)
    found = combine(-perfect, perfect, grades, starts, metric, Policy())
    assert found.value == 1.0
    assert found.interval == (0.5, 1.0)
    assert found.borders.tolist() == [0.0, 0.5, 1.0]
    same = combine(first, first, grades, starts, metric, Policy())
    assert same.borders.tolist() == [0.0, 1.0]
    assert same.value == same.at_ends[0] == same.at_ends[1]
    scaled = combine(first, perfect * 1e6, grades, starts, metric, Policy())
    assert scaled.value == 1.0


def test_an_end_is_the_best_where_its_ties_are_worth_more_than_what_breaks_them():
    grades, starts = np.array([0, 1], np.int32), np.array([0, 2])
    found = combine(np.zeros(2), np.array([1.0, 0.0]), grades, starts, parse_metric("mrr"), Policy())
    assert (found.weight, found.interval, found.value) == (0.0, (0.0, 0.0), 0.75)
    assert found.means.tolist() == [0.5]


def test_what_cannot_be_mixed_is_refused(monkeypatch):
    metric = parse_metric("ndcg@5")
    first, second, grades, starts = lists(1, [5, 5])
    with refused(InputError, "weights", "1", "0"):
        combine(first, second, grades, starts, metric, Policy(), low=1.0, high=0.0)
    with refused(InputError, "balanced_error"):
        combine(first, second, grades, starts, parse_metric("balanced_error"), Policy())
    with refused(InputError, "query", "ndcg@5"):
        combine(first, second, 0 * grades, starts, metric, Policy())
    with refused(CandidatesRejected, "score", "row 2"):
        combine(np.where(np.arange(10) == 2, np.nan, first), second, grades, starts, metric, Policy())
    with refused(InputError, "infinite"):
        combine(first, np.where(np.arange(10) == 2, np.inf, second), grades, starts, metric, Policy())
    monkeypatch.setattr(combining, "MAX_CHANGE_POINTS", 3)
    with refused(InputError, "3", "weights"):
        combine(first, second, grades, starts, metric, Policy())


def test_one_long_query_takes_no_more_memory_than_allowed(monkeypatch):
    """All pairs of 3,000 documents would take 36 MB, of 100,000 forty gigabytes: it is refused before they are
    there."""
    first, second, _, starts = lists(2, [3000])
    grades = np.arange(3000, dtype=np.int32) % 2
    monkeypatch.setattr(combining, "MAX_CHANGE_POINTS", 1000)
    rooms = []
    change_points = combining._kernels.change_points

    def noted(*arguments):
        rooms.append(len(arguments[-1]))
        return int(change_points(*arguments))

    monkeypatch.setattr(combining._kernels, "change_points", noted)
    with refused(InputError, "1", "1,000", "weights"):
        combine(first, second, grades, starts, parse_metric("ndcg@5"), Policy())
    assert rooms == [1001]
