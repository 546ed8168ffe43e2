"""What frames, tables and masked arrays say about their columns, as `Ranker` and `BinnedDataset` read them."""

import warnings
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow.dataset import dataset

from rankmill import BinnedDataset, Ranker
from rankmill.foundation.errors import TrainingDataRejected
from rankmill.python.given_rows import GivenRows
from tests.rankmill.python.small_ranker import small
from tests.refusals import refused

N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = RNG.integers(0, 3, N)
QID = np.repeat(np.arange(6), 10)
FRAME = pd.DataFrame(X, columns=["a", "b"])


def given(values, y=Y, qid=QID, **more):
    """The features' names and values, as `fit` reads them."""
    table = GivenRows.of_arrays(values, y, qid, None, more).table
    return table.names, table.values, set(table.texts)


def shuffled():
    return FRAME.set_axis(np.argsort(Y, kind="stable"))


INDEXED = (
    lambda: pa.Table.from_pandas(shuffled()),
    lambda: pa.RecordBatch.from_pandas(shuffled()),
    lambda: pa.Table.from_pandas(shuffled().rename_axis("place")),
    lambda: pl.DataFrame(pa.Table.from_pandas(shuffled())),
    lambda: shuffled().reset_index(names="Unnamed: 0"),  # as pandas.read_csv reads it, and once more
    lambda: shuffled().reset_index(names="Unnamed: 0.1"),
)


def test_the_index_of_a_frame_is_no_feature_and_a_warning_names_it():
    for make in INDEXED:
        with pytest.warns(UserWarning, match="index") as caught:
            names, values, _ = given(make())
        assert len(caught) == 1
        assert (names, values.tolist()) == (("a", "b"), X.tolist())


def test_models_of_frames_with_and_without_an_index_are_the_same_and_score_both():
    table = pa.Table.from_pandas(shuffled())
    with pytest.warns(UserWarning, match="__index_level_0__"):
        ranker = Ranker(n_rounds=2, verbose=0, min_rows_in_leaf=2).fit(table, Y, qid=QID)
    with pytest.warns(UserWarning, match="__index_level_0__"):
        binned = BinnedDataset(table, Y, qid=QID)
    assert list(ranker.feature_names_in_) == list(binned.binned.feature_names) == ["a", "b"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ranker.predict(table).tolist() == ranker.predict(FRAME).tolist()


def test_an_index_that_is_named_as_a_category_is_meant():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = pa.Table.from_pandas(FRAME.assign(shop=QID).set_index("shop"))
        given_names = GivenRows.of_arrays(table, Y, QID, categorical=["shop"]).table
    assert (set(given_names.names), set(given_names.texts)) == ({"a", "b", "shop"}, {"shop"})


def test_a_column_that_pandas_had_as_categories_is_categorical_in_an_arrow_table():
    frame = FRAME.assign(shop=pd.Categorical(QID))
    table = pa.Table.from_pandas(frame)
    decoded = table.set_column(2, "shop", pa.array(QID)).replace_schema_metadata(table.schema.metadata)
    for values in (frame, table, decoded):
        names, _, texts = given(values)
        assert (names, texts) == (("a", "b", "shop"), {"shop"})


def test_masked_features_are_missing_however_they_are_given():
    mask = X > 1
    missing = np.where(mask, np.nan, X)
    for values in (np.ma.array(X, mask=mask), [*np.ma.array(X, mask=mask)], np.ma.array(X.astype(object), mask=mask)):
        np.testing.assert_array_equal(given(values)[1], missing)
    whole = np.ma.array((X * 100).astype(np.int64), mask=mask)
    np.testing.assert_array_equal(given(whole)[1], np.where(mask, np.nan, (X * 100).astype(np.int64)))
    texts = np.ma.array(np.where(X > 0, "good", "bad"), mask=mask)
    assert np.isnan(given(texts)[1]).tolist() == mask.tolist()
    ranker = Ranker(n_rounds=2, verbose=0, min_rows_in_leaf=2).fit(np.ma.array(X, mask=mask), Y, qid=QID)
    assert ranker.predict(np.ma.array(X, mask=mask)).tolist() == ranker.predict(missing).tolist()
    np.testing.assert_array_equal(given(np.ma.array(X))[1], X)


MASKED = np.ma.array(np.abs(Y), mask=Y == 2)


def test_masked_grades_weights_and_ids_are_refused():
    for name in ("y", "qid", "sample_weight", "label", "event", "offset", "position", "query_weight"):
        column = np.ma.array(QID, mask=QID == 2) if name == "qid" else MASKED
        row = int(np.argmax(np.ma.getmaskarray(column)))
        with refused(TrainingDataRejected, "query id" if name == "qid" else name, f"row {row}", "masked"):
            small(objective="l2" if name == "label" else None).fit(X, **{"y": Y, "qid": QID, name: column})
    small(n_rounds=1).fit(X, np.ma.array(Y), qid=np.ma.array(QID, mask=np.zeros(N)))  # which hide nothing


def test_whole_numbers_of_128_bits_are_ids_grades_and_features():
    wide = pl.Series("qid", [10**19 + one for one in QID.tolist()], dtype=pl.Int128)
    grades, feature = pl.Series("y", Y, dtype=pl.Int128), pl.Series("a", QID, dtype=pl.UInt128)
    plain = Ranker(n_rounds=2, verbose=0).fit(X, Y, qid=QID)
    other = Ranker(n_rounds=2, verbose=0).fit(X, grades, qid=wide)
    assert plain.predict(X).tolist() == other.predict(X).tolist()
    _, values, _ = given(pl.DataFrame({"a": feature, "qid": wide}), qid=None)
    assert values[:, 0].tolist() == QID.tolist()
    codes = GivenRows.of_arrays(pl.DataFrame({"a": feature}), Y, QID, categorical=["a"]).table.values
    assert codes[:, 0].tolist() == QID.tolist()


def arrow():
    return pa.table({"a": X[:, 0], "b": X[:, 1]})


CONTAINERS = (
    (lambda: pl.DataFrame(X).lazy(), r"\.collect\(\)$"),
    (lambda: duckdb.from_arrow(arrow()), r"\.to_arrow_table\(\);"),
    (lambda: dataset(arrow()), r"\.to_table\(\)$"),
    (lambda: dataset(arrow()).scanner(), r"\.to_table\(\)$"),
    (lambda: arrow().to_reader(), r"\.read_all\(\)$"),
    (lambda: pytest.importorskip("scipy.sparse").csr_array(X), r"\.toarray\(\), a dense array$"),
    (lambda: {"a": X[:, 0], "b": X[:, 1]}, r"polars\.DataFrame\(X\)|an array"),
    (lambda: pl.DataFrame(arrow()).to_dicts(), r"polars\.DataFrame"),
    (lambda: (row for row in X), r"list\("),
    (lambda: {1.0, 2.0}, "a list or an array$"),
    (lambda: Path("rows.csv"), "read it first"),
)
USES = (
    lambda c, _: small().fit(c, Y, qid=QID),
    lambda c, _: small().fit(X, c, qid=QID),
    lambda c, _: small().fit(X, Y, qid=c),
    lambda c, _: small().fit(X, Y, qid=QID, sample_weight=c),
    lambda c, _: small().fit(FRAME, Y, qid=QID, eval_set=(c, Y, QID)),
    lambda c, _: BinnedDataset(c, Y, qid=QID),
    lambda c, fitted: fitted.predict(c),
    lambda c, fitted: fitted.apply(c),
    lambda c, fitted: fitted.contributions(c),
    lambda c, fitted: fitted.score(c, Y, qid=QID),
)


def test_what_has_no_rows_or_no_columns_is_refused_with_the_way_out():
    fitted = small().fit(FRAME, Y, qid=QID)
    for use in USES:
        for make, cure in CONTAINERS:
            with pytest.raises(TrainingDataRejected, match=cure) as caught:
                use(make(), fitted)
            assert "\n" not in str(caught.value)


def test_a_batch_of_arrow_is_a_table():
    batch = arrow().to_batches()[0]
    ranker = small().fit(batch, Y, qid=QID)
    assert ranker.forest_ == small().fit(arrow(), Y, qid=QID).forest_
    assert ranker.predict(batch).tolist() == ranker.predict(arrow()).tolist()
