"""Parquet files: columns ``qid``, ``grade``, optionally ``doc_id`` and others.

All other numeric columns are features.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.arrow import open_parquet, parquet_metadata, refused_by_arrow
from rankmill.pipeline.read.batch import ColumnBatch, ColumnTask
from rankmill.pipeline.read.blocks import refuse_foreign_content
from rankmill.pipeline.read.columnar import ColumnarSource, check_text
from rankmill.pipeline.read.pandas_marks import with_categories

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


_SAMPLED_GROUPS, _SAMPLED_ROWS = 4, 256  # to know the length of ids
_TOO_FEW = "the Parquet data are damaged: a column has too few values"
PART_ROWS = 65536  # row groups are read together up to this size, so that reopening the file costs little


class ParquetSource(ColumnarSource):
    """One Parquet file, or some of its row groups."""

    _kept: range | None = None

    def row_groups(self) -> list[tuple[int, int]]:
        """Return the rows and the bytes of each row group of the file."""
        with open_parquet(self.path) as file:
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def keep_row_groups(self, first: int, last: int) -> int:
        """Read only row groups ``first`` to ``last`` - 1, and return the number of rows before them.

        Rows keep their numbers: reading begins at that row at least.
        """
        self._kept = range(first, last)
        self._begin = sum(rows for rows, _ in self.row_groups()[:first])
        return self._begin

    def schema(self) -> pa.Schema:
        """Return names and types of the columns."""
        return schema_of_file(self.path)

    def stored_batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some rows at a time of the columns ``names``."""
        with open_parquet(self.path) as file:
            yield from read_batches(file, self.path, _SAMPLED_ROWS, names)

    def id_bytes(self) -> int:
        """Return the average bytes of the ids of a row in the first rows of some row groups.

        It is the maximum over these groups.

        The sizes in the metadata of columns are not asked for: Arrow ends the process if they are malformed.
        """
        ids = self._made.stored(name for part, name in self._columns.column_of.items() if part in {"qid", "doc_id"})
        most = before = 0
        with open_parquet(self.path) as file:
            sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
            for number, rows in enumerate(sizes):
                if rows and number % max(1, len(sizes) // _SAMPLED_GROUPS) == 0:
                    for batch in islice(read_batches(file, self.path, _SAMPLED_ROWS, ids, [number], before), 1):
                        most = max(most, batch.nbytes // max(1, len(batch)))
                before += rows
        return most

    def record_batches(self, rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield the columns to read."""
        yield from self.record_batches_from(rows, 0)

    def record_batches_from(self, rows: int, first: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield the columns to read, from row ``first`` on; row groups before it are skipped."""
        with open_parquet(self.path) as file:
            sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
            ends = list(accumulate(sizes))
            groups = [number for number, end in enumerate(ends) if end > first and self._keeps(number)]
            if not groups:
                return
            done = ends[groups[0]] - sizes[groups[0]]
            claimed = done + sum(sizes[number] for number in groups)
            names = self._made.stored(self._columns.read)
            for stored in read_batches(file, self.path, rows, names, groups, done):
                batch = self._made.batch(stored, self.path, done + 1)
                skipped = min(max(first - done, 0), len(batch))
                done += len(batch)
                if skipped < len(batch):
                    yield batch.slice(skipped), done / ends[-1]
            if done != claimed:
                raise DataRejected(f"{self.path}: {_TOO_FEW}")

    def column_tasks(
        self, block_bytes: int, most_rows: int, first: int = 0, n_threads: int = 1
    ) -> Iterator[ColumnTask]:
        """Yield tasks that read the parts of the file: whole row groups, column by column, if they are small enough.

        They are if they have at most ``most_rows`` rows, there are enough of them for all threads, and no column is
        made of others.
        """
        with open_parquet(self.path) as file:
            metadata = file.metadata
        numbers = [number for number in range(metadata.num_row_groups) if self._keeps(number)]
        before = sum(metadata.row_group(number).num_rows for number in range(min(numbers, default=0)))
        sizes = [metadata.row_group(number).num_rows for number in numbers]
        too_large = max(sizes, default=0) > min(most_rows, max(PART_ROWS, sum(sizes) // (2 * n_threads)))
        if too_large or self._made.any_of(self._columns.read):
            yield from super().column_tasks(block_bytes, most_rows, first, n_threads)
            return
        bytes_of_file = self.path.stat().st_size
        for places, of_first, of_end in _together(sizes, min(PART_ROWS, most_rows), most_rows):
            groups, begin, end = [numbers[place] for place in places], before + of_first, before + of_end
            if end > first:
                read = partial(self._read_groups, metadata, groups, begin, max(first - begin, 0))
                yield ColumnTask(read, int(bytes_of_file * of_end / sum(sizes)))

    def _keeps(self, number: int) -> bool:
        return self._kept is None or number in self._kept

    def _read_groups(self, metadata: pq.FileMetaData, groups: list[int], begin: int, skipped: int) -> ColumnBatch:
        """Read ``groups``, which begin after ``begin`` rows of the file, without their first ``skipped`` rows.

        Each thread opens the file itself and reads a column of a row group at a time.
        """
        n = sum(metadata.row_group(group).num_rows for group in groups) - skipped
        file = pq.ParquetFile(str(self.path), metadata=metadata, pre_buffer=False)

        def read(columns: list[str]) -> pa.Table:
            with _refusing_damaged(self.path):
                table = file.read_row_groups(groups, columns=columns, use_threads=False).slice(skipped)
            if len(table) != n:
                raise DataRejected(f"{self.path}: {_TOO_FEW}")
            return table

        def features() -> Iterator[list[pa.Array[Any]]]:
            with file:
                for name in self._columns.features:
                    yield read([name]).column(name).chunks

        features_of = set(self._columns.features)
        narrow = [name for name in self._columns.read if name not in features_of]
        (batch,) = read(narrow).combine_chunks().to_batches()
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            check_text(self.path, name, column, begin + skipped + 1)
        return self._by_column(batch, features(), begin + skipped + 1)


def _together(sizes: Sequence[int], enough: int, most: int) -> Iterator[tuple[list[int], int, int]]:
    """Yield runs of row groups of ``sizes`` rows, with their start and end.

    A run has at least ``enough`` and at most ``most`` rows.
    """
    groups: list[int] = []
    begin = end = 0
    for number, size in enumerate(sizes):
        if groups and (end - begin >= enough or end + size - begin > most):
            yield groups, begin, end
            groups, begin = [], end
        if size:
            groups.append(number)
            end += size
    if groups:
        yield groups, begin, end


@contextmanager
def _refusing_damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise DataRejected(refused_by_arrow(path, error, "the Parquet data are damaged")) from None


def schema_of_file(path: Path) -> pa.Schema:
    """Return the schema of the Parquet file ``path``, with all categories as dictionaries.

    DataRejected if it is not a Parquet file.
    """
    try:
        metadata = parquet_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        schema.names  # noqa: B018
        return with_categories(schema, metadata.metadata)
    except UnicodeDecodeError:
        raise DataRejected(f"{path}: the Parquet data are damaged: the name of a column is not UTF-8") from None
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        refuse_foreign_content(path)
        raise DataRejected(refused_by_arrow(path, error, "not a Parquet file, or truncated")) from None


def read_batches(
    file: pq.ParquetFile,
    path: Path,
    rows: int,
    columns: Sequence[str] | None = None,
    groups: Sequence[int] | None = None,
    rows_before: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield ``columns`` of the Parquet file ``path``, open as ``file``, at most ``rows`` at a time.

    With ``groups`` only those row groups, which begin after ``rows_before`` rows.

    Raises
    ------
    DataRejected
        The data are damaged, or text in them is not UTF-8: Parquet does not check it.
    """
    of_columns = None if columns is None else list(columns)
    of_groups = None if groups is None else list(groups)
    batches = file.iter_batches(batch_size=rows, columns=of_columns, row_groups=of_groups)
    first = rows_before + 1
    while True:
        with _refusing_damaged(path):
            batch = next(batches, None)
        if batch is None:
            return
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            check_text(path, name, column, first)
        first += len(batch)
        yield batch
