"""Weights that few queries cannot fool: the best ones where the queries agree, near to even where they do not."""

import numpy as np
import pytest

from rankmill.trainer.candidates.steady_weights import LEAST_SHARE, STEPS, mean_of_best, mixes_of, steady_shares


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_every_mix_of_twelfths_is_tried_once_and_the_even_one_first(k):
    mixes = mixes_of(k)
    every = {mix for mix in np.ndindex(*[STEPS + 1] * k) if sum(mix) == STEPS}
    assert sorted(map(tuple, mixes.tolist())) == sorted(every)
    assert mixes[0].tolist() == [STEPS // k] * k


def test_a_model_that_is_better_on_every_query_is_taken_alone_and_equal_ones_get_equal_shares():
    mixes = mixes_of(3)
    for best in range(3):
        values = np.repeat((mixes[:, best] / STEPS)[:, None], 5, axis=1)
        assert mean_of_best(mixes, values)[best] == 1.0
    assert mean_of_best(mixes, np.full((len(mixes), 40), 0.5)) == (1 / 3, 1 / 3, 1 / 3)
    assert mean_of_best(mixes, np.full((len(mixes), 40), np.nan)) == (1 / 3, 1 / 3, 1 / 3)  # no query counts


def test_the_fewer_queries_the_nearer_to_even():
    """Of two models one is better by .02 in the mean, with noise of .1 a query: with few queries that may be luck."""
    mixes, distances = mixes_of(2), []
    for n in (10, 100, 10_000):
        shares = []
        for seed in range(20):
            noise = np.random.default_rng([n, seed]).normal(scale=0.1, size=n) + 0.02
            shares.append(mean_of_best(mixes, (mixes[:, :1] / STEPS) * noise)[0])
        distances.append(np.mean(shares))
    assert 0.5 < distances[0] < distances[1] < distances[2]
    assert distances[0] < 0.8
    assert distances[2] > 0.99


def test_a_share_that_is_too_small_to_pay_for_its_scoring_is_none_and_the_others_sum_to_one():
    rng = np.random.default_rng(3)
    for _ in range(20):
        gains = rng.normal(size=(3, 30)) + np.array([[0.5], [0.4], [-0.4]])
        shares = mean_of_best(mixes_of(3), mixes_of(3) @ gains)
        assert sum(shares) == pytest.approx(1.0)
        assert all(share == 0.0 or share >= LEAST_SHARE for share in shares)


def test_the_scale_of_the_metric_and_queries_that_do_not_count_change_nothing():
    values = np.random.default_rng(4).random((len(mixes_of(2)), 50))
    found = mean_of_best(mixes_of(2), values)
    assert mean_of_best(mixes_of(2), np.ldexp(values, 40)) == found
    with_others = np.concatenate([values, np.full((len(values), 3), np.nan)], axis=1)
    assert mean_of_best(mixes_of(2), with_others) == found


def test_a_loss_is_minimised():
    scores = [np.zeros(4), np.ones(4)]
    assert steady_shares(scores, lambda scored: scored, higher_is_better=True) == (0.0, 1.0)
    assert steady_shares(scores, lambda scored: scored, higher_is_better=False) == (1.0, 0.0)
