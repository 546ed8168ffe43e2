"""The best round by a stop metric that is smoothed over rounds."""

from math import inf, nan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankmill.trainer.rounds.early_stopping import EarlyStopping
from tests.trainer.planted import fit, small_data

SMOOTH = {"learning_rate": 0.5, "n_rounds": 60, "early_stopping_rounds": 6, "stop_window": 8}


def best_by_definition(values, window, patience, sign=1.0, least=0.0):
    """Return the best round and how many are trained: weights (1 - a)^age, the oldest known value counting for all
    before it."""
    share = 2.0 / (window + 1)
    best, best_value, known = 0, -inf, []
    for number, value in enumerate(values, start=1):
        if not np.isnan(value):
            known.append(value)
            n = len(known)
            weights = np.array([share * (1.0 - share) ** age for age in range(n)])
            weights[-1] = (1.0 - share) ** (n - 1)  # of the first value
            mean = sign * float(weights @ known[::-1])
            if best == 0 or mean > best_value + least + 1e-12:
                best, best_value = number, mean
        if patience and number - best >= patience:
            return best, number
    return best, len(values)


@given(
    st.lists(st.sampled_from([nan, *(i / 8 for i in range(9))]), min_size=1, max_size=40),
    st.integers(2, 20), st.integers(0, 9), st.booleans(), st.sampled_from([0.0, 0.1]),
)  # fmt: skip
def test_it_is_the_best_of_the_moving_means(values, window, patience, higher, least):
    stopping = EarlyStopping(patience, higher, min_improvement=least + 1e-12, window=window)
    trained = next((n for n, value in enumerate(values, start=1) if stopping.update(n, value)), len(values))
    expected = best_by_definition(values, window, patience, 1.0 if higher else -1.0, least)
    assert (stopping.best_round, trained) == expected


def test_training_keeps_the_round_that_the_smoothed_curve_says():
    found, raw = fit(small_data(), **SMOOTH), fit(small_data(), **{**SMOOTH, "stop_window": 1})
    values = [record.metrics["valid"]["ndcg@10"] for record in found.history]
    assert (found.best_round, len(found.history)) == best_by_definition(values, 8, 6)
    assert found.best_round == found.forest.n_rounds > raw.best_round
    assert raw.history == found.history[: len(raw.history)]
    assert found.forest.parameters["stop_window"] == 8
    assert "stop_window" not in raw.forest.parameters
