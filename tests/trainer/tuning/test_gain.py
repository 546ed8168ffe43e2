"""The gain of a search: its slow twin, and what the correction does where the truth is known."""

import numpy as np
import pytest

from rankmill.trainer.tuning.gain import LEAST_QUERIES, REPLICATES, SEED, gain_of
from tests.naive_tuning import gain

UNIT = 1e-6


def measured(seed, trials, queries, better=0.0):
    """Values of queries that all trials find equally difficult, but for noise; the last trial is ``better``."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.3, 0.7, queries) + rng.normal(scale=0.05, size=(trials, queries))
    values[-1] += better
    return np.rint(values / UNIT).astype(np.int64)


def best_of(values):
    return int(np.argmax(values.sum(axis=1)))


@pytest.mark.parametrize(("trials", "queries", "better"), [(2, 5, 0.0), (7, 12, 0.05), (4, 30, -0.01), (1, 6, 0.0)])
def test_the_gain_is_that_of_its_definition(trials, queries, better):
    values = measured(1, trials, queries, better)
    best = best_of(values)
    found = gain_of(values, best, UNIT)
    expected = [UNIT * number for number in gain(values.tolist(), best, REPLICATES, SEED)]
    assert [found.observed, found.corrected, found.low, found.high] == pytest.approx(expected, abs=1e-12)
    assert found.low <= found.corrected <= found.high
    assert found.queries == queries


def test_equal_trials_gain_nothing_once_corrected():
    found = [gain_of(values, best_of(values), UNIT) for values in (measured(seed, 30, 40) for seed in range(30))]
    assert np.mean([each.observed for each in found]) > 0.01  # the luckiest of 30
    assert abs(np.mean([each.corrected for each in found])) < 0.002
    assert np.mean([each.low <= 0.0 <= each.high for each in found]) >= 0.9


def test_a_trial_that_is_better_keeps_its_gain():
    values = measured(3, 10, 400, better=0.03)
    found = gain_of(values, best_of(values), UNIT)
    assert found.corrected == pytest.approx(0.03, abs=0.008)
    assert found.noise < 0.2
    assert 0.0 < found.low < 0.03 < found.high


def test_the_order_of_queries_and_a_shift_of_all_trials_change_no_truth():
    values = measured(4, 5, 20, better=0.02)
    found = gain_of(values, best_of(values), UNIT)
    assert gain_of(values + 12345, best_of(values), UNIT) == found
    assert gain_of(values * 2, best_of(values), UNIT / 2) == found
    turned = gain_of(values[:, ::-1], best_of(values), UNIT)
    assert turned.observed == pytest.approx(found.observed)
    assert turned.corrected == pytest.approx(found.corrected, abs=0.005)


def test_copies_of_the_options_as_given_gain_exactly_nothing():
    found = gain_of(np.repeat(measured(5, 1, 9), 4, axis=0), 0, UNIT)
    assert (found.observed, found.corrected, found.low, found.high, found.noise) == (0.0, 0.0, 0.0, 0.0, None)


def test_few_queries_have_no_corrected_gain():
    assert gain_of(measured(6, 3, LEAST_QUERIES - 1), 0, UNIT) is None
