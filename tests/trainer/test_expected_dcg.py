"""Expected DCG, of drawn orders and of noisy scores: exact values, estimates right on average, symmetries."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.kernels import elementary
from rankmill.trainer.objectives.listwise import expected_dcg
from rankmill.trainer.workers import with_team
from tests import naive_lists as naive
from tests.refusals import refused
from tests.trainer.list_case import SIZES, derivatives, objective_for, random_lists, starts_of
from tests.trainer.planted import fit, small_data

BOTH = ["apxdcg", "apxdcg(samples=4, exact=0)", "stochasticrank(samples=3)"]
SAMPLED = ["apxdcg(samples=3, exact=0)", "stochasticrank(samples=1)", "stochasticrank(noise=0.4, samples=2)"]


def gains_of(grades):
    return [2.0**grade - 1 for grade in grades]


def ideal(grades, k=None):
    return naive.dcg(np.argsort(-np.asarray(grades), kind="stable"), gains_of(grades), k)


def one_list(seed, n, spread=1.0):
    scores, grades = random_lists(seed, [n], spread)
    return scores, grades


def test_normal_quantiles():
    tails = np.logspace(-16, -1, 400)
    for u in [*tails, *np.linspace(0.01, 0.99, 501), *(1 - tails[tails > 1e-14])]:
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


@pytest.mark.parametrize("k", [None, 1, 2, 4])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
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


def test_seven_documents_have_the_expectation_over_all_orders():
    scores, grades = one_list(7, 7)
    loss = objective_for("apxdcg", grades, metric="ndcg@5")
    expected = 1 - naive.expected_dcg(scores, gains_of(grades), 5) / ideal(grades, 5)
    assert loss.losses(scores)[0] == pytest.approx(expected, rel=1e-9)
    g = derivatives(loss, scores)[0]
    for i in range(7):
        assert g[i] == pytest.approx(
            naive.slope(lambda at: loss.losses(np.array(at))[0], scores, i), rel=1e-6, abs=1e-9
        )


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


def mean_and_error(loss, scores, n=3000):
    drawn = np.array([derivatives(loss, scores, step=step) for step in range(1, n + 1)])
    return drawn.mean(axis=0), drawn.std(axis=0) / math.sqrt(n)


@pytest.mark.parametrize("metric", ["dcg", "dcg@1", "dcg@3"])
@pytest.mark.parametrize("samples", [2, 5])
def test_drawn_orders_are_right_on_average(metric, samples):
    scores, grades = one_list(4, 6)
    exact = derivatives(objective_for("apxdcg", grades, metric=metric), scores)
    loss = objective_for(f"apxdcg(samples={samples}, exact=0)", grades, metric=metric)
    mean, error = mean_and_error(loss, scores)
    assert (np.abs(mean - exact) <= 4.5 * error + 1e-9).all()


def test_the_baseline_takes_variance_away():
    # the spread of the plain score function, DCG times d log P, against that of a sample here
    scores, grades = one_list(5, 6)
    gains, rng, n = gains_of(grades), np.random.default_rng(0), 3000
    plain = []
    for _ in range(n):
        order = np.argsort(-(scores + rng.gumbel(size=6)))
        slopes = np.zeros(6)
        for place, i in enumerate(order):
            slopes[i] += 1
            slopes[order[place:]] -= naive.softmax(scores[order[place:]])
        plain.append(naive.dcg(order, gains) * slopes)
    loss = objective_for("apxdcg(samples=4, exact=0)", grades, metric="dcg")
    drawn = [derivatives(loss, scores, step=step)[0] for step in range(1, n + 1)]
    assert 4 * np.var(drawn, axis=0).sum() < 0.7 * np.var(plain, axis=0).sum()


def test_losses_of_long_lists_are_estimated_by_many_orders():
    scores, grades = one_list(6, 6)
    exact = objective_for("apxdcg", grades).losses(scores)[0]
    found = objective_for("apxdcg(samples=20000, exact=0)", grades).losses(scores)[0]
    assert found == pytest.approx(exact, abs=5 * 0.3 / math.sqrt(20000))


def smoothed(scores, gains, noise, k=None):
    """Mean of DCG@k of scores + noise z: given its own score, i is beaten by the others independently."""
    total, n = 0.0, len(scores)
    grid = np.linspace(-9.0, 9.0, 1801)
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
        total += gains[i] * sum((beaten[r] * density).sum() / math.log2(r + 2) for r in range(min(n, k or n)))
    return total


@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize(("noise", "samples"), [(1.0, 1), (0.6, 3)])
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


def test_two_documents_with_noise_have_a_closed_form():
    loss = objective_for("stochasticrank(noise=0.5, samples=20000)", [0, 1], metric="dcg")
    for difference in (0.0, 0.3, -1.0):
        g, h = derivatives(loss, [0.0, difference])
        width = 0.5 * math.sqrt(2)
        density = math.exp(-((difference / width) ** 2) / 2) / math.sqrt(2 * math.pi) / width
        slope = (1 - 1 / math.log2(3)) * density
        assert g == pytest.approx([slope, -slope], rel=0.03)
        assert h == pytest.approx([slope / 0.5] * 2, rel=0.03)  # |jump| phi / noise^2


@pytest.mark.parametrize("objective", BOTH)
@pytest.mark.parametrize("metric", ["ndcg", "dcg@3"])
def test_gradients_of_a_query_sum_to_zero_and_ignore_a_shift(objective, metric):
    scores, grades = random_lists(5)
    scores = np.round(scores * 64) / 64  # sums with 8 are exact
    loss = objective_for(objective, grades, SIZES, metric=metric)
    g, h = derivatives(loss, scores)
    assert np.add.reduceat(g, starts_of(SIZES)[:-1]) == pytest.approx(0.0, abs=1e-12)
    assert (h[1:] > 0).all()
    assert g[0] == h[0] == 0.0  # a list of one
    assert loss.start() == 0.0
    shifted = derivatives(loss, scores + 8.0)
    assert np.array_equal(shifted[0], g)
    assert np.array_equal(shifted[1], h)
    assert np.array_equal(loss.losses(scores + 8.0), loss.losses(scores))


def test_row_order_does_not_matter_where_nothing_is_drawn():
    scores, grades = one_list(6, 7)
    g, h = derivatives(objective_for("apxdcg", grades), scores)
    shuffle = np.random.default_rng(6).permutation(7)
    other = derivatives(objective_for("apxdcg", grades[shuffle]), scores[shuffle])
    assert other[0] == pytest.approx(g[shuffle], rel=1e-10)
    assert other[1] == pytest.approx(h[shuffle], rel=1e-10)


@pytest.mark.parametrize("objective", SAMPLED)
def test_row_order_does_not_matter_on_average_where_orders_are_drawn(objective):
    scores, grades = one_list(6, 8)
    shuffle = np.random.default_rng(6).permutation(8)
    mean, error = mean_and_error(objective_for(objective, grades), scores, 1500)
    other, other_error = mean_and_error(objective_for(objective, grades[shuffle]), scores[shuffle], 1500)
    assert (np.abs(other - mean[:, shuffle]) <= 4.5 * np.hypot(other_error, error[:, shuffle])).all()


@pytest.mark.parametrize("objective", BOTH)
def test_threads_do_not_change_a_bit_and_steps_draw_anew(objective, monkeypatch):
    monkeypatch.setattr(expected_dcg, "_LEAST_WORK", 1)  # let small work be shared out as well
    sizes = np.random.default_rng(4).integers(1, 30, size=40).tolist()
    scores, grades = random_lists(4, sizes)
    loss = objective_for(objective, grades, sizes)
    alone, next_step = derivatives(loss, scores), derivatives(loss, scores, step=2)
    assert not np.array_equal(alone[0], next_step[0])

    def together(team):
        assert all(np.array_equal(a, b) for a, b in zip(alone, derivatives(loss, scores, team=team), strict=True))

    for n_threads in (2, 3):
        with_team(n_threads, together)
    other = objective_for(objective, grades, sizes, seed=8)
    assert not np.array_equal(derivatives(other, scores)[0], alone[0])


@pytest.mark.parametrize("objective", BOTH)
def test_only_ratios_of_weights_matter(objective):
    scores, grades = random_lists(8)
    weights = np.random.default_rng(8).integers(1, 5, size=len(scores)).astype(float)
    plain = objective_for(objective, grades, SIZES, weights=weights)
    g, h = derivatives(plain, scores)
    for scale in (0.25, 2.0**1000):  # powers of two keep every bit
        loss = objective_for(objective, grades, SIZES, weights=weights * scale)
        scaled = derivatives(loss, scores)
        assert np.array_equal(scaled[0], g)
        assert np.array_equal(scaled[1], h)
        assert loss.deviance(scores) == plain.deviance(scores)


@pytest.mark.parametrize("objective", BOTH)
@pytest.mark.parametrize("metric", ["ndcg", "dcg@2"])
def test_scores_far_apart_stay_finite(objective, metric):
    for scores in ([0.0, -600.0, -750.0, 40.0, -1e5], [1e6, 0.0, -1e6, -2e6, 1e6], [-800.0, 0.0, 800.0, 1600.0, 3.0]):
        loss = objective_for(objective, [0, 1, 3, 0, 2], metric=metric)
        g, h = derivatives(loss, scores)
        assert np.isfinite(g).all()
        assert np.isfinite(h).all()
        assert (h >= 0).all()
        assert np.isfinite(loss.losses(np.array(scores))).all()


@pytest.mark.parametrize("objective", BOTH)
def test_a_list_of_one_grade_does_not_count(objective):
    loss = objective_for(objective, [2, 2, 2, 0, 1, 2, 1], [3, 4])
    g, h = derivatives(loss, np.arange(7.0))
    assert not g[:3].any()
    assert not h[:3].any()
    assert loss.losses(np.arange(7.0))[0] == 0.0


@pytest.mark.parametrize("name", ["apxdcg", "stochasticrank"])
def test_what_cannot_be_learnt_from_is_refused(name):
    with refused(TrainingDataRejected, "different grades"):
        objective_for(name, [1, 1, 0], [2, 1])
    with refused(InvalidParameter, "metric 'map'", name):
        objective_for(name, [1, 0], metric="map")


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("apxdcg(samples=1)", ("apxdcg(samples)", "2 .. 100000", "1")),
        ("apxdcg(exact=13)", ("apxdcg(exact)", "0 .. 12", "13")),
        ("stochasticrank(noise=0)", ("stochasticrank(noise)", "0")),
        ("stochasticrank(samples=0)", ("stochasticrank(samples)", "1 .. 100000")),
    ],
)
def test_options_out_of_bounds_are_refused(objective, message):
    with refused(InvalidParameter, message):
        objective_for(objective, [0, 1])


@pytest.mark.parametrize("objective", ["apxdcg", "stochasticrank"])
def test_a_planted_signal_is_found(objective):
    result = fit(
        small_data(), objective=objective, n_rounds=60, learning_rate=0.2, options={"eval_metrics": ["deviance"]}
    )
    history = [record.metrics for record in result.history]
    assert history[0]["valid"]["ndcg@10"] < 0.75
    assert max(of_round["valid"]["ndcg@10"] for of_round in history) > 0.82
    assert history[-1]["train"]["deviance"] < 0.6 * history[0]["train"]["deviance"]
