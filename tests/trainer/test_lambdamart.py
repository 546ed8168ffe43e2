"""Gradients of LambdaMART against the definition, finite differences and their symmetries."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.objectives.pairwise.lambdamart import LambdaMart, LambdaMartOptions
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team
from tests import naive
from tests.refusals import refused
from tests.trainer.fixed import fixed

PLAIN = {"lambda_normalisation": False, "truncation": 10**6}


def gradients(scores, grades, sizes=None, *, team=None, round_number=1, weights=None, **parameters):
    scores = np.asarray(scores, dtype=np.float64)
    starts = np.concatenate(([0], np.cumsum(sizes or [len(scores)]))).astype(np.int64)
    parameters = fixed(**{**PLAIN, **parameters})
    rows = RankedRows(np.asarray(grades, dtype=np.int32), starts, (), weights)
    objective = LambdaMart(rows, parameters, LambdaMartOptions())
    g, h = np.full(len(scores), np.nan), np.full(len(scores), np.nan)
    objective.gradients(round_number, scores, g, h, team or Team(1))
    return g, h


def test_exponential_and_logarithm_keep_their_stated_errors():
    x = np.concatenate([-np.logspace(-12, 2.8, 4000), [0.0, -1.0, -700.0]])
    found = np.array([_kernels.exp_negative(v) for v in x])
    assert np.max(np.abs(found / np.exp(x) - 1)) <= 1e-11
    assert _kernels.exp_negative(-1e9) == _kernels.exp_negative(-700.0) > 0.0
    y = np.concatenate([np.logspace(-300, 300, 4000), np.linspace(0.5, 4, 3000)])
    found = np.array([_kernels.log2_positive(v) for v in y])
    assert np.max(np.abs(found - np.log2(y))) <= 1e-12 * 1000  # the sum with a large exponent rounds at 1e-13
    near = (y > 0.5) & (y < 4)
    assert np.max(np.abs(found - np.log2(y))[near]) <= 1e-12
    assert _kernels.log2_positive(8.0) == 3.0


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0, 3.25]), min_size=1, max_size=70),
    st.integers(0, 2**63),
    st.randoms(use_true_random=False),
)
def test_order_is_by_score_then_by_jitter(scores, key, random):
    values = np.array([9.0, *scores, 9.0])  # rows before and after belong to other queries
    n, key = len(scores), np.uint64(key)
    rows = list(range(1, n + 1))
    expected = sorted(rows, key=lambda row: (-values[row], int(_kernels.random_bits(key, row))))
    random.shuffle(rows)  # what the order held before must not matter
    order, spare = np.array([0, *rows, n + 1], dtype=np.uint32), np.empty(n, dtype=np.uint32)
    _kernels.order_by_score(values, key, 1, n + 1, order, spare)
    assert order.tolist() == [0, *expected, n + 1]


def test_ties_are_broken_anew_each_round_and_not_by_row():
    places = np.zeros((200, 10))
    order, spare = np.arange(10, dtype=np.uint32), np.empty(10, dtype=np.uint32)
    for round_number in range(200):
        key = np.uint64(_kernels.random_bits(np.uint64(7), round_number))
        _kernels.order_by_score(np.zeros(10), key, 0, 10, order, spare)
        places[round_number, order] = np.arange(10)
    assert np.all(np.abs(places.mean(axis=0) - 4.5) < 1.0)  # 5 standard errors of a uniform place


@pytest.mark.parametrize("k", [1, 2, 10])
@pytest.mark.parametrize("options", [{}, {"normalise": True}, {"truncation": 2}, {"sigma": 2.5}])
def test_every_list_of_up_to_four_grades_agrees_with_the_definition(k, options):
    rng = np.random.default_rng(k)
    for n in (2, 3, 4):
        for grades in itertools.product((0, 1, 3), repeat=n):
            if len(set(grades)) < 2:
                continue
            scores = rng.permutation(n) + rng.random(n) * 0.5
            g, h = gradients(
                scores,
                grades,
                metric=f"ndcg@{k}",
                sigma=options.get("sigma", 1.0),
                truncation=options.get("truncation", 10**6),
                lambda_normalisation=options.get("normalise", False),
            )
            expected_g, expected_h = naive.lambdas(scores, grades, k=k, **options)
            assert g == pytest.approx(expected_g, rel=1e-9, abs=1e-14)
            assert h == pytest.approx(expected_h, rel=1e-9, abs=1e-14)


def frozen_loss(scores, at, grades, k):
    """Sum of dZ log(1 + exp(-(s_i - s_j))) with dZ and the order frozen at the scores ``at``."""
    order = sorted(range(len(at)), key=lambda i: -at[i])
    rank = {row: place for place, row in enumerate(order)}
    ideal = naive.dcg_in_order(sorted(grades, reverse=True), k)
    total = 0.0
    for i, j in itertools.permutations(range(len(at)), 2):
        if grades[i] > grades[j]:
            discount = abs(1 / math.log2(rank[i] + 2) - 1 / math.log2(rank[j] + 2))
            delta = (2.0 ** grades[i] - 2.0 ** grades[j]) * discount / ideal
            total += delta * math.log1p(math.exp(-(scores[i] - scores[j])))
    return total


@pytest.mark.parametrize("seed", range(5))
def test_gradient_and_hessian_are_those_of_the_frozen_loss(seed):
    rng = np.random.default_rng(seed)
    n, step = 9, 1e-4
    scores, grades = rng.normal(size=n), rng.integers(0, 4, size=n)
    grades[:2] = (0, 3)
    g, h = gradients(scores, grades, metric="ndcg@5")
    for i in range(n):
        up, down = scores.copy(), scores.copy()
        up[i] += step
        down[i] -= step
        above, here, below = (frozen_loss(s, scores, grades, 5) for s in (up, scores, down))
        assert g[i] == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-8)
        assert h[i] == pytest.approx((above - 2 * here + below) / step**2, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("n", [2, 7, 8, 9, 40])
def test_weights_multiply_pairs(normalise, n):
    rng = np.random.default_rng(n)
    scores, weights = rng.permutation(n) / 3, rng.integers(0, 4, size=n).astype(float)
    grades = rng.integers(0, 4, size=n)
    grades[:2], weights[:2] = (0, 3), (1.0, 2.0)
    g, h = gradients(scores, grades, weights=weights, metric="ndcg@5", lambda_normalisation=normalise)
    expected = naive.lambdas(scores, grades, k=5, normalise=normalise, weights=weights / weights.mean())
    assert g == pytest.approx(expected[0], rel=1e-9, abs=1e-13)
    assert h == pytest.approx(expected[1], rel=1e-9, abs=1e-13)
    assert g.sum() == pytest.approx(0.0, abs=1e-12)
    for scale in (0.25, 8.0, 2.0**1020):  # powers of two keep every bit
        scaled = gradients(scores, grades, weights=weights * scale, metric="ndcg@5", lambda_normalisation=normalise)
        assert np.array_equal(scaled[0], g)
    alike = gradients(scores, grades, weights=np.full(n, 3.0), lambda_normalisation=normalise)
    assert np.array_equal(alike[0], gradients(scores, grades, lambda_normalisation=normalise)[0])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "shape"),
        ([1.0, -1.0], ("row 1", "-1.0")),
        ([np.nan, 1.0], "row 0"),
        ([0.0, 0.0], ("weights", "0")),
    ],
)
def test_weights_that_weigh_nothing_sensible_are_refused(weights, message):
    with refused(TrainingDataRejected, message):
        gradients([1.0, 2.0], [1, 0], weights=np.array(weights))


@pytest.mark.parametrize("normalise", [True, False])
def test_scores_far_apart_keep_their_precision(normalise):
    # exponentials that count from the top of the list are all alike 600 below it
    scores, grades = [0.0, -700.0, -701.0, -705.0, -706.5], [0, 1, 3, 0, 2]
    g, h = gradients(scores, grades, metric="ndcg@5", lambda_normalisation=normalise)
    expected = naive.lambdas(scores, grades, k=5, normalise=normalise)
    assert g == pytest.approx(expected[0], rel=1e-9, abs=1e-200)
    assert h == pytest.approx(expected[1], rel=1e-9, abs=1e-200)
    g, h = gradients([1e6, 0.0, -1e6, -2e6], [0, 1, 3, 0], metric="ndcg@5", lambda_normalisation=normalise)
    assert np.isfinite(g).all()
    assert np.isfinite(h).all()


def test_queries_without_pairs_have_no_gradient():
    g, h = gradients([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 2, 0, 1, 0, 0], [2, 2, 2])
    assert np.array_equal(g != 0, [False, False, True, True, False, False])
    assert np.array_equal(h != 0, [False, False, True, True, False, False])


def test_one_grade_everywhere_is_refused():
    with pytest.raises(TrainingDataRejected, match="nothing to learn"):
        gradients([1.0, 2.0], [1, 1])
