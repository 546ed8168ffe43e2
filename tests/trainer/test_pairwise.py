"""Losses over pairs against the definition, finite differences and their symmetries."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team
from tests.trainer.pair_case import CASES, build, case, derivatives, expected, merged


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("objective", "parameters"), CASES)
def test_gradients_losses_and_pair_hessians_agree_with_the_definition(objective, parameters, given, weighted):
    rows, scores = case(1, weighted=weighted, given=given)
    built = build(rows, objective, **parameters)
    g, h = derivatives(built, scores)
    found = expected(rows, scores, objective, parameters)
    expected_g, expected_h, expected_c = merged(found, scores)
    assert g == pytest.approx(expected_g, rel=1e-9, abs=1e-12)
    assert h == pytest.approx(expected_h, rel=1e-9, abs=1e-12)
    assert built.losses(scores) == pytest.approx([pairs.loss(scores) for pairs in found], rel=1e-9, abs=1e-12)
    pairs = built.pair_hessians(1, scores, 0.0, Team(1))
    assert (pairs.first.dtype, pairs.second.dtype, pairs.hessian.dtype) == (np.int32, np.int32, np.float64)
    assert (pairs.first < pairs.second).all()
    keys = list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    assert len(set(keys)) == len(keys)
    listed = dict(zip(keys, pairs.hessian.tolist(), strict=True))
    assert listed == pytest.approx({key: c for key, c in expected_c.items() if c > 1e-16}, rel=1e-8, abs=1e-14)
    # the rows of the Hessian sum to 0
    around = np.bincount(pairs.first, pairs.hessian, len(scores))
    around += np.bincount(pairs.second, pairs.hessian, len(scores))
    assert around == pytest.approx(h, rel=1e-9, abs=1e-12)
    for first, last in zip(rows.starts[:-1], rows.starts[1:], strict=True):
        assert g[first:last].sum() == pytest.approx(0.0, abs=1e-11)
    assert (h >= 0).all()


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("objective", "parameters"), CASES)
def test_derivatives_are_those_of_the_frozen_loss(objective, parameters, given):
    rows, scores = case(2, weighted=True, given=given)
    built = build(rows, objective, **parameters)
    g, h = derivatives(built, scores)
    found = expected(rows, scores, objective, parameters)
    step = 1e-5
    for i in range(len(scores)):
        up, down = scores.copy(), scores.copy()
        up[i], down[i] = up[i] + step, down[i] - step
        above, below = (sum(pairs.loss(s) for pairs in found) for s in (up, down))
        assert g[i] == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-7)
        above, below = (merged(found, s)[0][i] for s in (up, down))
        assert h[i] == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("objective", "parameters"), CASES)
def test_a_step_of_one_side_meets_the_exact_hessian_of_the_frozen_loss(objective, parameters, given):
    """L(o_l, 0) and L(0, o_r), one side of random splits at a time; what splits by the loss are chosen for."""
    rows, scores = case(9, weighted=True, given=given)
    built = build(rows, objective, **parameters)
    g, h = derivatives(built, scores)
    pairs = built.pair_hessians(1, scores, 0.0, Team(1))
    found = expected(rows, scores, objective, parameters)

    def loss(side, step):
        return sum(part.loss(scores + step * side) for part in found)

    rng, step = np.random.default_rng(9), 1e-3
    for _ in range(4):
        left = rng.random(len(scores)) < rng.random()
        for side in (left, ~left):
            above, here, below = (loss(side, o) for o in (step, 0.0, -step))
            assert g[side].sum() == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-6)
            exact = h[side].sum() - 2.0 * pairs.hessian[side[pairs.first] & side[pairs.second]].sum()
            assert exact == pytest.approx((above - 2 * here + below) / step**2, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("objective", ["ranknet", "ranknet(ties=true, normalise=query)", "rankboost"])
def test_a_loss_that_knows_no_ranks_is_differentiated_as_it_stands(objective):
    rows, scores = case(3, weighted=True)
    built = build(rows, objective)
    g, h = derivatives(built, scores)
    step = 1e-5
    for i in range(len(scores)):
        up, down = scores.copy(), scores.copy()
        up[i], down[i] = up[i] + step, down[i] - step
        assert g[i] == pytest.approx(
            (built.losses(up).sum() - built.losses(down).sum()) / (2 * step), rel=1e-6, abs=1e-6
        )
        slope = (derivatives(built, up)[0] - derivatives(built, down)[0]) / (2 * step)
        assert h[i] == pytest.approx(slope[i], rel=1e-6, abs=1e-7)


def test_a_pair_that_contradicts_itself_is_pulled_to_the_middle():
    pairs = PreferencePairs(
        np.array([0, 1, 1], np.int32), np.array([1, 0, 2], np.int32), np.array([1.0, 1.0, 1.0]), np.ones(3),
        np.array([0, 3]),
    )  # fmt: skip
    rows = RankedRows(np.zeros(3, np.int32), np.array([0, 3]), [], pairs=pairs)
    for objective in ("ranknet", "rankboost"):
        built = build(rows, objective)
        g, h = derivatives(built, np.array([0.0, 0.0, -5.0]))
        assert abs(g[0]) <= 1e-15
        assert h[0] > 0
        g, _ = derivatives(built, np.array([1.0, 0.0, -5.0]))
        assert g[0] > 0  # the one above is pulled down


def test_ties_of_scores_are_broken_anew_each_step_and_not_by_row():
    n = 40
    rows = RankedRows(np.array([1] * 20 + [0] * 20, np.int32), np.array([0, n]), [])
    built = build(rows, "lambdamart", metric="mrr")
    total = np.zeros(n)
    for step in range(1, 400):
        total += derivatives(built, np.zeros(n), step=step)[1]
    assert total[:20].std() < 0.5 * total[:20].mean()
    first = derivatives(built, np.zeros(n), step=1)[0]
    assert np.array_equal(first, derivatives(built, np.zeros(n), step=1)[0])
    assert not np.array_equal(first, derivatives(built, np.zeros(n), step=2)[0])


@pytest.mark.parametrize("objective", ["lambdamart(pair_fraction=0.3)", "ranknet(pair_fraction=0.3)"])
def test_drawn_pairs_are_right_on_average_and_the_same_for_the_hessians(objective):
    rows, scores = case(6)
    p = {"lambda_normalisation": False, "metric": "map"}
    whole = derivatives(build(rows, objective.partition("(")[0], **p), scores)
    drawn = build(rows, objective, **p)
    mean = np.zeros((2, len(scores)))
    for step in range(1, 1501):
        g, h = derivatives(drawn, scores, step=step)
        mean += np.array([g, h]) / 1500
        if step < 4:
            pairs = drawn.pair_hessians(step, scores, 0.0, Team(1))
            around = np.bincount(pairs.first, pairs.hessian, len(scores))
            around += np.bincount(pairs.second, pairs.hessian, len(scores))
            assert around == pytest.approx(h, rel=1e-9, abs=1e-14)
    assert mean[0] == pytest.approx(whole[0], abs=0.15 * np.abs(whole[0]).max())
    assert mean[1] == pytest.approx(whole[1], abs=0.15 * whole[1].max())


def test_drawn_hessians_are_right_on_average_and_never_below_the_least():
    rows, scores = case(7)
    built = build(rows, "ranknet")
    mean, n_pairs = np.zeros(len(scores)), 0
    for step in range(1, 801):
        _, h = derivatives(built, scores, step=step)
        pairs = built.pair_hessians(step, scores, 0.2, Team(1))
        assert (pairs.hessian >= 0.2).all()
        n_pairs = len(pairs.first)
        mean += np.bincount(pairs.first, pairs.hessian, len(scores)) / 800
        mean += np.bincount(pairs.second, pairs.hessian, len(scores)) / 800
    assert mean == pytest.approx(h, rel=0.08, abs=1e-12)
    assert n_pairs < len(built.pair_hessians(800, scores, 0.0, Team(1)).first)


def test_scores_far_apart_stay_finite():
    rows, scores = case(8, spread=400.0)
    for objective in ("ranknet", "rankboost", "lambdamart"):
        built = build(rows, objective)
        found = merged(expected(rows, scores, objective, {}), scores)
        g, h = derivatives(built, scores)
        assert np.isfinite(built.losses(scores)).all()
        assert g == pytest.approx(found[0], rel=1e-8, abs=1e-12)
        assert h == pytest.approx(found[1], rel=1e-8, abs=1e-12)


def test_the_logarithm_of_one_plus_keeps_its_stated_error():
    z = np.concatenate([np.logspace(-300, 0, 3000), [0.0]])
    found = np.array([_kernels._log_one_plus(v) for v in z])
    assert np.max(np.abs(found - np.log1p(z)) / np.maximum(np.log1p(z), 1e-320)) <= 5e-12
