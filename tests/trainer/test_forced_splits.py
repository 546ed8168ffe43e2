"""Splits that every tree begins with: where they are, what comes after them, and those that cannot be taken."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest import Forest
from rankmill.trainer.forced_splits import listed
from rankmill.trainer.growing.controls import Controls
from rankmill.trainer.growing.forced import forced_table
from rankmill.trainer.growing.grower import Grower, SplitNoise
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.presets import DataShape, with_preset
from rankmill.trainer.workers import Team, with_team
from tests import naive
from tests.refusals import refused
from tests.scorer.exchange_cases import peer
from tests.trainer.fixed import fixed
from tests.trainer.grown import nodes_of
from tests.trainer.planted import check_same_bytes, fit, small_data
from tests.trainer.small_case import TOP, small_case

BY_NODE = ("best_first", "breadth_first", "depth_first")
SHAPES = [{"grow": grow, "max_leaves": 9} for grow in BY_NODE] + [{"grow": "oblivious", "max_depth": 3}]
NAMES = [f"f{number}" for number in range(5)]
EDGES = [np.arange(TOP - 2, dtype=np.float32) for _ in NAMES]  # so that bin b holds the value b - 1
TREE = SplitNoise(0.0, np.uint64(0), np.uint64(12345))


def at(feature, b, left=None, right=None):
    """A forced split of number or name ``feature`` after bin ``b``."""
    sides = {"left": left, "right": right}
    return {"feature": feature, "threshold": b - 1} | {side: each for side, each in sides.items() if each}


TWO_LEVELS = at("f3", 3, at("f0", 2), at("f4", 5, at("f1", 4)))


def grown(bins, g, h, team=None, categorical=None, monotone=None, n_bins=TOP, features=None, edges=None, **parameters):
    given = fixed(**{"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0, **parameters})
    names, by_set = NAMES[: bins.shape[1]], np.zeros(bins.shape[1], dtype=np.bool_)
    by_set[categorical or []] = True
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], n_bins, dtype=np.int32))
    grower = Grower(
        layout,
        given,
        team or Team(1),
        monotone=monotone,
        categorical=by_set,
        controls=Controls.of(given, names),
        forced=forced_table(given, names, edges or EDGES, by_set),
    )
    return grower.grow(g, h, np.zeros(len(g)), noise=TREE, features=features)


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)


def split_of(tree, node):
    return int(tree.feature[node]), int(tree.threshold[node])


def forced_nodes(tree, splits):
    """Return {node: (feature, bin)} of the forced splits of a tree."""
    nodes = []
    for split in listed(TrainParameters(forced_splits=splits).forced_splits):
        above = 0 if not split.above else (tree.left, tree.right)[split.side][nodes[split.above[-1]]]
        nodes.append(int(above))
    wanted = listed(TrainParameters(forced_splits=splits).forced_splits)
    return {
        node: (NAMES.index(split.feature), int(split.threshold) + 1) for node, split in zip(nodes, wanted, strict=True)
    }


def best_of(found):
    found = [split for split in found if split[0] > 1e-12]
    return max(found, key=lambda split: split[0]) if found else None  # the first of equals


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("grow", BY_NODE)
def test_a_tree_begins_with_the_forced_splits_and_goes_on_with_the_best_ones(seed, grow):
    bins, g, h = small_case(seed, n=200)
    tree = grown(bins, g, h, max_leaves=10, grow=grow, forced_splits=TWO_LEVELS)
    forced, rows = forced_nodes(tree, TWO_LEVELS), nodes_of(tree, bins)
    assert tree.n_leaves == 10
    assert len(forced) == 4
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        mine = rows[node]
        found = list(naive.splits(bins[mine], g[mine], h[mine]))
        if node in forced:
            assert split_of(tree, node) == forced[node]
            found = [split for split in found if split[1:3] == forced[node]]  # missing values go where they gain more
        gain, *split = best_of(found)
        assert split_of(tree, node) == tuple(split[:2])
        assert bool(tree.missing_left[node]) == split[2] or split[2] is None
        assert tree.gain[node] == pytest.approx(gain, rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "limits", [{}, {"min_gain": 0.3}, {"lambda_l2": 1.5}, {"min_rows_in_leaf": 9}, {"path_smooth": 2.0}]
)
def test_forcing_the_split_that_is_chosen_anyway_changes_nothing(seed, shape, limits):
    bins, g, h = small_case(seed, n=90, missing=0.2 if seed % 2 else 0.0)
    free = grown(bins, g, h, **shape, **limits)
    if free.feature[0] < 0:
        return
    asked = at(int(free.feature[0]), int(free.threshold[0]))
    if shape["grow"] == "oblivious" and free.feature[1] >= 0:
        asked |= {"right": at(int(free.feature[1]), int(free.threshold[1]))}
    assert same(grown(bins, g, h, forced_splits=asked, **shape, **limits), free)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "limits", [{"min_rows_in_leaf": 25}, {"min_hessian_in_leaf": 6.0}, {"min_gain": 1e6}, {"monotone": True}]
)
def test_a_split_that_cannot_be_taken_is_skipped_with_all_below(seed, shape, limits):
    bins, g, h = small_case(seed, n=120)
    bins[:, 2] = 1 + (np.arange(120) % 24 == 0)  # five rows go right
    if "monotone" in limits:
        g = g + np.where(bins[:, 2] == 1, 5.0, -5.0)  # scores would rise
        limits = {"monotone": np.array([0, 0, -1, 0, 0], dtype=np.int8)}
    free = grown(bins, g, h, **shape, **limits)
    found = grown(bins, g, h, forced_splits=at("f2", 1, at("f0", 3), at("f0", 3)), **shape, **limits)
    assert same(found, free)
    for b in (TOP - 1, 40):  # nothing on the right
        assert same(grown(bins, g, h, forced_splits=at("f2", b), **shape, **limits), free)


@pytest.mark.parametrize("grow", BY_NODE)
def test_what_is_skipped_is_a_branch_and_not_the_others(grow):
    bins, g, h = small_case(3, n=120)
    bins[:, 2] = 1
    shape = {"grow": grow, "max_leaves": 8}
    whole = grown(bins, g, h, forced_splits=at("f3", 3, at("f2", 1, at("f0", 2)), at("f4", 4)), **shape)
    assert same(whole, grown(bins, g, h, forced_splits=at("f3", 3, None, at("f4", 4)), **shape))


@pytest.mark.parametrize("seed", range(5))
def test_a_level_of_an_oblivious_tree_has_its_condition(seed):
    bins, g, h = small_case(seed, n=300)
    asked = at("f3", 3, at("f0", 2), at("f0", 2))
    tree = grown(bins, g, h, grow="oblivious", max_depth=3, forced_splits=asked)
    assert [split_of(tree, node) for node in (0, 1, 2)] == [(3, 3), (0, 2), (0, 2)]
    assert same(tree, grown(bins, g, h, grow="oblivious", max_depth=3, forced_splits=at("f3", 3, None, at("f0", 2))))
    rows = nodes_of(tree, bins)
    found = [
        (sum(naive.split_gain(g[r], h[r], naive.goes_left(bins[r, f], b, m), 0.0) for r in rows[3:7]), f, b)
        for f in range(5)
        for b in range(1, TOP)
        for m in (False, True)
    ]
    gain, *split = max(found, key=lambda each: each[0])
    assert split_of(tree, 3) == tuple(split)
    assert tree.gain[3:7].sum() == pytest.approx(gain, rel=1e-9)
    with refused(InvalidParameter, "forced_splits", "oblivious", "'f0'", "'f1'"):
        grown(bins, g, h, grow="oblivious", forced_splits=at("f3", 3, at("f0", 2), at("f1", 2)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_set_of_categories_goes_left(seed, shape):
    rng = np.random.default_rng(seed)
    bins, g, h = small_case(seed, n=300, n_features=3)
    bins[:, 1] = rng.integers(0, 12, size=300)
    limits = {"categorical": [1], "n_bins": 12, "min_rows_in_group": 1, "category_l2": 0.0} | shape
    edges = [np.arange(10, dtype=np.float32)] * 3
    tree = grown(bins, g, h, edges=edges, forced_splits={"feature": "f1", "threshold": [6, 1, "3"]}, **limits)
    assert split_of(tree, 0) == (1, 0)
    assert int(tree.sets[0, 0]) == 1 << 2 | 1 << 4 | 1 << 7
    left = np.isin(bins[:, 1], [2, 4, 7])
    assert tree.rows[tree.left[0]] == left.sum()
    free = grown(bins, g, h, edges=edges, **limits)
    chosen = next(node for node in range(len(free.feature)) if free.feature[node] == 1) if 1 in free.feature else None
    if chosen == 0:
        codes = [b - 1.0 for b in range(12) if int(free.sets[0, 0]) >> b & 1]
        assert same(grown(bins, g, h, edges=edges, forced_splits={"feature": 1, "threshold": codes}, **limits), free)
    with refused(InvalidParameter, "forced_splits", "'f1'", "'77'", "max_bin_of"):
        grown(bins, g, h, edges=edges, forced_splits={"feature": 1, "threshold": 77}, **limits)
    with refused(InvalidParameter, "'f0'", "number"):
        grown(bins, g, h, edges=edges, forced_splits={"feature": 0, "threshold": [1, 2]}, **limits)


@pytest.mark.parametrize("shape", SHAPES)
def test_neither_samples_nor_weights_keep_a_forced_split_away(shape):
    bins, g, h = small_case(2, n=200)
    asked = at("f3", 3)
    for others in (
        {"feature_weights": {"f3": 0.0}},
        {"feature_costs": {"f3": 1e9}},
        {"extra_trees": True},
        {"feature_fraction_by_level": 0.2},
        {"features": np.array([1, 1, 1, 0, 1], dtype=np.uint8)},
    ):
        tree = grown(bins, g, h, forced_splits=asked, **shape, **others)
        assert split_of(tree, 0) == (3, 3)
        if "feature_weights" in others or "features" in others:
            assert 3 not in tree.feature[1:]


def test_a_forced_feature_of_another_block_than_those_drawn_is_counted():
    rng = np.random.default_rng(0)
    bins = rng.integers(1, TOP, size=(400, 40), dtype=np.uint8)
    names = [f"n{number}" for number in range(40)]
    layout = BlockedBins.from_batches([bins], 400, np.full(40, TOP, dtype=np.int32))
    given = fixed(max_leaves=4, min_rows_in_leaf=1, forced_splits=at("n39", 3))
    forced = forced_table(given, names, [EDGES[0]] * 40, np.zeros(40, dtype=np.bool_))
    g, h = rng.integers(-100, 100, size=400) / 128, np.ones(400)
    drawn = np.zeros(40, dtype=np.uint8)
    drawn[:3] = 1
    tree = Grower(layout, given, Team(1), forced=forced).grow(g, h, np.zeros(400), features=drawn)
    left = bins[:, 39] <= 3
    assert split_of(tree, 0) == (39, 3)
    assert tree.gain[0] == pytest.approx(naive.split_gain(g, h, left, 0.0), rel=1e-9)
    assert set(tree.feature[1:].tolist()) <= {-1, 0, 1, 2}


@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
def test_several_workers_grow_the_same_tree(grow):
    rng = np.random.default_rng(1)
    bins = rng.integers(0, TOP, size=(60_000, 40), dtype=np.uint8)
    g, h = rng.integers(-1000, 1000, size=60_000) / 1024, rng.integers(1, 500, size=60_000) / 1024
    layout = BlockedBins.from_batches([bins], len(bins), np.full(40, TOP, dtype=np.int32))
    names = [f"n{number}" for number in range(40)]
    given = fixed(max_leaves=12, max_depth=3, grow=grow, forced_splits=at("n30", 3, at("n2", 2), at("n2", 2)))
    forced = forced_table(given, names, [EDGES[0]] * 40, np.zeros(40, dtype=np.bool_))

    def tree_of(team):
        return Grower(layout, given, team, forced=forced).grow(g, h, np.zeros(len(g)), noise=TREE)

    assert same(with_team(3, tree_of), tree_of(Team(1)))


@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
def test_threads_and_resuming_change_nothing(tmp_path, grow):
    asked = {"feature": "f4", "threshold": 0.1, "left": {"feature": "f5", "threshold": 0.0}}
    check_same_bytes(tmp_path / "c", forced_splits=asked, grow=grow, max_depth=3, n_rounds=8)


def test_every_tree_of_a_model_begins_with_them_at_the_edge_above_the_threshold():
    data = small_data()
    edges = data[2].features[4].edges
    middle = float(edges[100] + edges[101]) / 2
    forest = fit(data, n_rounds=5, forced_splits={"feature": "f4", "threshold": middle}).forest
    roots = forest.tree_starts[:-1]
    assert forest.node_feature[roots].tolist() == [4] * 5
    again = fit(data, n_rounds=5, forced_splits={"feature": 4, "threshold": float(edges[101])}).forest
    assert np.array_equal(forest.node_value, again.node_value)
    assert Forest.from_bytes(forest.to_bytes()).parameters["forced_splits"] == {"feature": "f4", "threshold": middle}
    assert "forced_splits" not in fit(data, n_rounds=1).forest.parameters


def test_a_file_means_what_is_in_it(tmp_path):
    asked = {"feature": "f1", "threshold": 1, "right": {"feature": 0, "threshold": [2, "red"], "left": {}}}
    path = tmp_path / "forced.json"
    path.write_text(json.dumps(asked))
    found = TrainParameters(forced_splits=path)
    plain = {"feature": "f1", "threshold": 1.0, "right": {"feature": 0, "threshold": [2.0, "red"]}}
    assert found.forced_splits == plain
    assert found == TrainParameters(forced_splits=asked) == TrainParameters(forced_splits=str(path))
    rng = np.random.default_rng(0)
    x, y, qid = rng.normal(size=(200, 3)), rng.integers(0, 3, 200), np.repeat(range(10), 20)
    path.write_text(json.dumps({"feature": 1, "threshold": 0.0}))
    ranker = Ranker(n_rounds=3, min_rows_in_leaf=5, forced_splits=path).fit(x, y, qid=qid)
    forest = ranker.forest_
    assert set(forest.node_feature[forest.tree_starts[:-1]].tolist()) == {1}
    assert forest.parameters["grow"] == "best_first"  # trees of nodes, whatever the preset has otherwise


def test_a_preset_grows_trees_of_nodes_where_splits_are_forced():
    shape = DataShape(9_000, has_valid=True, may_refit=True)
    assert with_preset(TrainParameters(), shape).grow == "oblivious"
    assert with_preset(TrainParameters(forced_splits=at("f1", 1)), shape).grow == "best_first"
    assert with_preset(TrainParameters(forced_splits=at("f1", 1), grow="oblivious"), shape).grow == "oblivious"


def test_fewer_features_keep_the_splits_that_they_have():
    found = fixed(forced_splits=TWO_LEVELS).for_features(["f3", "f0", "f1"]).forced_splits
    assert found == {"feature": "f3", "threshold": 2.0, "left": {"feature": "f0", "threshold": 1.0}}
    assert fixed(forced_splits=TWO_LEVELS).for_features(["f0"]).forced_splits == {}
    with refused(InvalidParameter, "forced_splits", "name"):
        fixed(forced_splits=at(0, 1)).for_features(["f0"])


@pytest.mark.parametrize(
    ("splits", "facts"),
    [
        ([], ("feature", "threshold")),
        ({"feature": "f1"}, ("feature and threshold",)),
        ({"feature": True, "threshold": 1}, ("feature",)),
        ({"feature": -1, "threshold": 1}, ("-1",)),
        ({"feature": "f1", "threshold": None}, ("'f1'", "None")),
        ({"feature": "f1", "threshold": []}, ("'f1'",)),
        ({"feature": "f1", "threshold": float("nan")}, ("nan",)),
        ({"feature": "f1", "threshold": 1, "rigth": {}}, ("'rigth'",)),
        ({"feature": "f1", "threshold": 1, "left": {"threshold": 1}}, ("feature and threshold",)),
        ("nowhere.json", ("nowhere.json",)),
        (at("g7", 1), ("unknown feature", "'g7'")),
        (at(9, 1), ("unknown feature", "9")),
        (at("f0", 1, at("f1", 1, at("f2", 1))), ("max_depth", "2")),
        (at("f0", 1, at("f1", 1), at("f2", 1)), ("max_leaves", "3")),
        (at("f0", 1, at("f4", 1)), ("interaction_constraints", "'f4'")),
    ],
)
def test_splits_that_are_none_or_cannot_be_are_refused(splits, facts):
    limits = {"max_depth": 2, "max_leaves": 3, "interaction_constraints": [["f0", "f1", "f2"]]}
    with refused(InvalidParameter, "forced_splits", *facts):
        fit(small_data(), n_rounds=1, forced_splits=splits, **limits)


def test_a_file_that_is_no_json_and_the_loss_as_criterion_are_refused(tmp_path):
    path = tmp_path / "forced.json"
    path.write_text("{")
    with refused(InvalidParameter, str(path), "JSON"):
        TrainParameters(forced_splits=path)
    with refused(InvalidParameter, "forced_splits", "ole"):
        fit(small_data(), objective="ranknet", criterion="ole", forced_splits=at("f1", 1), n_rounds=1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settings", [{}, {"lambda_l2": 3.0}, {"min_gain": 0.5}])
def test_the_gains_are_those_of_lightgbm_s_dump(tmp_path, seed, settings):
    """At the root its gain of a forced split lacks the score of the root, G^2 / (H + lambda)."""
    lightgbm = peer("lightgbm")
    rng = np.random.default_rng(seed)
    n = 1_000
    x = rng.integers(0, 30, size=(n, 4)).astype(np.float32)
    g, h = 1.0 + rng.normal(size=n) + x @ np.array([0.15, 0.16, -0.16, 0.17]), rng.gamma(2.0, size=n)
    asked = {"feature": 2, "threshold": 11.5, "left": {"feature": 1, "threshold": 20}}
    asked |= {"right": {"feature": 0, "threshold": 7, "left": {"feature": 3, "threshold": 3.0}}}
    path = tmp_path / "forced.json"
    path.write_text(json.dumps(asked))

    def given(scores, targets, starts, gradients, hessians):
        row = targets.astype(np.int64)
        gradients[:], hessians[:] = g[row], h[row]

    same_for_both = {"n_rounds": 1, "max_leaves": 9, "min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "n_threads": 1}
    ranker = Ranker(preset="defaults-1", objective=given, forced_splits=path, **same_for_both, **settings)
    ranker.fit(x, rng.integers(0, 3, n), qid=np.arange(n) // 20, label=np.arange(n, dtype=float))
    theirs = {
        "objective": lambda scores, data: (g, h), "num_leaves": 9, "min_data_in_leaf": 1, "min_sum_hessian_in_leaf": 0.0,
        "forcedsplits_filename": str(path), "verbose": -1, "num_threads": 1, "lambda_l2": settings.get("lambda_l2", 0.0),
        "min_gain_to_split": settings.get("min_gain", 0.0),
    }  # fmt: skip
    data = lightgbm.Dataset(x, np.zeros(n), params={"min_data_in_bin": 1, "verbose": -1})
    dump = lightgbm.train(theirs, data, 1).dump_model()["tree_info"][0]["tree_structure"]
    forest = ranker.forest_

    def compared(node, there, wanted):
        assert forest.node_feature[node] == there["split_feature"] == wanted["feature"]
        score = g.sum() ** 2 / (h.sum() + settings.get("lambda_l2", 0.0)) if node == 0 else 0.0
        assert forest.node_gain[node] == pytest.approx(there["split_gain"] - score, rel=1e-4)
        for side, child in (("left", forest.node_left), ("right", forest.node_right)):
            if side in wanted:
                compared(child[node], there[f"{side}_child"], wanted[side])

    compared(0, dump, asked)
