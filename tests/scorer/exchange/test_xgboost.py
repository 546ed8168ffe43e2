"""XGBoost's learner: a Booster decides as we do and its float32 sums stay within the bound; read."""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import ConversionRefused, InputError, ModelFormatError
from rankmill.pipeline.bins.categories import category_codes
from rankmill.scorer.exchange import xgboost as exchange
from rankmill.scorer.exchange.conversion import float32_sums
from rankmill.scorer.exchange.formats import read_from, write_as
from rankmill.scorer.forest.forest import COVER
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.inspect.dependence import interactions, partial_dependence
from rankmill.scorer.inspect.shap import shap_interactions, shap_values
from tests.refusals import refused
from tests.scorer.exchange.exchange_cases import NUMBERS, awkward_forest, numbered, peer, rows_for, same_model
from tests.scorer.forests import TEXTS, random_forest

SMALL = random_forest(4, n_trees=2, max_leaves=4, names=list("abcde"))
assert SMALL.node_feature[0] >= 0


def scored(data, rows):
    """Scores of rows by the Booster of ``data``, and the Booster."""
    xgboost = peer("xgboost")
    model = xgboost.Booster({"nthread": 1})
    model.load_model(bytearray(data))
    return model.predict(xgboost.DMatrix(rows, feature_names=model.feature_names, nthread=1)), model


def test_each_decision_is_the_same_one():
    """Leaves that are whole numbers add up without rounding, so that one wrong turn would show."""
    for seed in range(10):
        forest = awkward_forest(seed, n_trees=6, max_leaves=20)
        values = np.random.default_rng(seed).integers(-1000, 1000, size=len(forest.node_value)).astype(float)
        forest = replace(forest, node_value=values, tree_weights=np.ones(6), base_score=3.0)
        rows = rows_for(forest, seed, infinite=False)
        there, model = scored(exchange.write(forest, "web").data, rows)
        assert np.array_equal(there, predict(forest, rows))
        assert (model.num_boosted_rounds(), model.feature_names) == (6, list(forest.feature_names))


def test_the_bound_is_not_reached_by_sums_that_cancel():
    forest = random_forest(0, n_trees=400, max_leaves=8)
    large = replace(forest, node_value=forest.node_value * 1e6)
    for each in (large, *(awkward_forest(seed, n_trees=20, max_leaves=30) for seed in range(6))):
        rows = rows_for(each, 0, infinite=False)
        written = exchange.write(each, "web")
        error = np.max(np.abs(scored(written.data, rows)[0] - predict(each, rows)))
        assert error <= written.bound
        assert each is not large or 0.0 < error <= float32_sums(each) < 1e-4 * each.score_bound


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32), st.integers(0, 10), st.integers(1, 30))
def test_there_and_back_decides_the_same(seed, n_trees, max_leaves):
    forest = awkward_forest(seed, n_trees=n_trees, max_leaves=max_leaves)
    again = exchange.read(exchange.write(forest, "web").data, "web.json").forest
    rows = rows_for(forest, seed)
    assert np.max(np.abs(predict(again, rows) - predict(forest, rows))) <= float32_sums(forest)
    rounded = (
        forest.tree_weights[np.repeat(np.arange(n_trees), np.diff(forest.tree_starts))] * forest.node_value
    ).astype(np.float32)
    assert set(again.node_value[again.node_feature < 0]) == {float(v) for v in rounded[forest.node_feature < 0]}
    assert same_model(exchange.read(exchange.write(again, "web").data, "web.json").forest, again)


def with_types(data, rows):
    """Scores of rows of numbers by the Booster of ``data``, whose model has categorical features."""
    xgboost = peer("xgboost")
    model = xgboost.Booster({"nthread": 1})
    model.load_model(bytearray(data))
    matrix = xgboost.DMatrix(
        rows, feature_names=model.feature_names, feature_types=model.feature_types, enable_categorical=True, nthread=1
    )
    return model.predict(matrix, output_margin=True)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(1, 40), st.sampled_from([TEXTS, NUMBERS]))
def test_sets_of_categories_there_and_back(seed, n_trees, max_leaves, texts):
    """A Booster takes whole numbers, seen and unseen, negative and large ones, and missing values to the same
    leaves."""
    forest = awkward_forest(seed, n_trees=n_trees, max_leaves=max_leaves, categorical=3, texts=texts)
    values = np.random.default_rng(seed).integers(-1000, 1000, size=len(forest.node_value)).astype(float)
    forest = replace(forest, node_value=values, tree_weights=np.ones(n_trees), base_score=3.0)
    rows = rows_for(forest, seed, infinite=False)
    written = exchange.write(forest, "web").data
    assert np.array_equal(with_types(written, numbered(forest, rows, seed)), predict(forest, rows))
    again = exchange.read(written, "web.json").forest
    assert np.array_equal(predict(again, rows), predict(forest, rows))
    assert {name: again.categories[name] for name in again.categories} == {
        name: forest.categories[name] for name in again.categories
    }
    assert same_model(exchange.read(exchange.write(again, "web").data, "web.json").forest, again)


def test_negative_fractions_are_no_categories_and_others_are_cut_off_by_a_booster():
    forest = random_forest(3, n_features=2, n_trees=9, categorical=2, texts=NUMBERS)
    written = exchange.write(forest, "web")
    rows = np.random.default_rng(1).uniform(-3, 40, size=(500, 2)).astype(np.float32)
    cut = np.where(rows < 0, np.float32(-1), np.trunc(rows))
    assert np.max(np.abs(with_types(written.data, rows) - predict(forest, cut))) <= written.bound
    assert any("fraction" in note for note in written.notes)
    texts = exchange.write(random_forest(3, n_features=2, categorical=2, missing_right=True), "web")
    assert not any("fraction" in note for note in (*texts.notes, *exchange.read(texts.data, "web").notes))


@pytest.mark.parametrize(("columns", "onehot"), [("pandas", 1), ("numbers", 100)])
def test_models_with_categories_that_xgboost_has_trained_keep_their_scores(columns, onehot):
    xgboost, pandas = peer("xgboost"), peer("pandas")
    rng = np.random.default_rng(8)
    n = 1500
    texts = rng.choice(["acme", "Zeta", "beta", "17", "x y"], size=n)
    numbers, z = rng.integers(0, 40, n), rng.normal(size=n)
    y = (texts == "acme") + 2.0 * np.isin(numbers, [3, 4, 17, 33]) + (texts == "17") * z + (numbers > 35)
    lost = rng.random(n) < np.where(y > 1, 0.5, 0.1)
    known = ["x y", "acme", "Zeta", "17", "beta"]
    brand = pandas.Categorical(np.where(lost, None, texts), categories=known)
    sizes = pandas.Categorical(numbers, categories=rng.permutation(40))
    if columns == "pandas":
        table = pandas.DataFrame({"z": z.astype(np.float32), "brand": brand, "size": sizes})
        data = xgboost.DMatrix(table, y, enable_categorical=True, nthread=1)
        ours = np.stack([z, np.where(lost, np.nan, category_codes(texts)), numbers], axis=1).astype(np.float32)
    else:
        ours = np.stack([z, np.where(lost, np.nan, brand.codes), numbers], axis=1).astype(np.float32)
        types = ["float", "c", "c"]
        data = xgboost.DMatrix(
            ours, y, feature_names=["z", "brand", "size"], feature_types=types, enable_categorical=True, nthread=1
        )
    settings = {"objective": "reg:squarederror", "nthread": 1, "max_cat_to_onehot": onehot, "max_depth": 5}
    model = xgboost.train(settings, data, 12)
    forest = exchange.read(bytes(model.save_raw("json")), "m.json").forest
    assert {0, 1} == set(forest.node_missing_left[forest.splits_by_set].tolist())
    assert sorted(forest.categories) == ["brand", "size"]
    assert np.max(np.abs(predict(forest, ours) - model.predict(data))) <= float32_sums(forest)
    contributions = model.predict(data, pred_contribs=True)
    scale = float(np.abs(contributions).max())
    assert shap_values(forest, ours).values[:, 0] == pytest.approx(contributions[:, :-1], rel=1e-4, abs=2e-5 * scale)
    if columns == "numbers":
        odd = rng.choice(np.float32([np.nan, -1, -3, 0, 4, 5, 39, 40, 1000, 2**24, 3e9]), size=(400, 3))
        assert np.max(np.abs(predict(forest, odd) - with_types(model.save_raw("json"), odd))) <= float32_sums(forest)


def test_names_of_categories_that_xgboost_has_cut_off_are_refused():
    xgboost, pandas = peer("xgboost"), peer("pandas")
    table = pandas.DataFrame({"brand": pandas.Categorical(["é", "acme"] * 50)})
    model = xgboost.train({"nthread": 1}, xgboost.DMatrix(table, [0.0, 1.0] * 50, enable_categorical=True), 1)
    with suppress(InputError), refused(ConversionRefused, "m.json", "ASCII"):
        exchange.read(bytes(model.save_raw("json")), "m.json")


def trained(n_rounds=12, **parameters):
    xgboost = peer("xgboost")
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(600, 4)).astype(np.float32)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    rows[rng.random(rows.shape) < 0.1] = 0.0
    grades = np.clip(np.round(np.nan_to_num(rows[:, 0]) + np.nan_to_num(rows[:, 1]) ** 2), 0, 3)
    settings = {"objective": "rank:ndcg", "nthread": 1, **parameters}
    if settings["objective"].startswith(("binary", "rank:map")):
        grades = (grades > 1).astype(int)
    if settings["objective"] in {"reg:gamma", "survival:cox"}:
        grades += 1
    qid = np.repeat(np.arange(30), 20) if settings["objective"].startswith("rank") else None
    data = xgboost.DMatrix(rows, grades, qid=qid, feature_names=list("abcd"), nthread=1)
    return rows, data, xgboost.train(settings, data, n_rounds)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"objective": "rank:pairwise", "max_leaves": 12, "grow_policy": "lossguide", "base_score": 0.25},
        {"objective": "rank:map", "tree_method": "exact", "gamma": 0.5},
        {"booster": "dart", "rate_drop": 0.5},
        {"objective": "reg:squarederror", "num_parallel_tree": 3, "subsample": 0.7},
        {"objective": "binary:logistic"},
        {"objective": "count:poisson", "base_score": 2.0},
        {"objective": "binary:logitraw", "base_score": 0.25},
        {"objective": "survival:cox"},
    ],
    ids=str,
)
def test_models_that_xgboost_has_trained_keep_their_scores(parameters):
    rows, data, model = trained(**parameters)
    imported = exchange.read(bytes(model.save_raw("json")), "m.json")
    forest = imported.forest
    there = model.predict(data, output_margin=True)
    assert np.max(np.abs(predict(forest, rows) - there)) <= float32_sums(forest)
    near = rows_for(forest, 2, infinite=False)
    at_thresholds, _ = scored(model.save_raw("json"), near)
    if not any("raw" in note for note in imported.notes):
        assert np.max(np.abs(predict(forest, near) - at_thresholds)) <= float32_sums(forest)
    assert forest.n_rounds == model.num_boosted_rounds()
    assert forest.feature_names == tuple("abcd")
    assert forest.info["converted_from"] == "xgboost"
    assert same_model(exchange.read(bytes(model.save_raw("json")), "m").forest, forest)


def test_the_rounds_that_early_stopping_found_best_are_reported_and_taken():
    rows, data, model = trained(n_rounds=9)
    model.set_attr(best_iteration="3")
    raw = bytes(model.save_raw("json"))
    assert any("n_rounds 4 keeps" in note for note in read_from("xgboost", raw, "m").notes)
    best = read_from("xgboost", raw, "m", n_rounds=4)
    assert not any("early stopping" in note for note in best.notes)
    there = model.predict(data, output_margin=True, iteration_range=(0, 4))
    assert np.max(np.abs(predict(best.forest, rows) - there)) <= float32_sums(best.forest)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"booster": "dart", "rate_drop": 0.5},
        {"objective": "binary:logistic", "min_child_weight": 0, "max_depth": 9},
        {"objective": "reg:squarederror"},
    ],
    ids=str,
)
def test_contributions_by_cover_are_those_of_a_booster(parameters):
    rows, data, model = trained(**parameters)
    forest = exchange.read(bytes(model.save_raw("json")), "m.json").forest
    there = model.predict(data, pred_contribs=True)
    found = shap_values(forest, rows)
    scale = float(np.abs(there).max())
    assert found.values[:, 0] == pytest.approx(there[:, :-1], rel=1e-4, abs=2e-5 * scale)
    assert found.base[:, 0] == pytest.approx(there[:, -1], rel=1e-4, abs=2e-5 * scale)
    pairs = model.predict(data, pred_interactions=True)[:, :-1, :-1]
    assert shap_interactions(forest, rows).values[:, 0] == pytest.approx(pairs, rel=1e-3, abs=5e-5 * scale)
    again = exchange.read(exchange.write(forest, "m").data, "m.json").forest
    assert again.info.get(COVER) == forest.info.get(COVER)
    assert shap_values(again, rows).values == pytest.approx(found.values, rel=1e-4, abs=2e-5 * scale)


def test_cover_is_no_count_of_rows_unless_hessians_are_one():
    rows, _, model = trained(objective="reg:squarederror")
    imported = exchange.read(bytes(model.save_raw("json")), "m.json")
    assert COVER not in imported.forest.info
    assert set(imported.forest.node_rows[imported.forest.tree_starts[:-1]]) == {600}
    assert partial_dependence(imported.forest, ["a"]).n_documents is None
    _, _, model = trained()
    imported = exchange.read(bytes(model.save_raw("json")), "m.json")
    assert imported.forest.info[COVER] == "sum_hessian"
    assert any("cover" in note for note in imported.notes)
    with refused(InputError, "XGBoost", "hessians", "documents"):
        partial_dependence(imported.forest, ["a"])
    with refused(InputError, "over documents"):
        interactions(imported.forest, rows)
    assert interactions(imported.forest, rows, over="documents")
    assert partial_dependence(imported.forest, ["a"], values=rows).n_documents == 600


@pytest.mark.parametrize("cover", [[np.nan, 1.0, 1.0], [2.0, -1.0, 3.0], [0.0, 0.5, 0.5]])
def test_what_is_no_cover_weighs_nothing(cover):
    forest = random_forest(4, n_trees=1, max_leaves=2, names=list("abcde"))
    assert len(forest.node_feature) == 3
    model = json.loads(exchange.write(forest, "m").data)
    model["learner"]["gradient_booster"]["model"]["trees"][0]["sum_hessian"] = cover
    found = exchange.read(json.dumps(model).encode(), "m.json").forest
    assert not found.node_rows.any()
    with refused(InputError, "training rows"):
        shap_values(found, np.zeros((1, 5), dtype=np.float32))


def test_columns_without_names_are_reported_as_features_of_letor_text():
    xgboost = peer("xgboost")
    rows, grades = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 3
    notes = {}
    for asked in (0, 1):
        grades = (rows[:, asked] > 0).astype(int)
        model = xgboost.train({"nthread": 1, "max_depth": 1}, xgboost.DMatrix(rows, grades, nthread=1), 2)
        raw = bytes(model.save_raw("json"))
        notes[asked] = [note for note in read_from("xgboost", raw, "m").notes if "f0" in note]
        assert read_from("xgboost", raw, "m", features=["f1", "f2", "f3"]).forest.feature_names == ("f1", "f2", "f3")
        assert not any("f0" in note for note in read_from("xgboost", raw, "m", features=["a", "b", "c"]).notes)
    assert ["the first one f0" in notes[0][0], "features f1..f3" in notes[0][0]] == [True, True]
    assert "no tree asks for f0" in notes[1][0]


def test_classes_and_linear_boosters_are_refused():
    xgboost = peer("xgboost")
    rng = np.random.default_rng(1)
    grades = rng.integers(0, 3, size=300)
    plain = xgboost.DMatrix(rng.integers(0, 9, size=(300, 1)), grades, nthread=1)
    for parameters, reason in (
        ({"objective": "multi:softprob", "num_class": 3}, "classes"),
        ({"booster": "gblinear"}, "gblinear"),
        ({"objective": "survival:aft"}, "survival:aft"),
    ):
        settings = {**parameters, "nthread": 1}
        if parameters.get("objective") == "survival:aft":
            plain.set_float_info("label_lower_bound", grades + 1.0)
            plain.set_float_info("label_upper_bound", grades + 2.0)
        model = xgboost.train(settings, plain, 2)
        with refused(ConversionRefused, reason):
            exchange.read(bytes(model.save_raw("json")), "m")


def changed(edit):
    model = json.loads(exchange.write(SMALL, "web").data)
    edit(model["learner"], model["learner"]["gradient_booster"]["model"]["trees"])
    return json.dumps(model).encode()


DAMAGES = [
    (lambda m, t: m.pop("objective"), ("m.json", "learner.objective")),
    (lambda m, t: t[0].update(left_children="1"), ("int64", "trees[0].left_children")),
    (lambda m, t: t[0].update(left_children=[0.5]), ("int64", "trees[0].left_children")),
    (lambda m, t: t[0].update(right_children=[-1]), ("right_children", "1")),
    (lambda m, t: t[0].update(split_indices=[0]), ("split_indices", "1")),
    (lambda m, t: t[0]["left_children"].__setitem__(0, 0), ("tree 0", "two parents")),
    (lambda m, t: t[0]["left_children"].__setitem__(0, 99), ("child", "nodes")),
    (lambda m, t: t[0]["split_indices"].__setitem__(0, 5), ("feature 5", "5")),
    (lambda m, t: t[0]["split_conditions"].__setitem__(0, None), "float64"),
    (lambda m, t: t[0]["split_conditions"].__setitem__(-1, 1e39), "invalid"),
    (lambda m, t: m["learner_model_param"].update(base_score="many"), ("base_score", "'many'")),
    (lambda m, t: m["learner_model_param"].update(base_score="nan"), ("base score", "nan")),
    (lambda m, t: m["learner_model_param"].update(num_feature="x"), ("num_feature", "'x'")),
    (lambda m, t: m.update(feature_names=["a"]), ("1", "num_feature = 5")),
    (lambda m, t: m.update(feature_names=["a"] * 5), ("features", "same name")),
    (lambda m, t: m.update(feature_names=7), "names"),
    (lambda m, t: m.update(gradient_booster=[]), ("learner.gradient_booster", "object")),
    (lambda m, t: t.append(3), ("object", "trees[2]", "3")),
]


def test_damage_is_one_line_with_its_place():
    for edit, message in DAMAGES:
        with refused(ModelFormatError, message):
            exchange.read(changed(edit), "m.json")


def test_models_of_the_first_versions_in_json_are_read():
    """XGBoost 1.0 had no categories, no targets and no names in its files, and wrote default_left as true and false."""

    def older(learner, trees):
        learner.pop("feature_names")
        learner.pop("feature_types")
        learner["learner_model_param"].pop("num_target")
        learner["learner_model_param"].pop("boost_from_average")
        learner["gradient_booster"]["model"]["gbtree_model_param"].pop("num_parallel_tree")
        learner["gradient_booster"]["model"].pop("iteration_indptr")
        for tree in trees:
            tree["default_left"] = [flag == 1 for flag in tree["default_left"]]
            for name in [name for name in tree if name.startswith(("categories", "split_type"))]:
                tree.pop(name)

    old, new = (exchange.read(changed(edit), "m.json").forest for edit in (older, lambda learner, trees: None))
    assert old.feature_names == ("f0", "f1", "f2", "f3", "f4")
    rows = rows_for(SMALL, 3)
    assert predict(old, rows).tolist() == predict(new, rows).tolist()


def test_the_base_of_logitraw_was_a_probability_before_version_2():
    def at(version):
        def edit(learner, trees):
            learner["objective"]["name"] = "binary:logitraw"
            learner["learner_model_param"]["base_score"] = "2.5E-1"

        model = json.loads(changed(edit))
        return exchange.read(json.dumps(model | {"version": [version, 0, 0]}).encode(), "m").forest.base_score

    assert at(3) == 0.25
    assert at(1) == pytest.approx(np.log(0.25 / 0.75))


def test_a_dump_is_distinguished_from_a_model():
    with refused(InputError, "Booster.save_model", "list of trees"):
        exchange.read(b'[{"nodeid": 0, "leaf": 0.5}]', "m.json")


def test_other_files_are_no_models_and_truncated_ones_are_damaged():
    for data in (b"", b"tree\nversion=v4", b"[1, 2]", b"\xff", b'{"a": 1}', b"9" * 5000):
        with refused(InputError, "m.json"):
            exchange.read(data, "m.json")
    for data in (b"{", b'{"learner": {'):
        with refused(ModelFormatError, "m.json"):
            exchange.read(data, "m.json")


@pytest.mark.parametrize("source", ["lightgbm", "xgboost"])
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_damage_is_a_typed_error_or_a_sound_forest(source, data):
    damaged = bytearray(write_as(source, SMALL).data)
    words = [b"", b"-", b"9", b"=", b"\n", b" ", b"nan", b"[", b"]", b'"', b"null", b"1e999", b"-7", b","]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9) | st.sampled_from(words))
    with suppress(InputError, ModelFormatError, ConversionRefused):
        forest = read_from(source, bytes(damaged), "m").forest
        assert np.all(np.isfinite(predict(forest, np.zeros((1, forest.n_features), dtype=np.float32))))


def test_binary_models_are_refused_with_a_cure():
    with refused(InputError, "m.ubj", "UBJSON", "save_model('model.json')"):
        exchange.read(b"{L\0\0\0\0\0\0\0\7learner{", "m.ubj")


def test_what_xgboost_cannot_hold_is_refused_with_a_cure():
    with refused(ConversionRefused, "2 outputs"):
        exchange.write(random_forest(0, n_outputs=2, link="softmax_grade"), "web")
    with refused(ConversionRefused, "'a<b'", "features"):
        exchange.write(random_forest(0, names=["a<b", *"cdef"]), "web")
    forest = random_forest(0)
    with refused(ConversionRefused, "float32", "scores"):
        exchange.write(replace(forest, base_score=3e38), "web")
