"""Splits by sets of categories: against all subsets, against the documented limits, and whatever the codes are."""

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.pipeline.bins.spec import apply_bins, matrix_bins
from rankmill.scorer.forest.predict import predict
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests import naive_growth as naive
from tests.naive import predict as naive_predict
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.grown import grown


def case(seed, k, n=80, missing=0.2, rare=0.2):
    """Return one column of bins with ``k`` categories, g and h; the last bin holds rare ones."""
    rng = np.random.default_rng(seed)
    column = rng.integers(1, k + 1, size=n).astype(np.uint8)
    column[rng.random(n) < rare] = k + 1
    column[rng.random(n) < missing] = 0
    return column, rng.integers(-128, 129, size=n) / 64, rng.integers(8, 72, size=n) / 64  # exact in packed sums


@pytest.mark.parametrize("k", [1, 2, 5, 8])
@pytest.mark.parametrize("lambda_l2", [0.0, 2.0])
def test_without_limits_the_best_set_is_the_best_of_all_subsets(k, lambda_l2):
    for seed in range(4):
        rest = 0.0 if seed % 2 else 0.2
        column, g, h = case(seed, k, missing=rest, rare=rest)
        gains = [naive.split_gain(g, h, left, lambda_l2) for _, left in naive.sets_of_categories(column, k + 2)]
        best = max(gains, default=0.0)
        for shape in ({"max_leaves": 2}, {"grow": "oblivious", "max_depth": 1}):
            given, scores = {"n_bins": [k + 2], "categorical": [True], **shape}, np.zeros(len(g))
            tree = grown(column[:, None], g, h, scores=scores, lambda_l2=lambda_l2, **given)
            if best < 1e-9:
                assert tree.n_leaves == 1
                continue
            assert tree.gain[0] == pytest.approx(best, rel=1e-9)
            left = np.isin(column, naive.members_of(tree, 0))
            assert naive.split_gain(g, h, left, lambda_l2) == pytest.approx(best, rel=1e-9)
            assert not {0, k + 1} & {*naive.members_of(tree, 0)}  # missing and rare ones go right
            for side in (left, ~left):
                assert scores[side] == pytest.approx(-g[side].sum() / (h[side].sum() + lambda_l2), rel=1e-9)


@pytest.mark.parametrize(
    "limits", [{"most": 2}, {"smoothing": 6.0}, {"group": 15}, {"smoothing": 4.0, "most": 3, "group": 10}], ids=str
)
def test_limits_are_those_documented(limits):
    for seed in range(3):
        column, g, _ = case(seed, 12, n=160)
        h = np.ones(160)  # then the rows that hessians stand for are the rows
        tried = naive.sets_in_order(column, 14, g, h, **limits)
        tree = grown(
            column[:, None], g, h, n_bins=[14], categorical=[True], max_leaves=2,
            category_smoothing=limits.get("smoothing", 0.0), categories_in_set=limits.get("most", 255),
            min_rows_in_group=limits.get("group", 0),
        )  # fmt: skip
        assert tree.gain[0] == pytest.approx(max(naive.split_gain(g, h, left, 0.0) for _, left in tried), rel=1e-9)
        assert len(naive.members_of(tree, 0)) <= limits.get("most", 255)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("shape", [{"max_leaves": 6}, {"grow": "oblivious", "max_depth": 2}], ids=str)
def test_one_against_the_rest_equals_the_feature_expanded(k, shape):
    for seed in range(2):
        column, g, h = case(seed, k, rare=0.0, missing=0.0)
        expanded = np.stack([1 + (column == b) for b in range(1, k + 1)], axis=1).astype(np.uint8)
        limits = {"one_vs_rest": 4, "category_l2": 10.0, "min_rows_in_group": 50}  # only sets in order have these
        by_set, by_column = np.zeros((2, len(g)))
        grown(column[:, None], g, h, scores=by_set, n_bins=[k + 2], categorical=[True], **limits, **shape)
        grown(expanded, g, h, scores=by_column, n_bins=[3] * k, **shape)
        assert by_set == pytest.approx(by_column, rel=1e-9)


@pytest.mark.parametrize("min_rows", [25, 60])
def test_a_level_gains_at_least_what_the_order_of_the_whole_level_offers(min_rows):
    """Rows are counted here, as hessians say little about them; sets that are tried later may only gain more."""
    checked = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        column, _, _ = case(seed, 12, n=400)
        side = rng.integers(1, 3, size=400).astype(np.uint8)
        effect = rng.normal(size=(3, 14))
        g = np.round((effect[side, column] + rng.normal(size=400)) * 64) / 64
        h = rng.choice([1 / 1024, 1.0], size=400)
        tree = grown(
            np.stack([side, column], axis=1), g, h, n_bins=[3, 14], categorical=[False, True], grow="oblivious",
            max_depth=2, min_rows_in_leaf=min_rows, lambda_l2=1.0, min_hessian_in_leaf=0.5,
        )  # fmt: skip
        if tree.n_leaves < 4 or tree.feature[1] != 1:
            continue  # the second split is none by categories
        first = side <= tree.threshold[0] if tree.feature[0] == 0 else np.isin(column, naive.members_of(tree, 0))

        def summed(left, first=first, g=g, h=h):
            gain = 0.0
            for rows in (first, ~first):
                sides = left & rows, ~left & rows
                if min(s.sum() for s in sides) >= min_rows and min(h[s].sum() for s in sides) >= 0.5:
                    gain += naive.split_gain(g[rows], h[rows], left[rows], 1.0)
            return gain

        chosen = summed(np.isin(column, naive.members_of(tree, 1)))
        assert tree.gain[1] + tree.gain[2] == pytest.approx(chosen, rel=1e-6)
        offered = max(summed(left) for _, left in naive.sets_in_order(column, 14, g, h))
        assert chosen >= offered * (1 - 1e-6)
        checked += 1
    assert checked > 1


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


@pytest.mark.parametrize(
    ("grow_by", "criterion"), [("best_first", "se"), ("oblivious", "rwse"), ("depth_first", "rwse")]
)
def test_raw_values_reach_the_leaves_that_training_gave_them(grow_by, criterion):
    data, x = training()
    given = fixed(n_rounds=4, grow=grow_by, criterion=criterion, early_stopping_rounds=0, min_rows_in_group=20)
    result = boost(data, given)
    assert len({f for f in result.forest.used_features if f >= 2}) == 2
    assert predict(result.forest, x).tolist() == naive_predict(result.forest, x)


@pytest.mark.parametrize("grow_by", ["best_first", "oblivious"])
def test_neither_codes_nor_threads_the_order_of_rows_or_a_resume_change_a_tree(grow_by):
    given = {"grow": grow_by, "early_stopping_rounds": 0, "objective": "l2"}
    data, x = training()
    whole = boost(data, fixed(n_rounds=6, **given)).forest
    other, y = training(codes=np.random.default_rng(3).permutation(1000)[:30])
    assert predict(whole, x).tolist() == predict(boost(other, fixed(n_rounds=6, **given)).forest, y).tolist()
    part = StartingModel(boost(training()[0], fixed(n_rounds=3, **given)).forest)
    for order, options in ((None, {"n_threads": 3}), (5, {}), (None, {"resume": part})):
        found = boost(training(order=order)[0], fixed(n_rounds=6, **given), TrainingOptions(**options)).forest
        assert found.sha256 == whole.sha256


def test_what_only_numbers_have_is_refused():
    with refused(InvalidParameter, "monotone", "brand"):
        boost(training()[0], fixed(n_rounds=2, monotone={"brand": 1}))
    with refused(InvalidParameter, "ole", "brand"):
        boost(training()[0], fixed(n_rounds=2, criterion="ole"))
