"""Pairs as tables: CSV, TSV and Parquet with the columns ``qid``, ``better``, ``worse``, perhaps ``weight`` and ``probability``."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankmill.foundation.errors import DataRejected, MalformedRow
from rankmill.pipeline.arrow import open_parquet
from rankmill.pipeline.pairs.batch import COLUMNS, IDS, NUMBERS, PairBatch, checks
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES, Quarantine, shorten
from rankmill.pipeline.sources.cells import CellProblem, DelimitedCells
from rankmill.pipeline.sources.columnar import are_ids, are_numbers, as_floats, as_strings
from rankmill.pipeline.sources.optional import read_numbers
from rankmill.pipeline.sources.parquet import read_batches, schema_of_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rankmill.pipeline.pairs.batch import Check, Mismatch

_BATCH_ROWS = 65536


class DelimitedPairs:
    """One file of delimited text; the place of a pair is the number of its row."""

    def __init__(self, path: Path, delimiter: str, quarantine: Quarantine) -> None:
        self.path = path
        self.position = 0
        self._cells = DelimitedCells(path, delimiter, quarantine)
        _check_names(path, self._cells.header)

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[PairBatch]:
        """Yield the pairs in the order of the file."""
        for first, cells in self._cells.blocks(block_bytes):
            batch = _batch(cells, first, cells.column, read_numbers)
            keep = np.ones(len(batch), dtype=np.bool_)
            for check in checks(batch):
                self._cells.note(check.bad, keep, first, check.column, check.expected, check.if_empty)
            yield batch.kept(keep)
        self.position = self.path.stat().st_size

    def refuse(self, mismatches: Mapping[int, Mismatch]) -> None:
        """Put the pairs of these rows aside."""
        place = [self._cells.header.index(name) for name in IDS]

        def problem_of(row: int, cells: list[str]) -> CellProblem | None:
            if row not in mismatches:
                return None
            complaint = mismatches[row].complaint(cells[place[0]])
            return CellProblem(place[complaint.column], complaint.expected, cure=complaint.cure)

        self._cells.report(problem_of, len(mismatches))


class ParquetPairs:
    """One Parquet file; the place of a pair is the number of its row, from 1."""

    def __init__(self, path: Path, quarantine: Quarantine) -> None:
        self.path = path
        self.position = 0
        self._quarantine = quarantine
        schema = schema_of_file(path)
        _check_names(path, schema.names)
        for name in schema.names:
            kind = schema.field(name).type
            if not (are_ids(kind) if name in IDS else are_numbers(kind)):
                what = "strings or whole numbers" if name in IDS else "numbers"
                raise DataRejected(f"{path}: column {name!r} must hold {what}, its type is {kind}")

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[PairBatch]:  # noqa: ARG002  rows are few bytes
        """Yield the pairs in the order of the file."""
        first = 1
        for table in self._read():
            batch = _batch(
                table, first, lambda name, table=table: as_strings(table.column(name)).fill_null(""), as_floats
            )
            keep = np.ones(len(batch), dtype=np.bool_)
            problems: dict[int, Check] = {}
            for check in checks(batch):
                problems |= dict.fromkeys(np.flatnonzero(check.bad & keep).tolist(), check)
                keep &= ~check.bad
            for row, check in sorted(problems.items()):
                value = table.column(check.column)[row].as_py()
                empty = value is None or value == "" or (check.column in NUMBERS and np.isnan(float(value)))
                found = "nothing" if empty else f"{float(value):g}" if check.column in NUMBERS else repr(str(value))
                self._put_aside(first + row, check.column, found, check.expected, check.if_empty if empty else "")
            first += len(batch)
            yield batch.kept(keep)
        self.position = self.path.stat().st_size

    def refuse(self, mismatches: Mapping[int, Mismatch]) -> None:
        """Put the pairs of these rows aside."""
        wanted = sorted(mismatches)
        first = 1
        for table in self._read():
            for row in (row for row in wanted if first <= row < first + len(table)):
                ids = [as_strings(table.column(name).slice(row - first, 1))[0].as_py() for name in IDS]
                complaint = mismatches[row].complaint(ids[0])
                found = repr(shorten(ids[complaint.column]))
                self._put_aside(row, IDS[complaint.column], found, complaint.expected, complaint.cure)
            first += len(table)

    def _read(self) -> Iterator[pa.RecordBatch]:
        with open_parquet(self.path) as file:
            yield from read_batches(file, self.path, _BATCH_ROWS)

    def _put_aside(self, row: int, column: str, found: str, expected: str, cure: str) -> None:
        error = MalformedRow(self.path, row, column, found, expected, cure)
        self._quarantine.add(error, COLUMNS.index(column) + 1, "")


def _batch(table: pa.RecordBatch, first: int, ids_of: Any, numbers_of: Any) -> PairBatch:
    """Return the pairs of ``table``; weights and probabilities it does not have are 1."""
    names = table.schema.names
    n = len(table)
    weight, probability = (
        np.asarray(numbers_of(table.column(name)), dtype=np.float64) if name in names else np.ones(n)
        for name in NUMBERS
    )
    qid, better, worse = (ids_of(name) for name in IDS)
    return PairBatch(qid, better, worse, weight, probability, place=np.arange(first, first + n))


def _check_names(path: Path, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataRejected(f"{path}: column {twice[0]!r} is there twice; every column needs a name of its own")
    for name in IDS:
        if name not in names:
            raise DataRejected(f"{path}: no column {name!r}; a table of pairs has the columns {', '.join(COLUMNS)}")
    for name in names:
        if name not in COLUMNS:
            near = get_close_matches(name, COLUMNS, n=1)
            cure = f"did you mean {near[0]!r}?" if near else f"a table of pairs has only {', '.join(COLUMNS)}"
            raise DataRejected(f"{path}: unknown column {name!r}; {cure}")
