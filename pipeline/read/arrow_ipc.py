"""Arrow IPC files (also called Feather) and streams, with the same columns as Parquet, read one record batch at a time.

The writer of the file chose the size of record batches: memory is that of the largest.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyarrow import ipc

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.arrow import refused_by_arrow
from rankmill.pipeline.read.blocks import compression_of, refuse_foreign_content
from rankmill.pipeline.read.columnar import ColumnarSource, check_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FILE_MARK = b"ARROW1"  # a file begins and ends with it
_STREAM_ENDS = (b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0")  # the second one before Arrow 0.15
_OLD_FEATHER = b"FEA1"


class ArrowSource(ColumnarSource):
    """An Arrow file or stream; a stream may be compressed as a whole."""

    def schema(self) -> pa.Schema:
        """Return names and types of the columns."""
        with self._opened() as reader:
            try:
                reader.schema.names  # noqa: B018
            except UnicodeDecodeError:
                raise DataRejected(
                    f"{self.path}: the Arrow data are damaged: the name of a column is not UTF-8"
                ) from None
            return reader.schema

    def stored_batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of the file with the columns ``names``."""
        yield from (batch for batch, _ in self._checked(names))

    def record_batches(self, rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield the columns to read."""
        first = 1
        for batch, share in self._checked(self._made.stored(self._columns.read)):
            for at in range(0, len(batch), rows):
                yield self._made.batch(batch.slice(at, rows), self.path, first + at), share
            first += len(batch)

    def _checked(self, names: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield the record batches of the file with the columns ``names``, and the share of the file read so far."""
        with self._opened() as whole:
            places = [whole.schema.get_field_index(name) for name in names]
        options = ipc.IpcReadOptions(included_fields=places, use_threads=False)
        with self._opened(options) as reader:
            first = 1
            for batch, share in self._batches(reader):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    _as_bytes(column).validate(full=True)  # Arrow trusts the data: bad offsets would crash the process
                    check_text(self.path, name, column, first)
                first += len(batch)
                yield batch, share

    def _batches(
        self, reader: ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        if isinstance(reader, ipc.RecordBatchFileReader):
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number), (number + 1) / reader.num_record_batches
        else:
            for batch in reader:
                yield batch, 0.0

    @contextmanager
    def _opened(
        self, options: ipc.IpcReadOptions | None = None
    ) -> Iterator[ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader]:
        """Open the file; DataRejected if it is not an Arrow file or damaged, also for errors while it is read."""
        compression = compression_of(self.path)
        try:
            with pa.input_stream(str(self.path), compression=cast("Any", compression)) as stream:
                mark = stream.read(len(_FILE_MARK))
            is_file = mark == _FILE_MARK
            if is_file and compression is not None:
                raise DataRejected(f"{self.path}: a compressed Arrow file cannot be read; decompress it")
            if mark.startswith(_OLD_FEATHER):
                raise DataRejected(f"{self.path}: is Feather version 1; convert it to version 2")
            if not is_file and compression is None:
                self._check_end()
            if is_file:
                with (
                    pa.input_stream(str(self.path), compression=cast("Any", None)) as file,
                    ipc.open_file(file, options=options) as reader,
                ):
                    yield reader
            else:
                with (
                    pa.input_stream(str(self.path), compression=cast("Any", compression)) as stream,
                    ipc.open_stream(stream, options=options) as reader,
                ):
                    yield reader
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            refuse_foreign_content(self.path)
            raise DataRejected(refused_by_arrow(self.path, error, "not Arrow data, or damaged or truncated")) from None

    def _check_end(self) -> None:
        """Reject a truncated stream: Arrow does not notice one that is cut between two record batches."""
        with self.path.open("rb", buffering=0) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - len(_STREAM_ENDS[0])))
            if not file.read().endswith(_STREAM_ENDS):
                refuse_foreign_content(self.path)
                raise DataRejected(f"{self.path}: not Arrow data, or truncated: the end marker is missing")


def _as_bytes(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return ``column`` as bytes instead of text, not copied, so that offsets can be checked before the text."""
    if isinstance(column, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(column.indices, _as_bytes(column.dictionary), safe=False)
    of_text = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    kind = of_text.get(column.type)
    return column if kind is None else column.view(kind)
