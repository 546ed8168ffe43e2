"""Partial dependence and Friedman's H against their definitions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InputError
from rankmill.pipeline.categories import category_codes
from rankmill.scorer.forest import ARRAYS
from rankmill.scorer.inspect.dependence import interactions, partial_dependence, steps_of
from rankmill.scorer.inspect.paths import leaf_paths
from rankmill.scorer.predict import predict
from tests import naive_inspect
from tests.refusals import refused
from tests.scorer.forests import TEXTS, random_forest
from tests.scorer.inspect_case import random_values, several_outputs


@pytest.mark.parametrize("over", ["training", "documents"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("categorical", [0, 3])
def test_one_feature_and_two_by_their_definition(seed: int, over: str, categorical: int) -> None:
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


def test_over_documents_it_is_the_mean_of_what_the_model_says() -> None:
    forest = random_forest(9, n_trees=30, max_leaves=15)
    x = random_values(9, forest, 300)
    found = partial_dependence(forest, ["f2", "f4"], values=x, n_threads=2)
    for i, j in [(0, 0), (1, 3), (4, 2), (-1, -1)]:
        moved = x.copy()
        moved[:, 1], moved[:, 3] = found.points[0][i], found.points[1][j]
        assert found.outputs[0, i, j] == pytest.approx(predict(forest, moved).mean(), rel=1e-12)


def test_each_output_of_a_linked_forest_depends_for_itself() -> None:
    forest = several_outputs(2)
    x = random_values(2, forest, 9)
    for documents in (None, x):
        found = partial_dependence(forest, ["f1"], values=documents)
        for k in range(3):
            told = None if documents is None else documents.tolist()
            expected = [naive_inspect.dependence(forest, (0,), (at,), told, k) for at in found.points[0].tolist()]
            assert found.outputs[k] == pytest.approx(expected, rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_its_points_tell_the_whole_function(seed: int) -> None:
    forest = random_forest(seed)
    paths = leaf_paths(forest)
    for slot, name in enumerate(paths.feature_names):
        whole = partial_dependence(forest, [name])
        steps = steps_of(paths, slot)
        assert np.array_equal(whole.points[0], steps, equal_nan=True)
        x = np.random.default_rng(seed).normal(size=200).astype(np.float32) * 3
        place = 1 + np.searchsorted(steps[1:-1], x, side="left")
        assert np.array_equal(partial_dependence(forest, [name], points=[x]).outputs[0], whole.outputs[0][place])


@pytest.mark.parametrize("seed", range(3))
def test_a_categorical_feature_has_a_point_for_each_category_and_one_for_all_others(seed: int) -> None:
    forest = random_forest(seed, categorical=2, n_features=3)
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


def test_categories_are_sorted_numbers_first() -> None:
    forest = random_forest(1, categorical=1, n_features=1, n_trees=30, max_leaves=20)
    assert list(leaf_paths(forest).category_names(0).values()) == [
        *("-3", "0", "1", "2", "3", "7", "31", "32", "200", "65536", "0.5", "01", "<b>", "acme", "zeta", "été")
    ]  # fmt: skip


def test_a_threshold_of_infinity_parts_only_what_is_missing() -> None:
    forest = random_forest(0, n_features=1, n_trees=1, max_leaves=2)
    forest = replace(
        forest, cuts=np.float32([np.inf]), cut_starts=[0, 1], tree_starts=[0, 3], node_feature=[0, -1, -1],
        node_cut=[0, -1, -1], node_missing_left=[0, 0, 0], node_left=[1, -1, -1], node_right=[2, -1, -1],
        node_value=[0.0, 1.0, 3.0], node_gain=[0.0] * 3, node_rows=[9, 2, 7], tree_weights=[1.0], base_score=0.0,
    )  # fmt: skip
    found = partial_dependence(forest, ["f1"])
    assert found.points[0].tolist()[1:] == [np.inf]
    assert found.outputs.tolist() == [[3.0, 1.0]]


def test_threads_do_not_change_a_bit() -> None:
    forest = random_forest(3, n_trees=20)
    x = random_values(3, forest, 1500)
    one = partial_dependence(forest, ["f1", "f2"], values=x).outputs
    assert np.array_equal(partial_dependence(forest, ["f1", "f2"], values=x, n_threads=3).outputs, one)
    for over in ("training", "documents"):
        assert interactions(forest, x, over=over) == interactions(forest, x, over=over, n_threads=3)


def test_a_feature_never_asked_for_changes_nothing() -> None:
    forest = random_forest(5, n_features=8, n_trees=2, max_leaves=3)
    unused = next(f for f in range(8) if f not in forest.used_features)
    used = forest.feature_names[forest.used_features[0]]
    name = forest.feature_names[unused]
    found = partial_dependence(forest, [name, used])
    assert np.ptp(found.outputs, axis=1) == pytest.approx(np.zeros((1, found.outputs.shape[2])))
    h = interactions(forest, random_values(5, forest), features=[name, used])
    assert {one.features: one.h for one in h}[name, used] == 0.0
    assert {one.features: one.h for one in h}[name,] == 0.0


def test_what_is_not_there_is_said() -> None:
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
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("categorical", [0, 2])
def test_h_by_its_definition(seed: int, over: str, categorical: int) -> None:
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


def test_stumps_do_not_interact() -> None:
    forest = random_forest(1, n_trees=30, max_leaves=2)
    for over in ("training", "documents"):
        found = interactions(forest, random_values(1, forest, 200), over=over)
        assert len(found) == 15
        assert {one.h for one in found} == {0.0}


@pytest.mark.parametrize("over", ["training", "documents"])
def test_trees_that_cancel_do_not_interact(over: str) -> None:
    """What is left of them is rounding, and its share in rounding is no interaction."""
    forest = random_forest(7, n_trees=3, max_leaves=10)
    nodes = {name: np.tile(getattr(forest, name), 2) for name, _ in ARRAYS if name.startswith("node_")}
    starts = np.concatenate([forest.tree_starts, forest.tree_starts[1:] + forest.tree_starts[-1]])
    weights = np.concatenate([forest.tree_weights, -forest.tree_weights]) / 3.0
    nothing = replace(forest, tree_starts=starts, tree_weights=weights, **nodes)
    found = interactions(nothing, random_values(7, forest, 60), over=over)
    assert {(one.h, one.strength) for one in found} == {(0.0, 0.0)}
    assert max(one.h for one in interactions(forest, random_values(7, forest, 60), over=over)) > 0.01


def test_h_in_one_output_of_several() -> None:
    forest = several_outputs(4)
    x = random_values(4, forest, 10)
    found = interactions(forest, x, features=["f1", "f2"], output=2)
    for one in found:
        numbers = tuple(forest.feature_names.index(name) for name in one.features)
        assert one.h == pytest.approx(naive_inspect.h_statistic(forest, numbers, x.tolist(), None, 2)[0], abs=1e-9)
