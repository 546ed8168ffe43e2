"""Choose the reader of a file, for rows with features as well as for qrels, pairs and runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rankmill.foundation.errors import UnusableColumns
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.files import check_file, format_of
from rankmill.pipeline.read.words import word_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rankmill.pipeline.options import Format
    from rankmill.pipeline.read.batch import Source, TableRows
    from rankmill.pipeline.read.columnar import ColumnsOf, TableSource
    from rankmill.pipeline.read.words import WordForm


def open_source(
    path: Path,
    format: str = "auto",  # noqa: A002  the option's name
    options: ReadOptions | None = None,
    quarantine: Quarantine | None = None,
    columns_of: ColumnsOf | None = None,
) -> Source:
    """Open one input file.

    Parameters
    ----------
    path
        The file.  Text may be compressed: ``.gz``, ``.bz2``, ``.zst``, ``.lz4``.
    format
        ``letor``, ``csv``, ``tsv``, ``parquet``, ``arrow``, ``jsonl``, ``run``; ``auto``: by the suffix.
    options, quarantine
        How to read, and where malformed rows go; by default the first one is an error.
    columns_of
        Assigns roles to the columns of a table; default: rows with features.

    Raises
    ------
    InputError
        The file does not exist, or the format is unknown.
    DataRejected
        The header is invalid; reading the batches raises it for rows.
    """
    options = ReadOptions() if options is None else options
    quarantine = Quarantine() if quarantine is None else quarantine
    chosen = format_of(path, format)
    check_file(path)
    if chosen == "run":
        from rankmill.pipeline.read.trec_run import RunSource

        return RunSource(path, options, quarantine)
    if chosen == "letor":
        from rankmill.pipeline.read.letor import LetorSource

        return LetorSource(path, options, quarantine)
    return open_table(path, chosen, options, quarantine, columns_of)


def open_table(
    path: Path, chosen: Format, options: ReadOptions, quarantine: Quarantine, columns_of: ColumnsOf | None
) -> TableSource:
    """Open a table of the format ``chosen``; as :func:`open_source`."""
    if chosen == "parquet":
        from rankmill.pipeline.read.parquet import ParquetSource

        return ParquetSource(path, options, quarantine, columns_of)
    if chosen == "arrow":
        from rankmill.pipeline.read.arrow_ipc import ArrowSource

        return ArrowSource(path, options, quarantine, columns_of)
    if chosen == "jsonl":
        from rankmill.pipeline.read.json_lines import JsonSource

        return JsonSource(path, options, quarantine, columns_of)
    from rankmill.pipeline.read.delimited import DELIMITERS, DelimitedSource

    delimiter = options.delimiter or DELIMITERS[chosen]
    return DelimitedSource(path, delimiter, options, quarantine, columns_of)


def _open_narrow_table(
    path: Path, chosen: Format, options: ReadOptions, quarantine: Quarantine, columns_of: ColumnsOf | None
) -> TableSource:
    """Open a table; a delimiter that is given for the tables of rows, too, need not be that of this one."""
    try:
        return open_table(path, chosen, options, quarantine, columns_of)
    except UnusableColumns as error:
        if options.delimiter is None:
            raise
        try:
            return open_table(path, chosen, replace(options, delimiter=None), quarantine, columns_of)
        except UnusableColumns:
            raise error from None


class NarrowFile:
    """A file of judgments or pairs: a table if its suffix says so, otherwise lines of words.

    Attributes
    ----------
    table
        The roles of its columns; None for lines of words.
    position
        Bytes of the file read so far; may stay 0 if unknown.
    """

    def __init__(
        self,
        path: Path,
        form: WordForm,
        quarantine: Quarantine,
        options: ReadOptions,
        columns_of: ColumnsOf | None = None,
        *,
        of_words: bool | None = None,
    ) -> None:
        """Open ``path`` by its suffix, or by ``of_words``, which says what it contains.

        InputError if the file does not exist, DataRejected if its header is invalid.
        """
        check_file(path)
        chosen = format_of(path)
        self.path = path
        self.position = 0
        self._form = form
        self._quarantine = quarantine
        words = chosen in {"letor", "run"} if of_words is None else of_words
        self._source = None if words else _open_narrow_table(path, chosen, options, quarantine, columns_of)
        self.table = None if self._source is None else self._source.table

    def rows(self, block_bytes: int = DEFAULT_BLOCK_BYTES, *, again: bool = False) -> Iterator[TableRows]:
        """Yield its columns in the order of the file; DataRejected if it is malformed.

        ``again``: the file was read before, so unreadable rows are quarantined already.
        """
        if self._source is None:
            for rows, position in word_lines(self.path, self._form, self._quarantine, block_bytes):
                yield rows
                self.position = position
        else:
            for rows in self._source.table_rows(block_bytes, again=again):
                yield rows
                self.position = self._source.position


def share_categories(sources: Sequence[Source], others: Iterable[str] = ()) -> None:
    """Let all tables among ``sources`` read the categories of any of them, and ``others``, as categories."""
    from rankmill.pipeline.read.columnar import TableSource

    tables = [source for source in sources if isinstance(source, TableSource)]
    of_tables = [frozenset() if source.table is None else source.table.categorical for source in tables]
    names = frozenset(others).union(*of_tables)
    for source, known in zip(tables, of_tables, strict=True):
        if known != names:
            source.share_categories(names)


def share_features(sources: Sequence[Source], others: Iterable[str] = ()) -> None:
    """Give all files of JSON lines among ``sources`` the features of all of them, and ``others``."""
    from rankmill.pipeline.read.json_lines import JsonSource

    found = [source for source in sources if isinstance(source, JsonSource)]
    names = {*others, *(name for source in found for name in source.columns or ())}
    for source in found:
        source.add_features(names)
