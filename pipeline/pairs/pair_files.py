"""Read files of preference pairs, text or tables: check each pair and quarantine malformed ones.

In text a pair is a line ``qid better worse [weight [probability]]``; tables have these columns.
"""

from __future__ import annotations

import os
from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
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

    from rankmill.pipeline.read.batch import Quarantine

_IDS, _NUMBERS = PAIR_PARTS[:3], PAIR_PARTS[3:]


class PairFile:
    """A file of pairs."""

    holds = "pairs"

    def __init__(self, path: Path, quarantine: Quarantine) -> None:
        """Open ``path``; InputError if the file does not exist, DataRejected if the header of a table is invalid."""
        self.path = path
        self._file = NarrowFile(path, PAIRS, quarantine, ReadOptions(), _pair_columns)

    @property
    def position(self) -> int:
        """Bytes of the file read so far; may stay 0 if unknown."""
        return self._file.position

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield the pairs in the order of the file: the columns of a table of pairs, and ``place``, the position for :meth:`refuse`.

        Ids are never null or empty; missing weights and probabilities are 1.
        """
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
            keep = rows.problems.keep
            kept = as_array(np.flatnonzero(keep))
            columns = {name: ids[name].take(kept) for name in _IDS}
            columns |= {name: as_array(NUMBERS[name].stored(numbers[name][keep])) for name in _NUMBERS}
            yield pa.RecordBatch.from_pydict(columns | {"place": as_array(rows.place[keep])})

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
