"""Losses over pairs against the definition, their symmetries, what they learn and what they refuse."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.trainer.data.rows import RankedRows, places_of
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.team import Team
from tests.refusals import refused
from tests.trainer import planted
from tests.trainer.objectives.loss_cases import CASES, build, case, derivatives, expected, merged


@pytest.mark.parametrize(("given", "weighted"), [(False, True), (True, False)])
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


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"lambda_normalisation": True},
        {"truncation": 2},
        {"sigma": 2.5},
        {"lambda_normalisation": True, "sigma": 2.0},
    ],
    ids=str,
)
def test_every_list_of_up_to_four_grades_agrees_with_the_definition(parameters):
    lists = [each for n in (2, 3, 4) for each in itertools.product((0, 1, 3), repeat=n) if len(set(each)) > 1]
    starts = np.concatenate(([0], np.cumsum([len(each) for each in lists])))
    rng = np.random.default_rng(1)
    scores = np.concatenate([rng.permutation(len(each)) + 0.5 * rng.random(len(each)) for each in lists])
    rows = RankedRows(np.concatenate(lists).astype(np.int32), starts, ())
    for k in (1, 2, 10):
        given = {"metric": f"ndcg@{k}", "truncation": 10**6, "lambda_normalisation": False, **parameters}
        g, h = derivatives(build(rows, "lambdamart", **given), scores)
        expected_g, expected_h, _ = merged(expected(rows, scores, "lambdamart", given), scores)
        assert g == pytest.approx(expected_g, rel=1e-9, abs=1e-14)
        assert h == pytest.approx(expected_h, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(
    "objective", ["ranknet", "ranknet(ties=true, normalise=query)", "rankboost", "lambdamart", "lambdaloss"]
)
def test_the_twin_s_derivatives_are_those_of_its_loss_of_single_steps_and_of_sides(objective):
    """One side of random splits moves at a time: what splits by the loss are chosen for."""
    rows, scores = case(2, weighted=True)
    found = expected(rows, scores, objective, {})
    g, h, c = merged(found, scores)
    rng, step = np.random.default_rng(9), 1e-3
    for side in [*np.eye(len(scores)), *(rng.random((4, len(scores))) < 0.5)]:
        above, here, below = (sum(part.loss(scores + o * side) for part in found) for o in (step, 0.0, -step))
        assert (g * side).sum() == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-6)
        exact = (h * side).sum() - 2.0 * sum(value for (a, b), value in c.items() if side[a] and side[b])
        assert exact == pytest.approx((above - 2 * here + below) / step**2, rel=1e-4, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0, 3.25]), min_size=1, max_size=70),
    st.integers(0, 2**63),
    st.randoms(use_true_random=False),
)
def test_order_is_by_score_then_by_jitter(scores, key, random):
    values = np.array([9.0, *scores, 9.0])  # rows before and after belong to other queries
    n, key = len(scores), np.uint64(key)
    rows = list(range(1, n + 1))
    ordered = sorted(rows, key=lambda row: (-values[row], int(_kernels.random_bits(key, row))))
    random.shuffle(rows)  # what the order held before must not matter
    order, spare = np.array([0, *rows, n + 1], dtype=np.uint32), np.empty(n, dtype=np.uint32)
    _kernels.order_by_score(values, key, 1, n + 1, order, spare)
    assert order.tolist() == [0, *ordered, n + 1]


def test_ties_of_scores_are_broken_in_each_step_and_not_by_row():
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
    for step in range(1, 801):
        g, h = derivatives(drawn, scores, step=step)
        mean += np.array([g, h]) / 800
        if step < 4:
            pairs = drawn.pair_hessians(step, scores, 0.0, Team(1))
            around = np.bincount(pairs.first, pairs.hessian, len(scores))
            around += np.bincount(pairs.second, pairs.hessian, len(scores))
            assert around == pytest.approx(h, rel=1e-9, abs=1e-14)
    assert mean[0] == pytest.approx(whole[0], abs=0.2 * np.abs(whole[0]).max())
    assert mean[1] == pytest.approx(whole[1], abs=0.2 * whole[1].max())


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
    # exponentials that count from the top of the list are all alike 600 below it
    rows = RankedRows(np.array([0, 1, 3, 0, 2], np.int32), np.array([0, 5]), [])
    scores = np.array([0.0, -700.0, -701.0, -705.0, -706.5])
    for normalised in (False, True):
        given = {"metric": "ndcg@5", "lambda_normalisation": normalised}
        found = merged(expected(rows, scores, "lambdamart", given), scores)
        for one, other in zip(derivatives(build(rows, "lambdamart", **given), scores), found, strict=False):
            assert one == pytest.approx(other, rel=1e-9, abs=1e-200)


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1.0], "shape"), ([1.0, -1.0], ("row 1", "-1.0")), ([np.nan, 1.0], "row 0"), ([0.0, 0.0], ("weights", "0"))],
)
def test_weights_that_weigh_nothing_sensible_are_refused(weights, message):
    with refused(TrainingDataRejected, message):
        build(RankedRows(np.array([1, 0], np.int32), np.array([0, 2]), (), np.array(weights)), "lambdamart")


def test_elementary_functions_of_pairs_keep_their_stated_errors():
    x = np.concatenate([-np.logspace(-12, 2.8, 1000), [0.0, -1.0, -700.0]])
    found = np.array([_kernels.exp_negative(v) for v in x])
    assert np.max(np.abs(found / np.exp(x) - 1)) <= 1e-11
    assert _kernels.exp_negative(-1e9) == _kernels.exp_negative(-700.0) > 0.0
    y = np.concatenate([np.logspace(-300, 300, 1000), np.linspace(0.5, 4, 1000)])
    off = np.abs(np.array([_kernels.log2_positive(v) for v in y]) - np.log2(y))
    assert np.max(off) <= 1e-12 * 1000  # the sum with a large exponent rounds at 1e-13
    assert np.max(off[(y > 0.5) & (y < 4)]) <= 1e-12
    assert _kernels.log2_positive(8.0) == 3.0


# -- trainings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "metric"),
    [
        ("lambdamart", "map"),
        ("lambdamart(normalise=query)", "ndcg@10"),
        ("lambdaloss", "ndcg@10"),
        ("yetirank", "ndcg@10"),
    ],
)
def test_sigma_changes_no_tree(objective, metric):
    fixed = {
        "objective": objective, "metric": metric, "lambda_normalisation": False, "n_rounds": 4,
        "min_hessian_in_leaf": 0.0, "min_gain": 0.0, "early_stopping_rounds": 0,
    }  # fmt: skip
    one = planted.fit(planted.small_data(), watch=False, sigma=1.0, **fixed).forest
    four = planted.fit(planted.small_data(), watch=False, sigma=4.0, **fixed).forest
    assert np.array_equal(one.node_feature, four.node_feature)
    assert np.array_equal(one.node_cut, four.node_cut)
    assert four.node_value == pytest.approx(one.node_value / 4.0, rel=1e-6, abs=1e-9)


def test_pairs_that_cannot_be_learnt_from_are_refused():
    build(RankedRows(np.array([1, 1], np.int32), np.array([0, 2]), []), "ranknet(ties=true)")
    none = PreferencePairs(*(np.empty(0, t) for t in (np.int32, np.int32, float, float)), np.array([0, 0]))
    with refused(TrainingDataRejected, "no pair"):
        build(RankedRows(np.array([1, 0], np.int32), np.array([0, 2]), [], pairs=none), "ranknet")
    for better, worse, probability, message in (
        (0, 0, 1.0, "different rows"),
        (0, 2, 1.0, ("rows", "query")),
        (0, 1, 1.5, "probability"),
    ):
        one = PreferencePairs(
            np.array([better], np.int32), np.array([worse], np.int32), np.ones(1), np.array([probability]),
            np.array([0, 1]),
        )  # fmt: skip
        with refused(TrainingDataRejected, "pair 0", message):
            build(RankedRows(np.array([1, 0], np.int32), np.array([0, 2]), [], pairs=one), "ranknet")


@pytest.mark.parametrize(
    ("objective", "metric", "grades"),
    [
        ("lambdamart", "ndcg@10", [0, 0, 0, 0]),  # pairs without grades
        ("lambdamart", "err", [1, 1, 1, 1]),
        ("lambdaloss", "ndcg", [2, 2, 2, 2]),
        ("lambdamart", "map", [1, 2, 3, 1]),  # all are relevant
        ("lambdamart", "ndcg", [3, 0, 3, 0]),  # pairs of equal grades only
    ],
)
def test_pairs_that_no_swap_weighs_are_refused_instead_of_learning_nothing(objective, metric, grades):
    pairs = PreferencePairs(
        np.array([0, 1], np.int32), np.array([2, 3], np.int32), np.ones(2), np.ones(2), np.array([0, 2])
    )
    rows = RankedRows(np.array(grades, np.int32), np.array([0, 4]), [], pairs=pairs)
    with refused(TrainingDataRejected, "pair", "metric"):
        build(rows, objective, metric=metric)
    build(rows, "ranknet")


def test_a_query_whose_pairs_weigh_nothing_counts_nothing():
    rows = RankedRows(np.array([1, 2, 0, 1], np.int32), np.array([0, 2, 4]), [])
    built = build(rows, "lambdamart", metric="map")
    g, h = derivatives(built, np.array([0.3, 0.1, 0.2, 0.0]))
    assert not g[:2].any()
    assert not h[:2].any()
    assert (h[2:] > 0).all()
    assert built.losses(np.zeros(4))[0] == 0.0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("metric", ["ndcg@10", "ndcg", "precision@3", "map"])
def test_the_loss_of_queries_in_another_order_is_that_made_of_them(metric, weighted):
    rows, scores = case(3, weighted=weighted)
    rows = replace(rows, bins=())
    order = np.random.default_rng(4).permutation(rows.n_queries)
    places, _ = places_of(rows.starts, order)
    built = build(rows, "lambdamart", metric=metric)
    derivatives(built, scores)  # what it has learnt of these scores does not matter
    moved = built.in_order(order, places)
    assert (moved is None) == (metric == "map")
    if moved is not None:
        anew = build(rows.in_order(order), "lambdamart", metric=metric)
        for found, wanted in zip(derivatives(moved, scores[places]), derivatives(anew, scores[places]), strict=True):
            assert np.array_equal(found, wanted)
        assert np.array_equal(moved.losses(scores[places]), anew.losses(scores[places]))
