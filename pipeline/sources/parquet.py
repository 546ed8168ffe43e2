"""Parquet files: columns ``qid``, ``grade``, perhaps ``doc_id`` and optional ones, and numbers, each of them a feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.arrow import open_parquet
from pipeline.errors import DataRejected
from pipeline.sources.columnar import ColumnarSource, check_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class ParquetSource(ColumnarSource):
    """One Parquet file."""

    def schema(self) -> pa.Schema:
        """Return names and types of the columns."""
        return schema_of_file(self.path)

    def record_batches(self, rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield the columns that are read."""
        with open_parquet(self.path) as file:
            done = 0
            for batch in read_batches(file, self.path, rows, self._columns.read):
                done += len(batch)
                yield batch, done / file.metadata.num_rows


def schema_of_file(path: Path) -> pa.Schema:
    """Return the schema of the Parquet file ``path``; DataRejected if it is none."""
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise DataRejected(f"{path}: not a Parquet file, or one that is cut off: {_first_line(error)}") from None


def read_batches(
    file: pq.ParquetFile, path: Path, rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield ``columns`` of the Parquet file ``path``, open as ``file``, at most ``rows`` at a time.

    Raises
    ------
    DataRejected
        The data are damaged, or text in them is not UTF-8: Parquet does not see to that.
    """
    batches = file.iter_batches(batch_size=rows, columns=None if columns is None else list(columns))
    first = 1
    while True:
        try:
            batch = next(batches, None)
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise DataRejected(f"{path}: the Parquet data are damaged: {_first_line(error)}") from None
        if batch is None:
            return
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            check_text(path, name, column, first)
        first += len(batch)
        yield batch


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].rstrip(" .")
