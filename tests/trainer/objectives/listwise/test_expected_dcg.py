"""Expected DCG, of drawn orders and of noisy scores: exact values, estimates right on average, symmetries."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest

from rankmill.foundation.errors import InputError
from rankmill.foundation.kernels import elementary
from rankmill.foundation.kernels.randoms import random_bits, uniform
from rankmill.trainer.objectives.listwise.list_loss import DRAWS, key_of
from tests import naive_lists as naive
from tests.refusals import refused
from tests.trainer.objectives.loss_cases import SIZES, derivatives, objective_for, random_lists

SAMPLED = ["apxdcg(samples=3, exact=0)", "stochasticrank(samples=1)", "stochasticrank(noise=0.4, samples=2)"]


def gains_of(grades):
    return [2.0**grade - 1 for grade in grades]


def ideal(grades, k=None):
    return naive.dcg(np.argsort(-np.asarray(grades), kind="stable"), gains_of(grades), k)


def chances_of(metric, grades):
    """Chances to stop the reader of err and mrr, by their definitions."""
    if metric.startswith("mrr"):
        return [float(grade >= 1) for grade in grades]
    return [(2.0**grade - 1) / 2.0 ** max(grades) for grade in grades]


def one_list(seed, n, spread=1.0):
    scores, grades = random_lists(seed, [n], spread)
    return scores, grades


def test_normal_quantiles():
    tails = np.logspace(-16, -1, 100)
    for u in [*tails, *np.linspace(0.01, 0.99, 99), *(1 - tails[tails > 1e-14])]:
        expected = NormalDist().inv_cdf(u)
        assert elementary.normal(u) == pytest.approx(expected, rel=1e-10, abs=1e-13)


def test_the_twin_s_orders_have_probabilities_that_sum_to_one_and_its_gradient_is_that_of_its_value():
    scores, grades = one_list(0, 5)
    orders = list(itertools.permutations(range(5)))
    assert math.fsum(math.exp(naive.log_likelihood(scores, order)) for order in orders) == pytest.approx(1.0, rel=1e-13)
    gradient = naive.expected_dcg_gradient(scores, gains_of(grades), 3)
    for i in range(5):

        def value(at):
            return naive.expected_dcg(at, gains_of(grades), 3)

        assert gradient[i] == pytest.approx(naive.slope(value, scores, i), rel=1e-8, abs=1e-10)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, None), (4, 2), (5, 4), (6, None)])
def test_short_lists_have_the_expectation_over_all_orders(n, k):
    scores, grades = one_list(n, n)
    metric = "dcg" if k is None else f"dcg@{k}"
    loss = objective_for("apxdcg", grades, metric=metric)
    expected = ideal(grades, k) - naive.expected_dcg(scores, gains_of(grades), k)
    assert loss.losses(scores)[0] == pytest.approx(expected, rel=1e-9)
    g, h = derivatives(loss, scores)
    assert g == pytest.approx(-np.array(naive.expected_dcg_gradient(scores, gains_of(grades), k)), rel=1e-8, abs=1e-11)
    assert (h > 0).all()
    of_ndcg = objective_for("apxdcg", grades, metric=metric.replace("dcg", "ndcg"))
    assert of_ndcg.losses(scores)[0] == pytest.approx(expected / ideal(grades, k), rel=1e-9)
    assert derivatives(of_ndcg, scores)[0] == pytest.approx(g / ideal(grades, k), rel=1e-12)


def test_gradient_is_that_of_the_losses_with_weights():
    sizes = [3, 1, 5, 2]
    scores, grades = random_lists(3, sizes)
    weights = np.random.default_rng(3).random(11) + 0.1
    loss = objective_for(
        "apxdcg", grades, sizes, weights=weights, query_weights=np.array([1.0, 2, 3, 0]), metric="ndcg@3", gain="linear"
    )
    g = derivatives(loss, scores)[0]
    for i in range(11):
        expected = naive.slope(lambda at: math.fsum(loss.losses(np.array(at))), scores, i)
        assert g[i] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    means = np.array([weights[:3].mean(), 0, weights[4:9].mean() * 3])
    parts = loss.losses(scores)
    plain = objective_for("apxdcg", grades, sizes, metric="ndcg@3", gain="linear").losses(scores)
    assert parts[0] / plain[0] * means[2] == pytest.approx(parts[2] / plain[2] * means[0], rel=1e-12)
    assert parts[3] == 0.0


def mean_and_error(loss, scores, n=1500):
    drawn = np.array([derivatives(loss, scores, step=step) for step in range(1, n + 1)])
    return drawn.mean(axis=0), drawn.std(axis=0) / math.sqrt(n)


@pytest.mark.parametrize(("metric", "samples"), [("dcg", 2), ("dcg@3", 5)])
def test_drawn_orders_are_right_on_average(metric, samples):
    scores, grades = one_list(4, 6)
    exact = derivatives(objective_for("apxdcg", grades, metric=metric), scores)
    loss = objective_for(f"apxdcg(samples={samples}, exact=0)", grades, metric=metric)
    mean, error = mean_and_error(loss, scores)
    assert (np.abs(mean - exact) <= 4.5 * error + 1e-9).all()


def test_losses_of_long_lists_are_estimated_by_many_orders():
    scores, grades = one_list(6, 6)
    exact = objective_for("apxdcg", grades).losses(scores)[0]
    found = objective_for("apxdcg(samples=20000, exact=0)", grades).losses(scores)[0]
    assert found == pytest.approx(exact, abs=5 * 0.3 / math.sqrt(20000))


def smoothed(scores, gains, noise, k=None):
    """Mean of DCG@k of scores + noise z: given its own score, i is beaten by the others independently."""
    total, n = 0.0, len(scores)
    grid = np.linspace(-9.0, 9.0, 601)
    for i in range(n):
        beaten = np.zeros((n, len(grid)))  # probability that so many others are above
        beaten[0] = 1.0
        for j in range(n):
            if j != i:
                at = (scores[i] - scores[j]) / noise + grid
                above = np.array([0.5 * math.erfc(x / math.sqrt(2)) for x in at])
                beaten[1:] = beaten[1:] * (1 - above) + beaten[:-1] * above
                beaten[0] *= 1 - above
        density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
        worth = [1 / math.log2(r + 2) for r in range(min(n, k or n))]
        total += gains[i] * sum((beaten[r] * density).sum() * worth[r] for r in range(len(worth)))
    return total


@pytest.mark.parametrize(("k", "noise", "samples"), [(None, 1.0, 1), (2, 0.6, 3)])
def test_noisy_scores_are_right_on_average(k, noise, samples):
    scores, grades = one_list(8, 5)
    gains = gains_of(grades)
    loss = objective_for(
        f"stochasticrank(noise={noise}, samples={samples})", grades, metric="dcg" if k is None else f"dcg@{k}"
    )
    mean, error = mean_and_error(loss, scores)
    for i in range(5):
        expected = -naive.slope(lambda at: smoothed(at, gains, noise, k), scores, i)
        assert mean[0][i] == pytest.approx(expected, abs=4.5 * error[0][i])
    many = objective_for(
        f"stochasticrank(noise={noise}, samples=20000)", grades, metric="dcg" if k is None else "dcg@2"
    )
    expected = ideal(grades, k) - smoothed(scores, gains, noise, k)
    assert many.losses(scores)[0] == pytest.approx(expected, abs=5 * ideal(grades, k) / math.sqrt(20000))


@pytest.mark.parametrize("metric", ["err", "err@2", "mrr", "mrr@1", "dcg@2"])
@pytest.mark.parametrize("noise", [0.4])
def test_each_draw_of_noise_agrees_with_the_change_of_the_metric(metric, noise):
    name, _, k = metric.partition("@")
    k = int(k) if k else None
    for seed, n in ((1, 2), (2, 5), (3, 9)):
        scores, grades = one_list(seed, n)
        key = int(random_bits(np.uint64(random_bits(key_of(7, 4, DRAWS), 0)), 0))
        z = [NormalDist().inv_cdf(uniform(np.uint64(random_bits(np.uint64(key), i)))) for i in range(n)]
        noisy = scores + noise * np.array(z)
        if name == "dcg":
            gains = gains_of(grades)
            slopes, sizes = naive.smoothed_slopes(scores, noisy, noise, lambda at, gains=gains: naive.dcg(at, gains, k))
        else:
            chances = chances_of(name, grades)
            slopes, sizes = naive.smoothed_slopes(
                scores, noisy, noise, lambda at, chances=chances: naive.cascade(at, chances, k)
            )
        g, h = derivatives(
            objective_for(f"stochasticrank(noise={noise}, samples=1)", grades, metric=metric), scores, step=4
        )
        assert g == pytest.approx(np.mean(slopes) - np.array(slopes), rel=1e-8, abs=1e-11)
        assert h == pytest.approx(sizes, rel=1e-8, abs=1e-11)


def test_max_grade_is_the_scale_of_err():
    scores, grades = random_lists(5)
    built = [objective_for(f"stochasticrank(max_grade={top})", grades, SIZES, metric="err") for top in (0, 3, 4)]
    of_data, same, higher = (derivatives(loss, scores)[0] for loss in built)
    assert np.array_equal(of_data, same)
    assert not np.array_equal(of_data, higher)
    with refused(InputError, "grade 3", "max_grade 2"):
        objective_for("stochasticrank(max_grade=2)", grades, SIZES, metric="err")


@pytest.mark.parametrize(("objective", "metric"), [(SAMPLED[0], "ndcg@10"), (SAMPLED[2], "err@5")])
def test_row_order_does_not_matter_on_average_where_orders_are_drawn(objective, metric):
    scores, grades = one_list(6, 8)
    shuffle = np.random.default_rng(6).permutation(8)
    mean, error = mean_and_error(objective_for(objective, grades, metric=metric), scores, 800)
    other, other_error = mean_and_error(objective_for(objective, grades[shuffle], metric=metric), scores[shuffle], 800)
    assert (np.abs(other - mean[:, shuffle]) <= 4.5 * np.hypot(other_error, error[:, shuffle])).all()
