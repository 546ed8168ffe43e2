"""Parquet files: columns ``qid``, ``grade``, perhaps ``doc_id`` and optional ones, and numbers, each of them a feature."""

from __future__ import annotations

from itertools import accumulate
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
        yield from self.record_batches_from(rows, 0)

    def record_batches_from(self, rows: int, first: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield the columns that are read, from row ``first`` on; groups of rows before it are not read at all."""
        with open_parquet(self.path) as file:
            sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
            ends = list(accumulate(sizes))
            groups = [number for number, end in enumerate(ends) if end > first]
            if not groups:
                return
            done = ends[groups[0]] - sizes[groups[0]]
            for batch in read_batches(file, self.path, rows, self._columns.read, groups, done):
                skipped = min(max(first - done, 0), len(batch))
                done += len(batch)
                if skipped < len(batch):
                    yield batch.slice(skipped), done / ends[-1]


def schema_of_file(path: Path) -> pa.Schema:
    """Return the schema of the Parquet file ``path``; DataRejected if it is none."""
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise DataRejected(f"{path}: not a Parquet file, or one that is cut off: {_first_line(error)}") from None


def read_batches(
    file: pq.ParquetFile,
    path: Path,
    rows: int,
    columns: Sequence[str] | None = None,
    groups: Sequence[int] | None = None,
    rows_before: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield ``columns`` of the Parquet file ``path``, open as ``file``, at most ``rows`` at a time.

    With ``groups`` only those groups of rows, which come after ``rows_before`` rows.

    Raises
    ------
    DataRejected
        The data are damaged, or text in them is not UTF-8: Parquet does not see to that.
    """
    of_columns = None if columns is None else list(columns)
    of_groups = None if groups is None else list(groups)
    batches = file.iter_batches(batch_size=rows, columns=of_columns, row_groups=of_groups)
    first = rows_before + 1
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
