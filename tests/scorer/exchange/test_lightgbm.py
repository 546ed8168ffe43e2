"""LightGBM's text: a Booster makes the same float64 bits of what is written, and what is read makes those of the
Booster."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import ConversionRefused, InputError, ModelFormatError
from rankmill.pipeline.bins.categories import category_codes
from rankmill.scorer.exchange import lightgbm as exchange
from rankmill.scorer.forest.predict import predict
from tests.refusals import refused
from tests.scorer.exchange.exchange_cases import NUMBERS, awkward_forest, numbered, peer, rows_for, same_model
from tests.scorer.forests import TEXTS, random_forest


def booster(data):
    return peer("lightgbm").Booster(model_str=data.decode())


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(1, 40))
def test_there_and_back_gives_the_same_scores_and_counts(seed, n_trees, max_leaves):
    forest = awkward_forest(seed, n_trees=n_trees, max_leaves=max_leaves)
    written = exchange.write(forest, "web").data
    again = exchange.read(written, "web.txt").forest
    rows = rows_for(forest, seed, tiny=False)
    assert np.array_equal(booster(written).predict(rows, num_threads=1), predict(forest, rows))
    assert np.array_equal(predict(again, rows), predict(forest, rows))
    assert again.feature_names == forest.feature_names
    assert sorted(again.node_gain) == sorted([*forest.node_gain, *[0.0] * (again.n_trees - forest.n_trees)])
    assert same_model(exchange.read(exchange.write(again, "web").data, "web.txt").forest, again)


def test_values_within_1e_35_of_zero_are_zeros_to_a_booster_and_that_is_said():
    forest = awkward_forest(3)
    assert forest.cuts[(forest.cuts == 0.0)].size
    written = exchange.write(forest, "web")
    assert any("1e-35" in note for note in written.notes)
    thresholds = re.findall(r"^threshold=(.+)$", written.data.decode(), flags=re.MULTILINE)
    assert "0.0" not in " ".join(thresholds).split()  # lleaves reads none that is 0
    rows = rows_for(forest, 3)
    flat = np.where(np.abs(rows) <= np.float32(1e-35), np.float32(0.0), rows)
    assert np.array_equal(booster(written.data).predict(rows), predict(forest, flat))
    assert not np.array_equal(predict(forest, rows), predict(forest, flat))


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32), st.data())
def test_what_is_read_parts_all_float32_as_the_booster_does(seed, data):
    """Thresholds in float64, on float32 values, between them, and near 0; every kind of missing value that can be
    said."""
    anywhere = st.one_of(
        st.floats(allow_nan=False), st.floats(-1e-34, 1e-34), st.sampled_from([0.0, -0.0, 1e-35, -1e-35, 1e300, -1e300])
    )
    thresholds = data.draw(st.lists(anywhere, min_size=1, max_size=6))
    kinds = data.draw(st.lists(st.sampled_from([0, 2, 8, 10]), min_size=len(thresholds), max_size=len(thresholds)))
    kinds = [
        4 + 2 * (t >= 0.0) if data.draw(st.booleans()) and kind < 8 else kind
        for t, kind in zip(thresholds, kinds, strict=True)
    ]
    text = model_text([stump(i, t, kind) for i, (t, kind) in enumerate(zip(thresholds, kinds, strict=True))])
    imported = exchange.read(text.encode(), "m.txt").forest
    with np.errstate(over="ignore"):
        near = np.array(thresholds).astype(np.float32)
        beside = [np.nextafter(near, np.float32(way)) for way in (np.inf, -np.inf)]
    odd = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-35, -1e-35, 1.1e-35, -1.1e-35, 1e-40, -1e-45, 3.4e38])
    rows = np.concatenate([near, *beside, odd, -near])[:, None]
    assert np.array_equal(predict(imported, rows), booster(text.encode()).predict(rows))


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(1, 40), st.sampled_from([TEXTS, NUMBERS]))
def test_sets_of_categories_there_and_back(seed, n_trees, max_leaves, texts):
    """A Booster takes whole numbers, seen and unseen, and missing values to the same leaves."""
    forest = awkward_forest(
        seed, n_trees=n_trees, max_leaves=max_leaves, categorical=3, texts=texts, missing_right=True
    )
    rows = rows_for(forest, seed, tiny=False)
    written = exchange.write(forest, "web").data
    there = numbered(forest, rows, seed)
    assert np.array_equal(booster(written).predict(there, num_threads=1), predict(forest, rows))
    again = exchange.read(written, "web.txt").forest
    assert np.array_equal(predict(again, rows), predict(forest, rows))
    assert {k: sorted(v) for k, v in again.categories.items()} == {
        k: sorted(v) for k, v in forest.categories.items() if k in again.categories
    }
    assert same_model(exchange.read(exchange.write(again, "web").data, "web.txt").forest, again)


def test_fractions_of_categories_are_cut_off_by_a_booster_and_that_is_said():
    forest = random_forest(3, n_features=2, n_trees=9, categorical=2, texts=NUMBERS, missing_right=True)
    written = exchange.write(forest, "web")
    rows = np.random.default_rng(1).uniform(-3, 40, size=(500, 2)).astype(np.float32)
    assert np.array_equal(booster(written.data).predict(rows), predict(forest, np.trunc(rows)))
    assert not np.array_equal(predict(forest, rows), predict(forest, np.trunc(rows)))
    assert any("fraction" in note for note in written.notes)
    texts = exchange.write(random_forest(3, n_features=2, categorical=2, missing_right=True), "web")
    assert not any("fraction" in note for note in (*texts.notes, *exchange.read(texts.data, "web").notes))
    assert not any("1e-35" in note for note in written.notes)  # 0 is a category, no threshold


def test_missing_categories_that_go_left_are_refused():
    forest = random_forest(3, n_features=2, n_trees=9, categorical=2)
    assert np.any(forest.node_missing_left)
    with refused(ConversionRefused, "LightGBM", "missing", "xgboost"):
        exchange.write(forest, "web")


def categories_of_people(n=1500):
    """(texts, numbers, numeric values, grades) with effects of single categories."""
    rng = np.random.default_rng(8)
    texts = rng.choice(
        ["acme", "Zeta", "beta", "17", "x y", "é", "rare"], p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.09, 0.01], size=n
    )
    numbers, z = rng.integers(0, 40, n), rng.normal(size=n)
    y = (texts == "acme") + 2.0 * np.isin(numbers, [3, 4, 17, 33]) + (texts == "é") * z + 0.1 * rng.normal(size=n)
    return texts, numbers, z, y


@pytest.mark.parametrize(
    ("columns", "use_missing"), [("pandas", True), ("pandas and numbers", False), ("numbers", True)]
)
def test_models_with_categories_that_lightgbm_has_trained_keep_their_scores(columns, use_missing):
    lightgbm, pandas = peer("lightgbm"), peer("pandas")
    texts, numbers, z, y = categories_of_people()
    known = ["x y", "acme", "Zeta", "é", "17", "beta", "rare", "never"]
    brand = pandas.Categorical(np.where(z > 1.5, None, texts), categories=known)
    if columns == "numbers":
        brand = np.where(z > 1.5, -1, brand.codes)
    kind = pandas.Categorical(numbers) if columns == "pandas" else numbers
    table = pandas.DataFrame({"z": z, "brand": brand, "kind": kind})
    data = lightgbm.Dataset(table, y, categorical_feature=["brand", "kind"])
    settings = {
        "objective": "regression", "verbose": -1, "num_threads": 1, "min_data_per_group": 5, "cat_smooth": 1,
        "use_missing": use_missing,
    }  # fmt: skip
    model = lightgbm.train(settings, data, num_boost_round=15)
    forest = exchange.read(model.model_to_string().encode(), "m.txt").forest
    assert list(forest.categories) == ["brand", "kind"]
    unseen = ["other", "-1", "40", "100000", "-7"]
    own_texts = np.concatenate([texts, unseen])
    own_numbers = np.concatenate([numbers, [40, -1, 31, 1_000_000, -40]])
    missing = np.append(z > 1.5, [False, True, False, False, True])
    z = np.append(z, np.zeros(5))
    if columns == "numbers":
        there = np.stack(
            [z, np.where(missing, np.nan, [known.index(t) if t in known else 99 for t in own_texts]), own_numbers],
            axis=1,
        )
        ours = there.astype(np.float32)
    else:
        brand = pandas.Categorical(np.where(missing, None, own_texts), categories=rotated(sorted(set(own_texts))))
        kind = pandas.Categorical(own_numbers) if columns == "pandas" else own_numbers
        there = pandas.DataFrame({"z": z, "brand": brand, "kind": kind})
        codes = np.where(missing, np.nan, category_codes(own_texts))
        ours = np.stack([z, codes, own_numbers], axis=1).astype(np.float32)
    assert len(np.unique(predict(forest, ours))) > 50
    assert np.array_equal(
        predict(forest, ours),
        model.predict(there.astype({"z": np.float32}) if columns != "numbers" else ours, raw_score=True),
    )


def rotated(values):
    return [*values[3:], *values[:3]]


def test_lists_of_categories_that_may_be_of_several_features_are_refused():
    forest = random_forest(3, n_features=2, n_trees=9, categorical=2, texts=["0", "1"], missing_right=True)
    text = exchange.write(forest, "web").data.decode()
    for lists in ('[["a", "b"]]', '[["a", "b"], ["c", "d"], ["e"]]', '[["a"], ["b"]]'):
        with refused(ConversionRefused, "web.txt", "categories", "which"):
            exchange.read(text.replace("pandas_categorical:[]", f"pandas_categorical:{lists}").encode(), "web.txt")
    named = exchange.read(
        text.replace("pandas_categorical:[]", 'pandas_categorical:[["a","b"],[true,0.5]]').encode(), "w"
    )
    assert named.forest.categories == {"f1": ["a", "b"], "f2": ["true", "0.5"]}


def stump(number, threshold, decision):
    leaves = (10.0**-number, 2.0 * 10.0**-number)
    return (
        f"Tree={number}\nnum_leaves=2\nnum_cat=0\nsplit_feature=0\nsplit_gain=1\nthreshold={threshold!r}\n"
        f"decision_type={decision}\nleft_child=-1\nright_child=-2\nleaf_value={leaves[0]!r} {leaves[1]!r}\n"
        "leaf_weight=1 1\nleaf_count=3 4\ninternal_value=0\ninternal_weight=2\ninternal_count=7\nis_linear=0\nshrinkage=1\n\n\n"
    )


def model_text(trees, head="", objective="lambdarank"):
    return (
        f"tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx=0\nobjective={objective}\n"
        f"{head}feature_names=a\nfeature_infos=[0:1]\ntree_sizes={' '.join(str(len(t)) for t in trees)}\n\n"
        f"{''.join(trees)}end of trees\n\nfeature_importances:\na=1\n\nparameters:\nend of parameters\n\npandas_categorical:null\n"
    )


def trained(**parameters):
    """(rows, Booster) trained by the peer on data with missing values and zeros."""
    lightgbm = peer("lightgbm")
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(600, 4)).astype(np.float32)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    rows[rng.random(rows.shape) < 0.1] = 0.0
    grades = np.clip(np.round(np.nan_to_num(rows[:, 0]) + np.nan_to_num(rows[:, 1]) ** 2), 0, 3)
    settings = {"objective": "lambdarank", "verbose": -1, "min_data_in_leaf": 5, "num_threads": 1, **parameters}
    rounds = settings.pop("rounds", 12)
    group = [20] * 30 if "rank" in settings["objective"] else None
    if settings["objective"] == "binary":
        grades = (grades > 1).astype(int)
    data = lightgbm.Dataset(rows, grades, group=group, feature_name=list("abcd"))
    return rows, lightgbm.train(settings, data, num_boost_round=rounds)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"objective": "rank_xendcg", "use_missing": False},
        {"objective": "regression"},
        {"boosting": "dart", "drop_rate": 0.5},
        {"objective": "binary"},
        {"objective": "poisson"},
        {"zero_as_missing": False, "max_bin": 15, "extra_trees": True},
    ],
    ids=str,
)
def test_models_that_lightgbm_has_trained_keep_their_scores(parameters):
    rows, model = trained(**parameters)
    imported = exchange.read(model.model_to_string().encode(), "m.txt")
    near = rows_for(imported.forest, 1)
    for values in (rows, near):
        assert np.array_equal(predict(imported.forest, values), model.predict(values, raw_score=True))
    assert imported.forest.feature_names == tuple("abcd")
    assert any("raw" in note for note in imported.notes) == (parameters.get("objective") in {"binary", "poisson"})
    assert imported.forest.info["converted_from"] == "lightgbm"


def test_the_mean_of_a_random_forest_is_kept_but_for_the_last_bits():
    rows, model = trained(boosting="rf", bagging_fraction=0.5, bagging_freq=1, objective="regression")
    imported = exchange.read(model.model_to_string().encode(), "m.txt")
    assert any("divides" in note for note in imported.notes)
    np.testing.assert_allclose(predict(imported.forest, rows), model.predict(rows), rtol=1e-14, atol=1e-15)


def test_zeros_that_go_elsewhere_than_their_value_says_are_refused():
    # zeros are missing (4) and go right (bit 1 is not set), though 0 <= 0.5
    with refused(ConversionRefused, "m.txt:12", "zero_as_missing=false"):
        exchange.read(model_text([stump(0, 0.5, 4)]).encode(), "m.txt")
    assert exchange.read(model_text([stump(0, 0.5, 6)]).encode(), "m.txt").forest.n_trees == 1


DAMAGES = [
    ("decision_type=10", "decision_type=1", ModelFormatError, ("m.txt:12", "cat_boundaries")),
    ("is_linear=0", "is_linear=1", ConversionRefused, "linear"),
    ("num_class=1", "num_class=3", ConversionRefused, "3 classes"),
    ("objective=lambdarank", "objective=multiclassova", ConversionRefused, "multiclassova"),
    ("tree\nversion", "hello\nversion", InputError, ("m.txt:1", "tree", "hello")),
    ("version=v4", "version=v9", ModelFormatError, ("v9", "v2, v3, v4")),
    ("end of trees", "", ModelFormatError, "truncated"),
    ("Tree=0", "Tree=1", ModelFormatError, ("m.txt:12", "Tree=0", "Tree=1")),
    ("num_leaves=2", "num_leaves=3", ModelFormatError, ("m.txt:12", "3", "leaf_value", "2")),
    ("num_leaves=2", "num_leaves=two", ModelFormatError, ("m.txt:12", "num_leaves=INTEGER", "two")),
    ("num_leaves=2", "num_leaves=0", ModelFormatError, ("leaf", "1", "0")),
    ("leaf_value=1.0 ", "leaf_value=one ", ModelFormatError, "leaf_value"),
    ("leaf_value=1.0 ", "leaf_value=nan ", ModelFormatError, "finite"),
    ("threshold=0.5", "threshold=nan", ModelFormatError, ("threshold", "number")),
    ("left_child=-1", "left_child=0", ModelFormatError, ("tree 0", "two parents")),
    ("left_child=-1", "left_child=-2", ModelFormatError, ("tree 0", "node")),
    ("left_child=-1", "left_child=-9", ModelFormatError, "left_child"),
    ("split_feature=0", "split_feature=7", ModelFormatError, ("feature 7", "1")),
    ("decision_type=10", "decision_type=14", ModelFormatError, "LightGBM's"),
    ("feature_names=a", "feature_names=a b", ModelFormatError, ("2", "max_feature_idx")),
    ("threshold=0.5\n", "", ModelFormatError, ("m.txt:12", "threshold=")),
    ("tree_sizes=", "tree_sizes=5 ", ModelFormatError, ("trees", "1", "2")),
]  # fmt: skip


def test_damage_and_what_cannot_be_said_is_one_line_with_its_place():
    text = model_text([stump(0, 0.5, 10)])
    for old, new, kind, message in DAMAGES:
        assert old in text
        with refused(kind, message):
            exchange.read(text.replace(old, new, 1).encode(), "m.txt")


def test_a_feature_of_too_many_thresholds_is_no_damage(monkeypatch):
    forest = random_forest(3, n_trees=9, max_leaves=12, names=["a", "b", "c", "d", "e"])
    most = int(np.diff(forest.cut_starts).max())
    text = exchange.write(forest, "web").data
    monkeypatch.setattr("rankmill.scorer.models.model_file.MAX_CUTS_OF_A_FEATURE", most - 1)
    with refused(ConversionRefused, "thresholds", most, most - 1):
        exchange.read(text, "m.txt")


def test_a_dump_in_json_and_bytes_that_are_no_text_are_named():
    with pytest.raises(InputError, match="save_model's text is"):
        exchange.read(b'{"name": "tree"}', "m.json")
    with refused(InputError, "UTF-8", "0"):
        exchange.read(b"\xff\x00", "m.bin")


def test_several_outputs_and_names_that_lightgbm_cannot_hold_are_refused_with_a_cure():
    with refused(ConversionRefused, "2 outputs", "--to") as refusal:
        exchange.write(random_forest(0, n_outputs=2, link="softmax_grade"), "web")
    assert set(re.findall(r"--to (\w+)(?: or (\w+))?", str(refusal.value))) == {("onnx", "")}  # a format that exists
    with refused(ConversionRefused, "'a b'", "features"):
        exchange.write(random_forest(0, names=["a b", *"cdef"]), "web")


def test_a_booster_knows_names_gains_and_rows():
    forest = random_forest(1, names=list("abcde"))
    model = booster(exchange.write(forest, "web").data)
    assert model.feature_name() == list("abcde")
    inner = forest.node_feature >= 0
    assert model.feature_importance("split").tolist() == np.bincount(forest.node_feature[inner], minlength=5).tolist()
    gains = np.bincount(forest.node_feature[inner], weights=forest.node_gain[inner], minlength=5)
    np.testing.assert_allclose(model.feature_importance("gain"), gains, rtol=1e-6)  # it keeps them in float32
    assert len(model.dump_model()["tree_info"]) == forest.n_trees + 1  # the base score is one
