"""Prediction against the naive walk: equal to the last bit, whatever the values, batches and threads."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import InputError
from rankmill.foundation.kernels.elementary import exp_precise
from rankmill.pipeline.bins.categories import category_codes
from rankmill.scorer import _kernels
from rankmill.scorer.forest.layout import search_of
from rankmill.scorer.forest.predict import TILE, ForestPredictor, predict
from tests import naive, naive_links
from tests.refusals import refused
from tests.scorer.forests import by_hand, random_forest


def awkward_values(forest, n_rows, seed):
    """Random rows whose values are often a threshold, one step beside it, missing, infinite or zero of either sign."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n_rows, forest.n_features)).astype(np.float32)
    for f in range(forest.n_features):
        cuts = forest.cuts[forest.cut_starts[f] : forest.cut_starts[f + 1]]
        with np.errstate(over="ignore", under="ignore"):
            near = np.concatenate(
                [cuts, np.nextafter(cuts, np.float32(np.inf)), np.nextafter(cuts, np.float32(-np.inf))]
            )
        pool = np.concatenate([near, np.float32([np.nan, np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45])])
        chosen = rng.random(n_rows) < 0.8
        values[chosen, f] = rng.choice(pool, size=int(chosen.sum()))
    return values


@settings(deadline=None)
@given(*(st.integers(*ends) for ends in ((0, 2**32), (1, 6), (0, 5), (1, 30), (0, 40), (0, 3))))
def test_the_kernels_equal_the_plain_walk_bit_for_bit(seed, n_features, n_trees, max_leaves, n_rows, categorical):
    forest = random_forest(
        seed, n_features=n_features, n_trees=n_trees, max_leaves=max_leaves, categorical=min(categorical, n_features)
    )
    values = awkward_values(forest, n_rows, seed)
    assert predict(forest, values).tolist() == naive.predict(forest, values)


@pytest.mark.parametrize("n_cuts", [253, 254, 255, 1000])
def test_narrow_and_wide_codes_at_their_border(n_cuts):
    """One feature with so many cuts that codes fill 8 bits, and more: a tree that is one long chain of cuts."""
    n_nodes = 2 * n_cuts + 1
    inner = np.arange(n_nodes) % 2 == 0
    inner[-1] = False
    index = np.arange(n_nodes)
    missing = (index // 2 % 2 == 0) & inner
    forest = by_hand(
        cuts=np.linspace(-1, 1, n_cuts).astype(np.float32), node_missing_left=missing.astype(np.uint8),
        node_feature=np.where(inner, 0, -1), node_cut=np.where(inner, index // 2, -1),
        node_left=np.where(inner, index + 1, -1), node_right=np.where(inner, index + 2, -1), node_value=index * 1.0,
    )  # fmt: skip
    values = awkward_values(forest, 1000, 1)
    assert predict(forest, values).tolist() == naive.predict(forest, values)


def test_infinite_cuts_part_present_from_missing():
    forest = by_hand(
        cuts=np.float32([-np.inf, np.inf]), node_feature=[0, -1, 0, -1, -1], node_cut=[1, -1, 0, -1, -1],
        node_left=[2, -1, 3, -1, -1], node_right=[1, -1, 4, -1, -1], node_value=[0.0, 1.0, 0.0, 2.0, 3.0],
    )  # fmt: skip
    values = np.float32([[np.nan], [-np.inf], [np.inf], [0.0], [-3e38]])
    assert predict(forest, values).tolist() == [1.0, 2.0, 3.0, 3.0, 3.0] == naive.predict(forest, values)


@pytest.mark.parametrize("n_categories", [254, 255])
def test_narrow_and_wide_codes_of_categories_at_their_border(n_categories):
    texts = [*map(str, range(n_categories // 2)), *(f"category {i}" for i in range(n_categories - n_categories // 2))]
    forest = random_forest(3, n_features=2, n_trees=20, max_leaves=40, categorical=1, texts=texts)
    assert len(forest.cuts[: forest.cut_starts[1]]) == n_categories
    assert ForestPredictor(forest)._layout.code.itemsize == (1 if n_categories <= 254 else 2)
    values = np.concatenate([awkward_values(forest, 1000, 1), np.stack([category_codes(texts)] * 2, axis=1)])
    assert predict(forest, values).tolist() == naive.predict(forest, values)


def test_a_tree_of_very_many_sets():
    """More sets of one feature than a group of a table holds, and trees without any between them."""
    forest = random_forest(5, n_features=2, n_trees=5, max_leaves=120, categorical=1)
    assert ForestPredictor(forest)._layout.n_slots > 20
    values = awkward_values(forest, TILE + 100, 1)
    expected = naive.predict(forest, values)
    assert predict(forest, values).tolist() == expected
    assert np.concatenate([predict(forest, row[None]) for row in values[:50]]).tolist() == expected[:50]


SEVERAL = {"n_outputs": 3, "trees_a_round": 6}


@pytest.fixture(
    scope="module",
    params=[{}, {"categorical": 7}, *({"link": link, **SEVERAL} for link in ("softmax_gain", "ordinal_grade"))],
    ids=str,
)
def large(request):
    forest = random_forest(11, n_features=20, n_trees=42, max_leaves=20, n_thresholds=50, **request.param)
    return forest, awkward_values(forest, 9_003, 5)


def by_walk(forest, values, n_rounds=None):
    return naive_links.predict(forest, values, exp_precise, forest.n_rounds if n_rounds is None else n_rounds)


def test_batches_threads_and_order_do_not_change_a_bit(large):
    forest, values = large
    predictor = ForestPredictor(forest)
    whole = predictor.scores(values)
    for size in (1, 7, TILE - 1, TILE, 4096):
        rows = 300 if size == 1 else len(values)
        parts = [predictor.scores(values[i : i + size]) for i in range(0, rows, size)]
        assert np.concatenate(parts)[:rows].tobytes() == whole[:rows].tobytes()
    for n_threads in (2, 3):
        assert predictor.scores(values, n_threads=n_threads).tobytes() == whole.tobytes()
    order = np.random.default_rng(0).permutation(len(values))
    assert predictor.scores(values[order]).tobytes() == whole[order].tobytes()
    for same in (np.asfortranarray(values), values.astype(np.float64), np.repeat(values, 2, axis=1)[:, ::2]):
        assert predict(forest, same, n_threads=2).tobytes() == whole.tobytes()
    assert whole[:50].tolist() == by_walk(forest, values[:50])


@pytest.mark.parametrize("n_rows", [0, 1, TILE, 3 * TILE + 1])
@pytest.mark.parametrize(("seed", "categorical"), [(11, 4), (12, 0)])
def test_columns_one_at_a_time_give_the_same_bits(seed, n_rows, categorical):
    forest = random_forest(
        seed, categorical=categorical, n_features=9, n_trees=12, max_leaves=9, n_thresholds=300 if seed == 12 else 20,
        **({"n_outputs": 3, "link": "softmax_gain", "info": {"max_grade": 4}} if seed == 12 else {}),
    )  # fmt: skip
    values = awkward_values(forest, n_rows, seed)
    predictor = ForestPredictor(forest)
    codes = predictor.codes_buffer(n_rows)
    assert codes.nbytes >= n_rows * predictor.code_bytes
    codes.fill(3)  # what was there before is of no account
    rng = np.random.default_rng(seed)
    for slot in rng.permutation(len(predictor.features)):
        ends = np.unique([0, n_rows, *rng.integers(0, n_rows + 1, 3)]).tolist()
        for first, last in rng.permutation(list(itertools.pairwise(ends))).tolist():
            predictor.take_column(codes, int(slot), first, values[first:last, predictor.features[slot]])
    assert predictor.scores_of_codes(codes, n_rows).tobytes() == predictor.scores(values).tobytes()
    with refused(ValueError, "1", "feature 0"):
        predictor.take_column(codes, 0, codes.shape[0] * TILE, np.zeros(1, np.float32))


def test_the_first_rounds(large):
    forest, values = large
    for rounds in (0, 1, 3, forest.n_rounds):
        expected = by_walk(forest, values[:20], rounds)
        assert predict(forest, values[:20], n_rounds=rounds).tolist() == expected
        assert predict(forest.truncated(rounds), values[:20]).tolist() == expected
    with refused(InputError, "n_rounds", f"0..{forest.n_rounds}"):
        predict(forest, values, n_rounds=forest.n_rounds + 1)


@pytest.mark.parametrize("linked", [False, True])
def test_the_outputs_of_parts_of_a_forest_add_up(linked):
    extra = {"n_outputs": 3, "link": "softmax_grade"} if linked else {}
    forest = random_forest(2, n_trees=12, categorical=2, **extra)
    values = awkward_values(forest, 50, 2)
    n = forest.n_rounds
    parts = [forest.truncated(2), forest.truncated(1, 2), forest.truncated(None, 3)]
    assert [part.n_rounds for part in parts] == [2, 1, n - 3]
    assert [part.base_score for part in parts] == [forest.base_score, 0.0, 0.0]
    assert [value for part in parts for value in part.node_value] == forest.node_value.tolist()
    assert predict(forest, values, start_round=2, n_rounds=1).tolist() == predict(parts[1], values).tolist()
    if not linked:
        np.testing.assert_allclose(sum(predict(part, values) for part in parts), predict(forest, values), atol=1e-12)
        assert predict(parts[2], values).tolist() == naive.predict(parts[2], values)
    assert forest.truncated(None) is forest
    for start, rounds, fact in ((n + 1, None, f"0..{n}"), (-1, None, f"0..{n}"), (2, n, f"0..{n - 2}")):
        with refused(InputError, "rounds", fact):
            predict(forest, values, start_round=start, n_rounds=rounds)


@settings(deadline=None, max_examples=30)
@given(*(st.integers(*ends) for ends in ((0, 2**32), (0, 5), (1, 30), (0, 40), (0, 3))))
def test_leaves_are_those_of_the_plain_walk(seed, n_trees, max_leaves, n_rows, categorical):
    forest = random_forest(seed, n_trees=n_trees, max_leaves=max_leaves, categorical=categorical)
    values = awkward_values(forest, n_rows, seed)
    found = ForestPredictor(forest).leaves(values)
    assert (found.shape, found.dtype) == ((n_rows, n_trees), np.int32)
    nodes = forest.tree_starts[:-1] + found
    assert (forest.node_feature[nodes] == -1).all()
    expected = [[naive.leaf_value(forest, t, row) for t in range(n_trees)] for row in values]
    assert (forest.tree_weights * forest.node_value[nodes]).tolist() == expected


def test_leaves_do_not_depend_on_batches_or_threads(large):
    forest, values = large
    predictor = ForestPredictor(forest, start_round=3, n_rounds=forest.n_rounds - 3)
    whole = predictor.leaves(values)
    first = 3 * forest.trees_a_round
    assert whole.shape == (len(values), forest.n_trees - first)
    assert np.array_equal(predictor.leaves(values, n_threads=3), whole)
    assert np.array_equal(np.concatenate([predictor.leaves(values[:1]), predictor.leaves(values[1:900])]), whole[:900])
    assert np.array_equal(ForestPredictor(forest).leaves(values)[:, first:], whole)
    with refused(ValueError, "4 columns", "20"):
        predictor.leaves(values[:, :4])


def test_columns_elsewhere_and_absent_ones(large):
    forest, values = large
    predictor = ForestPredictor(forest)
    order = np.random.default_rng(1).permutation(forest.n_features)
    columns = [int(np.flatnonzero(order == f)[0]) for f in predictor.features]
    assert np.array_equal(predictor.scores(values[:, order], columns=columns), predictor.scores(values))
    lost = predictor.features[3]
    columns = [f if f != lost else -1 for f in predictor.features]
    for absent in (np.nan, 0.0):
        other = values[:100].copy()
        other[:, lost] = absent
        assert np.array_equal(predictor.scores(values[:100], columns=columns, absent=absent), predictor.scores(other))
    assert predictor.feature_names == tuple(f"f{f + 1}" for f in predictor.features)


def test_float64_is_rounded_to_float32_first():
    forest = random_forest(3)
    exact = awkward_values(forest, 50, 3)
    with np.errstate(invalid="ignore"):
        wide = exact.astype(np.float64) * (1 + 1e-9)
    assert np.array_equal(predict(forest, wide), predict(forest, wide.astype(np.float32)))
    assert np.array_equal(predict(forest, np.full((1, 5), 1e300)), predict(forest, np.full((1, 5), np.float32(np.inf))))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(5, np.float32), "1 dimensions"),
        (np.zeros((2, 4), np.float32), ("4 columns", "5")),
        (np.zeros((2, 5), np.int64), "int64"),
        (np.array([["1"] * 5]), ("float32", "float64")),
    ],
)
def test_what_is_no_table_of_features_is_refused(values, message):
    with refused(ValueError, message):
        predict(random_forest(3), values)


def test_columns_outside_the_table_are_refused():
    predictor = ForestPredictor(random_forest(3))
    n = len(predictor.features)
    for columns in ([5] * n, [-2] * n, [0] * (n + 1)):
        with pytest.raises(ValueError, match="columns"):
            predictor.scores(np.zeros((2, 5), np.float32), columns=columns)


def oblivious_forest(seed, depths, *, perturbed=False, categorical=0):
    """Full trees that ask one question a level; ``perturbed``: one node of the last tree asks something else.

    The first ``categorical`` features split by sets; set c holds the categories c and above.
    """
    rng = np.random.default_rng(seed)
    n_features, n_cuts = 5, 40
    feature, cut, missing, left, right, starts = [], [], [], [], [], [0]
    for depth in depths:
        asked = [(int(rng.integers(n_features)), int(rng.integers(n_cuts)), int(rng.integers(2))) for _ in range(depth)]
        asked = [(f, c, m * (f >= categorical)) for f, c, m in asked]
        n_inner = 2**depth - 1
        for node in range(2 * n_inner + 1):
            inner = node < n_inner
            question = asked[(node + 1).bit_length() - 1] if inner else (-1, -1, 0)
            feature.append(question[0])
            cut.append(question[1])
            missing.append(question[2])
            left.append(2 * node + 1 if inner else -1)
            right.append(2 * node + 2 if inner else -1)
        starts.append(len(feature))
    if perturbed:
        cut[starts[-2] + 1] = (cut[starts[-2] + 1] + 1) % n_cuts
    return by_hand(
        feature_names=tuple(f"f{k}" for k in range(n_features)),
        categories={f"f{k}": [] for k in range(categorical)},
        set_starts=np.cumsum([0, *range(n_cuts, 0, -1)]),
        set_members=np.concatenate([np.arange(c, n_cuts) for c in range(n_cuts)]),
        cuts=np.sort(rng.normal(size=(n_features, n_cuts)).astype(np.float32)).ravel(),
        cut_starts=np.arange(n_features + 1) * n_cuts,
        tree_starts=starts,
        node_feature=feature,
        node_cut=cut,
        node_missing_left=np.uint8(missing),
        node_left=left,
        node_right=right,
        node_value=rng.normal(size=len(feature)),
        tree_weights=rng.normal(size=len(depths)),
        base_score=0.5,
    )


@pytest.mark.parametrize("depths", [(1,), (6, 2, 5), (8, 8), (9,)])
@pytest.mark.parametrize(("perturbed", "categorical"), [(False, 0), (False, 3), (True, 5)])
def test_trees_that_ask_one_question_a_level(depths, perturbed, categorical):
    if perturbed and depths[-1] < 2:
        pytest.skip("a level of one node has no second question")
    forest = oblivious_forest(3, depths, perturbed=perturbed, categorical=categorical)
    assert ForestPredictor(forest)._layout.oblivious == (not perturbed and max(depths) <= 8)
    values = awkward_values(forest, 130, 4)
    assert predict(forest, values).tolist() == naive.predict(forest, values)


@pytest.mark.parametrize(("max_leaves", "swept", "categorical"), [(200, True, 2), (600, True, 0), (1500, False, 2)])
def test_trees_of_many_leaves(max_leaves, swept, categorical):
    forest = random_forest(1, n_features=3, n_trees=2, max_leaves=max_leaves, n_thresholds=100, categorical=categorical)
    most = int((np.diff(forest.tree_starts).max() + 1) // 2)
    assert most > max_leaves // 2
    assert (ForestPredictor(forest)._layout.swept is not None) == (most <= 1024) == swept
    values = awkward_values(forest, 70, 2)
    assert predict(forest, values).tolist() == naive.predict(forest, values)
    assert np.concatenate([predict(forest, row[None]) for row in values]).tolist() == naive.predict(forest, values)


# ---- The code of a value is 1 plus the number of cuts below it, wherever the cuts lie


INF = np.float32(np.inf)
GREATEST = np.finfo(np.float32).max


def drawn(kind, n, generator):
    values = {
        "even": lambda: np.linspace(-1, 1, n),
        "normal": lambda: generator.normal(size=n),
        "skewed": lambda: np.exp(3 * generator.normal(size=n)),
        "whole numbers": lambda: np.arange(n) - n // 2,
        "close together": lambda: 1.0 + np.arange(n) * 2.0**-23,
        "one far off": lambda: np.append(np.linspace(0, 1, n - 1), 1e30),
        "all there is": lambda: np.linspace(-3.4e38, 3.4e38, n),
        "subnormal": lambda: np.arange(n) * 1e-44,
        "infinite ends": lambda: np.concatenate([[-np.inf], np.linspace(0, 5, n - 2), [np.inf]]),
    }[kind]()
    return np.unique(values.astype(np.float32))


@pytest.mark.parametrize("n", [1, 3, 254, 700])
@pytest.mark.parametrize(
    "kind",
    [
        "even", "normal", "skewed", "whole numbers", "close together", "one far off", "all there is", "subnormal",
        "infinite ends",
    ],
)  # fmt: skip
def test_codes_count_the_cuts_below(kind, n):
    generator = np.random.default_rng(n)
    cuts = drawn(kind, max(n, 3), generator)[:n] if kind == "infinite ends" else drawn(kind, n, generator)
    forest = replace(
        random_forest(1, n_features=1, n_trees=0), cuts=cuts, cut_starts=np.array([0, len(cuts)], dtype=np.int32)
    )
    search = search_of(forest, [0])
    with np.errstate(all="ignore"):
        around = [cuts, np.nextafter(cuts, INF), np.nextafter(cuts, -INF)]
        between = cuts[:-1] + (cuts[1:] - cuts[:-1]) * np.float32(0.5)
    special = np.float32([np.nan, INF, -INF, 0.0, -0.0, GREATEST, -GREATEST, 1e-45])
    values = np.concatenate([*around, between, special, generator.normal(size=100).astype(np.float32)])
    codes = np.zeros((1, len(values)), dtype=np.uint16)
    _kernels.bin_rows(values[:, None].copy(), 0, len(values), np.zeros(1, np.int64), np.float32(0), *search, codes)
    with np.errstate(invalid="ignore"):
        below = (cuts[None, :] < values[:, None]).sum(axis=1)
    assert codes[0].tolist() == np.where(np.isnan(values), 0, below + 1).tolist()
    tiles = np.zeros((len(values) // 128 + 2, 1, 128), dtype=np.uint16)
    values.flags.writeable = False
    _kernels.bin_column(values[:70], 37, 0, *search, tiles)
    _kernels.bin_column(values[70:], 107, 0, *search, tiles)
    assert tiles.ravel()[37 : 37 + len(values)].tolist() == codes[0].tolist()
    assert np.count_nonzero(tiles) == np.count_nonzero(codes)
