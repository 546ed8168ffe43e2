from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from rankmill.foundation.errors import InputError
from rankmill.scorer.exchange.lightgbm import read
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.inspect.paths import leaf_paths
from rankmill.scorer.inspect.shap import Explainer, rules_up_to, shap_interactions, shap_values
from tests.naive_inspect import expected_output, shapley, shapley_interactions
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.inspect.inspect_case import random_values, several_outputs


def without_link(forest, output):
    """One output of a forest as a forest of its own."""
    kept = range(output, forest.n_trees, forest.n_outputs)
    nodes = np.concatenate([np.arange(*forest.tree_starts[t : t + 2]) for t in kept])
    sizes = [int(np.diff(forest.tree_starts)[t]) for t in kept]
    arrays = {n: getattr(forest, n)[nodes] for n in (
        "node_feature", "node_cut", "node_missing_left", "node_left", "node_right", "node_value", "node_gain",
        "node_rows",
    )}  # fmt: skip
    return replace(
        forest, **arrays, tree_starts=np.cumsum([0, *sizes]), tree_weights=forest.tree_weights[list(kept)],
        link="identity", n_outputs=1, trees_a_round=1,
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 5, 11])
@pytest.mark.parametrize("categorical", [0, 3])
def test_the_values_are_shapleys_over_all_subsets(seed, categorical):
    forest = random_forest(seed, n_features=4 + seed % 2, n_trees=4, max_leaves=3 + seed, categorical=categorical)
    x = random_values(seed, forest, 12)
    found = shap_values(forest, x)
    for row in range(len(x)):
        assert found.values[row, 0] == pytest.approx(shapley(forest, x[row].tolist()), rel=1e-11, abs=1e-12)
    assert found.base[:, 0] == pytest.approx(expected_output(forest, [0.0] * 6, set()), rel=1e-12)


@pytest.mark.parametrize("seed", [1, 2, 7])
@pytest.mark.parametrize("categorical", [0, 3])
def test_interactions_are_shapleys_over_all_subsets(seed, categorical):
    forest = random_forest(seed, n_features=4, n_trees=4, max_leaves=3 + seed, categorical=categorical)
    if seed == 1:
        rows = np.where(forest.node_rows < 50, 0, forest.node_rows)  # shares of 0
        rows[forest.tree_starts[:-1]] = 100
        forest = replace(forest, node_rows=rows)
    x = random_values(seed, forest, 6)
    found = shap_interactions(forest, x)
    for row in range(len(x)):
        expected = np.array(shapley_interactions(forest, x[row].tolist()))
        assert found.values[row, 0] == pytest.approx(expected, rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("linked", [False, True])
def test_interactions_are_symmetric_and_sum_to_the_shap_values(linked):
    forest = several_outputs(3) if linked else random_forest(3, n_features=12, n_trees=30, max_leaves=40, categorical=4)
    x = random_values(3, forest, 1100)
    qid = np.arange(len(x)) % 7
    for queries in (None, qid):
        found, single = shap_interactions(forest, x, qid=queries), shap_values(forest, x, qid=queries)
        assert np.array_equal(found.values, found.values.swapaxes(2, 3))
        assert found.values.sum(axis=3) == pytest.approx(single.values, rel=1e-9, abs=1e-11)
        assert found.base == pytest.approx(single.base, rel=1e-12, abs=1e-12)
    whole = shap_interactions(forest, x).values
    assert np.array_equal(shap_interactions(forest, x, n_threads=3).values, whole)
    assert np.array_equal(shap_interactions(forest, x[500:600]).values, whole[500:600])


@pytest.mark.parametrize("link", ["softmax_grade", "ordinal_gain"])
def test_each_output_of_a_linked_forest_has_values_of_its_own(link):
    forest = several_outputs(3, link)
    x = random_values(3, forest)
    found = shap_values(forest, x)
    for k in range(forest.n_outputs):
        one = without_link(forest, k)
        assert found.values[:, k] == pytest.approx(shap_values(one, x).values[:, 0], rel=1e-12, abs=1e-13)
        assert found.values[:, k].sum(axis=1) + found.base[:, k] == pytest.approx(predict(one, x), rel=1e-9)
        assert found.values[7, k] == pytest.approx(shapley(forest, x[7].tolist(), k), rel=1e-11, abs=1e-12)


@pytest.mark.parametrize(("seed", "categorical"), [(0, 0), (1, 20)])
def test_large_trees_add_up_to_the_score(seed, categorical):
    texts = [f"category {i}" for i in range(300)]
    forest = random_forest(
        seed, n_features=30, n_trees=40, max_leaves=120, n_thresholds=40, categorical=categorical, texts=texts
    )
    x = random_values(seed, forest, 300)
    found = shap_values(forest, x)
    scale = np.abs(found.values).sum(axis=(1, 2))
    assert np.abs(found.values.sum(axis=(1, 2)) + found.base[:, 0] - predict(forest, x)).max() <= 1e-12 * scale.max()


def test_a_chain_of_more_features_than_fit_one_number_adds_up():
    """A path of 100 features: beyond the sets that are remembered."""
    n = 100
    inner = np.tile([True, False], n)
    feature = np.append(np.where(inner, np.repeat(np.arange(n), 2), -1), -1)
    steps = np.arange(2 * n + 1)
    split = feature >= 0
    forest = replace(
        random_forest(0, n_features=n, n_trees=1, max_leaves=1),
        cuts=np.zeros(n, np.float32), cut_starts=np.arange(n + 1), tree_starts=[0, 2 * n + 1], node_feature=feature,
        node_cut=np.where(split, 0, -1), node_missing_left=np.zeros(2 * n + 1, np.uint8),
        node_left=np.where(split, steps + 1, -1), node_right=np.where(split, steps + 2, -1),
        node_value=np.sin(steps), node_gain=np.zeros(2 * n + 1), node_rows=1000 - steps, tree_weights=[1.0],
    )  # fmt: skip
    x = np.random.default_rng(1).normal(size=(50, n)).astype(np.float32) + 1.5
    x[0] = 1.0  # all the way down
    found = shap_values(forest, x)
    assert found.values.sum(axis=(1, 2)) + found.base[:, 0] == pytest.approx(predict(forest, x), rel=1e-12)


def test_rows_batches_and_threads_do_not_change_a_bit():
    seed = 1
    forest = random_forest(seed, n_trees=20, max_leaves=20)
    x = random_values(seed, forest, 1100)
    whole = shap_values(forest, x).values
    for threads in (2, 3):
        assert np.array_equal(shap_values(forest, x, n_threads=threads).values, whole)
    explainer = Explainer(forest)
    codes = explainer.paths.codes(x)
    parts = [explainer.contributions(codes[i : i + 7]) for i in range(0, len(codes), 7)]
    used = list(explainer.paths.features)
    assert np.array_equal(np.concatenate(parts), whole[:, :, used])
    backwards = shap_values(forest, np.ascontiguousarray(x[::-1])).values
    assert np.array_equal(backwards[::-1], whole)


def test_without_the_mean_of_their_query_the_values_add_up_to_what_is_above_it():
    forest = several_outputs(6)
    x = random_values(6, forest, 60)
    qid = np.random.default_rng(6).integers(0, 7, size=60).astype(str)
    whole, found = shap_values(forest, x), shap_values(forest, x, qid=qid)
    assert found.values.sum(axis=2) + found.base == pytest.approx(whole.values.sum(axis=2) + whole.base, abs=1e-12)
    for query in np.unique(qid):
        rows = qid == query
        assert found.values[rows].mean(axis=0) == pytest.approx(np.zeros((3, 5)), abs=1e-12)
        assert np.ptp(found.base[rows], axis=0) == pytest.approx([0.0] * 3)
        differences = whole.values[rows][:1] - whole.values[rows][1:]
        assert found.values[rows][:1] - found.values[rows][1:] == pytest.approx(differences, abs=1e-12)


def test_a_share_of_nothing_is_no_division_by_it():
    forest = random_forest(7, n_trees=4, max_leaves=6)
    rows = np.where(np.arange(len(forest.node_rows)) % 3 == 1, 0, forest.node_rows)
    rows[forest.tree_starts[:-1]] = 9
    forest = replace(forest, node_rows=rows)
    x = random_values(7, forest, 10)
    for row, values in zip(x, shap_values(forest, x).values[:, 0], strict=True):
        assert values == pytest.approx(shapley(forest, row.tolist()), rel=1e-11, abs=1e-12)


def test_what_cannot_be_explained_is_refused():
    forest = random_forest(0)
    with refused(InputError, "tree", "training rows"):
        shap_values(replace(forest, node_rows=0 * forest.node_rows), random_values(0, forest))
    with refused(InputError, "n_rounds", "0..6"):
        shap_values(forest, random_values(0, forest), n_rounds=7)
    with refused(ValueError, "qid", "(3,)"):
        shap_values(forest, random_values(0, forest), qid=[1, 2, 3])
    with refused(ValueError, "values", "4", "5"):
        shap_values(forest, random_values(0, forest)[:, :4])
    with refused(ValueError, "table", "floats"):
        leaf_paths(forest).codes(np.zeros((2, 5), dtype=np.int32))


def test_a_forest_without_a_split_has_nothing_to_explain():
    empty = random_forest(0).truncated(0)
    found = shap_values(empty, np.zeros((3, 5), dtype=np.float32))
    assert not found.values.any()
    assert found.base.tolist() == [[empty.base_score]] * 3


def test_the_rules_are_exact_for_polynomials():
    points, weights = rules_up_to(12)
    at = 0
    for n in range(1, 13):
        x, w = points[at : at + n], weights[at : at + n]
        assert np.all((x > 0) & (x < 1) & (w > 0))
        for degree in range(2 * n):
            assert float(sum(w * x**degree)) == pytest.approx(float(Fraction(1, degree + 1)), rel=3e-15)
        gauss = np.polynomial.legendre.leggauss(n)
        assert x == pytest.approx((1 + gauss[0]) / 2, rel=1e-14)
        at += n


def test_a_peer_finds_the_same_values():
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    y = np.nan_to_num(x[:, 0] * x[:, 1] + x[:, 2])
    booster = lightgbm.train(
        {"num_leaves": 8, "min_data_in_leaf": 5, "verbose": -1, "num_threads": 1}, lightgbm.Dataset(x, y), 5
    )
    forest = read(booster.model_to_string().encode(), "booster").forest
    peer = booster.predict(x, pred_contrib=True)
    found = shap_values(forest, x)
    assert found.values[:, 0] == pytest.approx(peer[:, :-1], rel=1e-9, abs=1e-12)
    assert found.base[:, 0] == pytest.approx(peer[:, -1], rel=1e-9)
