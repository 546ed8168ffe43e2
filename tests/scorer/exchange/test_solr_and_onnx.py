"""Solr's JSON and ONNX against plain readers of their formats; onnxruntime too, where there is one."""

import json
from contextlib import suppress
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import ConversionRefused, InputError
from rankmill.scorer.exchange import onnx, solr
from rankmill.scorer.exchange.categories import category_numbers
from rankmill.scorer.exchange.conversion import missing_as_zero, takes_missing_as_zero
from rankmill.scorer.exchange.formats import read_from, renamed, write_as
from rankmill.scorer.forest.predict import predict
from tests import naive_exchange
from tests.refusals import refused
from tests.scorer.exchange.exchange_cases import NUMBERS, awkward_forest, numbered, rows_for, same_model
from tests.scorer.forests import TEXTS, random_forest

SHAPES = (st.integers(0, 2**32), st.integers(0, 12), st.integers(1, 30))


# ---- missing values
# ------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=12)
@given(*SHAPES, st.integers(0, 3))
def test_missing_as_zero_scores_missing_values_as_zeros(seed, n_trees, max_leaves, categorical):
    forest = missing_as_zero(awkward_forest(seed, n_trees=n_trees, max_leaves=max_leaves, categorical=categorical))
    rows = rows_for(forest, seed)
    assert takes_missing_as_zero(forest)
    assert np.array_equal(predict(forest, rows), predict(forest, np.where(np.isnan(rows), np.float32(0.0), rows)))


# ---- Solr
# ------------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=12)
@given(*SHAPES, st.booleans())
def test_solr_stays_within_the_bound(seed, n_trees, max_leaves, plain):
    forest = random_forest(seed, n_trees=n_trees, max_leaves=max_leaves)
    sixteenths = np.round(forest.cuts * 4096) + np.arange(len(forest.cuts))
    cuts = (3 * sixteenths / 16).astype(np.float32)  # times 3: Solr cannot have some powers of two, such as -32
    forest = replace(forest, cuts=cuts)
    forest = missing_as_zero(forest) if plain else forest
    written = solr.write(forest, "web")
    rows = rows_for(forest, seed, n_rows=40)
    there = naive_exchange.solr_scores(written.data, rows, list(forest.feature_names))
    assert np.max(np.abs(there - predict(forest, rows))) <= written.bound
    assert ("isNullSameAsZero" in json.loads(written.data)["params"]) == (not takes_missing_as_zero(forest))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=30))
def test_a_threshold_becomes_the_cut_or_the_nearest_that_solr_can_have(values):
    cuts = np.array(values, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        found = solr.before_slack(cuts) + np.float32(1e-6)
        best = np.abs(found - cuts)
        for way in (np.inf, -np.inf):
            tried = cuts - np.float32(1e-6)
            for _ in range(40):
                assert not np.any(np.abs(tried + np.float32(1e-6) - cuts) < best)
                tried = np.nextafter(tried, np.float32(way))
        assert np.all((found == cuts) | (best <= np.float32(1.2e-13)) | (np.abs(cuts) > 1e-6))


def test_solr_refuses_a_threshold_that_it_cannot_have_and_takes_the_nearest_if_asked():
    forest = missing_as_zero(random_forest(1, names=["tiny", *"bcde"]))
    cuts = forest.cuts.copy()
    cuts[: forest.cut_starts[1]] *= np.float32(1e-20)
    forest = replace(forest, cuts=cuts)
    with refused(ConversionRefused, "Solr", "1e-6", "tiny", "nearest_thresholds"):
        solr.write(forest, "web")
    written = solr.write(forest, "web", nearest=True)
    assert any("thresholds lie up to" in note for note in written.notes)
    rows = np.where(np.abs(rows := rows_for(forest, 1)) < 1e-12, np.float32(0.5), rows)  # values between the thresholds
    there = naive_exchange.solr_scores(written.data, rows, list(forest.feature_names))
    assert np.max(np.abs(there - predict(forest, rows))) <= written.bound


def test_solr_gets_the_features_that_the_model_asks_for_and_its_name():
    forest = missing_as_zero(random_forest(7, n_features=9, n_trees=2, max_leaves=3))
    model = json.loads(solr.write(forest, "web").data)
    assert model["name"] == "web"
    assert [f["name"] for f in model["features"]] == [forest.feature_names[f] for f in forest.used_features]
    assert len(forest.used_features) < 9
    assert json.loads(solr.write(random_forest(0, n_trees=0), "web").data)["features"]


def test_a_tree_too_deep_for_json_is_refused():
    """A chain: every inner node has a leaf on its left and the next inner node on its right."""
    inner = np.arange(2001) % 2 == 0
    inner[-1] = False
    after = np.arange(2001)
    forest = replace(
        random_forest(0, n_trees=0),
        cuts=np.float32([0.5]), cut_starts=np.int32([0, 1, 1, 1, 1, 1]), tree_starts=np.int32([0, 2001]),
        node_feature=np.where(inner, 0, -1), node_cut=np.where(inner, 0, -1), node_missing_left=inner,
        node_left=np.where(inner, after + 1, -1), node_right=np.where(inner, after + 2, -1),
        node_value=after / 7.0, node_gain=np.zeros(2001), node_rows=after, tree_weights=np.ones(1),
    )  # fmt: skip
    with refused(ConversionRefused, "1000", "400"):
        solr.write(forest, "web")


# ---- ONNX
# ------------------------------------------------------------------------------------------------------------------

LINKS = [("identity", 1), ("softmax_grade", 3), ("softmax_gain", 5), ("ordinal_grade", 1), ("ordinal_gain", 4)]


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32), st.integers(0, 4), st.sampled_from(LINKS))
def test_onnx_stays_within_the_bound(seed, n_rounds, link):
    name, n_outputs = link
    forest = awkward_forest(seed, n_trees=n_rounds * n_outputs, link=name, n_outputs=n_outputs)
    written = onnx.write(forest, "web")
    rows = rows_for(forest, seed, n_rows=40)
    there = naive_exchange.onnx_scores(written.data, rows)
    here = predict(forest, rows)
    assert np.max(np.abs(there - here)) <= written.bound
    if name == "identity":
        np.testing.assert_array_max_ulp(there.astype(np.float32), here.astype(np.float32), maxulp=1)


@pytest.mark.parametrize("texts", [TEXTS, NUMBERS])
def test_onnx_splits_by_sets_of_categories(texts):
    for seed in range(3):
        forest = awkward_forest(seed, n_trees=6, max_leaves=20, categorical=3, texts=texts)
        written = onnx.write(forest, "web")
        rows = rows_for(forest, seed)
        there = numbered(forest, rows, seed)
        assert np.max(np.abs(naive_exchange.onnx_scores(written.data, there) - predict(forest, rows))) <= written.bound
        metadata = [naive_exchange.fields(data) for data in naive_exchange.fields(written.data)[14]]
        reported = {entry[1][0].decode(): json.loads(entry[2][0]) for entry in metadata}
        assert ("categories" in reported) == (texts is TEXTS)
        with suppress(ImportError):
            import onnxruntime

            session = onnxruntime.InferenceSession(written.data, providers=["CPUExecutionProvider"])
            for part in (slice(None), slice(0, 1)):
                scores = session.run(["score"], {"features": there[part]})[0][:, 0].astype(np.float64)
                assert np.max(np.abs(scores - predict(forest, rows[part]))) <= written.bound


def test_sets_of_categories_are_refused_where_there_are_only_thresholds():
    with refused(ConversionRefused, solr.TARGET, "'f1'", "sets", "lightgbm"):
        solr.write(missing_as_zero(random_forest(1, categorical=1, n_features=2, n_trees=9)), "web")


@pytest.mark.parametrize(("link", "n_outputs"), LINKS)
def test_onnxruntime_stays_within_the_bound(link, n_outputs):
    runtime = pytest.importorskip(
        "onnxruntime", reason="onnxruntime is not installed; the plain reader stands in for it"
    )
    for n_rounds in (0, 1, 40):
        forest = awkward_forest(n_rounds, n_trees=n_rounds * n_outputs, max_leaves=30, link=link, n_outputs=n_outputs)
        written = onnx.write(forest, "web")
        session = runtime.InferenceSession(written.data, providers=["CPUExecutionProvider"])
        rows = rows_for(forest, 1)
        for part in (rows, rows[:1]):
            there = session.run(["score"], {"features": part})[0][:, 0].astype(np.float64)
            assert np.max(np.abs(there - predict(forest, part))) <= written.bound


def test_onnx_has_the_names_of_the_features():
    forest = random_forest(0, names=["größe", *"bcde"])
    metadata = [naive_exchange.fields(data) for data in naive_exchange.fields(onnx.write(forest, "web").data)[14]]
    assert {entry[1][0].decode(): json.loads(entry[2][0]) for entry in metadata} == {
        "feature_names": ["größe", *"bcde"]
    }


# ---- Other names for the features of a model change no score: each feature keeps its cuts and its categor


NAMES = ("brand", "kind", "x", "y")


def forest_with_categories(seed=3, categorical=2):
    """Two categorical features with texts of their own, and two numbers."""
    return random_forest(
        seed, n_features=4, n_trees=12, max_leaves=12, categorical=categorical, missing_right=True, names=NAMES
    )


def test_renamed_features_keep_their_cuts_and_categories():
    forest = forest_with_categories()
    rows = rows_for(forest, 1)
    for names in (*permutations(NAMES), ("k", "x", "brand", "z"), ("p", "q", "r", "s")):
        other = renamed(forest, names)
        assert np.array_equal(predict(other, rows), predict(forest, rows))
        assert [other.categories.get(name) for name in names] == [forest.categories.get(name) for name in NAMES]
        assert renamed(other, NAMES) == forest


@pytest.mark.parametrize("target", ["lightgbm", "xgboost"])
@pytest.mark.parametrize("names", [("kind", "brand", "y", "x"), ("a", "x", "kind", "d")])
def test_a_model_converted_under_other_names_scores_by_position(target, names):
    forest = forest_with_categories()
    written = write_as(target, forest, features=names)
    back = read_from(target, written.data, "m").forest
    plain = read_from(target, write_as(target, forest).data, "m").forest
    assert back.feature_names == names
    rows = rows_for(forest, 2)
    there = numbered(forest, rows, 2)
    bound = max(written.bound, 1e-12)
    assert predict(back, there) == pytest.approx(predict(plain, there), abs=bound)
    again = read_from(target, written.data, "m", features=NAMES).forest
    assert np.array_equal(predict(again, there), predict(back, there))
    assert same_model(renamed(back, NAMES), again)


def test_a_format_that_is_only_written_numbers_the_same_categories():
    forest, names = forest_with_categories(), ("x", "kind", "brand", "y")
    assert category_numbers(renamed(forest, names)) == category_numbers(forest)
    assert write_as("onnx", forest, features=names).data


def test_a_name_too_few_or_twice_is_refused():
    forest = forest_with_categories()
    with refused(InputError, "features", 3, 4):
        renamed(forest, NAMES[:3])
    with refused(InputError, "'brand'"):
        renamed(forest, ("brand", "brand", "x", "y"))
