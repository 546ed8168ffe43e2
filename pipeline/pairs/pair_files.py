"""Read files of preference pairs, text or tables: check each pair and quarantine malformed ones.

In text a pair is a line ``qid better worse [weight [probability]]``; tables have these columns.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import ColumnProblem, DataRejected, InputError, UnusableColumns, name_hint
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, ReadOptions
from rankmill.pipeline.read.batch import Problems, shorten
from rankmill.pipeline.read.column_roles import NUMBERS, PAIR_PARTS
from rankmill.pipeline.read.columns import TableColumns
from rankmill.pipeline.read.files import check_file, refuse_copies
from rankmill.pipeline.read.open_source import NarrowFile
from rankmill.pipeline.read.role_columns import read_parts
from rankmill.pipeline.read.words import PAIRS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from rankmill.pipeline.group.query_spill import QuerySpill
    from rankmill.pipeline.read.batch import Quarantine

_IDS, _NUMBERS = PAIR_PARTS[:3], PAIR_PARTS[3:]


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Some pairs, in the order of the file."""

    qid: pa.Array[Any]
    """(n,) the query; never null or empty, like ``better`` and ``worse``."""
    better: pa.Array[Any]
    """(n,) id of the better document."""
    worse: pa.Array[Any]
    """(n,) id of the worse document."""
    weight: npt.NDArray[np.float64]
    """(n,) 0 or more."""
    probability: npt.NDArray[np.float64]
    """(n,) the probability that ``better`` is better."""
    place: npt.NDArray[np.int64]
    """(n,) ascending: position of the pair in the file, for :meth:`PairFile.refuse`."""

    def __len__(self) -> int:
        return len(self.place)

    def stored(self, source: int) -> list[pa.Array[Any]]:
        """Return the columns of :data:`rankmill.pipeline.pairs.pair_join.SPILLED` for pairs of file number ``source``."""
        of_source = np.full(len(self), source, dtype=np.int32)
        numbers: tuple[npt.NDArray[Any], ...] = (self.weight, self.probability, of_source, self.place)
        return [self.qid, self.better, self.worse, *(as_array(column) for column in numbers)]

    def kept(self, keep: npt.NDArray[np.bool_]) -> PairBatch:
        """Return the pairs where ``keep`` (n,) is true, with their numbers as stored."""
        rows = as_array(np.flatnonzero(keep))
        return PairBatch(
            qid=self.qid.take(rows),
            better=self.better.take(rows),
            worse=self.worse.take(rows),
            weight=NUMBERS["weight"].stored(self.weight[keep]),
            probability=NUMBERS["probability"].stored(self.probability[keep]),
            place=self.place[keep],
        )


class PairFile:
    """A file of pairs."""

    def __init__(self, path: Path, quarantine: Quarantine) -> None:
        """Open ``path``; InputError if the file does not exist, DataRejected if the header of a table is invalid."""
        self.path = path
        self._file = NarrowFile(path, PAIRS, quarantine, ReadOptions(), _pair_columns)

    @property
    def position(self) -> int:
        """Bytes of the file read so far; may stay 0 if unknown."""
        return self._file.position

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[PairBatch]:
        """Yield the pairs in the order of the file; missing weights and probabilities are 1."""
        for rows in self._file.rows(block_bytes):
            columns = dict(rows.columns)
            if self._file.table is None:  # missing words of short lines
                columns |= {name: columns[name].fill_null("1") for name in _NUMBERS}
            found = read_parts({name: columns[name] for name in _IDS}, rows.problems, needed=_IDS)
            ids = {name: column.fill_null("") for name, column in found.items()}
            same = pc.equal(ids["better"], ids["worse"]).to_numpy(zero_copy_only=False)
            for row in rows.problems.new(same):
                shown = repr(ids["worse"][row].as_py())
                rows.problems.add(row, "worse", shown, "a document other than the better one")
            numbers = {name: np.ones(len(rows.place)) for name in _NUMBERS}
            numbers |= read_parts({name: columns[name] for name in _NUMBERS if name in columns}, rows.problems)
            rows.put_aside(rows.problems)
            weight, probability = (numbers[name] for name in _NUMBERS)
            batch = PairBatch(ids["qid"], ids["better"], ids["worse"], weight, probability, rows.place)
            yield batch.kept(rows.problems.keep)

    def refuse(self, mismatches: Mapping[int, Mismatch]) -> None:
        """Quarantine the pairs at these positions."""
        places = np.array(sorted(mismatches), dtype=np.int64)
        for rows in self._file.rows(again=True):
            problems = Problems(len(rows.place))
            for row in problems.new(np.isin(rows.place, places)):
                mismatch = mismatches[int(rows.place[row])]
                ids = read_parts({name: rows.columns[name].slice(row, 1) for name in _IDS}, Problems(1))
                expected, cure = mismatch.expected(ids["qid"][0].as_py())
                found = repr(shorten(ids[mismatch.column][0].as_py()))
                problems.add(row, mismatch.column, found, expected, cure)
            rows.put_aside(problems)


def sorted_files(paths: Sequence[Path], taken: Collection[Path] = ()) -> list[Path]:
    """Return files of pairs in an order that does not depend on the arguments; InputError if one occurs twice."""
    seen = {path.resolve() for path in taken}
    for path in paths:
        check_file(path)
        if path.resolve() in seen:
            raise InputError(f"{path}: is given twice")
        seen.add(path.resolve())
    files = sorted(paths, key=lambda path: (path.name, os.fspath(path)))
    refuse_copies(files)
    return files


def read_pairs(
    sources: Sequence[PairFile], spill: QuerySpill, block_bytes: int, done: Callable[[int, int], None] | None = None
) -> None:
    """Spill the pairs of all files; call ``done`` with (number of the file, bytes read of it) from time to time."""
    for number, source in enumerate(sources):
        pairs = 0
        for batch in source.batches(block_bytes):
            pairs += len(batch)
            spill.add(batch.stored(number))
            if done is not None:
                done(number, source.position)
        if not pairs:
            raise DataRejected(f"{source.path}: contains no pairs")


class Mismatch(IntEnum):
    """Why a pair does not have two rows."""

    NO_QUERY = 1
    NO_BETTER = 2
    NO_WORSE = 3
    MANY_BETTER = 4
    MANY_WORSE = 5
    NO_IDS = 6

    @property
    def column(self) -> str:
        """The column of the wrong id."""
        return {self.NO_QUERY: "qid", self.NO_WORSE: "worse", self.MANY_WORSE: "worse"}.get(self, "better")

    def expected(self, qid: str) -> tuple[str, str]:
        """Return what was expected of a pair of query ``qid``, and the cure or nothing."""
        if self is self.NO_QUERY:
            return "a query of the judgments", ""
        if self is self.NO_IDS:
            cure = "its rows have no document ids: add a column doc_id (in LETOR text: #docid = X)"
            return f"a document of query {qid!r}", cure
        if self in {self.MANY_BETTER, self.MANY_WORSE}:
            return f"a document with one row in query {qid!r}", "it has several rows"
        return f"a document of query {qid!r}", ""


def _pair_columns(
    path: Path,
    header: Sequence[str],
    options: ReadOptions,  # noqa: ARG001  pairs have none
    look: Callable[[TableColumns], list[ColumnProblem]],
) -> TableColumns:
    """Assign roles to the columns of a table of pairs; DataRejected if one is missing, unknown or of the wrong type."""
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise DataRejected(f"{path}: column {twice[0]!r} occurs twice; every column needs a unique name")
    for name in _IDS:
        if name not in header:
            raise DataRejected(
                f"{path}: no column {name!r}; the columns of a table of pairs are {', '.join(PAIR_PARTS)}"
            )
    for name in header:
        if name not in PAIR_PARTS:
            hint = name_hint(name, PAIR_PARTS, f"the columns of a table of pairs are {', '.join(PAIR_PARTS)}")
            raise DataRejected(f"{path}: unknown column {name!r}; {hint}")
    columns = TableColumns({name: name for name in PAIR_PARTS if name in header}, ())
    problems = [problem for problem in look(columns) if not problem.in_rows]
    if problems:
        raise UnusableColumns(path, tuple(problems))
    return columns
