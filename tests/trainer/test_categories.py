"""Splits by sets of categories: against all subsets, against the documented limits, and whatever the codes are."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.pipeline.binspec import apply_bins, matrix_bins
from rankmill.scorer.predict import predict
from rankmill.trainer.boosting import boost
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.rows import RankedRows, TrainingData
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from rankmill.trainer.workers import Team
from tests import naive
from tests.refusals import refused
from tests.trainer.fixed import fixed

FREE = {
    "category_l2": 0.0,
    "category_smoothing": 0.0,
    "min_rows_in_group": 0,
    "categories_in_set": 255,
    "one_vs_rest": 0,
}
GROWTHS = ("best_first", "breadth_first", "depth_first", "oblivious")


def case(seed, k, n=80, missing=0.2, rare=0.2):
    """Return one column of bins with ``k`` categories, g and h; the last bin holds rare ones."""
    rng = np.random.default_rng(seed)
    column = rng.integers(1, k + 1, size=n).astype(np.uint8)
    column[rng.random(n) < rare] = k + 1
    column[rng.random(n) < missing] = 0
    return column, rng.integers(-128, 129, size=n) / 64, rng.integers(8, 72, size=n) / 64  # exact in packed sums


def grow(bins, g, h, n_bins, categorical, team=None, **parameters):
    """Grow one tree; ``n_bins`` and ``categorical`` (F,)."""
    given = {"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0} | parameters
    layout = BlockedBins.from_batches([bins], len(bins), np.array(n_bins, dtype=np.int32))
    scores = np.zeros(len(g))
    grower = Grower(layout, fixed(**given), team or Team(1), categorical=np.array(categorical, dtype=np.bool_))
    return grower.grow(g, h, scores), scores


def set_of(tree, node=0):
    """The bins that the node sends left."""
    return {b for b in range(256) if int(tree.sets[node, b // 64]) >> (b % 64) & 1}


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("lambda_l2", [0.0, 2.0])
def test_without_limits_the_best_set_is_the_best_of_all_subsets(k, seed, lambda_l2):
    rest = 0.0 if seed % 2 else 0.2
    column, g, h = case(seed, k, missing=rest, rare=rest)
    gains = [naive.split_gain(g, h, left, lambda_l2) for _, left in naive.sets_of_categories(column, k + 2)]
    best = max(gains, default=0.0)
    for grown in ({"max_leaves": 2}, {"grow": "oblivious", "max_depth": 1}):
        tree, scores = grow(column[:, None], g, h, [k + 2], [True], lambda_l2=lambda_l2, **FREE, **grown)
        if best < 1e-9:
            assert tree.n_leaves == 1
            continue
        assert tree.gain[0] == pytest.approx(best, rel=1e-9)
        left = np.isin(column, list(set_of(tree)))
        assert naive.split_gain(g, h, left, lambda_l2) == pytest.approx(best, rel=1e-9)
        assert not {0, k + 1} & set_of(tree)  # missing and rare ones go right
        for side in (left, ~left):
            assert scores[side] == pytest.approx(-g[side].sum() / (h[side].sum() + lambda_l2), rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "limits",
    [{"most": 2}, {"smoothing": 6.0}, {"group": 15}, {"smoothing": 4.0, "most": 3, "group": 10}],
)
def test_limits_are_those_documented(seed, limits):
    column, g, _ = case(seed, 12, n=160)
    h = np.ones(160)  # then the rows that hessians stand for are the rows
    tried = naive.sets_in_order(column, 14, g, h, **limits)
    gains = [naive.split_gain(g, h, left, 0.0) for _, left in tried]
    options = FREE | {
        "category_smoothing": limits.get("smoothing", 0.0),
        "categories_in_set": limits.get("most", 255),
        "min_rows_in_group": limits.get("group", 0),
    }
    tree, _ = grow(column[:, None], g, h, [14], [True], max_leaves=2, **options)
    assert tree.gain[0] == pytest.approx(max(gains), rel=1e-9)
    assert len(set_of(tree)) <= limits.get("most", 255)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("grown", [{"max_leaves": 6}, {"grow": "oblivious", "max_depth": 2}])
def test_one_against_the_rest_equals_the_feature_expanded(seed, k, grown):
    column, g, h = case(seed, k, rare=0.0, missing=0.0)
    expanded = np.stack([1 + (column == b) for b in range(1, k + 1)], axis=1).astype(np.uint8)
    limits = FREE | {"one_vs_rest": 4, "category_l2": 10.0, "min_rows_in_group": 50}  # only sets in order have these
    _, by_set = grow(column[:, None], g, h, [k + 2], [True], **limits, **grown)
    _, by_column = grow(expanded, g, h, [3] * k, [False] * k, **grown)
    assert by_set == pytest.approx(by_column, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("min_rows", [10, 25])
def test_no_side_has_fewer_rows_than_asked_for(seed, min_rows):
    rng = np.random.default_rng(seed)
    column, g, _ = case(seed, 7, n=150)
    h = rng.choice([1 / 1024, 1.0], size=150)  # says little about rows
    gains = [
        naive.split_gain(g, h, left, 0.0)
        for _, left in naive.sets_of_categories(column, 9)
        if min(left.sum(), (~left).sum()) >= min_rows
    ]
    prefixes = [
        naive.split_gain(g, h, left, 0.0)
        for _, left in naive.sets_in_order(column, 9, g, h)
        if min(left.sum(), (~left).sum()) >= min_rows
    ]
    for grown in ({"max_leaves": 2}, {"grow": "oblivious", "max_depth": 1}):
        tree, _ = grow(column[:, None], g, h, [9], [True], min_rows_in_leaf=min_rows, **FREE, **grown)
        assert tree.rows[tree.feature < 0].min() >= min_rows
        assert tree.gain[0] == pytest.approx(max(prefixes), rel=1e-6)
        assert tree.gain[0] <= max(gains) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("min_rows", [25, 60, 90])
def test_a_level_gains_at_least_what_the_order_of_the_whole_level_offers(seed, min_rows):
    """Rows are counted here, as hessians say little about them; sets that are tried later may only gain more."""
    rng = np.random.default_rng(seed)
    column, _, _ = case(seed, 12, n=400)
    side = rng.integers(1, 3, size=400).astype(np.uint8)
    effect = rng.normal(size=(3, 14))
    g = np.round((effect[side, column] + rng.normal(size=400)) * 64) / 64
    h = rng.choice([1 / 1024, 1.0], size=400)
    bins = np.stack([side, column], axis=1)
    tree, _ = grow(
        bins, g, h, [3, 14], [False, True], grow="oblivious", max_depth=2, min_rows_in_leaf=min_rows, lambda_l2=1.0,
        min_hessian_in_leaf=0.5, **FREE,
    )  # fmt: skip
    if tree.n_leaves < 4 or tree.feature[1] != 1:
        pytest.skip("the second split is none by categories")
    first = side <= tree.threshold[0] if tree.feature[0] == 0 else np.isin(column, list(set_of(tree)))

    def summed(left):
        gain = 0.0
        for rows in (first, ~first):
            sides = left & rows, ~left & rows
            if min(s.sum() for s in sides) >= min_rows and min(h[s].sum() for s in sides) >= 0.5:
                gain += naive.split_gain(g[rows], h[rows], left[rows], 1.0)
        return gain

    chosen = summed(np.isin(column, list(set_of(tree, 1))))
    assert tree.gain[1] + tree.gain[2] == pytest.approx(chosen, rel=1e-6)
    offered = max(summed(left) for _, left in naive.sets_in_order(column, 14, g, h))
    assert chosen >= offered * (1 - 1e-6)


def training(seed=0, n_queries=40, k=30, codes=None, order=None, edges_from=None):
    """Ranked rows of two numbers and two categorical features, of which one has rare categories and missing values."""
    rng = np.random.default_rng(seed)
    n = n_queries * 20
    brand, shop = rng.integers(0, k, size=n), np.minimum(rng.geometric(0.05, size=n), 600)
    effect = rng.normal(size=k), rng.normal(size=601)
    numbers = np.round(rng.normal(size=(n, 2)), 2)
    hidden = effect[0][brand] + effect[1][shop] + numbers[:, 0] + 0.3 * rng.normal(size=n)
    grades = np.digitize(hidden, [0.0, 1.0, 2.0]).astype(np.int32)
    codes = np.arange(k) if codes is None else np.asarray(codes)
    x = np.column_stack([numbers, codes[brand], np.where(rng.random(n) < 0.1, np.nan, shop)]).astype(np.float32)
    names, categorical = ["a", "b", "brand", "shop"], ["brand", "shop"]
    if order is not None:
        within = np.concatenate([q * 20 + np.random.default_rng(order).permutation(20) for q in range(n_queries)])
        x, grades = x[within], grades[within]
    spec = matrix_bins(names, x, 63, categorical=categorical)
    starts = np.arange(0, n + 1, 20)
    rows = RankedRows(grades, starts, [apply_bins(x, spec)])
    data = TrainingData(
        train=rows, edges=[f.edges for f in spec.features], feature_names=names, max_grade=3, categories=spec.categories
    )
    return data, x


@pytest.mark.parametrize("grow_by", GROWTHS)
@pytest.mark.parametrize("criterion", ["se", "rwse"])
def test_raw_values_reach_the_leaves_that_training_gave_them(grow_by, criterion):
    data, x = training()
    given = fixed(n_rounds=8, grow=grow_by, criterion=criterion, early_stopping_rounds=0, min_rows_in_group=20)
    result = boost(data, given)
    assert len({f for f in result.forest.used_features if f >= 2}) == 2
    assert predict(result.forest, x).tolist() == naive.predict(result.forest, x)


@pytest.mark.parametrize("grow_by", GROWTHS)
def test_a_permutation_of_codes_gives_the_same_tree(grow_by):
    data, x = training()
    codes = np.random.default_rng(3).permutation(1000)[:30]
    other, y = training(codes=codes)
    given = fixed(n_rounds=10, grow=grow_by, early_stopping_rounds=0, objective="l2")
    assert predict(boost(data, given).forest, x).tolist() == predict(boost(other, given).forest, y).tolist()


@pytest.mark.parametrize("grow_by", GROWTHS)
def test_same_bytes_for_threads_and_the_order_of_rows(grow_by):
    given = fixed(n_rounds=10, grow=grow_by, early_stopping_rounds=0, objective="l2")
    data, _ = training()
    digest = boost(data, given).forest.sha256
    for n_threads in (2, 3):
        data, _ = training()
        assert boost(data, given, TrainingOptions(n_threads=n_threads)).forest.sha256 == digest
    data, _ = training(order=5)
    assert boost(data, given).forest.sha256 == digest


@pytest.mark.parametrize("grow_by", GROWTHS)
def test_resumed_equals_trained_in_one_go(grow_by):
    given = {"grow": grow_by, "early_stopping_rounds": 0}
    whole = boost(training()[0], fixed(n_rounds=9, **given)).forest
    part = boost(training()[0], fixed(n_rounds=4, **given)).forest
    options = TrainingOptions(resume=StartingModel(part))
    assert boost(training()[0], fixed(n_rounds=9, **given), options).forest.sha256 == whole.sha256


def test_what_only_numbers_have_is_refused():
    with refused(InvalidParameter, "monotone", "brand"):
        boost(training()[0], fixed(n_rounds=2, monotone={"brand": 1}))
    with refused(InvalidParameter, "ole", "brand"):
        boost(training()[0], fixed(n_rounds=2, criterion="ole"))
