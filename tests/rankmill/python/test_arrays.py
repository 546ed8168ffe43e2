"""Whatever library holds the numbers, the rows are the same; what is no number is refused in one line."""

import decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.python.array_rows import rows_of
from rankmill.python.arrays import directions_by_name
from rankmill.python.feature_table import table_of
from tests.refusals import refused

COLUMNS = {"a": [1, None, 3], "b": [0.5, 1e300, -2.25], "c": [True, False, None], "d": [None, None, None]}
EXPECTED = np.array([[1, 0.5, 1, np.nan], [np.nan, np.inf, 0, np.nan], [3, -2.25, np.nan, np.nan]], np.float32)


def matrix_of(values, names=None):
    """The values of ``values``, where no feature is categorical."""
    return table_of(values, names, {}).values


def same(found):
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    assert np.array_equal(found, EXPECTED, equal_nan=True)


def test_polars_arrow_and_plain_rows_are_the_same_matrix():
    frame, table = pl.DataFrame(COLUMNS), pa.table(COLUMNS)
    same(matrix_of(frame))
    same(matrix_of(table))
    same(matrix_of(pa.concat_tables([table.slice(0, 1), table.slice(1)])))
    same(matrix_of(table.to_batches()[0]))
    same(matrix_of([list(row) for row in zip(*COLUMNS.values(), strict=True)]))
    same(matrix_of(frame.select("d", "b", "a", "c"), ("a", "b", "c", "d")))
    same(matrix_of(EXPECTED.astype(np.float64)))
    same(matrix_of(np.asfortranarray(EXPECTED)))


def test_pandas_is_the_same_matrix():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({name: pandas.Series(values, dtype="Float64") for name, values in COLUMNS.items()})
    same(matrix_of(frame))
    same(matrix_of(frame.astype({"a": "Int64", "c": "boolean", "d": "float32"})))
    same(matrix_of(frame[["d", "c", "b", "a"]], ("a", "b", "c", "d")))
    for column, kind, facts in (
        ("text", ["1.5", "TBD", "2"], ("'TBD' in row 1", "make it numbers", "to_numeric")),
        ("kind", pandas.Categorical([1, 2, 1]), ("category", "make it numbers")),
        ("query", ["red shoes", "lamp", "lamp"], ("qid=X['query']",)),
    ):
        with refused(TrainingDataRejected, f"'{column}'", *facts):
            matrix_of(frame.assign(**{column: kind}))


NO_NUMBERS = (
        (pl.DataFrame({"a": [1.0], "s": ["x"]}), ("'s'", "'x' in row 0", "make it numbers")),
        (pl.DataFrame({"s": pl.Series(["x"], dtype=pl.Categorical)}), ("'s'", "'x' in row 0")),
        (pa.table({"t": pa.array([0], pa.timestamp("s"))}), ("'t'", "timestamp[s]")),
        (np.array([["1", "2"]]), ("X", "<U1")),
        (np.array([[1, "two"]], dtype=object), ("X", "two")),
        (np.array([[1j]]), ("X", "complex128")),
        (np.zeros((2, 2, 2)), "(n, n_features)"),
        (pl.DataFrame(), "no columns"),
        (pl.LazyFrame({"a": [1]}), "X.collect()"),
        (pa.table([[1.0], [2.0]], names=["a", "a"]), ("two columns", "'a'")),
)  # fmt: skip


def test_what_is_no_number_is_refused_in_one_line():
    for values, message in NO_NUMBERS:
        with refused(TrainingDataRejected, message):
            matrix_of(values)
    assert matrix_of(pa.table({"p": [decimal.Decimal("1.25"), None]})).tolist()[0] == [1.25]


def test_rows_have_an_order_and_a_digest_of_their_own():
    rng = np.random.default_rng(4)
    x = rng.integers(0, 3, size=(60, 2)).astype(np.float32)  # many rows are equal but for their weight
    y, qid, weight = rng.integers(0, 2, 60), rng.integers(0, 5, 60), rng.integers(1, 4, 60).astype(float)
    rows = rows_of(x, y, qid, {"sample_weight": weight})
    shuffle = rng.permutation(60)
    again = rows_of(x[shuffle], y[shuffle], qid[shuffle], {"sample_weight": weight[shuffle]})
    assert np.array_equal(rows.values, again.values)
    for name in ("grades", "starts", "weights"):
        assert np.array_equal(getattr(rows.rows, name), getattr(again.rows, name))
    assert rows.digest == again.digest
    x[7, 1] += 1
    assert rows_of(x, y, qid, {"sample_weight": weight}).digest != rows.digest


def test_equal_weights_have_no_effect():
    x, y, qid = np.zeros((4, 1), np.float32), [0, 1, 0, 2], np.zeros(4)
    assert rows_of(x, y, qid, {"sample_weight": [3.0] * 4}).rows.weights is None
    assert rows_of(x, y, qid, {"sample_weight": [3.0] * 4}).digest == rows_of(x, y, qid).digest


def test_grades_and_weights_may_come_from_any_library():
    x, y, qid, weight = np.zeros((3, 1), np.float32), [0, 2, 1], np.array(["q", "q", "r"]), [1.0, 2.0, 3.0]
    expected = rows_of(x, y, qid, {"sample_weight": weight}).digest
    assert rows_of(x, pl.Series(y), qid, {"sample_weight": pl.Series(weight)}).digest == expected
    assert rows_of(x, pa.array(y), qid, {"sample_weight": pa.chunked_array([weight])}).digest == expected
    assert rows_of(x, np.array(y, dtype=object), qid, {"sample_weight": weight}).digest == expected
    with refused(TrainingDataRejected, "row 1", "grade", "nan"):
        rows_of(x, [0, None, 1], qid)
    with refused(TrainingDataRejected, "y", "object", "grades"):
        rows_of(x, np.array([0, "good", 1], dtype=object), qid)
    pandas = pytest.importorskip("pandas")
    assert rows_of(x, pandas.Series(y, dtype="Int64"), qid, {"sample_weight": pandas.Series(weight)}).digest == expected


TWO = {"X": [[1, 2], [3, 4]], "y": [0, 1], "qid": [0, 0]}
MISTAKES = [
    ({"sample_weight": [1.0, -1.0]}, ("row 1", "weight", "-1.0")),
    ({"sample_weight": [np.nan, 1.0]}, ("row 0", "weight", "nan")),
    ({"sample_weight": [1.0]}, ("2 rows", "float64", "(1,)")),
    ({"sample_weight": ["a", "b"]}, "2 rows"),
    ({"qid": [1.0, np.nan]}, ("row 1", "query id")),
    ({"qid": np.array(["a", None], dtype=object)}, ("row 1", "query id")),
    ({"qid": np.array([1, "a"], dtype=object)}, ("qid", "int", "str")),
    ({"X": [[1, 2], [3]]}, ("X", "ragged")),
    ({"X": np.array([[1, 2], [3]], dtype=object)}, ("X", "value")),
    ({"y": [[0], [1, 2]]}, ("y", "ragged")),
    ({"qid": [[0], [1, 2]]}, ("qid", "ragged")),
    ({"qid": None, "group": [[0], [1, 2]]}, ("group", "ragged")),
    ({"sample_weight": [[0], [1, 2]]}, ("sample_weight", "ragged")),
    ({"eval_set": ([[1, 2], [3]], [0, 1], [0, 0])}, ("eval set 'valid'", "X", "ragged")),
    ({"X": np.zeros((0, 2)), "y": [], "qid": []}, "no rows"),
    ({"X": np.zeros((0, 2)), "y": [], "qid": None, "group": []}, "no rows"),
    ({"eval_set": (np.zeros((0, 2)), [], [])}, ("eval set 'valid'", "no rows")),
    ({"X": pa.table([[1.0, 2.0], [2.0, 1.0]], names=["a", ""])}, ("feature 1", "unique", "''")),
    *(({"qid": None, "group": group}, ("group", "sizes", "whole numbers")) for group in ([2.0], [-1, 3], [[2]], ["2"])),
]


def test_mistakes_are_refused_in_one_line():
    for change, message in MISTAKES:
        with refused(TrainingDataRejected, message):
            Ranker().fit(**TWO | change)


def test_what_pandas_leaves_out_is_refused():
    pandas = pytest.importorskip("pandas")
    for qid in (np.array([1, pandas.NA], dtype=object), pandas.Series(["a", pandas.NA], dtype="string")):
        with refused(TrainingDataRejected, "row 1", "query id", "<NA>"):
            Ranker().fit(**TWO | {"qid": qid})
    with refused(TrainingDataRejected, "X", "two", "'1'"):
        Ranker().fit(**TWO | {"X": pandas.DataFrame(np.zeros((2, 2)), columns=[1, "1"])})


def test_directions_by_column_are_directions_by_name():
    names = ("a", "b", "c")
    assert directions_by_name(None, names) == {}
    assert directions_by_name({"b": 1}, names) == directions_by_name({1: 1}, names) == {"b": 1}
    assert directions_by_name(np.array([0, 1, -1]), names) == {"a": 0, "b": 1, "c": -1}
    with refused(InvalidParameter, "column 3", "0", "2"):
        directions_by_name({3: 1}, names)
    with refused(InvalidParameter, "2 directions", "3 features"):
        directions_by_name([1, 1], names)
    for wrong, message in (
        ([-0.5, 0, 0], ("monotone['a']", "-0.5")),
        ([1, None, 0], ("monotone['b']", "None")),
        ([1, [0], 0], ("monotone['b']", "[0]")),
        ({"a": "1"}, ("monotone['a']", "'1'")),
        ("a:1", ("mapping", "'a:1'")),
        (1, ("mapping", "1")),
        (np.array(1), "mapping"),
        ({0.5: 1}, ("column", "0.5")),
        ({"a": 1, 0: -1}, ("feature 'a'", "twice")),
    ):
        with refused(InvalidParameter, message):
            directions_by_name(wrong, names)
