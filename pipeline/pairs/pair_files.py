"""Files of preference pairs, text or tables: what a pair must be, and which source reads which file."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine, MalformedRow
from rankmill.pipeline.arrow import as_array, open_parquet, parts_of
from rankmill.pipeline.sources import _kernels
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES, Quarantine, shorten
from rankmill.pipeline.sources.blocks import copy_tokens, read_blocks
from rankmill.pipeline.sources.columnar import are_ids, are_numbers, as_floats, as_strings
from rankmill.pipeline.sources.delimited import CellProblem, DelimitedCells
from rankmill.pipeline.sources.files import check_file, format_of
from rankmill.pipeline.sources.parquet import read_batches, schema_of_file
from rankmill.pipeline.sources.parts import OptionalColumn, read_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rankmill.pipeline.sources.batch import Quarantine
    from rankmill.pipeline.sources.blocks import Block


IDS = ("qid", "better", "worse")
NUMBERS = {
    "weight": OptionalColumn("a weight: a number, 0 or more", "write 1 where there is none", 0.0),
    "probability": OptionalColumn("a probability: a number from 0 to 1", "write 1 where it is not known", 0.0, 1.0),
}
COLUMNS = (*IDS, *NUMBERS)


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Some pairs, in the order of the file."""

    qid: pa.Array[Any]
    """(n,) the query; as ``better`` and ``worse`` never null or empty."""
    better: pa.Array[Any]
    """(n,) id of the document that is to stand higher."""
    worse: pa.Array[Any]
    """(n,) id of the other one."""
    weight: npt.NDArray[np.float64]
    """(n,) 0 or more."""
    probability: npt.NDArray[np.float64]
    """(n,) that ``better`` is the better one."""
    place: npt.NDArray[np.int64]
    """(n,) ascending: where in the file the pair is, for :meth:`PairSource.refuse`."""

    def __len__(self) -> int:
        return len(self.place)

    def kept(self, keep: npt.NDArray[np.bool_]) -> PairBatch:
        """Return the pairs where ``keep`` (n,), their numbers as they are stored."""
        rows = as_array(np.flatnonzero(keep))
        return PairBatch(
            qid=self.qid.take(rows),
            better=self.better.take(rows),
            worse=self.worse.take(rows),
            weight=NUMBERS["weight"].stored(self.weight[keep]),
            probability=NUMBERS["probability"].stored(self.probability[keep]),
            place=self.place[keep],
        )


class PairSource(Protocol):
    """One file of pairs."""

    path: Path
    position: int
    """Bytes of the file used up so far; may stay 0 where that is not known."""

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[PairBatch]:
        """Yield the pairs in the order of the file."""
        ...

    def refuse(self, mismatches: Mapping[int, Mismatch]) -> None:
        """Put the pairs at these places aside, which do not fit the judgments; reads the file again."""
        ...


class Mismatch(IntEnum):
    """Why a pair has no two rows."""

    NO_QUERY = 1
    NO_BETTER = 2
    NO_WORSE = 3
    MANY_BETTER = 4
    MANY_WORSE = 5
    NO_IDS = 6

    def complaint(self, qid: str) -> Complaint:
        """Say what was expected of a pair of query ``qid``."""
        where = {self.NO_QUERY: 0, self.NO_WORSE: 2, self.MANY_WORSE: 2}.get(self, 1)
        if self is self.NO_QUERY:
            return Complaint(where, "a query of the judgments", "")
        if self is self.NO_IDS:
            cure = "its rows have no document ids: add a column doc_id (in LETOR text: #docid = X)"
            return Complaint(where, f"a document of query {qid!r}", cure)
        if self in {self.MANY_BETTER, self.MANY_WORSE}:
            return Complaint(where, f"a document that query {qid!r} has once", "it has several rows of it")
        return Complaint(where, f"a document of query {qid!r}", "")


class Complaint(NamedTuple):
    """What is wrong with one word or cell: its number among :data:`IDS`, and what the message says."""

    column: int
    expected: str
    cure: str


class Check(NamedTuple):
    """One rule for all pairs of a batch: which break it, (n,), in which column, and what the message says."""

    bad: npt.NDArray[np.bool_]
    column: str
    expected: str
    if_empty: str


def checks(batch: PairBatch) -> Iterator[Check]:
    """Yield the rules in the order in which they are checked; NaN stands for what is no number."""
    empty = {name: np.diff(parts_of(getattr(batch, name))[0]) == 0 for name in IDS}
    yield Check(empty["qid"], "qid", "an id of the query", "")
    yield Check(empty["better"], "better", "the id of the better document", "")
    yield Check(empty["worse"], "worse", "the id of the worse document", "")
    same = pc.equal(batch.better, batch.worse).to_numpy(zero_copy_only=False)
    yield Check(same, "worse", "another document than the better one", "")
    for name, rule in NUMBERS.items():
        yield Check(~rule.fits(getattr(batch, name)), name, rule.expected, rule.if_empty)


_FORM = "qid better worse [weight [probability]]"
_COMMENT = ord("#")
_WORD = re.compile("[^ \t]+")


class TextPairs:
    """One file of text, plain or compressed; the place of a pair is the number of its line."""

    def __init__(self, path: Path, quarantine: Quarantine) -> None:
        self.path = path
        self.position = 0
        self._quarantine = quarantine

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[PairBatch]:
        """Yield the pairs in the order of the file."""
        for block in read_blocks(self.path, block_bytes):
            yield self._parse(block)
            self.position = block.position

    def refuse(self, mismatches: Mapping[int, Mismatch]) -> None:
        """Put the pairs in these lines aside."""
        wanted = np.array(sorted(mismatches), dtype=np.int64)
        for block in read_blocks(self.path, DEFAULT_BLOCK_BYTES):
            lines = block.lines
            low, high = np.searchsorted(wanted, [block.first_line, block.first_line + lines])
            texts = block.text(block.start, block.stop).split("\n") if low < high else []
            for line in wanted[low:high].tolist():
                text = texts[line - block.first_line].removesuffix("\r")
                words = list(_WORD.finditer(text))
                complaint = mismatches[line].complaint(words[0].group())
                word = words[complaint.column]
                self._put_aside(line, word.start() + 1, word.group(), complaint.expected, complaint.cure, text)

    def _parse(self, block: Block) -> PairBatch:
        text = block.bytes_view
        lines = block.lines
        line, count = (np.empty(lines, dtype=np.int64) for _ in range(2))
        start, stop = (np.full((len(COLUMNS), lines), -1, dtype=np.int64) for _ in range(2))
        n = _kernels.split_words(text, block.start, block.stop, line, count, start, stop, _COMMENT)
        words = {name: copy_tokens(text, start[w, :n], stop[w, :n]) for w, name in enumerate(COLUMNS)}
        count = count[:n]
        weight, probability = (
            np.where(count > w, read_numbers(words[name]), 1.0) for w, name in enumerate(NUMBERS, start=len(IDS))
        )
        qid, better, worse = (words[name].fill_null("") for name in IDS)
        batch = PairBatch(qid, better, worse, weight, probability, place=block.first_line + line[:n])
        keep = (count >= len(IDS)) & (count <= len(COLUMNS))
        problems = dict.fromkeys(np.flatnonzero(~keep).tolist(), (0, _FORM))
        for check in checks(batch):
            for row in np.flatnonzero(check.bad & keep).tolist():
                problems[row] = (COLUMNS.index(check.column), check.expected)
            keep &= ~check.bad
        for row, (word, expected) in sorted(problems.items()):
            self._reject(
                block, int(batch.place[row]), int(start[0, row]), int(start[word, row]), int(count[row]), expected
            )
        return batch.kept(keep)

    def _reject(self, block: Block, line: int, first_word: int, at: int, words: int, expected: str) -> None:
        line_start = max(block.start, block.data.rfind(b"\n", 0, first_word) + 1)
        text = block.text(line_start, block.data.index(b"\n", at)).removesuffix("\r")
        column = len(block.text(line_start, at)) + 1
        found = f"{words} word{'s' * (words > 1)}" if expected == _FORM else _WORD.findall(text, column - 1)[0]
        self._put_aside(line, column, found, expected, "", text)

    def _put_aside(self, line: int, column: int, found: str, expected: str, cure: str, text: str) -> None:
        error = MalformedLine(self.path, line, column, shorten(found), expected, cure)
        self._quarantine.add(error, column, text)


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


def open_pairs(path: Path, quarantine: Quarantine) -> PairSource:
    """Open one file of pairs; its suffix says whether it is CSV, TSV or Parquet, else it is text.

    Raises
    ------
    InputError
        There is no such file, or pairs do not come in its format.
    DataRejected
        The header breaks the rules; the batches raise it for pairs.
    """
    check_file(path)
    chosen = format_of(path)
    if chosen == "parquet":
        return ParquetPairs(path, quarantine)
    if chosen in {"csv", "tsv"}:
        return DelimitedPairs(path, "," if chosen == "csv" else "\t", quarantine)
    if chosen not in {"letor", "run"}:
        raise InputError(f"{path}: pairs come as text, CSV, TSV or Parquet, not as {chosen}")
    return TextPairs(path, quarantine)
