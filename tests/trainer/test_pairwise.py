"""Losses over pairs against the definition, finite differences and their symmetries."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from scorer.metrics import Metric, Policy, parse_metric
from tests import naive_pairs
from tests.trainer import planted
from trainer.errors import InvalidParameter, TrainingDataRejected
from trainer.objectives.pairwise import _kernels
from trainer.objectives.pairwise import pair_loss as pairwise
from trainer.objectives.registry import objective_of
from trainer.parameters import TrainParameters
from trainer.rows import Preferences, RankedRows
from trainer.workers import Team, with_team

SIZES = (5, 1, 9, 12, 2, 3)
METRICS = [
    "ndcg@3",
    "dcg",
    "err",
    "err@4",
    "map",
    "map@3",
    "mrr",
    "mrr@2",
    "precision@4",
    "recall@3",
    "wta",
    "rbp(0.8)",
]
METRICS += ["concordance"]

CASES = [
    *(("lambdamart", {"metric": metric, "lambda_normalisation": False}) for metric in METRICS),
    ("lambdamart", {"metric": "ndcg@3"}),
    ("lambdamart", {"metric": "err", "truncation": 3, "sigma": 2.0}),
    ("lambdamart(tail=false)", {"metric": "ndcg@3", "lambda_normalisation": False}),
    ("lambdamart(normalise=query)", {"metric": "map", "lambda_normalisation": False, "truncation": 4}),
    ("lambdaloss", {"metric": "ndcg@5", "sigma": 1.5}),
    ("lambdaloss(normalise=query)", {"truncation": 4}),
    ("ranknet", {"sigma": 1.5}),
    ("ranknet(normalise=query)", {}),
    ("ranknet(ties=true)", {}),
    ("ranknet(truncation=3)", {}),
    ("rankboost", {}),
    ("rankboost(normalise=query, truncation=4)", {}),
]


def case(seed, *, weighted=False, given=False, spread=1.0):
    """Rows of a few queries, and distinct scores."""
    rng = np.random.default_rng(seed)
    n, starts = sum(SIZES), np.concatenate(([0], np.cumsum(SIZES))).astype(np.int64)
    grades = rng.integers(0, 4, size=n).astype(np.int32)
    weights = rng.integers(1, 5, size=n) / 2.0 if weighted else None
    query_weights = rng.integers(1, 5, size=len(SIZES)) / 4.0 if weighted else None
    pairs = None
    if given:
        found = []
        for first, size in zip(starts[:-1], SIZES, strict=True):
            if size > 1:
                both = np.array([rng.choice(size, 2, replace=False) for _ in range(2 * size)])
                found.append(first + np.concatenate((both, both[:3, ::-1])))  # which contradict each other
            else:
                found.append(np.empty((0, 2), dtype=np.int64))
        rows = np.concatenate(found)
        pairs = Preferences(
            rows[:, 0].astype(np.int32),
            rows[:, 1].astype(np.int32),
            rng.integers(1, 4, size=len(rows)).astype(np.float64),
            rng.choice([1.0, 0.75, 0.5, 0.0], size=len(rows)),
            np.concatenate(([0], np.cumsum([len(part) for part in found]))),
        )
    rows = RankedRows(grades, starts, [], weights, query_weights=query_weights, pairs=pairs)
    return rows, spread * rng.permutation(n) / 7.0


def build(rows, objective, **parameters):
    return objective_of(rows, TrainParameters(objective=objective, **parameters))


def derivatives(objective, scores, *, step=1, team=None):
    g, h = np.full(len(scores), np.nan), np.full(len(scores), np.nan)
    objective.gradients(step, scores, g, h, team or Team(1))
    return g, h


def expected(rows, scores, objective, parameters):
    """The frozen pairs of every query."""
    p = TrainParameters(objective=objective, **parameters)
    name, _, options = p.objective.partition("(")
    metric = parse_metric(p.metric)
    of_metric = name in {"lambdamart", "lambdaloss"}
    truncation = p.truncation if of_metric else 10**9
    if "truncation=" in options:
        truncation = int(options.split("truncation=")[1].rstrip(")").split(",")[0])

    def delta(ranked, i, j):
        if name == "lambdaloss":
            ideal = naive_pairs.metric_of_list(Metric("dcg", metric.k), sorted(ranked, reverse=True), Policy())
            d = abs(i - j)
            gains = abs(2.0 ** ranked[i] - 2.0 ** ranked[j]) / ideal if ideal else 0.0
            return abs(1 / math.log2(1 + d) - 1 / math.log2(2 + d)) * gains
        tail = "tail=False" not in options
        return naive_pairs.swap_delta(metric, ranked, i, j, Policy(max_grade=int(rows.grades.max())), tail=tail)

    found = []
    for q in range(rows.n_queries):
        first, last = rows.starts[q], rows.starts[q + 1]
        given = None
        if rows.pairs is not None:
            pairs, mean = rows.pairs, rows.pairs.weight.mean()
            part = slice(pairs.starts[q], pairs.starts[q + 1])
            given = list(
                zip(
                    (pairs.better[part] - first).tolist(),
                    (pairs.worse[part] - first).tolist(),
                    (pairs.weight[part] / mean).tolist(),
                    pairs.probability[part].tolist(),
                    strict=True,
                )
            )
        found.append(
            naive_pairs.frozen_pairs(
                scores[first:last].tolist(),
                rows.grades[first:last].tolist(),
                first=int(first),
                delta=delta if of_metric else None,
                exponential=name == "rankboost",
                sigma=1.0 if name == "rankboost" else p.sigma,
                truncation=truncation,
                normalise=name == "lambdamart" and p.lambda_normalisation,
                per_pair="normalise=query" in options,
                ties="ties=True" in options,
                weights=None if rows.weights is None else rows.weights[first:last] / rows.weights.mean(),
                query_weight=1.0 if rows.query_weights is None else rows.query_weights[q] / rows.query_weights.mean(),
                given=given,
            )
        )
    return found


def merged(found, scores):
    g, h, c = np.zeros(len(scores)), np.zeros(len(scores)), {}
    for pairs in found:
        g_q, h_q, c_q = pairs.derivatives(scores.tolist())
        g, h, c = g + g_q, h + h_q, c | c_q
    return g, h, c


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("objective", "parameters"), CASES)
def test_gradients_losses_and_pair_curvatures_agree_with_the_definition(objective, parameters, given, weighted):
    rows, scores = case(1, weighted=weighted, given=given)
    built = build(rows, objective, **parameters)
    g, h = derivatives(built, scores)
    found = expected(rows, scores, objective, parameters)
    expected_g, expected_h, expected_c = merged(found, scores)
    assert g == pytest.approx(expected_g, rel=1e-9, abs=1e-12)
    assert h == pytest.approx(expected_h, rel=1e-9, abs=1e-12)
    assert built.losses(scores) == pytest.approx([pairs.loss(scores) for pairs in found], rel=1e-9, abs=1e-12)
    pairs = built.pair_curvatures(1, scores, 0.0, Team(1))
    assert (pairs.first.dtype, pairs.second.dtype, pairs.curvature.dtype) == (np.int32, np.int32, np.float64)
    assert (pairs.first < pairs.second).all()
    keys = list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    assert len(set(keys)) == len(keys)
    listed = dict(zip(keys, pairs.curvature.tolist(), strict=True))
    assert listed == pytest.approx({key: c for key, c in expected_c.items() if c > 1e-16}, rel=1e-8, abs=1e-14)
    # the rows of the Hessian sum to 0
    around = np.bincount(pairs.first, pairs.curvature, len(scores))
    around += np.bincount(pairs.second, pairs.curvature, len(scores))
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
def test_a_step_of_one_side_meets_the_exact_curvature_of_the_frozen_loss(objective, parameters, given):
    """L(o_l, 0) and L(0, o_r), one side of random splits at a time; what splits by the loss are chosen for."""
    rows, scores = case(9, weighted=True, given=given)
    built = build(rows, objective, **parameters)
    g, h = derivatives(built, scores)
    pairs = built.pair_curvatures(1, scores, 0.0, Team(1))
    found = expected(rows, scores, objective, parameters)

    def loss(side, step):
        return sum(part.loss(scores + step * side) for part in found)

    rng, step = np.random.default_rng(9), 1e-3
    for _ in range(4):
        left = rng.random(len(scores)) < rng.random()
        for side in (left, ~left):
            above, here, below = (loss(side, o) for o in (step, 0.0, -step))
            assert g[side].sum() == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-6)
            exact = h[side].sum() - 2.0 * pairs.curvature[side[pairs.first] & side[pairs.second]].sum()
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


@pytest.mark.parametrize(("objective", "parameters"), CASES)
def test_a_shift_and_the_order_of_rows_change_nothing(objective, parameters):
    rows, scores = case(4, weighted=True, given=True)
    scores = np.round(scores * 64) / 64  # sums with 8 are exact
    g, h = derivatives(build(rows, objective, **parameters), scores)
    shifted = derivatives(build(rows, objective, **parameters), scores + 8.0)
    assert np.array_equal(shifted[0], g)
    assert np.array_equal(shifted[1], h)
    rng = np.random.default_rng(0)
    place = np.concatenate(
        [first + rng.permutation(last - first) for first, last in zip(rows.starts[:-1], rows.starts[1:], strict=True)]
    )  # row i goes to place[i]
    pairs = rows.pairs
    moved_pairs = Preferences(
        place[pairs.better].astype(np.int32), place[pairs.worse].astype(np.int32),
        pairs.weight, pairs.probability, pairs.starts,
    )  # fmt: skip
    back = np.argsort(place)
    moved = RankedRows(
        rows.grades[back], rows.starts, [], rows.weights[back], query_weights=rows.query_weights, pairs=moved_pairs
    )
    g_moved, h_moved = derivatives(build(moved, objective, **parameters), scores[back])
    assert g_moved[place] == pytest.approx(g, rel=1e-10, abs=1e-13)
    assert h_moved[place] == pytest.approx(h, rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("objective", ["lambdamart", "ranknet", "rankboost", "ranknet(ties=true)", "lambdaloss"])
def test_threads_do_not_change_a_bit(objective, monkeypatch):
    monkeypatch.setattr(pairwise, "_LEAST_WORK", 1)  # let small work be shared out as well
    monkeypatch.setattr(pairwise, "_MOST_CELLS", 30)
    metrics = ("ndcg@5",) if objective == "lambdaloss" else ("err", "ndcg@5", "concordance")
    for given, metric in itertools.product((False, True), metrics):
        rows, exact = case(5, given=given)
        scores = exact.round(0)

        def run(team, rows=rows, scores=scores, metric=metric):
            built = build(rows, objective, metric=metric)
            g, h = derivatives(built, scores, step=3, team=team)
            pairs = built.pair_curvatures(3, scores, 0.05, team)
            return g, h, pairs.first.copy(), pairs.second.copy(), pairs.curvature.copy()

        alone = run(Team(1))
        for n_threads in (2, 3):
            for one, other in zip(alone, with_team(n_threads, run), strict=True):
                assert np.array_equal(one, other)


def test_a_pair_that_contradicts_itself_is_pulled_to_the_middle():
    pairs = Preferences(
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
def test_drawn_pairs_are_right_on_average_and_the_same_for_the_curvatures(objective):
    rows, scores = case(6)
    p = {"lambda_normalisation": False, "metric": "map"}
    whole = derivatives(build(rows, objective.partition("(")[0], **p), scores)
    drawn = build(rows, objective, **p)
    mean = np.zeros((2, len(scores)))
    for step in range(1, 1501):
        g, h = derivatives(drawn, scores, step=step)
        mean += np.array([g, h]) / 1500
        if step < 4:
            pairs = drawn.pair_curvatures(step, scores, 0.0, Team(1))
            around = np.bincount(pairs.first, pairs.curvature, len(scores))
            around += np.bincount(pairs.second, pairs.curvature, len(scores))
            assert around == pytest.approx(h, rel=1e-9, abs=1e-14)
    assert mean[0] == pytest.approx(whole[0], abs=0.15 * np.abs(whole[0]).max())
    assert mean[1] == pytest.approx(whole[1], abs=0.15 * whole[1].max())


def test_drawn_curvatures_are_right_on_average_and_never_below_the_least():
    rows, scores = case(7)
    built = build(rows, "ranknet")
    mean, n_pairs = np.zeros(len(scores)), 0
    for step in range(1, 801):
        _, h = derivatives(built, scores, step=step)
        pairs = built.pair_curvatures(step, scores, 0.2, Team(1))
        assert (pairs.curvature >= 0.2).all()
        n_pairs = len(pairs.first)
        mean += np.bincount(pairs.first, pairs.curvature, len(scores)) / 800
        mean += np.bincount(pairs.second, pairs.curvature, len(scores)) / 800
    assert mean == pytest.approx(h, rel=0.08, abs=1e-12)
    assert n_pairs < len(built.pair_curvatures(800, scores, 0.0, Team(1)).first)


def test_scores_far_apart_stay_finite():
    rows, scores = case(8, spread=400.0)
    for objective in ("ranknet", "rankboost", "lambdamart"):
        built = build(rows, objective)
        found = merged(expected(rows, scores, objective, {}), scores)
        g, h = derivatives(built, scores)
        assert np.isfinite(built.losses(scores)).all()
        assert g == pytest.approx(found[0], rel=1e-8, abs=1e-12)
        assert h == pytest.approx(found[1], rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(
    ("objective", "metric"),
    [
        ("lambdamart", "ndcg@10"),
        ("lambdamart", "map"),
        ("lambdamart(normalise=query)", "ndcg@10"),
        ("lambdaloss", "ndcg@10"),
        ("ranknet", "ndcg@10"),
        ("yetirank", "ndcg@10"),
    ],
)
def test_sigma_changes_no_tree(objective, metric):
    fixed = {
        "objective": objective, "metric": metric, "lambda_normalisation": False, "n_rounds": 6,
        "min_hessian_in_leaf": 0.0, "min_gain": 0.0, "early_stopping_rounds": 0,
    }  # fmt: skip
    one = planted.fit(planted.small_data(), watch=False, sigma=1.0, **fixed).forest
    four = planted.fit(planted.small_data(), watch=False, sigma=4.0, **fixed).forest
    assert np.array_equal(one.node_feature, four.node_feature)
    assert np.array_equal(one.node_cut, four.node_cut)
    assert four.node_value == pytest.approx(one.node_value / 4.0, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("objective", "metric", "least"),
    [
        ("lambdamart", "dcg", 0.89),
        ("lambdamart", "err@10", 0.87),
        ("lambdamart", "map", 0.82),
        ("lambdamart", "mrr", 0.72),
        ("lambdamart", "precision@5", 0.77),
        ("lambdamart(normalise=query)", "ndcg@10", 0.88),
        ("ranknet", "ndcg@10", 0.88),
        ("rankboost", "ndcg@10", 0.86),
        ("lambdaloss", "ndcg@10", 0.88),
        ("yetirank", "ndcg@10", 0.86),
    ],
)
def test_a_planted_signal_is_found(objective, metric, least):
    result = planted.fit(
        planted.small_data(), objective=objective, n_rounds=100, metric=metric, stop_metric="ndcg@10",
        learning_rate=0.2, early_stopping_rounds=0, options={"eval_metrics": ["deviance"]},
    )  # fmt: skip
    assert max(record.metrics["valid"]["ndcg@10"] for record in result.history) > least
    losses = [record.metrics["train"]["deviance"] for record in result.history]
    assert losses[-1] < losses[0]


def test_what_cannot_be_learnt_from_is_refused():
    rows = RankedRows(np.array([1, 1], np.int32), np.array([0, 2]), [])
    for objective in ("ranknet", "rankboost", "lambdamart", "lambdaloss", "yetirank"):
        with pytest.raises(TrainingDataRejected, match="nothing to learn"):
            build(rows, objective)
    build(rows, "ranknet(ties=true)")
    none = Preferences(*(np.empty(0, t) for t in (np.int32, np.int32, float, float)), np.array([0, 0]))
    with pytest.raises(TrainingDataRejected, match="no pair is given"):
        build(RankedRows(np.array([1, 0], np.int32), np.array([0, 2]), [], pairs=none), "ranknet")
    for better, worse, probability, message in (
        (0, 0, 1.0, "two different rows"),
        (0, 2, 1.0, "rows of the query"),
        (0, 1, 1.5, "a probability"),
    ):
        one = Preferences(
            np.array([better], np.int32), np.array([worse], np.int32), np.ones(1), np.array([probability]),
            np.array([0, 1]),
        )  # fmt: skip
        with pytest.raises(TrainingDataRejected, match=f"pair 0: expected {message}"):
            build(RankedRows(np.array([1, 0], np.int32), np.array([0, 2]), [], pairs=one), "ranknet")
    rows, _ = case(0)
    for objective, message in (
        ("ranknet(normalise=pair)", "must be none, or query"),
        ("rankboost(pair_fraction=0)", r"must be in \(0, 1\]"),
        ("lambdamart(max_grade=90)", r"must be in 0 \.\. 52"),
        ("ranknet(truncation=-1)", r"must be in 0 \.\."),
        ("yetirank(permutations=0)", r"must be in 1 \.\."),
        ("yetirank(decay=1.5)", r"must be in \(0, 1\]"),
        ("yetirank(noise=white)", "must be one of logistic, gumbel"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            build(rows, objective)


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
    pairs = Preferences(
        np.array([0, 1], np.int32), np.array([2, 3], np.int32), np.ones(2), np.ones(2), np.array([0, 2])
    )
    rows = RankedRows(np.array(grades, np.int32), np.array([0, 4]), [], pairs=pairs)
    with pytest.raises(TrainingDataRejected, match="no swap of the two documents of a pair changes the metric"):
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


def test_lambdaloss_is_for_ndcg():
    with pytest.raises(InvalidParameter, match="lambdaloss bounds ndcg"):
        build(case(0)[0], "lambdaloss", metric="map")


def test_the_logarithm_of_one_plus_keeps_its_stated_error():
    z = np.concatenate([np.logspace(-300, 0, 3000), [0.0]])
    found = np.array([_kernels._log_one_plus(v) for v in z])
    assert np.max(np.abs(found - np.log1p(z)) / np.maximum(np.log1p(z), 1e-320)) <= 5e-12
