"""The sign-flip test: against all choices of signs, against the definition with the same bits, and as a valid test."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from rankmill.scorer.metrics.significance import EXACT_UP_TO, FLIP_SEED, holm, sign_flip_p


def by_hand(differences, choices):
    """Share of the choices of signs whose sum is at least as far from 0; in exact numbers, of two decimals."""
    exact = [Fraction(round(100 * d), 100) for d in differences]
    observed = abs(sum(exact))
    return sum(abs(sum(s * d for s, d in zip(signs, exact, strict=True))) >= observed for signs in choices)


def drawn(n, flips, seed=FLIP_SEED):
    """The signs of the definition: bit q % 64 of number b of the Philox stream with key (seed, q // 64)."""
    raw = [np.random.Philox(key=np.array([seed, w], np.uint64)).random_raw(flips) for w in range(-(-n // 64))]
    for b in range(flips):
        yield [-1 if (int(raw[q // 64][b]) >> (q % 64)) & 1 else 1 for q in range(n)]


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_few_queries_are_counted_out(n):
    """Tenths and ties of sums, which doubles get wrong: .1 + .2 is not .3 there."""
    rng = np.random.default_rng(n)
    for _ in range(20):
        found = rng.integers(-3, 4, n) / 10
        choices = itertools.product((1, -1), repeat=n)
        assert sign_flip_p(found[None])[0] == by_hand(found, choices) / 2**n


@pytest.mark.parametrize("n", [EXACT_UP_TO + 1, 64, 65, 150])
def test_more_queries_are_drawn_as_the_definition_says(n):
    rng = np.random.default_rng(n)
    found = np.round(rng.normal(0.1, 1.0, n), 2) + 0.01 * (rng.random(n) < 0.1)
    found[found == 0] = 0.5
    at_least = by_hand(found, drawn(n, 400))
    assert sign_flip_p(found[None], flips=400)[0] == (1 + at_least) / 401


def test_queries_that_do_not_differ_or_count_change_nothing_but_the_signs_drawn():
    rng = np.random.default_rng(4)
    found = np.round(rng.normal(0.3, 1.0, 12), 2)
    longer = np.zeros(500)
    longer[rng.choice(500, 12, replace=False)] = found
    longer[longer == 0] = rng.choice([0.0, np.nan], np.count_nonzero(longer == 0))
    assert sign_flip_p(longer[None])[0] == sign_flip_p(found[None])[0]
    assert sign_flip_p(np.zeros((1, 9)))[0] == 1.0
    assert sign_flip_p(np.full((1, 9), np.nan))[0] == 1.0


def test_p_knows_no_direction_and_no_scale():
    rng = np.random.default_rng(5)
    found = rng.normal(0.05, 1.0, (3, 900))
    p = sign_flip_p(found, flips=2000)
    assert (p == sign_flip_p(-found, flips=2000)).all()
    assert (p == sign_flip_p(1024.0 * found, flips=2000)).all()
    assert (p[1:] == sign_flip_p(found[1:], flips=2000)).all()  # a row's p is its own
    assert sign_flip_p(np.ones((1, 900)), flips=2000)[0] == 1 / 2001


def test_equal_rankings_are_called_different_as_often_as_the_level_says():
    """Under the null p <= a with probability a at most; skewed differences with random signs."""
    rng = np.random.default_rng(6)
    found = rng.exponential(1.0, (400, 40)) * rng.choice([-1.0, 1.0], (400, 40))
    p = sign_flip_p(found, flips=500)
    for level in (0.05, 0.2, 0.5):
        deviation = 3 * np.sqrt(level * (1 - level) / 400)
        assert level - deviation - 0.01 <= np.mean(p <= level) <= level + deviation


def test_holm_is_its_definition():
    rng = np.random.default_rng(7)
    for m in (1, 2, 5):
        for _ in range(50):
            p = rng.integers(1, 40, m) / 100
            adjusted = holm(p.tolist())
            for level in rng.random(20):
                ordered = sorted(range(m), key=lambda i: p[i])
                rejected = set()
                for done, i in enumerate(ordered):
                    if (m - done) * p[i] > level:
                        break
                    rejected.add(i)
                assert rejected == {i for i in range(m) if adjusted[i] <= level}
