"""Other programs that read a folder of Parquet files, as a user calls them, and the rule by which Spark chooses its
files."""

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as pads
import pyarrow.parquet as pq


def as_spark(folder):
    """Spark takes the files in the folder itself, but for those whose names begin with an underscore or a dot."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] not in "_.")
    assert files
    return pq.ParquetDataset(files).read()


READERS = {
    "pandas": pd.read_parquet,
    "pyarrow.dataset": lambda folder: pads.dataset(folder).to_table(),
    "pyarrow.parquet": pq.read_table,
    "Spark": as_spark,
    "Polars": lambda folder: pl.read_parquet(folder / "*.parquet"),
    "Polars, hidden files": lambda folder: pl.scan_parquet(folder, hidden_file_prefix="_").collect(),
    "DuckDB": lambda folder: duckdb.sql(f"FROM '{folder}/*.parquet'").to_arrow_table(),
}
"""Each takes the folder and returns a table."""


def rows_of(table):
    """Rows as tuples, without a missing value of any kind."""
    frame = table if isinstance(table, pl.DataFrame) else pl.DataFrame(table)
    return sorted(frame.fill_nan(None).rows(), key=repr)
