"""Two rankings of the same queries: laws of the difference, its interval, and what it would take to be sure."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from rankmill.scorer.metrics import significance
from rankmill.scorer.metrics.significance import (
    BOOTSTRAP_SEED,
    EXACT_UP_TO,
    FLIP_SEED,
    MOST_SHOWN,
    REPLICATES,
    holm,
    queries_for,
    sign_flip_p,
)
from tests import naive_gate
from tests.refusals import refused


def case(seed, n=60, skipped=7, shift=0.02):
    rng = np.random.default_rng(seed)
    other = rng.random(n).round(3)
    candidate = np.clip(other + rng.normal(shift, 0.1, n) * (rng.random(n) < 0.7), 0, 1)
    gone = rng.choice(n, skipped, replace=False)
    other[gone] = candidate[gone] = math.nan
    return candidate, other, pa.array([f"q{i:03}" for i in range(n)])


def compare_paired(candidate, other, qids, **options):
    """Compare queries that can all differ, unless said otherwise."""
    options.setdefault("can_differ", np.ones(len(candidate), dtype=bool))
    return significance.compare_paired(candidate, other, qids, **options)


def test_the_kernel_and_a_plain_loop_agree():
    candidate, other, qids = case(1)
    found = compare_paired(candidate, other, qids)
    assert found is not None
    kept = [i for i, value in enumerate(candidate) if not math.isnan(value)]
    expected = naive_gate.paired(
        {qids[i].as_py(): candidate[i] for i in kept},
        {qids[i].as_py(): other[i] for i in kept},
        REPLICATES,
        BOOTSTRAP_SEED,
    )
    assert found.n_queries == len(kept)
    assert found.interval == expected["interval"]
    assert (found.wins, found.ties, found.losses) == tuple(expected[name] for name in ("wins", "ties", "losses"))
    assert found.difference == pytest.approx(expected["difference"], rel=1e-15)
    assert found.effect_size == pytest.approx(expected["effect_size"], rel=1e-12)
    assert found.wins + found.ties + found.losses == found.n_queries


def test_the_worst_queries_are_the_largest_losses_in_order():
    candidate, other, qids = case(6, n=200, shift=-0.05)
    found = compare_paired(candidate, other, qids)
    assert found is not None
    lost = sorted((c - o, q) for c, o, q in zip(candidate, other, qids.to_pylist(), strict=True) if c - o < -1e-9)
    assert [(row.difference, row.qid) for row in found.worst] == lost[:MOST_SHOWN]
    ordered = sorted(x for x in candidate - other if not math.isnan(x))
    assert found.quantiles["0.5"] == ordered[math.ceil(0.5 * len(ordered)) - 1]
    assert list(found.quantiles.values()) == sorted(found.quantiles.values())


def test_other_queries_are_refused_and_too_few_give_nothing():
    candidate, other, qids = case(7)
    hole = other.copy()
    hole[np.flatnonzero(~np.isnan(hole))[0]] = math.nan
    with refused(ValueError, "queries"):
        compare_paired(candidate, hole, qids)
    with refused(ValueError, "queries"):
        compare_paired(candidate, other[:-1], qids)
    one = np.array([0.5, math.nan])
    assert compare_paired(one, one, qids) is None


def test_so_many_queries_pass_four_times_in_five():
    """Draw as many queries as the hint says from a population of models that are equal: 80 % of the intervals pass."""
    candidate, other, _ = case(8, n=4000, skipped=0, shift=0.0)
    population = candidate - other - (candidate - other).mean()
    rng = np.random.default_rng(9)
    few = rng.choice(population, 100)
    found = compare_paired(few - few.mean(), np.zeros(100), pa.array(list(map(str, range(100)))))
    assert found is not None
    margin = (found.difference - found.interval[0]) / 2
    needed = queries_for(margin, found)
    assert needed is not None
    passed = 0
    for _ in range(200):
        drawn = rng.choice(population, needed)
        standard = drawn.std(ddof=1) / math.sqrt(needed)
        passed += drawn.mean() - 1.96 * standard > -margin
    spread = few.std(ddof=1) / population.std()  # what the hint could know
    assert spread == pytest.approx(1.0, abs=0.25)
    assert 0.6 < passed / 200 < 0.95


def test_the_hint_knows_when_there_are_enough_and_when_no_number_is():
    candidate, other, qids = case(8, n=400, skipped=0, shift=0.0)
    found = compare_paired(candidate, other, qids)
    assert found is not None
    width = found.difference - found.interval[0]
    assert queries_for(width * 1.01, found) is None
    assert queries_for(0.0, found) is None
    assert queries_for(0.01, found, difference=-0.02) is None
    assert queries_for(width, found, difference=width) is None
    assert queries_for(width / 4, found, difference=width / 4) == queries_for(width / 2, found) == 3300


def test_queries_that_cannot_differ_change_no_figure():
    """3,001 ties that mean nothing do not dilute 4 clear losses."""
    candidate, other = np.array([0.4, 0.5, 0.2, 0.3]), np.array([0.9, 0.8, 0.6, 0.7])
    qids = pa.array([f"q{i}" for i in range(3005)])
    alone = compare_paired(candidate, other, qids)
    same = np.ones(3001)
    mask = np.arange(3005) < 4
    found = compare_paired(np.append(candidate, same), np.append(other, same), qids, can_differ=mask)
    assert found == alone
    assert found is not None
    assert (found.n_queries, found.wins, found.ties, found.losses) == (4, 0, 0, 4)
    assert found.interval[1] < 0.0
    assert compare_paired(same, same, qids, can_differ=mask[:3001] & False) is None


def test_rounding_is_no_difference_and_has_no_effect():
    """Sums of the same terms in another order differ in their last bit, all in one direction."""
    other = np.full(54, 1.0)
    found = compare_paired(other + 2e-16 * np.arange(54), other, pa.array(list(map(str, range(54)))))
    assert found is not None
    assert (found.difference, found.interval, found.effect_size, found.ties) == (0.0, (0.0, 0.0), None, 54)
    shift = compare_paired(other + 0.5 + 2e-16 * np.arange(54), other, pa.array(list(map(str, range(54)))))
    assert shift is not None
    assert (shift.effect_size, shift.wins) == (None, 54)


# ---- The sign-flip test: against all choices of signs, against the definition with the same bits, and as


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
