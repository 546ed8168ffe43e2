"""A ranker keeps its model laid out between calls: the scores stay those of every column by itself, and follow the
model."""

import copy
import decimal
import pickle
import warnings

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InputError, TrainingDataRejected
from rankmill.python import prepared
from rankmill.python.feature_table import matrix_for
from rankmill.python.prepared import PreparedModel
from rankmill.scorer.models.loading import predictor_of
from tests.refusals import refused

NAMES = ("a", "b", "c")
BETWEEN = 2**24 + 2**53 + 1  # near the middle of two float32, so rounding to float64 first may give the other one
COLUMNS = {
    "halves": [0.5, -1.5, None, 2.0],
    "far": [1e300, -1e300, float("nan"), 0.1],
    "whole": [1, None, 3, -4],
    "long": [2**53 + 2**29 + 1, BETWEEN, -(2**60) - 2**36 - 1, None],
    "short": [1, 2, 3, 200],
    "flag": [True, False, None, True],
    "none": [None] * 4,
    "money": [decimal.Decimal("0.10"), decimal.Decimal("1234567.89"), None, decimal.Decimal(0)],
}
TYPES = {
    "halves": ["Float32", "Float64"],
    "far": ["Float64"],
    "whole": ["Int8", "Int16", "Int32", "Int64", "Float32"],
    "long": ["Int64", "Float64"],
    "short": ["UInt8", "UInt16", "UInt32", "UInt64"],
    "flag": ["Boolean"],
    "none": ["Null", "Float32"],
    "money": ["Decimal"],
}
KINDS = [(name, kind) for name, kinds in TYPES.items() for kind in kinds]


def trained(names=None, *, seed=0):
    rng = np.random.default_rng(seed)
    X, qid = rng.normal(size=(300, 3)), np.repeat(np.arange(30), 10)
    y = np.clip(np.round(X[:, 0] - X[:, 2] + 1), 0, 3)
    rows = X if names is None else pl.DataFrame(X, schema=list(names))
    return Ranker(preset="defaults-1", n_rounds=7, max_leaves=4, n_threads=1, verbose=0).fit(rows, y, qid=qid)


@pytest.fixture(scope="module")
def ranker():
    return trained(NAMES)


def answer(score):
    """The bytes of the scores, or why there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return score().tobytes()
        except TrainingDataRejected as error:
            return str(error)


def same_scores(ranker, X):
    """The scores of ``X`` are those of its columns one by one; what these refuse is refused in the same words."""
    model = ranker.model_
    assert answer(lambda: ranker.predict(X)) == answer(lambda: predictor_of(model).scores(matrix_for(model, X)))


def numbers_of(ranker, X):
    """Whether ``X`` is taken as a whole; its values are then those of the columns one by one."""
    same_scores(ranker, X)
    found = PreparedModel(ranker.model_).numbers(X)
    if found is not None:
        with np.errstate(over="ignore"):
            assert np.array_equal(found.astype(np.float32), matrix_for(ranker.model_, X), equal_nan=True)
    return found is not None


def column(name, kind):
    values = pl.Series(COLUMNS[name])
    return values if kind == "Decimal" else values.cast(getattr(pl, kind))


def frames():
    """Frames with every two types side by side that follow each other in `KINDS`, and each beside itself."""
    for place, one in enumerate(KINDS):
        for other in (one, KINDS[place - 1], KINDS[place - 7]):
            yield pl.DataFrame({"a": column(*one), "b": column(*other), "c": column("halves", "Float32")})


def test_frames_of_any_types_have_the_scores_of_their_columns(ranker):
    for frame in frames():
        for rows in (frame, frame.select("c", "b", "a"), frame.with_columns(extra=pl.lit("text")), frame[:0]):
            numbers_of(ranker, rows)
        table = frame.to_arrow()
        for rows in (table, table.select(["b", "c", "a"]), pa.concat_tables([table, table]), table[:0]):
            numbers_of(ranker, rows)
        numbers_of(ranker, table.to_batches()[0])


def test_pandas_frames_have_the_scores_of_their_columns(ranker):
    pytest.importorskip("pandas")
    for frame in frames():
        for rows in (frame.to_pandas(), frame.to_pandas(use_pyarrow_extension_array=True)):
            for own in (rows, rows[["c", "a", "b"]], rows.assign(extra="text"), rows[:0], rows[::-1]):
                numbers_of(ranker, own)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8", "i1", "u8", "?", "O"])
def test_arrays_of_any_type_have_the_scores_of_their_columns(ranker, dtype):
    rng = np.random.default_rng(5)
    values = rng.normal(scale=3.0, size=(1300, 3))
    if dtype in {"u8", "i8"}:
        values = np.abs(values) * 2.0**59
    X = np.asarray(values.astype(dtype), order="F")
    for rows in (X, np.ascontiguousarray(X), X[::3], X[:0], np.ascontiguousarray(X[:, ::-1])[:, ::-1]):
        rows.flags.writeable = False
        same_scores(ranker, rows)
        assert not rows.flags.writeable
    same_scores(ranker, X.tolist())
    one = X.copy()
    before = one.tobytes()
    same_scores(ranker, one)
    assert one.flags.writeable
    assert one.tobytes() == before


def test_plain_numbers_are_taken_as_a_whole(ranker):
    X = np.random.default_rng(1).normal(size=(100, 3))
    wide = pl.DataFrame(X, schema=list(NAMES))
    unnamed = trained()
    assert numbers_of(unnamed, X)
    assert numbers_of(unnamed, X.astype(np.float32))
    for rows in (wide, wide.cast(pl.Float32), wide.select("c", "a", "b"), wide.to_arrow()):
        assert numbers_of(ranker, rows)
    assert numbers_of(ranker, wide.to_arrow().to_batches()[0])
    assert numbers_of(ranker, wide.cast({"b": pl.Int64}))
    pytest.importorskip("pandas")
    assert numbers_of(ranker, wide.to_pandas())


def test_what_is_wrong_is_refused_as_ever(ranker):
    X = np.zeros((3, 3))
    for rows in (X[:, :2], X[0], pl.DataFrame(X[:, :2], schema=["a", "b"]), pl.DataFrame(X, schema=list("abd"))):
        with pytest.raises(TrainingDataRejected):
            ranker.predict(rows)
    with refused(TrainingDataRejected, "lazy frame"):
        ranker.predict(pl.DataFrame(X, schema=list(NAMES)).lazy())
    with refused(TrainingDataRejected, "two columns 'a'"):
        ranker.predict(pa.Table.from_arrays([pa.array([1.0])] * 4, names=["a", "b", "c", "a"]))
    with pytest.raises(InputError):
        ranker.predict(pl.DataFrame(X, schema=list(NAMES)), n_rounds=8)


def test_the_warning_about_names_is_at_the_line_of_the_call(ranker):
    for X in (np.zeros((3, 3)), np.zeros((3, 3), np.int8), [[0.0] * 3]):
        for call in (ranker.predict, ranker.apply):
            with pytest.warns(
                UserWarning, match=r"X has no column names; its 3 columns .* in order: a, b, c"
            ) as caught:
                call(X)
            assert [each.filename for each in caught] == [__file__]


def test_the_model_is_laid_out_once_and_again_for_other_rounds_or_another_model(ranker, monkeypatch):
    X = pl.DataFrame(np.random.default_rng(2).normal(size=(40, 3)), schema=list(NAMES))
    again, counted = copy.deepcopy(ranker), []
    monkeypatch.setattr(prepared, "predictor_of", lambda *a, **k: counted.append(a) or predictor_of(*a, **k))
    attributes = dict(vars(again))
    whole = [again.predict(X) for _ in range(3)]
    assert len(counted) == 1
    assert vars(again) == attributes  # scikit-learn asks this of predict
    first, rest = again.predict(X, n_rounds=2), again.predict(X, start_round=2)
    assert np.allclose(first + rest, whole[0])
    assert [again.predict(X).tobytes(), whole[1].tobytes(), whole[2].tobytes()] == [whole[0].tobytes()] * 3
    for like in (pickle.loads(pickle.dumps(again)), copy.copy(again)):
        assert like.predict(X).tobytes() == whole[0].tobytes()

    other = trained(NAMES, seed=1)
    again.model_ = other.model_
    assert again.predict(X).tobytes() == other.predict(X).tobytes() != whole[0].tobytes()


def test_threads_share_a_prepared_model(ranker):
    from concurrent.futures import ThreadPoolExecutor

    tables = [pl.DataFrame(np.random.default_rng(k).normal(size=(k, 3)), schema=list(NAMES)) for k in range(24)]
    rounds = [None, 3, 5, None]
    expected = [ranker.predict(X, n_rounds=rounds[k % 4]).tobytes() for k, X in enumerate(tables)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda k: ranker.predict(tables[k], n_rounds=rounds[k % 4]).tobytes(), range(24))
    assert [*found] == expected
