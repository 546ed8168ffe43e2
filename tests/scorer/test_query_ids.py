"""Query ids from Python: what differs stays different, or is refused."""

import datetime
from decimal import Decimal
from itertools import combinations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmill import BinnedDataset, Ranker
from rankmill.foundation.errors import TrainingDataRejected
from rankmill.scorer.query_ids import query_ids
from tests.refusals import refused

BIG = [2**63 + 2, 1, 2**64 - 1, 2**63 + 1]
WHOLE = [2**60 + 1, 3, -(2**60), 2**60]
KEPT = {
    "list": BIG,
    "list beyond 64 bits": [2**70, -1, 2**63, 2**70 + 1],
    "int64": np.array(WHOLE),
    "uint64": np.array(BIG, np.uint64),
    "objects": np.array(BIG, object),
    "floats": np.array([2.0**53 - 1, 0.0, -7.0]),
    "float32": np.array([2**24 - 1, 5], np.float32),
    "float16": np.array([2**11 - 1, 5], np.float16),
    "decimals": [Decimal(2**70), Decimal("3.00")],
    "pandas Int64": pd.Series(WHOLE, dtype="Int64"),
    "pandas UInt64": pd.Series(BIG, dtype="UInt64"),
    "pandas category": pd.Series(WHOLE).astype("category"),
    "pandas Arrow": pd.Series(WHOLE, dtype="int64[pyarrow]"),
    "pandas Float32": pd.Series([7, 8], dtype="Float32"),
    "Polars": pl.Series(BIG, dtype=pl.UInt64),
    "Polars Int128": pl.Series([2**65, 1], dtype=pl.Int128),
    "Polars Decimal": pl.Series([Decimal(3), Decimal(4)]),
    "Arrow": pa.chunked_array([WHOLE]),
    "Arrow decimal": pa.array([Decimal(2**70), Decimal(1)]),
    "text": ["a", "a\0", "1"],
    "categories of text": pl.Series(["a", "b"], dtype=pl.Categorical),
    "a dictionary": pa.array(["a", "b"]).dictionary_encode(),
}
REFUSED = {
    "2^53": (np.array([3.0, 2.0**53]), "row 1"),
    "-2^53": ([-(2.0**53)], "row 0"),
    "2^24 as float32": (np.array([2**24], np.float32), "row 0"),
    "2^11 as float16": (np.array([2**11], np.float16), "row 0"),
    "float32 in a list": ([np.float32(1e8), 1], "row 0"),
    "pandas Float32": (pd.Series([1e8], dtype="Float32"), "row 0"),
    "pandas Arrow float": (pd.Series([1e8], dtype="float[pyarrow]"), "row 0"),
    "Polars Float32": (pl.Series([1e8], dtype=pl.Float32), "row 0"),
    "a fraction": ([1.0, 2.5], "row 1", "2.5", "whole"),
    "a decimal fraction": ([Decimal("1.5")], "1.5", "whole"),
    "infinity": ([1.0, np.inf], "row 1", "inf"),
    "a decimal infinity": ([Decimal("inf")], "Infinity"),
    "NaN": (np.array([1.0, np.nan]), "row 1", "nan"),
    "None": (["a", None], "row 1", "None"),
    "a missing Int64": (pd.Series([2**60, None], dtype="Int64"), "row 1", "nan"),
    "a null of Polars": (pl.Series([2**60, None]), "row 1", "nan"),
    "a null of Arrow": (pa.array([2**60, None]), "row 1", "nan"),
    "no time": (pd.to_datetime(["2020-01-01", None]), "row 1", "NaT"),
    "a mask": (np.ma.array([1, 2], mask=[0, 1]), "row 1", "masked"),
    "an empty text": (["a", ""], "row 1", "empty"),
    "an empty NumPy text": (np.array(["a", ""]), "row 1", "empty"),
    "text and numbers": ([1, "1"], "int", "str"),
    "truth and numbers": ([1, True], "booleans"),
    "truth values": (np.array([True, False]), "booleans"),
    "a list of truth values": ([True, False], "booleans"),
    "truth values of pandas": (pd.Series([True, False], dtype="boolean"), "booleans"),
    "categories of truth values": (pd.Categorical([True, False]), "booleans"),
    "truth values of Polars": (pl.Series([True, False]), "booleans"),
    "truth values of Arrow": (pa.array([True, False]), "booleans"),
    "complex numbers": (np.array([1j]), "complex128"),
}


@pytest.mark.parametrize("ids", KEPT.values(), ids=KEPT)
def test_ids_are_kept_as_they_are(ids):
    found, given_ids = query_ids(ids).tolist(), list(ids.to_pylist() if hasattr(ids, "to_pylist") else ids)
    assert found == given_ids
    assert len(set(found)) == len(set(given_ids))


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_ids_that_may_stand_for_others_are_refused(case):
    ids, *facts = case
    with refused(TrainingDataRejected, *facts):
        query_ids(ids)


@given(st.lists(st.one_of(st.integers(-(2**70), 2**70), st.integers(2**53 - 3, 2**53 + 3)), max_size=20))
def test_lists_of_whole_numbers_never_pass_through_floats(ids):
    assert query_ids(ids).tolist() == ids


@given(st.integers(-5, 5), st.sampled_from([np.float16, np.float32, np.float64]))
def test_whole_numbers_that_share_a_float_are_never_accepted(offset, dtype):
    """Around the highest exact number of each type."""
    numbers = [2 ** (np.finfo(dtype).nmant + 1) + offset + k for k in range(3)]
    try:
        found = query_ids(np.array(numbers).astype(dtype)).tolist()
    except TrainingDataRejected:
        return
    assert all(a != b for a, b in combinations(found, 2))


def test_times_are_ids():
    days = [datetime.date(2020, 1, 2), datetime.date(2020, 1, 1)]
    for ids in (days, pd.to_datetime(days)):
        assert len(np.unique(query_ids(ids))) == 2


# ---- where Python takes ids ----------------------------------------------------------------------------------------


def rows():
    rng = np.random.default_rng(0)
    values, number = rng.normal(size=(400, 3)), np.repeat(np.arange(40), 10)
    return values, np.clip(np.round(values[:, 0] + 1), 0, 4).astype(int), number


def test_a_list_with_unsigned_ids_has_as_many_queries_as_before():
    values, y, number = rows()
    mixed = [2**63 + 2 * int(i) if i % 2 else int(i) for i in number]
    pieces = [(values[at], y[at], mixed[at]) for at in (slice(0, 200), slice(200, 400))]
    assert "40 queries" in repr(BinnedDataset(values, y, qid=mixed))
    assert "40 queries" in repr(BinnedDataset.from_pieces(pieces))


def test_pieces_may_have_ids_of_several_types():
    values, y, number = rows()
    low, high = number[:200].astype(np.int64), number[200:].astype(np.uint64) + np.uint64(2**63)
    assert "40 queries" in repr(
        BinnedDataset.from_pieces([(values[:200], y[:200], low), (values[200:], y[200:], high)])
    )


def test_floats_that_merge_queries_are_refused_by_fit_score_and_contributions():
    values, y, number = rows()
    ids = (2**60 + number).astype(float)
    ranker = Ranker(n_rounds=2, verbose=0).fit(values, y, qid=number)
    for call in (
        lambda: Ranker(n_rounds=2, verbose=0).fit(values, y, qid=ids),
        lambda: Ranker(n_rounds=2, verbose=0).fit(values, y, qid=number, eval_set=(values, y, ids)),
        lambda: ranker.score(values, y, qid=ids),
        lambda: ranker.contributions(values, qid=ids),
        lambda: BinnedDataset(pd.DataFrame(values, columns=list("abc")).assign(qid=ids), y),
        lambda: BinnedDataset.from_pieces([(values, y, ids)]),
    ):
        with refused(TrainingDataRejected, "query id", "whole numbers"):
            call()


def test_ids_that_a_scaler_transformed_are_refused():
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, MinMaxScaler, StandardScaler

    values, y, number = rows()
    frame = pd.DataFrame(values, columns=list("abc")).assign(qid=number)
    for scaler in (StandardScaler(), MinMaxScaler()):
        with refused(TrainingDataRejected, "query id", "whole", "Pipeline"):
            make_pipeline(scaler.set_output(transform="pandas"), Ranker(n_rounds=2, verbose=0)).fit(frame, y)
    bins = KBinsDiscretizer(4, encode="ordinal").set_output(transform="pandas")
    with pytest.warns(UserWarning, match=r"'qid'.* 4 different queries"):
        make_pipeline(bins, Ranker(n_rounds=2, verbose=0)).fit(frame, y)
