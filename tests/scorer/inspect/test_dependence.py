"""Partial dependence and Friedman's H against their definitions."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InputError
from rankmill.pipeline.bins.categories import category_codes
from rankmill.scorer.forest.forest import ARRAYS, feature_importance
from rankmill.scorer.inspect.dependence import interactions, partial_dependence, steps_of
from rankmill.scorer.inspect.paths import leaf_paths
from tests import naive_inspect
from tests.refusals import refused
from tests.scorer.forests import TEXTS, by_hand, random_forest
from tests.scorer.inspect.inspect_case import random_values, several_outputs


@pytest.mark.parametrize("over", ["training", "documents"])
@pytest.mark.parametrize(("seed", "categorical"), [(0, 0), (1, 3)])
def test_one_feature_and_two_by_their_definition(seed, over, categorical):
    forest = random_forest(seed, n_features=4, n_trees=5, categorical=categorical)
    x = random_values(seed, forest, 15)
    documents = x.tolist() if over == "documents" else None
    for known in ((0,), (3,), (0, 2), (3, 1)):
        names = [forest.feature_names[f] for f in known]
        points = [np.unique(x[:5, f]) for f in known]
        found = partial_dependence(forest, names, points=points, values=x if documents else None)
        assert found.outputs.shape == (1, *map(len, points))
        expected = [naive_inspect.dependence(forest, known, at, documents) for at in itertools.product(*points)]
        assert found.outputs.ravel() == pytest.approx(expected, rel=1e-11, abs=1e-12)
        assert found.n_documents == (15 if documents else None)


def test_each_output_of_a_linked_forest_depends_for_itself():
    forest = several_outputs(2)
    x = random_values(2, forest, 9)
    for documents in (None, x):
        found = partial_dependence(forest, ["f1"], values=documents)
        for k in range(3):
            reported = None if documents is None else documents.tolist()
            expected = [naive_inspect.dependence(forest, (0,), (at,), reported, k) for at in found.points[0].tolist()]
            assert found.outputs[k] == pytest.approx(expected, rel=1e-11, abs=1e-12)


def test_its_points_determine_the_whole_function():
    seed = 1
    forest = random_forest(seed)
    paths = leaf_paths(forest)
    for slot, name in enumerate(paths.feature_names):
        whole = partial_dependence(forest, [name])
        steps = steps_of(paths, slot)
        assert np.array_equal(whole.points[0], steps, equal_nan=True)
        x = np.random.default_rng(seed).normal(size=200).astype(np.float32) * 3
        place = 1 + np.searchsorted(steps[1:-1], x, side="left")
        assert np.array_equal(partial_dependence(forest, [name], points=[x]).outputs[0], whole.outputs[0][place])


def test_a_categorical_feature_has_a_point_for_each_category_and_one_for_all_others():
    forest = random_forest(1, categorical=2, n_features=3)
    paths = leaf_paths(forest)
    for slot, name in enumerate(paths.feature_names[:2]):
        whole = partial_dependence(forest, [name])
        assert whole.categories is not None
        texts = whole.categories[name]
        assert (texts[0], texts[-1]) == ("missing", "other")
        assert sorted(category_codes(texts[1:-1]).tolist()) == paths.cuts(slot).tolist()
        outputs = dict(zip(texts, whole.outputs[0], strict=True))
        x = np.float32([np.nan, *category_codes(TEXTS), 0.25, -np.inf, 123.0])
        found = partial_dependence(forest, [name], points=[x])
        assert found.categories is not None
        assert [outputs[text] for text in found.categories[name]] == found.outputs[0].tolist()
        assert set(found.categories[name]) == set(texts)
    assert partial_dependence(forest, ["f3"]).categories is None


def test_categories_are_sorted_numbers_first():
    forest = random_forest(1, categorical=1, n_features=1, n_trees=30, max_leaves=20)
    assert list(leaf_paths(forest).category_names(0).values()) == [
        *("-3", "0", "1", "2", "3", "7", "31", "32", "200", "65536", "0.5", "01", "<b>", "acme", "zeta", "été")
    ]  # fmt: skip


def test_a_threshold_of_infinity_parts_only_what_is_missing():
    forest = by_hand(
        cuts=np.float32([np.inf]), node_feature=[0, -1, -1], node_cut=[0, -1, -1], node_left=[1, -1, -1],
        node_right=[2, -1, -1], node_value=[0.0, 1.0, 3.0], node_rows=[9, 2, 7],
    )  # fmt: skip
    found = partial_dependence(forest, ["x"])
    assert found.points[0].tolist()[1:] == [np.inf]
    assert found.outputs.tolist() == [[3.0, 1.0]]


def test_threads_do_not_change_a_bit():
    forest = random_forest(3, n_trees=20)
    x = random_values(3, forest, 1500)
    one = partial_dependence(forest, ["f1", "f2"], values=x).outputs
    assert np.array_equal(partial_dependence(forest, ["f1", "f2"], values=x, n_threads=3).outputs, one)
    for over in ("training", "documents"):
        assert interactions(forest, x, over=over) == interactions(forest, x, over=over, n_threads=3)


def test_a_feature_never_asked_for_changes_nothing():
    forest = random_forest(5, n_features=8, n_trees=2, max_leaves=3)
    name = next(forest.feature_names[f] for f in range(8) if f not in forest.used_features)
    used = forest.feature_names[forest.used_features[0]]
    found = partial_dependence(forest, [name, used])
    assert np.ptp(found.outputs, axis=1) == pytest.approx(np.zeros((1, found.outputs.shape[2])))
    h = {one.features: one.h for one in interactions(forest, random_values(5, forest), features=[name, used])}
    assert h[name, used] == h[name,] == 0.0


def test_what_is_not_there_is_said():
    forest = random_forest(0)
    with refused(InputError, "feature", "'f11'", "'f1'"):
        partial_dependence(forest, ["f11"])
    with refused(InputError, "partial dependence", "3"):
        partial_dependence(forest, ["f1", "f2", "f3"])
    with refused(InputError, "'f1'", "twice"):
        partial_dependence(forest, ["f1", "f1"])
    with refused(InputError, "3000"):
        partial_dependence(forest, ["f1", "f2"], points=[np.zeros(3000), np.zeros(3000)])
    with refused(InputError, "training rows"):
        partial_dependence(replace(forest, node_rows=0 * forest.node_rows), ["f1"])
    with refused(ValueError, "documents"):
        partial_dependence(forest, ["f1"], values=np.zeros((0, 5), np.float32))
    with refused(InputError, "over", "'docs'"):
        interactions(forest, random_values(0, forest), over="docs")
    with refused(InputError, "output", "0..0", "1"):
        interactions(forest, random_values(0, forest), output=1)


@pytest.mark.parametrize("over", ["training", "documents"])
@pytest.mark.parametrize(("seed", "categorical"), [(0, 0), (1, 2)])
def test_h_by_its_definition(seed, over, categorical):
    forest = random_forest(seed, n_features=3, n_trees=4, max_leaves=5, categorical=categorical)
    x = random_values(seed, forest, 12)
    x[3] = x[4]  # cells that several documents share
    documents = x.tolist() if over == "documents" else None
    found = interactions(forest, x, features=list(forest.feature_names), over=over)
    assert {one.features for one in found} == {("f1",), ("f2",), ("f3",), ("f1", "f2"), ("f1", "f3"), ("f2", "f3")}
    for one in found:
        numbers = tuple(forest.feature_names.index(name) for name in one.features)
        expected = naive_inspect.h_statistic(forest, numbers, x.tolist(), documents)
        assert (one.h, one.strength) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("over", ["training", "documents"])
def test_trees_that_cancel_do_not_interact(over):
    """What is left of them is rounding, and its share in rounding is no interaction."""
    forest = random_forest(7, n_trees=3, max_leaves=10)
    nodes = {name: np.tile(getattr(forest, name), 2) for name, _ in ARRAYS if name.startswith("node_")}
    starts = np.concatenate([forest.tree_starts, forest.tree_starts[1:] + forest.tree_starts[-1]])
    weights = np.concatenate([forest.tree_weights, -forest.tree_weights]) / 3.0
    nothing = replace(forest, tree_starts=starts, tree_weights=weights, **nodes)
    found = interactions(nothing, random_values(7, forest, 60), over=over)
    assert {(one.h, one.strength) for one in found} == {(0.0, 0.0)}
    assert max(one.h for one in interactions(forest, random_values(7, forest, 60), over=over)) > 0.01


def test_influence_is_the_share_of_a_feature_in_the_gains():
    forest = random_forest(1)
    gains = dict.fromkeys(range(forest.n_features), 0.0)
    for feature, gain in zip(forest.node_feature.tolist(), forest.node_gain.tolist(), strict=True):
        if feature >= 0:
            gains[feature] += gain
    found = feature_importance(forest)
    assert found == pytest.approx([gain / sum(gains.values()) for gain in gains.values()])
    assert found.sum() == pytest.approx(1.0)


def test_without_gains_splits_count_by_their_documents_and_without_these_alike():
    forest = random_forest(2)
    nothing = np.zeros(len(forest.node_gain))
    by_rows = replace(forest, node_gain=nothing)
    as_gains = replace(forest, node_gain=np.where(forest.node_feature >= 0, forest.node_rows, 0))
    assert feature_importance(by_rows).tolist() == feature_importance(as_gains).tolist()
    counted = np.bincount(forest.node_feature[forest.node_feature >= 0], minlength=forest.n_features)
    bare = replace(by_rows, node_rows=nothing.astype(np.int64))
    assert feature_importance(bare) == pytest.approx(counted / counted.sum())


def test_gains_of_a_damaged_file_are_shares_still():
    forest = random_forest(3)
    inner = forest.node_feature >= 0
    for gains in (np.where(np.arange(len(inner)) % 2, 1.0, -1.0), np.full(len(inner), 1e308)):
        found = feature_importance(replace(forest, node_gain=np.where(inner, gains, 0.0)))
        assert np.all(found >= 0.0)
        assert found.sum() == pytest.approx(1.0)


def test_without_a_split_nothing_has_influence():
    assert feature_importance(random_forest(0).truncated(0)).tolist() == [0.0] * 5
