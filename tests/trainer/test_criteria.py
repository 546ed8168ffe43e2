"""Which criteria choose the same trees, and which do not (Xia, Zhai & Wang, section 3)."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.objectives.protocol import PairHessians
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team
from tests import naive, naive_ole
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, rows_of, small_data
from tests.trainer.small_case import small_case

NO_PAIRS = PairHessians(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0))


def prepared(name, **parameters):
    """An objective, and a grower of trees by all features, on the small data; any row may have a leaf of its own."""
    rows = rows_of(small_data()[0], small_data()[2], width=16)
    given = fixed(
        objective=name,
        ole_features=0,
        max_leaves=8,
        min_rows_in_leaf=1,
        min_hessian_in_leaf=0.0,
        learning_rate=0.3,
        **parameters,
    )
    return rows, objective_of(rows, given), Grower(rows.bins, given, Team(1))


def gradients(objective, scores, step=1):
    g, h = np.empty(len(scores)), np.empty(len(scores))
    objective.gradients(step, scores, g, h, Team(1))
    return g, h


def same_tree(one, other):
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in ("feature", "threshold", "left", "value"))


@pytest.mark.parametrize("seed", range(10))
def test_literal_weighted_squared_error_chooses_the_splits_of_its_robust_form(seed):
    bins, g, h = small_case(seed, n=30)
    errors = list(naive_ole.wse_splits(bins, g, h))
    best = min(error for error, *_ in errors)
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], 256, dtype=np.int32))
    given = fixed(min_rows_in_leaf=1, min_hessian_in_leaf=0.0, max_leaves=2, criterion="wse")
    assert given.criterion == "rwse"
    tree = Grower(layout, given, Team(1)).grow(g, h, np.zeros(len(g)))
    chosen = (tree.feature[0], tree.threshold[0], bool(tree.missing_left[0]))
    sides = naive_ole.sides(bins, range(len(g)), *chosen)
    alike = [naive_ole.sides(bins, range(len(g)), *s) for error, *s in errors if error <= best * (1 + 1e-9) + 1e-12]
    assert sides in alike


@pytest.mark.parametrize("seed", range(10))
def test_squared_error_splits_by_weights_and_steps_by_hessians(seed):
    bins, g, h = small_case(seed, n=60)
    weights = np.random.default_rng(seed).integers(1, 500, size=60) / 1024
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], 256, dtype=np.int32))
    given = fixed(min_rows_in_leaf=1, min_hessian_in_leaf=0.0, max_leaves=7, learning_rate=1.0)
    scores = np.zeros(60)
    tree = Grower(layout, given, Team(1)).grow(g, h, scores, weights=weights)
    leaves = naive.grow_by_node(bins, g, weights, 7)
    assert tree.n_leaves == len(leaves) == 7
    for rows in map(list, leaves):
        assert scores[rows] == pytest.approx(-g[rows].sum() / h[rows].sum(), rel=1e-9)
    assert tree.gain[0] == pytest.approx(max(gain for gain, *_ in naive.splits(bins, g, weights)), rel=1e-12)
    assert naive.grow_by_node(bins, g, h, 7).keys() != leaves.keys()  # or the weights told nothing


@pytest.mark.parametrize("seed", range(5))
def test_oblivious_trees_by_squared_error_ask_by_weights_and_step_by_hessians(seed):
    bins, g, h = small_case(seed, n=60, missing=0.0)
    weights = np.random.default_rng(seed).integers(1, 500, size=60) / 1024
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], 256, dtype=np.int32))
    given = fixed(min_rows_in_leaf=1, min_hessian_in_leaf=0.0, max_depth=3, learning_rate=1.0, grow="oblivious")
    scores = np.zeros(60)
    tree = Grower(layout, given, Team(1)).grow(g, h, scores, weights=weights)
    conditions, _ = naive.grow_by_level(bins, g, weights, 3)
    leaf = np.zeros(60, dtype=int)
    for depth, (feature, threshold, _) in enumerate(conditions):
        assert set(tree.feature[2**depth - 1 : 2 ** (depth + 1) - 1]) == {feature}
        leaf = 2 * leaf + (bins[:, feature] > threshold)
    for rows in (np.flatnonzero(leaf == number) for number in np.unique(leaf)):
        assert scores[rows] == pytest.approx(-g[rows].sum() / h[rows].sum(), rel=1e-9)


@pytest.mark.parametrize("name", ["l2", "bernoulli", "poisson"])
def test_the_loss_of_single_documents_chooses_trees_as_rwse_does(name):
    """Theorem 1, tree for tree, by the search that counts pairs: there are none."""
    rows, objective, grower = prepared(name)
    scores = np.full(rows.n_rows, objective.start())
    for step in range(1, 6):
        g, h = gradients(objective, scores, step)
        by_loss = grower.grow(g, h, scores.copy(), pairs=NO_PAIRS)
        assert same_tree(grower.grow(g, h, scores), by_loss)
        assert by_loss.n_leaves == 8


def test_all_criteria_choose_the_trees_of_mart():
    """Theorem 2: every h is the weight of the document."""
    weights = np.random.default_rng(3).integers(1, 4, size=len(small_data()[0][1])).astype(float)
    for of_rows in (None, weights):
        forests = [
            fit(small_data(), objective="l2", criterion=c, weights=of_rows, n_rounds=10, watch=False).forest
            for c in ("se", "rwse", "ole", "wse")
        ]
        for forest in forests[1:]:
            assert np.array_equal(forest.node_feature, forests[0].node_feature)
            assert np.array_equal(forest.node_value, forests[0].node_value)


def test_elsewhere_they_differ():
    trees = [
        fit(
            small_data(), objective="ranknet", criterion=c, n_rounds=3, ole_features=0, ole_pairs=0.0, watch=False
        ).forest.node_feature.tolist()
        for c in ("se", "rwse", "ole")
    ]
    assert trees[0] != trees[1]
    assert trees[1] != trees[2]


def test_the_three_documents_of_the_paper():
    """Xia et al., 3.2, example 3: RankBoost on d1 > d2 > d3, parted into {d1, d2} and {d3}."""
    scores = np.array([0.3, -0.2, 0.5])
    s1, s2, s3 = (np.exp(scores[b] - scores[a]) for a, b in ((0, 1), (0, 2), (1, 2)))
    rows = RankedRows(np.array([2, 1, 0], np.int32), np.array([0, 3]), ())
    objective = objective_of(rows, fixed(objective="rankboost"))
    g, h = gradients(objective, scores)
    scale = h[0] / (s1 + s2)  # whatever a query is divided by
    assert g / scale == pytest.approx([-s1 - s2, s1 - s3, s2 + s3])
    assert h / scale == pytest.approx([s1 + s2, s1 + s3, s2 + s3])
    found = objective.pair_hessians(1, scores, 0.0, Team(1))
    pairs = list(zip(found.first.tolist(), found.second.tolist(), found.hessian.tolist(), strict=True))
    assert naive_ole.exact_hessian({0, 1}, h, pairs) / scale == pytest.approx(s2 + s3)
    assert naive_ole.exact_hessian({2}, h, pairs) / scale == pytest.approx(s2 + s3)
    assert (g[0] + g[1]) / scale == pytest.approx(-s2 - s3)
    assert (h[0] + h[1]) / scale == pytest.approx(2 * s1 + s2 + s3)  # what is added up document by document


@pytest.mark.parametrize("name", ["ranknet", "rankboost", "listnet", "listmle", "query_rmse"])
@pytest.mark.parametrize("seed", range(3))
def test_a_step_of_one_side_meets_the_exact_hessian(name, seed):
    """L(o_l, 0) and L(0, o_r) by differences of the true loss, one side of a random split at a time."""
    rng = np.random.default_rng(seed)
    rows, objective, _ = prepared(name)
    scores = rng.normal(size=rows.n_rows)
    g, h = gradients(objective, scores)
    found = objective.pair_hessians(1, scores, 0.0, Team(1))
    left = rng.random(rows.n_rows) < 0.4

    def loss(step, side):
        return objective.losses(scores + step * side).sum()

    for side in (left, ~left):
        inside = found.hessian[side[found.first] & side[found.second]].sum()
        step = 1e-3
        above, here, below = loss(step, side), loss(0.0, side), loss(-step, side)
        assert g[side].sum() == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-6)
        assert h[side].sum() - 2 * inside == pytest.approx((above - 2 * here + below) / step**2, rel=1e-4)


@pytest.mark.parametrize("name", ["ranknet", "rankboost", "listnet", "listmle"])
def test_splits_by_the_loss_end_with_a_lower_loss_than_those_by_squared_error(name):
    losses = {}
    for criterion in ("se", "ole"):
        history = fit(
            small_data(), objective=name, criterion=criterion, leaf="exact", n_rounds=150, max_leaves=10,
            ole_features=0, ole_pairs=0.0, watch=False, options={"eval_metrics": ["deviance"]},
        ).history  # fmt: skip
        losses[criterion] = history[-1].train["deviance"]
    assert losses["ole"] < losses["se"]


def test_drawn_pairs_have_the_right_sums_on_average():
    rows, objective, _ = prepared("ranknet")
    scores = np.random.default_rng(0).normal(size=rows.n_rows)
    gradients(objective, scores)
    every = objective.pair_hessians(1, scores, 0.0, Team(1)).copy()
    least = float(np.quantile(every.hessian, 0.9)) * 2
    totals, counts = [], []
    half = (np.arange(rows.n_rows) % 2).astype(bool)
    for step in range(1, 60):
        drawn = objective.pair_hessians(step, scores, least, Team(1))
        inside = half[drawn.first] & half[drawn.second]
        totals.append(drawn.hessian[inside].sum())
        counts.append(len(drawn.first))
    inside = half[every.first] & half[every.second]
    spread = np.std(totals, ddof=1) / np.sqrt(len(totals))
    assert abs(np.mean(totals) - every.hessian[inside].sum()) < 4 * spread
    assert np.mean(counts) < 0.6 * len(every.first)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"criterion": "ole", "grow": "oblivious", "objective": "ranknet"}, ("'ole'", "'oblivious'")),
        ({"criterion": "ole", "monotone": {"f0": 1}}, ("monotone", "criterion")),
        ({"criterion": "rwse", "objective": "laplace"}, ("'rwse'", "laplace", "se")),
        ({"leaf": "exact", "objective": "laplace"}, ("leaf 'exact'", "laplace")),
        ({"criterion": "olé"}, ("criterion", "'olé'", "'ole'")),
        ({"leaf": "newtn"}, ("leaf", "newtn", "newton")),
        ({"ole_features": -1}, ("ole_features", "0")),
        ({"ole_pairs": -1.0}, ("ole_pairs", "0")),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(parameters, message):
    with refused(InvalidParameter, message):
        fit(small_data(), n_rounds=1, **parameters)


def test_leaves_are_exact_where_splits_are_and_as_one_likes_elsewhere():
    def scores(**given):
        return fit(small_data(), objective="ranknet", n_rounds=2, watch=False, **given).forest.node_value

    assert np.array_equal(scores(criterion="ole"), scores(criterion="ole", leaf="exact"))
    assert not np.array_equal(scores(criterion="ole"), scores(criterion="ole", leaf="newton"))
    assert np.array_equal(scores(criterion="se"), scores(criterion="se", leaf="newton"))
    assert not np.array_equal(scores(criterion="se"), scores(criterion="se", leaf="exact"))
