"""Dates are no features as they are: every message says how they become days since 1970, and what it says is run
here."""

import datetime
import re

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import DataRejected, TrainingDataRejected
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.open_source import open_source
from rankmill.python.given_rows import GivenRows
from tests.refusals import refused

TIMES = [datetime.datetime(2024, 1, 1, 12), datetime.datetime(1969, 12, 31), None, datetime.datetime(2024, 1, 3)]
DAYS = np.float32([19723.5, -1.0, np.nan, 19725.0])
ROWS = {"qid": ["007", "007", "q2", "q2"], "doc_id": list("abab"), "grade": [1, 0, 0, 2]}
Y, QID = ROWS["grade"], ROWS["qid"]
WITH_ZONE = [None if time is None else time.replace(tzinfo=datetime.UTC) for time in TIMES]
EXTRA = {"pd": pd, "pl": pl, "pa": pa, "pc": pc, "np": np}
X_BESIDE = {"x": [0.5, 1.5, 2.5, 3.5]}


def days_of(X, name="seen"):
    """Do what the refusal of the dates in ``X`` says, and return the result as `fit` reads it."""
    with pytest.raises(TrainingDataRejected, match=r"since 1970|make them days") as caught:
        GivenRows.of_arrays(X, Y, QID)
    code = re.search(r"(?:1970-01-01|days): (.*?)(?:, or name it.*)?$", str(caught.value))[1]
    made = eval(code, EXTRA | {"X": X})
    if isinstance(X, pd.DataFrame):
        X = X.assign(**{name: made})
    elif isinstance(X, pl.DataFrame):
        X = X.with_columns(made.alias(name))
    elif isinstance(X, pa.Table):
        X = X.set_column(X.column_names.index(name), name, made)
    elif isinstance(made, np.ndarray) and made.ndim == 2:
        return GivenRows.of_arrays(made, Y, QID).table.values[:, 0]
    else:
        X = X.copy()
        X[:, 1] = made
        return GivenRows.of_arrays(X, Y, QID).table.values[:, 1]
    return GivenRows.of_arrays(X, Y, QID).table.values[
        :, X.columns.get_loc(name) if isinstance(X, pd.DataFrame) else -1
    ]


def text(times):
    return [None if time is None else time.isoformat() for time in times]


FRAMES = {
    "pandas": lambda: pd.DataFrame({**X_BESIDE, "seen": pd.to_datetime(pd.Series(TIMES))}),
    "pandas in ns": lambda: pd.DataFrame({**X_BESIDE, "seen": pd.Series(TIMES, dtype="datetime64[ns]")}),
    "pandas with a zone": lambda: pd.DataFrame({**X_BESIDE, "seen": pd.Series(WITH_ZONE).dt.tz_convert("Asia/Tokyo")}),
    "text in pandas": lambda: pd.DataFrame({**X_BESIDE, "seen": text(TIMES)}),
    "text with a zone in pandas": lambda: pd.DataFrame({**X_BESIDE, "seen": text(WITH_ZONE)}),
    "Polars": lambda: pl.DataFrame({**X_BESIDE, "seen": TIMES}),
    "Polars in ms": lambda: pl.DataFrame({**X_BESIDE, "seen": TIMES}, schema_overrides={"seen": pl.Datetime("ms")}),
    "Polars with a zone": lambda: pl.DataFrame({**X_BESIDE, "seen": WITH_ZONE}),
    "text in Polars": lambda: pl.DataFrame({**X_BESIDE, "seen": text(TIMES)}),
    "Arrow": lambda: pa.table({**X_BESIDE, "seen": TIMES}),
    "Arrow with a zone": lambda: pa.table(
        {**X_BESIDE, "seen": pa.array(WITH_ZONE).cast(pa.timestamp("ns", "Asia/Tokyo"))}
    ),
    "text in Arrow": lambda: pa.table({**X_BESIDE, "seen": text(TIMES)}),
    "an array of objects": lambda: np.array([X_BESIDE["x"], TIMES], dtype=object).T,
    "an array of times": lambda: np.array([TIMES], dtype="datetime64[us]").T,
}


def test_the_cure_of_dates_makes_days_and_keeps_what_is_missing():
    for make in FRAMES.values():
        np.testing.assert_array_equal(days_of(make()), DAYS)


def test_dates_without_a_time_of_day_and_lengths_of_time():
    dates = [None if time is None else time.date() for time in TIMES]
    whole = np.floor(DAYS)
    for frame in (pd.DataFrame({"seen": dates}), pl.DataFrame({"seen": dates}), pa.table({"seen": dates})):
        np.testing.assert_array_equal(days_of(frame), whole)
    period = pd.DataFrame({"seen": pd.Series(pd.PeriodIndex(["2024-01", None, "2024-02", "2024-01"], freq="M"))})
    np.testing.assert_array_equal(days_of(period), np.float32([19723, np.nan, 19754, 19723]))
    for frame in (pd.DataFrame({"seen": pd.to_timedelta([36, None, 24, 0], unit="h")}), pl.DataFrame({"seen": [datetime.timedelta(hours=36), None, datetime.timedelta(1), datetime.timedelta(0)]})):  # fmt: skip
        with pytest.raises(TrainingDataRejected) as caught:
            GivenRows.of_arrays(frame, Y, QID)
        made = eval(str(caught.value).rpartition("days: ")[2], EXTRA | {"X": frame})
        assert str(made.to_list()).replace("nan", "None") == "[1.5, None, 1.0, 0.0]"


def test_serving_refuses_dates_by_the_same_cure():
    frame = FRAMES["pandas"]()
    X = pd.DataFrame({**X_BESIDE, "seen": DAYS})
    ranker = Ranker(n_rounds=1, verbose=0, min_rows_in_leaf=1).fit(X, Y, qid=QID)
    with refused(TrainingDataRejected, "'seen'", "pd.to_datetime(X['seen']", "1970-01-01"):
        ranker.predict(frame)


def write(path, times):
    table = pl.DataFrame({**ROWS, "seen": times})
    kinds = {".csv": table.write_csv, ".parquet": table.write_parquet, ".jsonl": table.write_ndjson}
    kinds.get(path.suffix, lambda path: table.write_csv(path, separator="\t"))(path)
    return path


@pytest.mark.parametrize("name", ["it's.csv", "a.tsv", "a.parquet", "a.jsonl"])
def test_the_cure_of_a_file_makes_the_same_days(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    candidates = ReadOptions(grade_required=False, known_features=frozenset({"seen"}))
    for times in (WITH_ZONE, TIMES) if name == "a.parquet" else (WITH_ZONE, TIMES, text(TIMES)):
        path = write(tmp_path / name, times)
        with refused(DataRejected, "'seen'", "time_column") as caught:
            open_source(path, options=ReadOptions())
        duckdb.sql(str(caught.value).partition("DuckDB: ")[2])
        (made,) = tmp_path.glob("days.*")
        (batch,) = open_source(made, options=ReadOptions()).batches()
        np.testing.assert_array_equal(batch.values[:, 0], DAYS)
        assert batch.qid.to_pylist() == QID
        with pytest.raises(DataRejected, match="seen"):
            list(open_source(path, options=candidates).batches())
        made.unlink()


def frame_of(values):
    return pd.DataFrame({"x": np.arange(len(values), dtype=float), "title": values})


def test_text_that_is_mostly_in_one_row_alone_is_no_category_unless_it_is_named():
    y, qid = [0, 1] * 30, np.repeat(range(6), 10)
    titles = [f"shoe number {k}" for k in range(60)]
    nearly = [f"shoe number {min(k, 40)}" for k in range(60)]
    for values in (titles, nearly):
        for frame in (frame_of(values), pl.DataFrame(frame_of(values)), frame_of(values).to_numpy()):
            with refused(TrainingDataRejected, "shoe number 0", "leave it out", "categorical"):
                Ranker(n_rounds=1, verbose=0).fit(frame, y, qid=qid)
    Ranker(n_rounds=1, verbose=0, categorical=["title"]).fit(frame_of(titles), y, qid=qid)
    Ranker(n_rounds=1, verbose=0).fit(frame_of(pd.Categorical(titles)), y, qid=qid)
    Ranker(n_rounds=1, verbose=0).fit(frame_of([f"shop {k % 30}" for k in range(60)]), y, qid=qid)
