"""Categories in arrays and frames: the same codes from every library, and models that do not depend on it."""

import pickle
import warnings
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from rankmill import Ranker, cross_validate
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.bins.categories import LARGEST_WHOLE, category_code, category_codes
from rankmill.pipeline.bins.spec import matrix_bins
from rankmill.python.categorical_columns import with_names
from rankmill.python.feature_table import matrix_for, table_of
from tests.rankmill.python.small_ranker import small
from tests.refusals import refused

TEXTS = ["acme", None, "17", "", "Acme", "acme", "016777217", "17.0", "-3", "16777217"]
EXPECTED = np.array(
    [np.nan if text in {None, ""} else category_code(text) for text in TEXTS], dtype=np.float32
)  # fmt: skip


def codes(values, names=None, known=None, named=()):
    """The codes of the first column."""
    return table_of(values, names, known, named).values[:, 0]


def test_texts_have_the_same_codes_from_every_library():
    for column in (
        pl.Series(TEXTS),
        pl.Series(TEXTS, dtype=pl.Categorical),
        pl.Series(TEXTS, dtype=pl.Enum([*"zy", *dict.fromkeys(text for text in TEXTS if text is not None)])),
    ):
        np.testing.assert_array_equal(codes(pl.DataFrame({"a": column}), named=["a"]), EXPECTED)
    chunks = pa.chunked_array([pa.array(TEXTS[:3]).dictionary_encode(), pa.array(TEXTS[3:]).dictionary_encode()])
    for column in (pa.array(TEXTS), pa.array(TEXTS, pa.string_view()), chunks, chunks.cast(pa.large_string())):
        np.testing.assert_array_equal(codes(pa.table({"a": column}), named=["a"]), EXPECTED)
    rows = [[text, number] for number, text in enumerate(TEXTS)]
    np.testing.assert_array_equal(codes(rows, named=[0]), EXPECTED)
    np.testing.assert_array_equal(codes(np.array(rows, dtype=object), named=[0]), EXPECTED)
    texts = np.array([text or "" for text in TEXTS])[:, None]
    np.testing.assert_array_equal(codes(texts, named=[0]), EXPECTED)


def test_pandas_has_the_same_codes():
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(TEXTS, dtype=object)
    for column in (
        series, series.astype("string"), series.astype("str"), series.astype("category"),
        series.replace({"": np.nan}), series.replace({"": pandas.NA}),
        series.replace({"17": 17, "16777217": 16777217}),  # of several types
        series.replace({"17": 17.0, "-3": Decimal(-3)}),
        series.astype(pandas.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))),
        pandas.Categorical(series, categories=["unused", *dict.fromkeys(text for text in TEXTS if text is not None)]),
    ):  # fmt: skip
        np.testing.assert_array_equal(codes(pandas.DataFrame({"a": column}), named=["a"]), EXPECTED)


WHOLE = [0, 1, -3, LARGEST_WHOLE, LARGEST_WHOLE + 1, LARGEST_WHOLE + 2, -LARGEST_WHOLE - 1, 2**53 - 1, None, 7]
OF_WHOLE = np.array(
    [np.nan if number is None else category_code(str(number)) for number in WHOLE], dtype=np.float32
)  # fmt: skip


def test_whole_numbers_are_coded_by_their_digits():
    for column in (pl.Series(WHOLE), pl.Series(WHOLE, dtype=pl.Float64)):
        np.testing.assert_array_equal(codes(pl.DataFrame({"a": column}), named=["a"]), OF_WHOLE)
    np.testing.assert_array_equal(codes(pa.table({"a": WHOLE}), named=[0]), OF_WHOLE)
    as_floats = np.array([[np.nan if number is None else number, 1.0] for number in WHOLE])
    np.testing.assert_array_equal(codes(as_floats, named=[0]), OF_WHOLE)
    np.testing.assert_array_equal(codes(as_floats, named=["f0"]), OF_WHOLE)
    present = np.array([[0 if number is None else number] for number in WHOLE])
    np.testing.assert_array_equal(codes(present, named=[0]), np.nan_to_num(OF_WHOLE, nan=0.0))
    np.testing.assert_array_equal(codes(present.astype(object), named=[0]), np.nan_to_num(OF_WHOLE, nan=0.0))
    big = [[2**64 - 1], [10**30]]
    np.testing.assert_array_equal(
        codes(np.array(big, dtype=object), named=[0]),
        np.array([category_code(str(row[0])) for row in big], dtype=np.float32),
    )
    assert codes(pa.table({"a": [1.0, 2.5]}), named=["a"]).tolist() == [1.0, category_code("2.5")]


def test_pandas_numbers_are_coded_by_their_digits():
    pandas = pytest.importorskip("pandas")
    for column in (pandas.array(WHOLE, dtype="Int64"), pandas.Series(WHOLE, dtype=float), pandas.Series(WHOLE, dtype=object)):  # fmt: skip
        np.testing.assert_array_equal(codes(pandas.DataFrame({"a": column}), named=["a"]), OF_WHOLE)
    np.testing.assert_array_equal(codes(pandas.DataFrame({"a": pandas.Series(WHOLE[:8], dtype="category")})), OF_WHOLE[:8])  # fmt: skip
    numbered = pandas.DataFrame(np.array([[number or 0] for number in WHOLE]))
    np.testing.assert_array_equal(codes(numbered, named=[0]), np.nan_to_num(OF_WHOLE, nan=0.0))


def test_codes_and_truth_values_stay_as_they_are():
    found = table_of(pa.table({"a": pa.array(EXPECTED)}), named=["a"])
    np.testing.assert_array_equal(found.values[:, 0], EXPECTED)
    assert found.texts == {"a": {}}
    frame = pl.DataFrame({"a": [True, False, None]})
    assert table_of(frame).texts == {}
    for named in ([], ["a"]):
        np.testing.assert_array_equal(codes(frame, named=named), np.array([1, 0, np.nan], dtype=np.float32))


def test_bins_have_the_names_of_their_categories():
    table = table_of(
        pl.DataFrame({"a": ["b", "5", "a", None], "n": [1.0, 2.0, 3.0, 4.0], "i": [1, 2, 3, 3]}), named=["i"]
    )
    features = table.bins(255).features
    assert [feature.categorical for feature in features] == [True, False, True]
    by_code = sorted(["b", "5", "a"], key=category_code)
    assert features[0].edges.tolist() == [category_code(text) for text in by_code]
    assert features[0].names == tuple(by_code)
    assert features[2].names == ()
    rare = matrix_bins(["a"], table.values[:, :1], 2, categorical=["a"])
    assert len(with_names(rare, table.texts).features[0].names) == 1


def test_texts_with_the_same_code_are_named():
    texts = ["item-11991", "item-34378", "a"]
    assert category_code(texts[0]) == category_code(texts[1])
    with pytest.warns(UserWarning, match="'shop': 'item-11991' and 'item-34378' have the same code"):
        table_of(pl.DataFrame({"shop": texts})).bins(255)


def test_numbers_that_became_float32_after_fit_are_named():
    number = np.arange(800) % 4
    ids = 20_000_001.0 + 2 * number[:, None]
    ranker = small(categorical=[0], min_rows_in_group=1).fit(ids, number // 2, qid=np.arange(800) // 8)
    assert ranker.forest_.categories["f0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = ranker.predict(ids)
        assert (ranker.predict(category_codes([str(int(i)) for i in ids[:, 0]])[:, None]) == whole).all()
    with pytest.warns(UserWarning, match="'f0'.*float32.*float64"):
        ranker.predict(ids.astype(np.float32))


def test_text_that_is_probably_no_category_is_refused():
    for name, column, facts in (
        ("a", ["1.5", "TBD", "2"], ("'TBD' in row 1", "leave it out", "categorical")),
        ("a", ["1", "2", "3"], ("'a'", "categorical")),
        ("a", [b"x", b"y", b"z"], ("'a'", "large_binary", "leave it out")),
        *((name, ["x", "y"], (f"'{name}'", "leave it out")) for name in ("query", "product_id", "URL")),
    ):
        frame = pl.DataFrame({name: column})
        with refused(TrainingDataRejected, facts):
            table_of(frame)
        if isinstance(column[0], str):
            assert table_of(frame, named=[name]).texts.keys() == {name}
            assert table_of(frame.cast(pl.Categorical)).texts.keys() == {name}
    assert table_of(frame, named=[name]).texts == {name: {text: category_code(text) for text in "xy"}}


def test_what_is_wrong_with_the_option_is_said():
    frame = pl.DataFrame({"brand": ["x", "y"], "n": [1, 2], "when": [b"a", b"b"]})
    with refused(InvalidParameter, "categorical", "'brnd'", "'brand'"):
        table_of(frame, named=["brnd"])
    with refused(InvalidParameter, "categorical", "column 3", "0 .. 2"):
        table_of(frame, named=[3])
    with refused(TrainingDataRejected, "'when'", "large_binary"):
        table_of(frame, named=["when"])
    for wrong in ("brand", 1):
        with refused(InvalidParameter, "categorical", "list", repr(wrong)):
            small(categorical=wrong).fit(frame[:, :2], [0, 1], qid=[0, 0])


BRANDS = ["acme", "bolt", "core", "dune", "echo", "fern", "gale", "hive"]
SHOPS = [3, 7, LARGEST_WHOLE + 1, LARGEST_WHOLE + 2, LARGEST_WHOLE + 3]


def planted(n_queries=60, seed=0):
    """(columns, grades, qid): the grade follows the brand, the shop and a number."""
    rng = np.random.default_rng(seed)
    n = 10 * n_queries
    brand, shop, price = rng.integers(0, len(BRANDS), n), rng.integers(0, len(SHOPS), n), rng.normal(size=n)
    y = np.clip(np.round((brand % 3) + (shop % 2) + 0.3 * price), 0, 4).astype(int)
    names = [None if row % 11 == 0 else BRANDS[code] for row, code in enumerate(brand)]
    columns = {"price": price, "brand": names, "shop": [SHOPS[code] for code in shop], "new": rng.uniform(size=n) < 0.5}
    return columns, y, np.repeat(np.arange(n_queries), 10)


OPTIONS = {"categorical": ["shop"], "min_rows_in_leaf": 5, "min_rows_in_group": 5, "category_smoothing": 1.0}


def frames(columns):
    """The same rows from several libraries."""
    table = pa.table(columns)
    yield table
    yield table.set_column(1, "brand", table["brand"].dictionary_encode())
    frame = pl.DataFrame(columns)
    yield frame
    yield frame.with_columns(pl.col("brand").cast(pl.Categorical))
    try:
        import pandas
    except ImportError:
        return
    yield pandas.DataFrame(columns)
    yield pandas.DataFrame(columns).astype({"brand": "category"})
    yield pandas.DataFrame(columns).astype({"brand": object, "shop": "Int64", "new": "boolean"})


def test_the_library_does_not_change_the_model():
    columns, y, qid = planted()
    held, held_y, held_qid = planted(20, seed=1)
    models = {
        small(**OPTIONS).fit(frame, y, qid=qid, eval_set=(other, held_y, held_qid)).forest_.to_bytes()
        for frame, other in zip(frames(columns), frames(held), strict=True)
    }
    assert len(models) == 1
    shuffle = np.random.default_rng(3).permutation(len(y))
    again = small(**OPTIONS).fit(
        pl.DataFrame(columns)[shuffle], y[shuffle], qid=qid[shuffle], eval_set=(pl.DataFrame(held), held_y, held_qid)
    )
    assert {again.forest_.to_bytes()} == models
    assert {*again.forest_.categories} == {"brand", "shop"}
    assert set(again.forest_.categories["brand"]) <= set(BRANDS)
    assert set(again.forest_.categories["shop"]) <= {str(shop) for shop in SHOPS[2:]}
    assert again.forest_.splits_by_set.any()
    frame = pl.DataFrame(held)
    assert again.score(frame, held_y, qid=held_qid) == max(
        record.metrics["valid"]["ndcg@10"] for record in again.history_
    )
    by_position = small(**{**OPTIONS, "categorical": [2]}).fit(frame, held_y, qid=held_qid)
    assert by_position.forest_ == small(**OPTIONS).fit(frame, held_y, qid=held_qid).forest_


def test_unseen_and_missing_categories_are_none_of_the_known():
    columns, y, qid = planted()
    ranker = small(**OPTIONS).fit(pl.DataFrame(columns), y, qid=qid)
    rows = {"price": [0.0] * 4, "brand": ["new brand", None, "", "never"], "shop": [3] * 4, "new": [True] * 4}
    scores = [ranker.predict(frame) for frame in frames(rows)]
    assert all((each == scores[0]).all() for each in scores)
    assert len(set(scores[0].tolist())) == 1
    whole = pl.DataFrame(rows | {"brand": [None] * 4}, schema_overrides={"brand": pl.Null})
    assert (ranker.predict(whole) == scores[0]).all()


def test_a_model_knows_its_categories_when_it_is_used():
    columns, y, qid = planted()
    frame = pl.DataFrame(columns)
    ranker = small(**OPTIONS).fit(frame, y, qid=qid)
    loaded = Ranker.from_model(ranker.forest_)
    assert loaded.categorical == ["brand", "shop"]
    expected = ranker.predict(frame)
    assert (loaded.predict(frame) == expected).all()
    assert (pickle.loads(pickle.dumps(ranker)).predict(frame) == expected).all()
    rows = np.array([list(row) for row in frame.iter_rows()], dtype=object)
    with pytest.warns(UserWarning, match="no column names"):
        assert (loaded.predict(rows) == expected).all()
    forest = ranker.forest_
    with refused(TrainingDataRejected, "'price'", "'cheap' in row 0"):
        ranker.predict(frame.with_columns(price=pl.lit("cheap")))
    for number in (2, 2.5, np.float32(2)):
        with refused(TrainingDataRejected, "'brand'", "holds numbers", "texts"):
            ranker.predict(frame.with_columns(brand=pl.lit(number)))
    codes_alone = pl.Series(matrix_for(forest, frame)[:, 1])
    assert (ranker.predict(frame.with_columns(brand=codes_alone)) == expected).all()
    np.testing.assert_array_equal(
        matrix_for(forest, frame.with_columns(shop=pl.lit(5)))[:2, 2], [5.0, 5.0]
    )  # the model knows numbers of it


def test_it_is_cloned_searched_and_cross_validated_with_its_categories():
    columns, y, qid = planted()
    frame = pl.DataFrame(columns)
    ranker = small(folds=3, **OPTIONS)
    assert ranker.get_params()["categorical"] == ["shop"]
    sklearn_base = pytest.importorskip("sklearn.base")
    assert sklearn_base.clone(ranker).get_params() == ranker.get_params()
    found = cross_validate(ranker, frame, y, qid=qid)
    assert found == cross_validate(ranker, frame.with_columns(pl.col("brand").cast(pl.Categorical)), y, qid=qid)
    assert found != cross_validate(ranker.set_params(categorical=None), frame, y, qid=qid)


def test_a_refit_and_members_keep_the_categories():
    columns, y, qid = planted()
    held, held_y, held_qid = planted(20, seed=1)
    held["brand"][3] = "only held"
    eval_set = (pl.DataFrame(held), held_y, held_qid)
    more = {"refit": "all", "members": 2, "bootstrap": "bayesian"}
    ranker = small(**OPTIONS, **more, objective="query_rmse").fit(pl.DataFrame(columns), y, qid=qid, eval_set=eval_set)
    assert {*ranker.forest_.categories} == {"brand", "shop"}
    assert "only held" not in ranker.forest_.categories["brand"]


def test_a_base_model_and_a_resumed_one_agree_about_categories():
    columns, y, qid = planted()
    frame = pl.DataFrame(columns)
    base = small(**OPTIONS).fit(frame, y, qid=qid)
    corrected = small(**OPTIONS).fit(frame, y, qid=qid, base_model=base)
    assert corrected.forest_.n_trees == 2 * base.forest_.n_trees
    assert corrected.score(frame, y, qid=qid) == corrected.history_[-1].train["ndcg@10"]
    with refused(InvalidParameter, "'shop'", "a number in the data", "categorical in the base model"):
        small().fit(frame, y, qid=qid, base_model=base)
    half = small(**OPTIONS, n_rounds=4).fit(frame, y, qid=qid)
    assert small(**OPTIONS).fit(frame, y, qid=qid, resume=half).forest_ == base.forest_
