"""YetiRank against the definition: its permutations, their law, and what neighbours in them weigh."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from rankmill.trainer.objectives.pairwise import _kernels, yetirank
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.workers import Team, with_team
from tests.trainer.fixed import fixed
from tests.trainer.pair_case import case, derivatives


def build(rows, options="", **parameters):
    return objective_of(rows, fixed(objective=f"yetirank{options}", **parameters))


def frozen(rows, scores, step, *, permutations=10, decay=0.85, gumbel=False, sigma=1.0, seed=7):
    """(row above, row below, weight) of all pairs, from noise written out by its definition."""
    key, found = _kernels.random_bits(np.uint64(seed), step), []
    gains = 2.0**rows.grades - 1
    weights = np.ones(rows.n_rows) if rows.weights is None else rows.weights / rows.weights.mean()
    of_query = np.ones(rows.n_queries) if rows.query_weights is None else rows.query_weights / rows.query_weights.mean()
    for q, (first, last) in enumerate(itertools.pairwise(rows.starts)):
        for t in range(permutations):
            shuffle = _kernels.random_bits(np.uint64(key), t + 1)
            noisy = {}
            for row in range(first, last):
                u = ((int(_kernels.random_bits(np.uint64(shuffle), row)) >> 12) + 0.5) / 2**52
                noisy[row] = sigma * scores[row] + (-math.log(-math.log(u)) if gumbel else math.log(u / (1 - u)))
            order = sorted(noisy, key=lambda row: -noisy[row])
            for place, (a, b) in enumerate(itertools.pairwise(order)):
                high, low = (a, b) if gains[a] >= gains[b] else (b, a)
                weight = decay**place * (gains[high] - gains[low]) / permutations
                weight *= weights[a] * weights[b] * of_query[q]
                if weight > 0:
                    found.append((high, low, weight))
    return found


def loss(pairs, scores, sigma=1.0):
    return sum(w * math.log1p(math.exp(-sigma * (scores[a] - scores[b]))) for a, b, w in pairs)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("options", "written", "sigma"),
    [
        ({}, "", 1.0),
        ({"permutations": 3, "decay": 0.5}, "(permutations=3, decay=0.5)", 2.0),
        ({"gumbel": True}, "(noise=gumbel)", 1.0),
    ],
)
def test_gradients_hessians_and_losses_agree_with_the_definition(options, written, sigma, weighted):
    rows, scores = case(1, weighted=weighted)
    built = build(rows, written, sigma=sigma)
    g, h = derivatives(built, scores, step=4)
    pairs = frozen(rows, scores, 4, sigma=sigma, **options)
    step = 1e-5
    c = {}
    for high, low, weight in pairs:
        rho = 1 / (1 + math.exp(sigma * (scores[high] - scores[low])))
        key = (min(high, low), max(high, low))
        c[key] = c.get(key, 0.0) + weight * sigma**2 * rho * (1 - rho)
    for i in range(len(scores)):
        up, down = scores.copy(), scores.copy()
        up[i], down[i] = up[i] + step, down[i] - step
        assert g[i] == pytest.approx(
            (loss(pairs, up, sigma) - loss(pairs, down, sigma)) / (2 * step), rel=1e-6, abs=1e-7
        )
        assert h[i] == pytest.approx(sum(v for key, v in c.items() if i in key), rel=1e-9, abs=1e-13)
    listed = built.pair_hessians(4, scores, 0.0, Team(1))
    keys = list(zip(listed.first.tolist(), listed.second.tolist(), strict=True))
    assert dict(zip(keys, listed.hessian.tolist(), strict=True)) == pytest.approx(c, rel=1e-9)
    assert len(set(keys)) == len(keys)
    at_zero = frozen(rows, scores, 0, sigma=sigma, **options)
    assert built.losses(scores).sum() == pytest.approx(loss(at_zero, scores, sigma), rel=1e-9)
    for first, last in itertools.pairwise(rows.starts):
        assert g[first:last].sum() == pytest.approx(0.0, abs=1e-12)


def test_gumbel_noise_draws_from_the_plackett_luce_model():
    scores = np.array([0.5, 0.0, -0.7])
    expected = np.exp(scores) / np.exp(scores).sum()
    firsts, n = np.zeros(3), 6000
    for step in range(n):
        key = _kernels.random_bits(np.uint64(1), step)
        u = [((int(_kernels.random_bits(np.uint64(key), row)) >> 12) + 0.5) / 2**52 for row in range(3)]
        firsts[np.argmax(scores - np.log(-np.log(u)))] += 1
    assert firsts / n == pytest.approx(expected, abs=5 * math.sqrt(0.25 / n))


def test_threads_do_not_change_a_bit_and_steps_do(monkeypatch):
    monkeypatch.setattr(yetirank, "_LEAST_WORK", 1)
    rows, scores = case(2)

    def run(team):
        built = build(rows)
        g, h = derivatives(built, scores, step=2, team=team)
        return g, h, built.pair_hessians(2, scores, 0.1, team).hessian

    alone = run(Team(1))
    for n_threads in (2, 3):
        for one, other in zip(alone, with_team(n_threads, run), strict=True):
            assert np.array_equal(one, other)
    assert not np.array_equal(alone[0], derivatives(build(rows), scores, step=3)[0])


def test_drawn_hessians_are_right_on_average():
    rows, scores = case(3)
    built = build(rows)
    mean, sums = np.zeros(len(scores)), np.zeros(len(scores))
    for step in range(1, 601):
        sums += derivatives(built, scores, step=step)[1] / 600
        pairs = built.pair_hessians(step, scores, 0.05, Team(1))
        assert (pairs.hessian >= 0.05).all()
        for rows_of_pair in (pairs.first, pairs.second):
            mean += np.bincount(rows_of_pair, pairs.hessian, len(scores)) / 600
    assert mean == pytest.approx(sums, rel=0.1, abs=1e-3)
